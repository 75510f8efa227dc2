"""Commands as a user types them: what they write, what they say, what machines read."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import pdist

import cli_runs
import kinfed
from cli_runs import ABOUT, in_a_process
from kinfed.data import Preparation
from score_tables import scores_in

COMMANDS = ("demo", "theory", "weights", "personalize", "data", "sketch", "flower", "reproduce", "leaderboard", "bench")


@pytest.fixture(name="kinfed_here")
def in_this_process(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    cli_runs.patients().to_csv(tmp_path / "patients.csv", index=False)
    return cli_runs.here(monkeypatch, capsys)


@pytest.mark.slow
def test_demo_ends_with_three_sentences_and_its_files(tmp_path):
    done = in_a_process("demo", "--out", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    what, gain, where = done.stdout.strip().splitlines()
    assert what.startswith("160 schools shared ")
    assert done.stderr == ""  # no bars where the output is not a terminal, and no warnings
    scores = scores_in(tmp_path / "demo")
    assert len(scores) == 160
    rows = pd.read_csv(tmp_path / "demo" / "scores.csv").groupby("agent", sort=False)["test_rows"].first()
    rows = rows.set_axis(rows.index.astype(str))[scores.index.astype(str)].to_numpy()
    ranked = np.argsort(rows, kind="stable")
    few = np.zeros(len(rows), dtype=bool)  # schools of fewer than 10 test rows count together, as one of 10 or more
    few[ranked[: max((rows < 10).sum(), 1 + np.searchsorted(rows[ranked].cumsum(), 10))]] = (rows < 10).any()
    together = pd.DataFrame([np.average(scores[few], axis=0, weights=rows[few])], columns=scores.columns)
    means = pd.concat([scores[~few], together]).mean()
    assert means["personalized"] < min(means["local"], means["grand-mean"])
    result = kinfed.load(tmp_path / "demo")
    for baseline in ("local", "grand-mean", "floor"):
        compared = result.compare(baseline)
        assert f"{compared.second_mean:.4g} for" in gain
        assert f"({compared.first_mean / compared.second_mean - 1:+.1%}" in gain
    assert "demo/index.html" in where
    tables = ["influence.csv", "members.csv", "expected-gain.csv"]
    matrix = pd.read_csv(tmp_path / "demo" / tables[0], index_col=0)
    assert matrix.shape == (160, 160)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0)
    archive = next((tmp_path / "demo").glob("result-*.npz")).name
    others = ["hsb82.csv", "index.html", "models", archive, "result.json", "scores.csv", "settings.toml"]
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == sorted([*tables, *others])


@pytest.mark.slow
def test_weights_and_personalize_on_ones_own_table(kinfed_here, tmp_path):
    code, told, wrong = kinfed_here("weights", "patients.csv", *ABOUT, "--leave-out", "country", "--out", "before")
    assert (code, wrong) == (0, "")
    assert "before/index.html" in told
    before = pd.read_csv(tmp_path / "before" / "weights.csv", index_col="target")
    assert before.shape == (8, 8)
    assert (tmp_path / "before" / "calibration.csv").exists()
    assert "<html" in (tmp_path / "before" / "index.html").read_text()

    code, told, wrong = kinfed_here("personalize", "patients.csv", *ABOUT, "--out", "after", "--rule", "entropic")
    assert (code, wrong) == (0, "")
    assert "column ward: one-hot encoded as east, west" in told
    assert "after/index.html" in told
    assert scores_in(tmp_path / "after").shape == (8, 4)
    assert "kinfed personalize patients.csv --target outcome" in (tmp_path / "after" / "index.html").read_text()


@pytest.mark.slow
def test_files_of_an_earlier_run_that_this_one_does_not_write_go(kinfed_here, tmp_path):
    assert kinfed_here("weights", "patients.csv", *ABOUT, "--out", "w", "--leave-out", "country")[0] == 0
    (tmp_path / "w" / "notes.txt").write_text("mine")
    assert kinfed_here("weights", "patients.csv", *ABOUT, "--out", "w", "--rule", "local", "--force")[0] == 0
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == [
        "explanation.csv",
        "index.html",
        "notes.txt",
        "settings.toml",
        "weights.csv",
    ]


def test_groups_come_from_a_column_and_are_no_feature(kinfed_here, tmp_path):
    assert kinfed_here("weights", "patients.csv", *ABOUT, "--groups", "country", "--rule", "oracle", "--out", "w")[0] == 0
    weights = pd.read_csv(tmp_path / "w" / "weights.csv", index_col="target").to_numpy()
    same = np.equal.outer(np.arange(8) % 2, np.arange(8) % 2)
    np.testing.assert_allclose(weights, same / 4)  # all hospitals are of one size
    _, told, _ = kinfed_here(
        "weights", "patients.csv", *ABOUT, "--groups", "country", "--rule", "local", "--out", "v", "--json"
    )
    assert not any("country" in choice for choice in json.loads(told)["choices"])


def test_a_kernel_by_name_has_the_median_distance_within_agents_and_one_deviation_of_the_target(kinfed_here, tmp_path):
    table = cli_runs.patients().drop(columns=["country", "ward"])
    table.to_csv(tmp_path / "numbers.csv", index=False)
    arguments = ("weights", "numbers.csv", *ABOUT, "--rule", "q-aggregation", "--kernel", "laplace", "--out", "w")
    assert kinfed_here(*arguments)[0] == 0
    found = pd.read_csv(tmp_path / "w" / "weights.csv", index_col="target").to_numpy()
    age = (table["age"] - table["age"].mean()) / table["age"].std(ddof=0)
    within = np.median([np.median(pdist(age[table["hospital"] == k].to_numpy()[:, None])) for k in range(8)])
    federation = kinfed.read_federation(tmp_path / "numbers.csv", target="outcome", agent="hospital")
    expected = kinfed.collaboration_weights(federation, "q-aggregation", kinfed.Laplace((within, 1.0)))
    np.testing.assert_allclose(found, expected.matrix, rtol=1e-6, atol=1e-12)


def test_options_reach_the_library(kinfed_here, tmp_path):
    options = ("--rule", "q-aggregation", "--rule-option", "steps=30", "--kernel", "gaussian", "--bandwidth", "2.5")
    options += ("--features", "64", "--sampling", "orthogonal", "--shift", "covariate", "--seed", "3", "--no-standardise")
    options += ("--leave-out", "country", "--learner-option", "penalty=0.5", "--test-size", "0.4")
    assert kinfed_here("personalize", "patients.csv", *ABOUT, *options, "--out", "p")[0] == 0
    federation = kinfed.read_federation(
        tmp_path / "patients.csv", target="outcome", agent="hospital", leave_out=["country"]
    )
    train, test = federation.split(test_size=0.4, seed=3)
    expected = kinfed.personalize(
        train,
        kinfed.make_learner("ridge", penalty=0.5),
        "q-aggregation",
        test,
        3,
        kernel=kinfed.Gaussian(2.5),
        shift="covariate",
        n_features=64,
        sampling="orthogonal",
        options={"steps": 30},
        standardise=False,
    )
    found = scores_in(tmp_path / "p")
    np.testing.assert_allclose(found.to_numpy(), expected.scores.to_numpy(), rtol=1e-12)
    assert Preparation.fit(train, standardise=False).transform(train)[0].X.max() > 20  # ages: nothing was standardised


def test_theory_writes_every_agent(kinfed_here, tmp_path):
    options = ("--level", "0.8", "--folds", "5", "--constant", "2")
    code, told, wrong = kinfed_here("theory", "patients.csv", *ABOUT, *options, "--out", "t")
    assert (code, wrong) == (0, "")
    federation = kinfed.read_federation(tmp_path / "patients.csv", target="outcome", agent="hospital")
    expected = kinfed.predict_gain(federation, level=0.8, folds=5, constant=2.0).to_frame()
    found = pd.read_csv(tmp_path / "t" / "theory.csv", index_col="target")
    np.testing.assert_allclose(found["gain"], expected["gain"], rtol=1e-12)
    assert "80% interval" in told


def test_json_is_one_document_that_agrees_with_the_files(kinfed_here, tmp_path):
    table = cli_runs.patients()
    few = table.head(2).assign(hospital="small")
    pd.concat([table, few]).to_csv(tmp_path / "patients.csv", index=False)
    arguments = ("personalize", "patients.csv", *ABOUT, "--rule", "entropic", "--seed", "5", "--out", "p", "--json")
    code, told, wrong = kinfed_here(*arguments)
    assert (code, wrong) == (0, "")
    document = json.loads(told)
    assert document["version"] == version("kinfed")
    assert document["command"] == " ".join(["kinfed", *arguments])
    assert document["seed"] == document["settings"]["seed"] == 5
    assert document["report"] == "p/index.html"
    assert sorted(document["files"]) == sorted(f"p/{path.name}" for path in (tmp_path / "p").iterdir())
    scores = scores_in(tmp_path / "p")
    assert document["scores"] == pytest.approx(scores.mean().to_dict())
    for baseline in ("local", "grand-mean"):
        low, high = document["comparisons"][baseline]["interval"]
        assert low <= (scores["personalized"] - scores[baseline]).mean() <= high
    by_name = {agent["agent"]: agent for agent in document["agents"]}
    assert by_name["small"]["personalized"] is None  # two rows leave none to test on
    assert by_name["3"]["local"] == pytest.approx(scores.loc["3", "local"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_priors_have_files_words_and_a_report(kinfed_here, tmp_path, backend):
    arguments = ("personalize", "patients.csv", *ABOUT, "--method", "stacked", "--backend", backend, "--out", "p")
    code, told, wrong = kinfed_here(*arguments)
    assert (code, wrong) == (0, "")
    lines = told.splitlines()
    assert lines[-1] == (
        "Who speaks in whose model is in p/influence.csv, the priors are in p/members.csv, what agents may expect to gain "
        "is in p/expected-gain.csv, and the report is p/index.html."
    )
    assert len(lines) == len(set(lines))  # nothing is said twice
    result = kinfed.load(tmp_path / "p")
    assert str(result.stacking) in lines
    found = pd.read_csv(tmp_path / "p" / "influence.csv", index_col="agent")
    np.testing.assert_allclose(found, result.influence)
    members = pd.read_csv(tmp_path / "p" / "members.csv", index_col="member")
    assert members["share"].sum() == pytest.approx(1.0)
    assert members.index[0] in (tmp_path / "p" / "index.html").read_text()
    assert not (tmp_path / "p" / "weights.csv").exists()
    # Another method's files take their place.
    assert kinfed_here(*arguments, "--rule", "local", "--method", "weighted", "--force")[0] == 0
    assert not (tmp_path / "p" / "influence.csv").exists()
    assert not (tmp_path / "p" / "members.csv").exists()
    assert (tmp_path / "p" / "weights.csv").exists()


def test_json_of_priors_and_of_methods_that_tell_nothing(kinfed_here, tmp_path):
    def run(*options):
        code, told, _ = kinfed_here("personalize", "patients.csv", *ABOUT, *options, "--json")
        assert code == 0
        return json.loads(told)

    document = run("--method", "stacked", "--out", "p")
    assert document["weights"] is None
    stacking = kinfed.load(tmp_path / "p").stacking
    assert document["influence"]["median own influence"] == pytest.approx(np.median(stacking.own))
    assert {one["member"]: one["share"] for one in document["stacking"]} == pytest.approx(stacking.table["share"].to_dict())
    assert {"p/influence.csv", "p/members.csv", "p/expected-gain.csv"} <= set(document["files"])
    assert document["agents"][3]["own influence"] == pytest.approx(stacking.own[3])
    plain = run("--method", "grand-mean", "--out", "q")
    assert (plain["weights"], plain["influence"], plain["stacking"]) == (None, None, None)
    assert plain["report"] == "q/index.html"
    assert (tmp_path / "q" / "index.html").is_file()
    weighted = run("--rule", "local", "--method", "weighted", "--out", "r")
    assert weighted["weights"]["rule"] == "local"
    assert (weighted["influence"], weighted["stacking"]) == (None, None)


@pytest.mark.parametrize("command", ["weights", "theory"])
def test_json_before_training(kinfed_here, tmp_path, command):
    code, told, wrong = kinfed_here(command, "patients.csv", *ABOUT, "--rule", "q-aggregation", "--out", "w", "--json")
    assert (code, wrong) == (0, "")
    document = json.loads(told)
    assert [agent["agent"] for agent in document["agents"]] == list("01234567")
    assert document["settings"]["rule"] == "q-aggregation"
    assert all((tmp_path / file).is_file() for file in document["files"])


def test_json_of_an_experiment(kinfed_here, tmp_path):
    small = ("--repetitions", "1", "--agents", "6", "--spreads", "0.5", "--features", "20", "--workers", "1")
    code, told, wrong = kinfed_here("reproduce", "concept-shift", *small, "--out", "r", "--json")
    assert (code, wrong) == (0, "")
    document = json.loads(told)
    assert document["experiment"] == "concept-shift"
    assert document["settings"]["spreads"] == [0.5]
    assert {"r/results.csv", "r/summary.md"} <= set(document["files"])


def test_sites_tell_what_crossed(kinfed_here, tmp_path):
    options = ("--rule", "entropic", "--backend", "sites", "--out", "p")
    code, told, _ = kinfed_here("personalize", "patients.csv", *ABOUT, *options)
    assert code == 0
    assert "came from the agents" in told
    assert (tmp_path / "p" / "audit.jsonl").read_text().count("\n") > 8
    assert pd.read_csv(tmp_path / "p" / "traffic.csv")["bytes"].sum() > 0
    assert not (tmp_path / "p" / "checkpoint").exists()


def test_version_and_help(kinfed_here):
    assert kinfed_here("--version") == (0, f"kinfed {version('kinfed')}\n", "")
    code, told, _ = kinfed_here("--help")
    assert code == 0
    order = [told.index(f"│ {name} ") for name in COMMANDS]
    assert order == sorted(order)
    assert "Exit codes: 0 done" in " ".join(told.split())


@pytest.mark.parametrize("command", ["theory", "weights", "personalize"])
def test_every_option_is_explained(command):
    import typer

    from kinfed.cli import app

    options = [one for one in typer.main.get_command(app).commands[command].params if one.name != "help"]
    assert len(options) > 15
    assert all(one.help and one.help.endswith(".") and len(one.help) < 200 for one in options)
    page = (Path(__file__).parents[1] / "docs" / "command-line.md").read_text()
    assert [name for one in options[1:] for name in one.opts if f"`{name}" not in page] == []
    assert all(one.rich_help_panel in ("Data", "Comparison", "Training", "Output") for one in options[1:])


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("kinfed pers", "personalize"),
        ("kinfed personalize --rule ent", "entropic"),
        ("kinfed weights --learner log", "logistic"),
        ("kinfed personalize --backend fl", "flower"),
        ("kinfed theory --kernel lap", "laplace"),
        ("kinfed weights --shift cov", "covariate"),
        ("kinfed weights --sampling orth", "orthogonal"),
        ("kinfed reproduce early", "early-stop"),
    ],
)
def test_shells_complete_names(kinfed_here, monkeypatch, typed, offered):
    monkeypatch.setenv("_KINFED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    code, told, _ = kinfed_here()
    assert (code, told.split()) == (0, [offered])


HEAVY = ("torch", "flwr", "ray", "cryptography", "sklearn", "plotly", "matplotlib", "PIL", "pyarrow.parquet")


def test_help_loads_none_of_the_heavy_libraries(tmp_path):
    """Nor does ``import kinfed``, which comes first here."""
    program = (
        "import sys; from kinfed.cli import main; sys.argv = ['kinfed', 'personalize', '--help']\n"
        "try: main()\n"
        f"except SystemExit: print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().endswith("[]"), done.stdout[-500:] + done.stderr
