"""What columns are, and why: on tables as hospitals have them, pooled and at sites alike, and on tables that mean well."""

import json

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinfed
from cli_runs import here
from kinfed.data import Preparation
from kinfed.data.column_types import COUNTS, table_counts
from kinfed.data.leaks import errors_by_category, errors_by_numbers, errors_without
from kinfed.federation import Agent, Federation
from messy_tables import NAMES, hospitals, messy

EXPECTED = {
    "Fallnummer": ("identifier", False),
    "Alter": ("number", True),
    "BMI": ("number", True),
    "Sättigung": ("number", True),
    "Kosten": ("number", True),
    "Raucher": ("boolean", True),
    "Station": ("category", True),
    "Aufnahme": ("date", True),
    "Region": ("category", True),
    "Hausname": ("category", False),
    "Bemerkung": ("free text", False),
    "Land": ("category", False),
    "Abrechnungscode": ("category", False),
}
ROLES = {"target": "Wiederaufnahme", "agent": "Klinik"}
running = pytest.fixture(here)


@pytest.fixture(scope="module")
def clean():
    return hospitals()


@pytest.fixture(scope="module")
def dirty(clean):
    return messy(clean)


def found(preparation):
    return {one.column: (one.kind, one.column not in preparation.left_out) for one in preparation.readings}


@pytest.mark.parametrize("separator, encoding", [(";", "utf-8"), (",", "utf-8"), ("\t", "utf-16"), (";", "iso8859-2")])
def test_a_messy_table_is_read_as_it_is_meant(clean, dirty, tmp_path, separator, encoding):
    path = tmp_path / "stays.csv"
    dirty.replace({"Klinik": {"Århus": "Aarhus"}, "Kosten": {" €": " EUR"}}, regex=True).to_csv(
        path, sep=separator, index=False, encoding=encoding
    )
    fed = kinfed.read_federation(path, **ROLES, encoding=encoding if encoding.startswith("iso") else "auto")
    preparation = Preparation.fit(fed, standardise=False, labels=True)
    assert found(preparation) == EXPECTED
    read = preparation.transform(fed)
    there = dirty["Wiederaufnahme"] != ""
    truth = clean[there.to_numpy()]
    assert read.sizes.sum() == there.sum()
    assert sum(agent.y.tolist().count("yes") for agent in read) == truth["Wiederaufnahme"].sum()
    values = {name: np.concatenate([agent.X[:, j] for agent in read]) for j, name in enumerate(read.columns)}
    np.testing.assert_allclose(values["Kosten"], truth["Kosten"])
    np.testing.assert_allclose(values["Sättigung"], truth["Sättigung"])
    years = truth["Aufnahme"].dt.year + (truth["Aufnahme"].dt.day_of_year - 1) / (365 + truth["Aufnahme"].dt.is_leap_year)
    np.testing.assert_allclose(values["Aufnahme"], years)
    known = (dirty["BMI"] != "")[there].to_numpy()
    np.testing.assert_allclose(values["BMI"][known], truth["BMI"][known])
    told = " ".join(preparation.notes(fed))
    assert f"{(~there).sum()} rows without an outcome" in told
    assert "'unbekannt'" in told


def test_sites_decide_as_pooled_data_do_and_tell_no_cell(dirty):
    some = dirty[dirty["Klinik"].isin(NAMES[3:])]
    train, test = Federation.from_table(some, **ROLES).split(0.3)
    how = {"learner": "logistic", "rule": "q-aggregation", "n_features": 40}
    pooled = kinfed.personalize(train, test=test, **how)
    apart = kinfed.personalize(train, test=test, backend="sites", **how)
    assert pooled.preparation.readings == apart.preparation.readings
    assert pooled.preparation.left_out == apart.preparation.left_out
    np.testing.assert_allclose(pooled.preparation.mean, apart.preparation.mean, atol=1e-12)
    np.testing.assert_allclose(pooled.scores.to_numpy(), apart.scores.to_numpy(), atol=1e-6)
    assert any("'unbekannt'" in note for note in apart.notes)


