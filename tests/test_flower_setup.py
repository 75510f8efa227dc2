"""What a deployment starts from: the data of a node, the options of a run, the app folder, certificates and keys."""

import stat
import tomllib
from ipaddress import ip_address

import numpy as np
import pandas as pd
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Context, RecordDict
from flwr.common.config import get_project_config
from typer.testing import CliRunner

import kinfed
from kinfed.backends.site import answer
from kinfed.backends.wire import Request
from kinfed.cli.sites import flower_app
from kinfed.deployment.certificates import write_certificates
from kinfed.deployment.folder import write_app
from kinfed.deployment.options import read_settings, server_learner_of
from kinfed.deployment.site import site_from_context
from kinfed.errors import InputError, MissingExtraError
from kinfed.federation import Federation
from kinfed.settings import FLOWER, Settings, options_of


def site(node, run, make_learner=None):
    return site_from_context(Context(1, 2, node, RecordDict(), run), make_learner)


@pytest.fixture(name="tables")
def hospital_tables(tmp_path):
    """One table of all agents, and one of each without the agent column."""
    rng = np.random.default_rng(0)
    agent = np.repeat(["north", "east", "south"], [30, 20, 25])
    frame = pd.DataFrame({"x": rng.normal(size=75), "z": rng.choice(["u", "v"], 75), "y": rng.normal(size=75)})
    frame.assign(agent=agent).to_csv(tmp_path / "all.csv", index=False)
    for name in ("north", "east", "south"):
        frame[agent == name].to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


def same(first: Federation, second: Federation):
    assert first.names == second.names
    assert first.columns == second.columns
    pd.testing.assert_frame_equal(pd.DataFrame(first[0].X), pd.DataFrame(second[0].X))
    np.testing.assert_array_equal(first[0].y, second[0].y)


@pytest.mark.parametrize("place, name", [(0, "north"), (1, "east"), (2, "south")])
def test_a_site_alone_holds_the_rows_it_has_in_the_pool(tables, place, name):
    run = {"target": "y", "agent": "agent", "test-size": 0.3, "seed": 5}
    train, test = kinfed.read_federation(tables / "all.csv", target="y", agent="agent").split(0.3, 5)
    pooled = site({"partition-id": place, "num-partitions": 3}, {**run, "data": str(tables / "all.csv")})
    alone = site({"partition-id": place, "data": str(tables / f"{name}.csv")}, run)
    picked = site({"partition-id": place, "data": str(tables / "all.csv"), "name": name}, run)
    for made in (pooled, alone, picked):
        assert (made.name, made.place, made.keep_model) == (name, place, None)
        same(made.train, train.select([place]).in_order())
        same(made.test, test.select([place]).in_order())
        assert repr(made.learner) == "AutoLearner(options={})"


def test_a_node_may_have_a_name_a_test_file_and_a_folder_of_its_own(tables):
    node = {"data": str(tables / "north.csv"), "test": str(tables / "east.csv"), "name": "N", "out": str(tables / "mine")}
    made = site(node, {"target": "y"})
    assert (made.name, len(made.train[0]), len(made.test[0])) == ("N", 30, 20)
    assert made.keep_model.args == (tables / "mine",)
    assert site({"data": str(tables / "north.csv")}, {"target": "y", "test-size": 0.0}).test is None
    assert site({"data": str(tables / "north.csv"), "name": 7}, {"target": "y"}).name == "7"


def test_the_task_decides_the_type_of_the_target_where_a_site_cannot_know(tmp_path):
    pd.DataFrame({"x": [0.1, 0.2, 0.3, 0.4], "y": [1, 2, 1, 2]}).to_csv(tmp_path / "a.csv", index=False)
    node = {"data": str(tmp_path / "a.csv")}
    assert site(node, {"target": "y"}).train[0].y.dtype.kind == "i"
    assert site(node, {"target": "y", "task": "regression"}).train[0].y.dtype.kind == "f"
    asked = []

    def make_learner(name, task):
        asked.append((name, task))
        return kinfed.make_learner("ridge", penalty=3.0)

    assert site(node, {"target": "y", "task": "regression", "learner": "mine"}, make_learner).learner.penalty == 3.0
    assert asked == [("mine", "regression")]


