"""Options in a file: what goes before what, what a run writes down, and what a broken file is told."""

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cli_runs
from cli_runs import ABOUT
from kinfed.cli.config import pair, settings_text
from kinfed.settings import Settings, toml_value
from score_tables import scores_in

VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


@pytest.fixture(name="kinfed_here")
def in_this_process(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    cli_runs.patients().to_csv(tmp_path / "patients.csv", index=False)
    return cli_runs.here(monkeypatch, capsys)


def write(folder, text, name="settings.toml"):
    (folder / name).write_text(text)
    return name


def used(folder):
    return tomllib.loads((folder / "settings.toml").read_text())


def test_what_is_typed_goes_before_the_file_and_the_file_before_the_defaults(kinfed_here, tmp_path):
    file = write(
        tmp_path,
        'data = "patients.csv"\ntarget = "outcome"\nagent = "hospital"\nleave-out = ["country", "ward"]\nout = "p"\n'
        'rule = "entropic"\nseed = 4\nstandardise = false\nbandwidth = 2\nkernel = "laplace"\n'
        "[rule-options]\nstrength = 0.5\n",
    )
    assert kinfed_here("personalize", "--config", file, "--seed", "7", "--kernel", "gaussian")[0] == 0
    found = used(tmp_path / "p")
    assert found["seed"] == 7  # typed
    assert found["kernel"] == "gaussian"
    assert found["rule"] == "entropic"  # in the file
    assert found["bandwidth"] == 2.0
    assert found["standardise"] is False
    assert found["leave-out"] == ["country", "ward"]
    assert found["rule-options"] == {"strength": 0.5}
    assert found["features"] == 500  # default
    assert "config" not in found


def test_a_run_can_be_repeated_from_what_it_wrote_down(kinfed_here, tmp_path):
    options = (
        "--rule",
        "q-aggregation",
        "--rule-option",
        "steps=40",
        "--learner-option",
        "penalty=0.3",
        "--test-size",
        "0.3",
    )
    options += ("--kernel", "matern", "--kernel-option", "nu=2.5", "--features", "100", "--seed", "11")
    assert kinfed_here("personalize", "patients.csv", *ABOUT, *options, "--groups", "country", "--out", "first")[0] == 0
    assert kinfed_here("personalize", "--config", "first/settings.toml", "--out", "again")[0] == 0
    for name in ("scores.csv", "weights.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    assert used(tmp_path / "again") == {**used(tmp_path / "first"), "out": "again"}
    assert scores_in(tmp_path / "again")["personalized"].notna().all()


@pytest.mark.parametrize("command", ["weights", "theory"])
def test_other_commands_take_files_too(kinfed_here, tmp_path, command):
    rule = ("--rule", "similarity-test", "--rule-option", "zeta=2.0")
    assert kinfed_here(command, "patients.csv", *ABOUT, *rule, "--out", "first")[0] == 0
    assert kinfed_here(command, "--config", "first/settings.toml", "--out", "again")[0] == 0
    name = f"{command}.csv"
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()


@pytest.mark.parametrize(
    "text, words",
    [
        ("test-sise = 0.3\n", "settings.toml: there is no key 'test-sise'; did you mean 'test-size'?"),
        ("rule-option = 3\n", "there is no key 'rule-option'; did you mean 'rule-options'?"),
        ("json = true\n", "there is no key 'json'"),
        ('seed = "one"\n', 'settings.toml: seed is "one"; a whole number is expected'),
        ("seed = 1.5\n", "settings.toml: seed is 1.5; a whole number is expected"),
        ("seed = true\n", "settings.toml: seed is true; a whole number is expected"),
        ("seed = -1\n", "settings.toml: seed is -1; -1 is not in the range x>=0"),
        ('test-size = "half"\n', 'settings.toml: test-size is "half"; a number is expected'),
        ("target = 3\n", "settings.toml: target is 3; text in quotes"),
        ('target = "a\\u0000b"\n', "settings.toml: target is"),
        ("standardise = 1\n", "settings.toml: standardise is 1; true or false is expected"),
        ("leave-out = [1]\n", "settings.toml: leave-out is 1; text in quotes"),
        ("bandwidth = [1]\n", "settings.toml: bandwidth is [1]; a number or 'median' is expected"),
        (
            'bandwidth = "wide"\n',
            "settings.toml: bandwidth is \"wide\"; 'wide' is neither a number above zero nor 'median'",
        ),
        ("rule-options = 3\n", "settings.toml: rule-options is 3; write it as a table, [rule-options]"),
        ("[target]\nname = 1\n", "settings.toml: target is a table; text in quotes"),
        ('target = "outcome"\nrule = \n', "settings.toml is not TOML: invalid value (at line 2"),
        ("seed = 1\nseed = 2\n", "settings.toml is not TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_and_exit_code_two(kinfed_here, tmp_path, text, words):
    file = write(tmp_path, text)
    code, told, wrong = kinfed_here("personalize", "patients.csv", "--config", file, "--out", "x")
    assert wrong.startswith(f"kinfed: {words}") or words in wrong
    assert (code, told, wrong.count("\n")) == (2, "", 1)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "text, words",
    [
        ("test-size = 2.0\n", "settings.toml: --test-size must be a fraction"),
        ('\ufeffrule = "entropc"\n', "settings.toml: there is no rule 'entropc'"),  # a mark that editors add
        ('rule = "entropc"\n', "settings.toml: there is no rule 'entropc'; the nearest is 'entropic'"),
        (
            'rule = "entropic"\n[rule-options]\nstregth = 1\n',
            "there is no entropic option 'stregth'; the nearest is 'strength'",
        ),
    ],
)
def test_a_name_in_a_file_is_checked_like_a_typed_one(kinfed_here, tmp_path, text, words):
    code, _, wrong = kinfed_here("personalize", "patients.csv", *ABOUT, "--config", write(tmp_path, text), "--out", "x")
    assert code == 1
    assert words in wrong


@pytest.mark.parametrize("name, words", [("nowhere.toml", "No such file"), (".", "Is a directory"), ("raw", "not UTF-8")])
def test_files_that_are_not_there(kinfed_here, tmp_path, name, words):
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    code, _, wrong = kinfed_here("personalize", "--config", name)
    assert code == 2
    assert words in wrong


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), VALUES), st.lists(VALUES))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_every_value_survives_the_file(table, values):
    text = settings_text(Settings(options=table, leave_out=tuple(map(str, values))), "weights")
    found = tomllib.loads(text)
    assert found.get("rule-options", {}) == {name: value for name, value in table.items() if name != "groups"}
    assert found.get("leave-out", []) == list(map(str, values))


@given(VALUES)
def test_every_value_survives_a_pair(value):
    assert pair(f"name={toml_value(value)}") == ("name", value)


def test_what_is_no_toml_in_a_pair_is_text():
    assert pair("optimiser=adam") == ("optimiser", "adam")
    assert pair("hidden=[8, 8]") == ("hidden", [8, 8])
    assert pair("path=a=b") == ("path", "a=b")