def test_every_site_may_write_in_its_own_way(clean, tmp_path):
    some = clean[clean["Klinik"].isin(NAMES[4:8])]
    english = some.assign(
        Aufnahme=some["Aufnahme"].dt.strftime("%Y-%m-%d"), Raucher=some["Raucher"].map({True: "yes", False: "no"})
    )
    for place, (name, rows) in enumerate(english.groupby("Klinik")):
        table = messy(clean).loc[rows.index] if place % 2 else rows.drop(columns="Kosten")
        yes = {True: "Ja", False: "nein"} if place % 2 else {True: "y", False: "n"}
        table.assign(Wiederaufnahme=rows["Wiederaufnahme"].map(yes)).drop(columns="Klinik").to_csv(
            tmp_path / f"{name}.csv", index=False, sep=";" if place % 2 else ","
        )
    fed = kinfed.read_federation(tmp_path, target="Wiederaufnahme")
    preparation = Preparation.fit(fed, labels=True)
    kinds = found(preparation)
    assert {name: kinds[name] for name in ("BMI", "Raucher", "Kosten")} == {
        name: EXPECTED[name] for name in ("BMI", "Raucher", "Kosten")
    }
    assert next(one.absent for one in preparation.readings if one.column == "Kosten") == 2
    assert {label for agent in fed for label in agent.y.tolist()} == {"yes", "no"}


def test_what_is_chosen_by_hand_goes_before(dirty):
    fed = Federation.from_table(dirty, **ROLES)
    by_hand = {"Fallnummer": "number", "Station": "ignore", "Hausname": "category", "Abrechnungscode": "category"}
    preparation = Preparation.fit(fed, chosen=by_hand, labels=True)
    assert set(preparation.left_out) == {"Station", "Bemerkung", "Land"}
    assert preparation.left_out["Station"] == "chosen by hand"


@pytest.mark.parametrize(
    "library", [lambda table: table, polars.from_pandas, lambda table: pyarrow.Table.from_pandas(table)]
)
def test_tables_of_any_library_give_the_same_federation(clean, library):
    table = clean.assign(BMI=clean["BMI"].mask(clean.index % 7 == 0))
    fed = Federation.from_table(library(table), **ROLES)
    usual = Federation.from_table(table, **ROLES)
    assert fed.names == usual.names
    assert Preparation.fit(fed, labels=True) == Preparation.fit(usual, labels=True)
    made = Preparation.fit(fed, labels=True).transform(fed)
    np.testing.assert_array_equal(made.pooled()[0], Preparation.fit(usual, labels=True).transform(usual).pooled()[0])


def test_a_table_goes_straight_into_personalize(clean):
    some = clean[clean["Klinik"].isin(NAMES[5:9])].assign(Hausname="H")
    how = {"rule": "q-aggregation", "n_features": 30}
    result = kinfed.personalize(polars.from_pandas(some), **ROLES, **how)
    train, test = Federation.from_table(some, **ROLES).split(0.2, seed=0)
    twin = kinfed.personalize(train, test=test, **how)
    pd.testing.assert_frame_equal(result.scores, twin.scores)
    assert result.learner.task == "classification"
    assert kinfed.personalize(some, **ROLES, **how, test_size=0.0).scored == {}
    with pytest.raises(kinfed.InputError, match=r"agent=..., target=..."):
        kinfed.personalize(some, target="Wiederaufnahme")
    with pytest.raises(kinfed.InputError, match="leave test out"):
        kinfed.personalize(some, **ROLES, test=some)


def test_what_is_no_table_is_refused():
    with pytest.raises(
        kinfed.InputError, match="dict is no table; give a Federation, or a table of pandas, Polars or Arrow"
    ):
        Federation.from_table({"a": [1]}, agent="a")