@pytest.mark.parametrize(
    "node, run, match",
    [
        ({}, {}, "this node has no data"),
        ({"data": "nowhere.csv"}, {}, "does not exist; give this node the path"),
        ({"dat": "x"}, {}, "no option 'dat' in a node's configuration"),
        ({"partition-id": -1}, {}, "partition-id of a node"),
        (
            {"partition-id": 0, "num-partitions": 2},
            {"data": "{}/all.csv", "agent": "agent"},
            "holds 3 agents, but there are 2",
        ),
        ({"partition-id": 3}, {"data": "{}/all.csv", "agent": "agent"}, "no agent 3"),
        ({"data": "{}/all.csv"}, {"agent": "agent"}, "holds 3 agents; say which"),
        ({"data": "{}/all.csv", "name": "west"}, {"agent": "agent"}, "west"),
        ({"data": "{}/north.csv"}, {"target": "why"}, "why"),
        ({"data": "{}/north.csv"}, {"target": "z", "task": "regression"}, "not a number"),
        ({"data": "{}/north.csv"}, {"target": "y", "task": "classification"}, "has decimals"),
        ({"data": "{}/north.csv"}, {"seeds": 1}, "no option 'seeds'; the nearest is"),
    ],
)
def test_mistakes_in_a_configuration_are_named(tables, node, run, match):
    def filled(config):
        return {key: value.replace("{}", str(tables)) if isinstance(value, str) else value for key, value in config.items()}

    with pytest.raises(InputError, match=match) as raised:
        site(filled(node), filled(run))
    assert str(tables) not in str(raised.value)


def test_a_site_that_cannot_be_set_up_tells_the_server_no_cells_and_no_paths(tmp_path):
    folder = tmp_path / "ward of Mrs Smith"
    folder.mkdir()
    path = folder / "heart patients.csv"
    outcome = [f"Smith {k}" if k % 2 else k for k in range(48)]
    pd.DataFrame({"x": range(48), "y": outcome}).to_csv(path, index=False)
    run = {"target": "y", "learner": "mine"}

    def fails(name, task):
        raise ValueError("Smith")

    for node, given, told in [
        ({"data": str(path)}, run, "...: outcome 'y' holds ..., but other rows hold numbers; correct it"),
        ({"data": str(path), "test": str(path)}, run, "...: outcome 'y' holds ..., but"),
        ({"data": str(folder / "Smith.csv")}, run, "... does not exist; give this node the path"),
        ({"data": str(path)}, {"target": "why"}, "...: there is no column 'why'; the nearest is ..."),
        ({"data": str(path)}, {"learner": "mine"}, "setting up this site failed (ValueError); the log of the site says"),
    ]:
        with pytest.raises(InputError) as raised:
            site(node, given, fails)
        heard, whole = str(raised.value), raised.value.__cause__
        assert told in heard
        assert not any(secret in heard for secret in ("Smith", "heart", "patients", str(tmp_path)))
        assert str(whole) != heard  # for the log of the site
        assert "Smith" in str(whole)


@pytest.mark.parametrize("least, refused", [(None, True), (10, True), (9, False), (2, False)])
def test_a_node_with_few_rows_answers_nothing(tmp_path, least, refused):
    pd.DataFrame({"x": np.linspace(0, 1, 9), "y": np.linspace(0, 0.5, 9)}).to_csv(tmp_path / "a.csv", index=False)
    node = {"data": str(tmp_path / "a.csv")} | ({} if least is None else {"least-rows": least})
    made = site(node, {"target": "y", "test-size": 0.0})
    if refused:
        with pytest.raises(InputError, match=r"fewer than 10 rows to train on.*set least-rows in its node config"):
            answer(made, Request("describe"), {})
    else:
        assert answer(made, Request("describe"), {})[0].settings["rows"] == 9
    # In a simulation all rows are in one place.
    assert site({}, {"data": str(tmp_path), "target": "y"}).least_rows == 2


@pytest.mark.parametrize("least", [1, 0, -3, 2.5, "10", True])
def test_the_least_number_of_rows_is_checked(tables, least):
    with pytest.raises(InputError, match="least-rows of a node must be a whole number of at least 2"):
        site({"data": str(tables / "north.csv"), "least-rows": least}, {"target": "y"})


@pytest.mark.parametrize(
    "config, match",
    [
        ({"seed": "1"}, "option seed must be a whole number"),
        ({"seed": True}, "whole number"),
        ({"standardise": 1}, "true or false"),
        ({"seconds": "soon"}, "a number"),
        ({"target": 3}, "text"),
        ({"test-size": 1.0}, "fraction"),
        ({"agents": 0}, "at least 1"),
        ({"task": "ranking"}, "task"),
    ],
)
def test_options_of_the_wrong_kind_are_named(config, match):
    with pytest.raises(InputError, match=match):
        read_settings(config)


