"""A sketch by hand: the same recipe everywhere, what is in the file, and whether it may be sent."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2
from typer.testing import CliRunner

import kinfed
from cli_runs import in_this_process
from kinfed.cli.sketch import app, pairwise
from kinfed.data.tables import chosen_columns, numeric_batches
from kinfed.errors import KinfedError


def run(*arguments):
    """A command in this process; a mistake is raised as it would reach the last handler."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def patients(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"age": rng.normal(60 + 10 * shift, 10, n), "dose": rng.normal(shift, 1, n), "ward": "east"})


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Three sites with tables and sketches: two alike, one far from both; recipe.json is made like the first."""
    monkeypatch.chdir(tmp_path)
    for name, n, seed, shift in (("north", 400, 0, 0.0), ("south", 350, 1, 0.0), ("west", 40, 2, 2.0)):
        patients(n, seed, shift).to_csv(tmp_path / f"{name}.csv", index=False)
    run("recipe", "--like", "north.csv", "--leave-out", "ward", "--out", "recipe.json")
    for name in ("north", "south", "west"):
        run("make", f"{name}.csv", "--recipe", "recipe.json", "--leave-out", "ward", "--out", f"{name}.npz")
    return tmp_path


def test_a_recipe_by_hand_is_the_recipe_of_its_features(tmp_path):
    out = tmp_path / "deep" / "recipe.json"
    run(
        "recipe",
        "--kernel",
        "matern",
        "--bandwidth",
        2,
        "--bandwidth",
        3,
        "--dim",
        2,
        "--features",
        60,
        "--seed",
        7,
        "--out",
        out,
    )
    expected = kinfed.FourierFeatures(kinfed.Matern((2.0, 3.0)), 60, dim=2, seed=7).recipe
    assert kinfed.Recipe.from_json(out.read_text()) == expected
    run("recipe", "--kernel", "polynomial", "--dim", 2, "--out", out)
    assert kinfed.Recipe.from_json(out.read_text()) == kinfed.PolynomialFeatures(kinfed.Polynomial(), dim=2).recipe


def test_the_recipe_of_a_table_does_not_depend_on_units(sites):
    table = patients(400, 0)
    table["age"] *= 365.25  # days
    table.to_csv("days.csv", index=False)
    run("recipe", "--like", "days.csv", "--leave-out", "ward", "--out", "days.json")
    years, days = (
        kinfed.Recipe.from_json((sites / f).read_text()).parameters["bandwidth"] for f in ("recipe.json", "days.json")
    )
    np.testing.assert_allclose(days, np.array(years) * [365.25, 1.0], rtol=1e-5)
    standardised = table[["age", "dose"]] / table[["age", "dose"]].std(ddof=0)
    np.testing.assert_allclose(
        np.array(days) / table[["age", "dose"]].std(ddof=0), kinfed.median_bandwidth(standardised), rtol=1e-5
    )


def test_a_sketch_is_the_mean_of_the_features_of_the_rows(sites):
    features = kinfed.features_from_recipe(kinfed.Recipe.from_json((sites / "recipe.json").read_text()))
    embedded = features(pd.read_csv("south.csv")[["age", "dose"]].to_numpy())
    found = kinfed.load_sketch("south.npz")
    np.testing.assert_allclose(found.mean, embedded.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.trace, embedded.var(axis=0, ddof=1).sum(), rtol=1e-9)
    assert found.n == 350


def test_make_says_what_is_in_the_file_and_warns_of_few_rows(sites):
    told = run("make", "west.csv", "--recipe", "recipe.json", "--columns", "age", "--columns", "dose", "--out", "again.npz")
    assert "mean of 500 features of 40 rows" in told
    assert f"{(sites / 'again.npz').stat().st_size} bytes" in told
    assert "Caution" in told
    assert (sites / "again.npz").read_bytes() == (sites / "west.npz").read_bytes()
    assert "Caution" not in run("make", "north.csv", "--recipe", "recipe.json", "--leave-out", "ward", "--out", "n.npz")
    shown = json.loads(
        run("make", "west.csv", "--recipe", "recipe.json", "--leave-out", "ward", "--out", "again.npz", "--json")
    )
    assert shown["rows"] == 40
    assert "turned back into the rows" in shown["warning"]


def test_the_order_of_columns_is_the_one_asked_for(sites):
    run("make", "west.csv", "--recipe", "recipe.json", "--columns", "dose", "--columns", "age", "--out", "turned.npz")
    assert not np.allclose(kinfed.load_sketch("turned.npz").mean, kinfed.load_sketch("west.npz").mean, atol=1e-3)


@pytest.mark.parametrize("form", ["csv", "csv.gz", "tsv", "semicolons", "parquet", "row names", "byte order mark"])
def test_tables_in_all_forms_come_in_pieces_with_the_same_numbers(tmp_path, form):
    table = patients(53, 3)[["age", "dose"]].round(3)
    path = tmp_path / ("t.csv" if " " in form or form == "semicolons" else f"t.{form}")
    if form == "csv.gz":
        path.write_bytes(gzip.compress(table.to_csv(index=False).encode()))
    elif form == "parquet":
        table.to_parquet(path)
    elif form == "semicolons":
        table.to_csv(path, index=False, sep=";", decimal=",")
    elif form == "row names":
        table.to_csv(path)
    else:
        table.to_csv(
            path,
            index=False,
            sep="\t" if form == "tsv" else ",",
            encoding="utf-8-sig" if form == "byte order mark" else "utf-8",
        )
    columns = chosen_columns(path)
    assert columns == ("age", "dose")
    pieces = list(numeric_batches(path, columns, rows=10))
    assert [len(piece) for piece in pieces] == [10, 10, 10, 10, 10, 3]
    np.testing.assert_array_equal(np.vstack(pieces), table.to_numpy())


def test_reading_reports_how_far_it_is(tmp_path):
    patients(1000, 4).to_csv(tmp_path / "t.csv", index=False)
    seen = []
    list(numeric_batches(tmp_path / "t.csv", ("age",), rows=100, progress=lambda *one: seen.append(one)))
    assert len(seen) == 10
    assert {total for _, _, total in seen} == {(tmp_path / "t.csv").stat().st_size}
    assert seen[-1][1] == seen[-1][2]


def test_inspect_shows_every_field(sites):
    found = json.loads(run("inspect", "west.npz", "--json"))
    content = (sites / "west.npz").read_bytes()
    assert found["sha256"] == hashlib.sha256(content).hexdigest()
    assert found["bytes"] == len(content)
    assert found["rows"] == 40
    assert found["norm"] == pytest.approx(np.linalg.norm(kinfed.load_sketch("west.npz").mean))
    assert found["recipe"] == json.loads((sites / "recipe.json").read_text())
    shown = run("inspect", "west.npz")
    assert all(word in shown for word in ("sha256", "Gaussian", "bandwidth", "trace", "seed"))


def test_inspect_of_one_row_has_no_spread(sites):
    patients(1, 5).to_csv("one.csv", index=False)
    run("make", "one.csv", "--recipe", "recipe.json", "--leave-out", "ward", "--out", "one.npz")
    assert json.loads(run("inspect", "one.npz", "--json"))["trace"] is None
    with pytest.raises(KinfedError, match="made of one row"):
        run("compare", "north.npz", "one.npz")


def test_check_is_one_sentence_that_names_what_leaves(sites):
    told = run("check", "north.npz", "--recipe", "recipe.json", "--against", "south.npz", "--against", "west.npz")
    assert len(told.strip().splitlines()) == 1
    for word in ("sound", "recipe.json", "south.npz", "west.npz", "500 features of 400 rows", "spread", "nothing else"):
        assert word in told
    assert "turned back" not in told
    assert "turned back" in run("check", "west.npz")


def test_check_fails_with_one_line_and_exit_code_one(sites):
    run("recipe", "--bandwidth", 1, "--dim", 2, "--out", "other.json")
    sound = in_this_process("sketch", "check", "north.npz", "--recipe", "recipe.json", cwd=sites)
    assert (sound.returncode, sound.stderr) == (0, "")
    wrong = in_this_process("sketch", "check", "north.npz", "--recipe", "other.json", cwd=sites)
    assert wrong.returncode == 1
    assert len(wrong.stderr.strip().splitlines()) == 1
    assert "other features than other.json" in wrong.stderr


def test_compare_gives_distances_beside_chance_and_who_is_near(sites):
    found = json.loads(run("compare", "north.npz", "south.npz", "west.npz", "--json"))
    pairs = {(one["site"], one["other"]): one for one in found["pairs"]}
    assert len(pairs) == 6
    features = kinfed.features_from_recipe(kinfed.Recipe.from_json((sites / "recipe.json").read_text()))
    points = {name: features(pd.read_csv(f"{name}.csv")[["age", "dose"]].to_numpy()) for name in ("north", "south", "west")}
    for (site, other), one in pairs.items():
        assert one["squared mmd"] == pytest.approx(kinfed.mmd2(points[site], points[other], unbiased=False), rel=1e-6)
        assert one["difference"] == pytest.approx(kinfed.mmd2(points[site], points[other]), abs=1e-9)
        errors = [points[name].var(axis=0, ddof=1).sum() / len(points[name]) for name in (site, other)]
        assert (one["kinship"] == "near") == (one["difference"] <= errors[0])
        assert (one["kinship"] == "apart") == (one["squared mmd"] > chi2.ppf(0.95, 1) * sum(errors))
        assert (one["kinship"] == "apart") == ("west" in (site, other))
    shown = run("compare", "north.npz", "south.npz", "west.npz", "--out", "compared")
    assert "west: near enough to help nobody; unclear nobody; farther apart than chance explains north, south." in shown
    assert len(pd.read_csv("compared/distances.csv")) == 6


def test_sites_of_one_distribution_are_rarely_called_apart():
    """At most 5 % in the limit, whatever the covariance; 15 or more of 100 have probability 1.4e-4 at 5 %."""
    rng = np.random.default_rng(0)
    wrong = 0
    for seed in range(100):
        features = kinfed.FourierFeatures(
            kinfed.Gaussian(3.0), 100, dim=1, seed=seed
        )  # nearly one direction: the worst case
        made = [kinfed.sketch(rng.normal(size=(200, 1)), features) for _ in range(2)]
        wrong += (pairwise(made, ["a", "b"])["kinship"] == "apart").all()
    assert wrong < 15


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("recipe", "--out", "r.json"), "give --dim, or a table with --like"),
        (("recipe", "--dim", 2, "--out", "r.json"), "needs --bandwidth"),
        (("recipe", "--dim", 2, "--bandwidth", -1, "--out", "r.json"), "bandwidth"),
        (("recipe", "--dim", 2, "--bandwidth", 1, "--kernel", "gausian", "--out", "r.json"), "the nearest is 'gaussian'"),
        (("recipe", "--dim", 2, "--bandwidth", 1, "--sampling", "idd", "--out", "r.json"), "sampling"),
        (("recipe", "--like", "north.csv", "--out", "r.json"), "column 'ward' holds 'east' in line 2"),
        (("recipe", "--like", "north.csv", "--dim", 2, "--out", "r.json"), "leave --dim and --bandwidth out"),
        (("recipe", "--dim", 2, "--bandwidth", 1, "--columns", "age", "--out", "r.json"), "give it with --like"),
        (("recipe", "--like", "constant.csv", "--out", "r.json"), "column 'unit' has one value only"),
        (("make", "nowhere.csv", "--recipe", "recipe.json", "--out", "x.npz"), "nowhere.csv does not exist"),
        (("make", "north.npz", "--recipe", "recipe.json", "--out", "x.npz"), "is not a table"),
        (("make", "north.csv", "--recipe", "nowhere.json", "--out", "x.npz"), "make one with kinfed sketch recipe"),
        (("make", "north.csv", "--recipe", "north.csv", "--out", "x.npz"), "the recipe cannot be read"),
        (("make", "north.csv", "--recipe", "north.npz", "--out", "x.npz"), "it is not text"),
        (("make", "north.csv", "--recipe", "recipe.json", "--out", "x.npz"), "is for 2; choose with --columns"),
        (
            ("make", "north.csv", "--recipe", "recipe.json", "--columns", "age", "--columns", "doze", "--out", "x.npz"),
            "the nearest is 'dose'",
        ),
        (
            ("make", "north.csv", "--recipe", "recipe.json", "--columns", "age", "--columns", "ward", "--out", "x.npz"),
            "'ward' holds 'east' in line 2, which is no number",
        ),
        (("make", "gaps.csv", "--recipe", "recipe.json", "--out", "x.npz"), "column 'dose' has no value in line 3"),
        (("make", "empty.csv", "--recipe", "recipe.json", "--out", "x.npz"), "has no rows"),
        (("make", "ragged.csv", "--recipe", "recipe.json", "--out", "x.npz"), "not a regular table"),
        (("make", "truncated.csv.gz", "--recipe", "recipe.json", "--out", "x.npz"), "cannot be read"),
        (("inspect", "nowhere.npz"), "does not exist"),
        (("inspect", "recipe.json"), "not a sketch or is damaged"),
        (("check", "north.npz", "--against", "damaged.npz"), "damaged.npz is not a sketch or is damaged"),
        (("compare", "north.npz"), "give two or more"),
        (("compare", "north.npz", "north.npz"), "given twice"),
    ],
)
def test_mistakes_are_named_in_one_line_and_leave_no_file(sites, arguments, words):
    pd.DataFrame({"age": [1.0, 2], "unit": 1}).to_csv("constant.csv", index=False)
    pd.DataFrame({"age": [1.0, 2], "dose": [1.0, None]}).to_csv("gaps.csv", index=False)
    (sites / "empty.csv").write_text("age,dose\n")
    (sites / "ragged.csv").write_text("age,dose\n1,2\n1,2,3\n")
    (sites / "truncated.csv.gz").write_bytes(gzip.compress(b"age,dose\n" + b"1.5,2.5\n" * 50_000)[:150])
    (sites / "damaged.npz").write_bytes((sites / "north.npz").read_bytes()[:-200])
    with pytest.raises(KinfedError, match=words) as mistake:
        run(*arguments)
    assert "\n" not in str(mistake.value)
    assert not (sites / "x.npz").exists()
    assert not (sites / "r.json").exists()


def test_the_page_from_tables_to_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "sketches.md").read_text()
    names = {}
    blocks = re.findall(r"```(python|shell)\n(.*?)```", page, flags=re.DOTALL)
    for kind, block in blocks:
        if kind == "python":
            exec(block, names)
        else:
            for line in block.splitlines():
                assert line.startswith("kinfed sketch ")
                assert run(*line.split()[2:])
    assert len(blocks) == 7
    # West differs from both others, which are alike: what the page lets north conclude.
    kinship = pd.read_csv("compared/distances.csv").set_index(["site", "other"])["kinship"]
    assert kinship["north", "west"] == "apart"
    assert kinship["north", "south"] != "apart"
    row = names["weights"].matrix[0]
    assert row[2] < row[1] < row[0]