@pytest.mark.parametrize("seed", range(20))
def test_columns_that_mean_well_are_kept(seed):
    """Measured columns of every kind: whole numbers, rare codes, group properties, strong but honest predictors."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(6, 60, 12)
    site = np.repeat(np.arange(12), sizes)
    n = len(site)
    age, income = rng.integers(18, 95, n), rng.integers(12_000, 95_000, n)
    strong = rng.normal(size=n)
    table = pd.DataFrame(
        {
            "site": [f"s{one}" for one in site],
            "age": age,
            "income": income,
            "count": rng.poisson(2, n),
            "beds per ward": np.round(rng.normal(30, 5, 12), 2)[site],
            "sector": np.array(["public", "private"])[site % 2],
            "diagnosis": [f"ICD {one}" for one in rng.zipf(1.6, n).clip(1, 40)],
            "strong": strong,
            "y": strong + 0.4 * rng.normal(size=n),
        }
    )
    preparation = Preparation.fit(Federation.from_table(table, target="y", agent="site"), labels=False)
    assert preparation.left_out == {}
    classes = table.assign(y=np.where(strong + 0.5 * rng.normal(size=n) > 0, "yes", "no"))
    assert Preparation.fit(Federation.from_table(classes, target="y", agent="site"), labels=True).left_out == {}


@pytest.mark.parametrize("n", [40, 400])
@pytest.mark.parametrize("leak", ["code", "shifted", "date of death", "rank"])
def test_columns_that_give_the_outcome_away_are_found(leak, n):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 2))
    died = x[:, 0] + rng.normal(size=n) > 0
    y = 5 * x[:, 0] + rng.normal(size=n) + 100
    table = pd.DataFrame(
        {"site": np.arange(n) % 4, "x0": x[:, 0], "x1": x[:, 1], "y": died if leak in ("code", "date of death") else y}
    )
    table["after"] = {
        "code": np.where(died, "E11", "A00"),
        "shifted": 1.8 * y + 32 + 0.01 * rng.normal(size=n),
        "date of death": pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"))
        .dt.strftime("%Y-%m-%d")
        .where(died),
        "rank": pd.Series(y).rank() * 0.37,
    }[leak]
    labels = leak in ("code", "date of death")
    preparation = Preparation.fit(Federation.from_table(table, target="y", agent="site"), labels=labels)
    if leak == "rank":  # a bend of the outcome is not the outcome: it stays, with a warning
        (reading,) = (one for one in preparation.readings if one.column == "after")
        assert n == 40 or "make sure that it is known before the outcome is" in reading.why
        return
    assert list(preparation.left_out) == ["after"], preparation.left_out
    assert "gives the outcome away" in preparation.left_out["after"]


def left_out_errors(predict, y):
    """Squared errors of predicting every row from the others, one fit after the other."""
    others = [np.arange(len(y)) != i for i in range(len(y))]
    return sum((y[i] - predict(i, rest)) ** 2 for i, rest in enumerate(others))


def test_errors_of_leaks_are_those_of_leaving_rows_out():
    rng = np.random.default_rng(0)
    y = rng.normal(size=15)
    without = left_out_errors(lambda i, rest: y[rest].mean(), y)
    assert errors_without(y, False) == pytest.approx(without)
    near, noise = 3 * y + 0.1 * rng.normal(size=15), rng.normal(size=15)
    line = left_out_errors(lambda i, rest: np.polyval(np.polyfit(near[rest], y[rest], 1), near[i]), y)
    assert errors_by_numbers(np.column_stack([near, noise]), y, False)[0] == pytest.approx(line)
    assert errors_by_numbers(noise[:, None], y, False)[0] <= without
    group = np.repeat([0.0, 1.0, 2.0], 5)
    shifted = y + 10 * group
    by_group = left_out_errors(lambda i, rest: shifted[rest & (group == group[i])].mean(), shifted)
    assert errors_by_category(pd.Series(group), shifted, False) == pytest.approx(by_group)
    classes = np.array(list("aabbbbbbaaabbba"))
    wrong = 0
    for i, one in enumerate(classes):
        rest = classes[(np.arange(15) != i) & (group == group[i])]
        wrong += one != ("a" if (rest == "a").sum() >= (rest == "b").sum() else "b")
    assert errors_by_category(pd.Series(group), classes, True) == min(wrong, errors_without(classes, True))


def test_columns_are_judged_together_as_they_are_one_by_one():
    rng = np.random.default_rng(1)
    numbers = np.column_stack([rng.normal(size=60), rng.integers(0, 4, 60), np.arange(60.0), rng.normal(size=60)])
    numbers[rng.random(60) < 0.2, 3] = np.nan
    for y, labels in ((rng.normal(size=60), False), (rng.integers(0, 3, 60), True)):
        alone = [errors_by_numbers(numbers[:, [j]], y, labels)[0] for j in range(4)]
        np.testing.assert_allclose(errors_by_numbers(numbers, y, labels), alone)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.none(), st.integers(-3, 3), st.integers(10**5, 10**7), st.integers(20_230_101, 20_231_231), st.floats(-5, 5)
        ),
        min_size=1,
        max_size=25,
    )
)
def test_counts_of_numbers_are_those_of_their_cells(cells):
    """Against a count of single cells in plain Python."""
    told = dict(
        zip(COUNTS, table_counts(Agent("a", np.array([cells], dtype=float).T), ("x",), True)[0].tolist(), strict=True)
    )
    there = [float(one) for one in cells if one is not None]
    whole = [one for one in there if one.is_integer()]
    assert (told["present"], told["numbers"], told["whole"]) == (len(there), len(there), len(whole))
    assert told["ones"] == sum(one in (0, 1) for one in there)
    assert told["distinct"] == len(set(there))
    assert told["unique"] == (len(there) > 1 and len(set(there)) == len(there))
    digits = {len(str(abs(int(one)))) for one in whole}
    given = bool(there) and len(whole) == len(there)
    assert told["long"] == (given and len(digits) == 1 and min(digits) >= 6)
    pairs = 1000 * len(there) * (len(there) - 1) / 2 / (max(there) - min(there) + 1) if given else 0
    assert told["expected"] == int(pairs)


def test_describe_shows_every_decision(dirty, tmp_path, running):
    path = tmp_path / "stays.csv"
    dirty.to_csv(path, sep=";", index=False, encoding="utf-8")
    code, out, _ = running("data", "describe", path, "--target", "Wiederaufnahme", "--agent", "Klinik", "--json")
    told = json.loads(out)
    assert code == 0
    assert {one["column"]: (one["read as"], one["what is done"] != "left out") for one in told["per column"]} == EXPECTED
    assert all(one["why"] for one in told["per column"])
    assert told["class shares"]["Köln"].keys() == {"no", "yes"}
    assert told["missing"]["Graz"]["BMI"] > 0
    code, out, _ = running(
        "data", "describe", path, "--target", "Wiederaufnahme", "--agent", "Klinik", "--column", "Alter=category"
    )
    assert code == 0
    assert "free text" in out
    code, _, error = running("data", "describe", path, "--agent", "Klinik", "--column", "Altr=category")
    assert (code, "there is no column 'Altr'; the nearest is 'Alter'" in error) == (1, True)


def test_agents_that_differ_by_case_or_spaces_are_pointed_out():
    table = pd.DataFrame({"site": ["North", "north ", "South"] * 4, "x": np.arange(12.0), "y": np.arange(12.0) % 5})
    (note,) = Federation.from_table(table, target="y", agent="site").notes
    assert note.startswith("agents 'North', 'north ' differ by case or spaces alone")


def test_models_predict_for_the_table_they_were_made_from(dirty, tmp_path, running):
    path, out = tmp_path / "stays.csv", tmp_path / "out"
    some = dirty[dirty["Klinik"].isin(NAMES[3:6])]
    some.replace({"Klinik": {NAMES[3]: f"{NAMES[3]} "}}).to_csv(path, sep=";", index=False, encoding="cp1252")
    roles = ("--target", "Wiederaufnahme", "--agent", "Klinik")
    how = ("--rule", "local", "--features", 20, "--encoding", "cp1252")
    code, told, error = running("personalize", path, *roles, *how, "--out", out)
    assert code == 0, error
    assert "learner logistic: the outcome Wiederaufnahme has the classes no, yes" in told
    some.replace({"Klinik": {NAMES[3]: f"{NAMES[3]} "}}).to_csv(path, sep=";", index=False, encoding="utf-8")
    code, _, error = running("predict", out, path, "--agent", "Klinik", "--out", tmp_path / "predictions.csv")
    assert code == 0, error
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == len(some)