def test_options_are_read_as_they_are_meant(tmp_path):
    read = read_settings({"seconds": 5, "leave-out": " id, date ,", "features": 20, "rule-options.steps": 30})
    assert (read.seconds, read.n_features, read.options) == (5.0, 20, {"steps": 30})
    pd.DataFrame({"id": range(12), "x": range(12), "date": range(12), "y": range(12)}).to_csv(
        tmp_path / "a.csv", index=False
    )
    made = site({"data": str(tmp_path / "a.csv")}, {"target": "y", "leave-out": " id, date ,"})
    assert made.train.columns == ("x",)
    with pytest.raises(InputError, match="set task"):
        server_learner_of(read_settings({"learner": "torch"}))
    assert server_learner_of(read_settings({"learner": "logistic"})).task == "classification"


def test_the_app_folder_is_a_valid_app_that_says_every_option(tmp_path):
    folder = tmp_path / "app"
    written = write_app(folder, {"target": 'the "y"', "data": "C:\\data"})
    assert all(path.is_file() for path in written)
    text = (folder / "pyproject.toml").read_text()
    config = get_project_config(folder)["tool"]["flwr"]["app"]["config"]  # as Flower checks and reads it
    assert config == tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    tables = {"rule-options", "kernel-options", "learner-options", "columns"}  # Flower takes no empty ones
    assert set(config) == set(options_of(FLOWER)) - tables
    assert all(f"# {name}.NAME = VALUE" in text for name in tables)
    assert read_settings(config) == Settings(target='the "y"', data="C:\\data")
    lines = text[text.index("[tool.flwr.app.config]") :].splitlines()[1:]
    for number, line in enumerate(lines):
        assert line.startswith("#") or lines[number - 1].startswith("#"), f"{line} has no comment"


def test_the_app_folder_is_not_overwritten_unless_forced(tmp_path):
    write_app(tmp_path)
    learner = tmp_path / "kinfed_app" / "learner.py"
    learner.write_text("mine = 1\n")
    with pytest.raises(InputError, match="exists already"):
        write_app(tmp_path)
    assert learner.read_text() == "mine = 1\n"
    write_app(tmp_path, force=True)
    assert "def make_learner" in learner.read_text()


def test_one_existing_file_is_enough_to_write_nothing(tmp_path):
    (tmp_path / "pyproject.toml").write_text("mine")
    with pytest.raises(InputError, match=r"pyproject\.toml exists already"):
        write_app(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_certificates_are_signed_by_the_authority_for_the_names_asked_for(tmp_path):
    made = write_certificates(tmp_path, ["kin.example.org", "10.0.0.7", "localhost"], nodes=2, days=9)
    authority, server = (x509.load_pem_x509_certificate(p.read_bytes()) for p in (made.authority, made.server_certificate))
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "kin.example.org"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1"), ip_address("10.0.0.7")]
    assert (server.not_valid_after_utc - server.not_valid_before_utc).days == 9
    constraints = [c.extensions.get_extension_for_class(x509.BasicConstraints).value.ca for c in (authority, server)]
    assert constraints == [True, False]
    assert len(made.node_keys) == 2
    for private, public in zip(made.node_keys, made.public_keys, strict=True):
        key = load_ssh_private_key(private.read_bytes(), None)
        assert isinstance(key.curve, ec.SECP384R1)
        assert key.public_key() == load_ssh_public_key(public.read_bytes())
    for secret in (made.server_key, *made.node_keys):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["ca.crt", "node-1", "node-1.pub", "node-2", "node-2.pub", "server.key", "server.pem"]


def test_certificates_are_never_overwritten(tmp_path):
    (tmp_path / "node-2.pub").write_text("mine")
    with pytest.raises(InputError, match=r"node-2\.pub exists already"):
        write_certificates(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["node-2.pub"]
    with pytest.raises(InputError, match="neither the name of a host"):
        write_certificates(tmp_path, ["a..b"])


def test_the_commands_write_and_refuse(tmp_path):
    runner = CliRunner()
    done = runner.invoke(flower_app, ["init", str(tmp_path / "app"), "--target", "y"])
    assert done.exit_code == 0, done.output
    assert read_settings(get_project_config(tmp_path / "app")["tool"]["flwr"]["app"]["config"]).target == "y"
    again = runner.invoke(flower_app, ["init", str(tmp_path / "app")])
    assert isinstance(again.exception, InputError)
    done = runner.invoke(flower_app, ["certificates", str(tmp_path / "keys"), "--host", "a.org", "--nodes", "1"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "keys" / "node-1").exists()


def test_without_flower_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("kinfed.run.find_spec", lambda name: None)
    done = CliRunner().invoke(flower_app, ["init", str(tmp_path / "app")])
    assert isinstance(done.exception, MissingExtraError)
    assert "pip install 'kinfed[flower]'" in str(done.exception)
    assert not (tmp_path / "app").exists()
