"""Models and results as files: the same predictions elsewhere, nobody's rows inside, and one line for what is no model."""

import copy
import json
import pickle
import shutil
import subprocess
import sys
from io import BytesIO

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.ensemble import RandomForestRegressor
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.linear_model import Ridge as ScikitRidge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer, StandardScaler
from sklearn.svm import SVR

import kinfed
from kinfed.learners.estimator_files import rows_inside
from kinfed.predictions import folder_of, models_in, predict_table
from kinfed.records import VERSION

MARKS = (8123.4567891, 77123.98765)
"""Values that stand in one row each: of a column, and of the outcome."""

pytestmark = pytest.mark.filterwarnings("ignore::kinfed.UnusualRowsWarning")


def messy(n=240):
    """A table with gaps, text, a constant, an identifier, odd names, and two planted values."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "site": rng.choice(["north", "süd", "e/w'st", ".."], n),
            "age": rng.normal(50, 10, n),
            "sex": rng.choice(["f", "m", None], n),
            "unit": 1,
            "id": [f"patient {k}" for k in range(n)],
            "dose (mg)": np.where(rng.random(n) < 0.1, np.nan, rng.normal(3, 1, n)),
        }
    )
    table["y"] = 0.1 * table["age"] + (table["sex"] == "f") + rng.normal(size=n)
    table["class"] = np.where(table["y"] > 5.5, "ill", "well")
    table.loc[5, "age"], table.loc[9, "y"] = MARKS
    return table


CASES = {
    "ridge": ("y", lambda: "ridge"),
    "logistic": ("class", lambda: "logistic"),
    "torch": ("y", lambda: kinfed.make_learner("torch", task="regression", epochs=3)),
    "torch, classes": ("class", lambda: kinfed.make_learner("torch", hidden=(8, 4), epochs=3)),
    "pipeline": ("y", lambda: make_pipeline(StandardScaler(), ScikitRidge())),
    "scikit-learn, classes": ("class", lambda: LogisticRegression()),
}


def learn(name, **choices):
    target, learner = CASES[name]
    table = messy().drop(columns=[{"y": "class", "class": "y"}[target]])
    federation = kinfed.Federation.from_table(table, target=target, agent="site")
    train, test = federation.split(seed=0)
    return kinfed.personalize(train, learner(), "q-aggregation", test=test, n_features=50, **choices), train, table


@pytest.fixture(
    scope="module", params=[pytest.param(one, marks=pytest.mark.torch if "torch" in one else ()) for one in CASES]
)
def learned(request):
    return request.param, *learn(request.param)


def rows_of(table):
    """New rows: the columns in another order, one more, and those that training left out are gone."""
    return table.drop(columns=["id", "unit"]).assign(more=1.0).iloc[::-2, ::-1]


ELSEWHERE = """
import sys, numpy as np, pandas, kinfed
rows = pandas.read_parquet("rows.parquet")
model = kinfed.load_model("model")
result = kinfed.load("result")
found = {"model": model.predict(rows), "result": result.predict("süd", rows)}
if model.spec.classes is not None:
    found["probabilities"] = model.predict_proba(rows).to_numpy()
np.savez("found.npz", **found)
"""


@pytest.mark.slow
def test_files_copied_elsewhere_predict_the_same_bit_for_bit(learned, tmp_path):
    _, result, _, table = learned
    rows, model = rows_of(table), result.model("süd")
    model.save(tmp_path / "first" / "model")
    result.save(tmp_path / "first" / "result")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    rows.to_parquet(tmp_path / "second" / "rows.parquet")
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE]
    subprocess.run(command, cwd=tmp_path / "second", check=True, timeout=120)
    with np.load(tmp_path / "second" / "found.npz") as found:
        np.testing.assert_array_equal(found["model"], model.predict(rows))
        np.testing.assert_array_equal(found["result"], result.predict("süd", rows))
        if "probabilities" in found:
            np.testing.assert_array_equal(found["probabilities"], result.predict_proba("süd", rows).to_numpy())


def test_no_planted_value_of_a_row_is_in_a_file(learned, tmp_path):
    name, result, _, _ = learned
    if name in ("pipeline", "scikit-learn, classes"):
        pytest.skip("an estimator may keep what it likes; those known to keep rows are refused")
    result.save(tmp_path / "result")
    result.model("north").save(tmp_path / "model")
    parts = [path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()] + [pickle.dumps(result)]
    for mark in MARKS:
        signs = [np.array(mark, dtype=kind).tobytes() for kind in ("<f8", ">f8", "<f4")] + [str(mark).encode()]
        assert not any(sign in part for sign in signs for part in parts)
    assert b"patient 7" not in b"".join(parts)  # an identifier is no category


@pytest.mark.slow
def test_a_loaded_result_reports_and_says_what_onboarding_needs(learned, tmp_path):
    _, result, train, table = learned
    result.report(tmp_path / "before")
    back = kinfed.load(result.save(tmp_path / "result"))
    pd.testing.assert_frame_equal(back.scores, result.scores)
    assert str(back) == str(result)
    assert back.choices == result.choices
    assert back.found["diagnosis"].describe() == result.found["diagnosis"].describe()
    assert "<html" in back.report(tmp_path / "after").read_text()
    target = train.target
    rows = table.drop(columns=["site", target]).head(30)
    with pytest.raises(kinfed.InputError, match=r"sketches of the 4 agents and learns from their rows.*train="):
        back.onboard(rows, table[target].head(30).to_numpy())
    ours, theirs = (
        one.onboard(rows, table[target].head(30).to_numpy(), **given)
        for one, given in ((result, {}), (back, {"train": train}))
    )
    np.testing.assert_array_equal(ours.predict(rows), theirs.predict(rows))
    np.testing.assert_allclose(ours.weights.matrix, theirs.weights.matrix)


def test_copies_of_results_work_and_only_those_of_this_process_have_rows(learned):
    _, result, _, table = learned
    rows = rows_of(table)
    buffer = BytesIO()
    joblib.dump(result, buffer)
    for one in (pickle.loads(pickle.dumps(result)), joblib.load(BytesIO(buffer.getvalue())), copy.deepcopy(result)):
        np.testing.assert_array_equal(one.predict("north", rows), result.predict("north", rows))
        pd.testing.assert_frame_equal(one.scores, result.scores)
    assert pickle.loads(pickle.dumps(result)).agents is None
    assert copy.deepcopy(result).agents is result.agents
    model = pickle.loads(pickle.dumps(result.model("north")))
    np.testing.assert_array_equal(model.predict(rows), result.predict("north", rows))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["pooled", "sites"])
def test_every_public_record_can_be_copied(backend):
    generated = kinfed.concept_shift(n_agents=6, n=12, dim=3, spread=0.0, seed=0)
    result = kinfed.personalize(generated.train, rule="calibrated", test=generated.test(10, seed=1), backend=backend)
    weighting = kinfed.weighting(generated.train, "q-aggregation")
    newcomer = result.onboard(generated.train[0].X, generated.train[0].y)
    points = [agent.X for agent in generated.train]
    features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), 20, dim=3, seed=0)
    public = [
        *(result, weighting, newcomer, result.weights, result.weights.calibration, result.scored["local"]),
        *(result.compare("local"), kinfed.predict_gain(generated.train), kinfed.diagnose(generated.train), generated.train),
        *(kinfed.sketch(points[0], features), kinfed.explicit_geometry(points), result.preparation, result.settings),
        *(result.models, result.learner, *([] if result.exchange is None else [result.exchange])),
    ]
    for one in public:
        for copied in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
            assert type(copied) is type(one)
            assert str(copied) == str(one) or " at 0x" in str(one)


def test_coefficients_are_those_of_raw_columns(tmp_path):
    result, _, table = learn("ridge")
    model = kinfed.load_model(result.model("north").save(tmp_path / "m"))
    told = model.coefficients["coefficient"]
    assert list(told.index) == ["age", "sex=f", "sex=m", "dose (mg)", "(intercept)"]
    rows = table[["age", "sex", "dose (mg)"]].dropna().head(40)
    by_hand = told["(intercept)"] + told["age"] * rows["age"] + told["dose (mg)"] * rows["dose (mg)"]
    by_hand += np.where(rows["sex"] == "f", told["sex=f"], told["sex=m"])
    np.testing.assert_allclose(model.predict(rows), by_hand, rtol=1e-9)
    result, _, table = learn("logistic")
    told = result.model("north").coefficients["well"]
    odds = result.predict_proba("north", rows)
    by_hand = told["(intercept)"] + told["age"] * rows["age"] + told["dose (mg)"] * rows["dose (mg)"]
    by_hand += np.where(rows["sex"] == "f", told["sex=f"], told["sex=m"])
    np.testing.assert_allclose(np.log(odds["well"] / odds["ill"]).to_numpy(), by_hand, rtol=1e-7)


def test_a_linear_estimator_has_coefficients_and_a_forest_has_none():
    generated = kinfed.concept_shift(n_agents=4, n=20, dim=3, spread=0.0, seed=0)
    linear = kinfed.personalize(generated.train, LinearRegression(), "grand-mean").model(0)
    rows = generated.train[0].X
    told = linear.coefficients["coefficient"].to_numpy()
    np.testing.assert_allclose(linear.predict(rows), rows @ told[:-1] + told[-1])
    forest = kinfed.personalize(generated.train, RandomForestRegressor(n_estimators=2), "grand-mean").model(0)
    with pytest.raises(kinfed.InputError, match="is not linear"):
        _ = forest.coefficients


# ---------------------------------------------------------------- raw tables


def test_columns_are_found_by_name_and_arrays_keep_the_order_of_training():
    result, _, table = learn("ridge")
    model, rows = result.model("north"), table.drop(columns=["site", "y"]).head(20)
    expected = model.predict(rows)
    np.testing.assert_array_equal(model.predict(rows[["dose (mg)", "sex", "age"]]), expected)
    np.testing.assert_array_equal(model.predict(rows.assign(other="x")), expected)
    np.testing.assert_array_equal(model.predict(rows.to_numpy(dtype=object)), expected)
    with pytest.raises(kinfed.InputError, match=r"no column 'age'; .* the model was trained on it"):
        model.predict(rows.drop(columns="age"))
    with pytest.raises(kinfed.InputError, match=r"and 1 more: dose \(mg\)"):
        model.predict(rows[["sex"]])
    with pytest.raises(kinfed.InputError, match=r"5 columns age, sex, unit, id, dose .* in this order, got shape"):
        model.predict(rows[["age", "sex"]].to_numpy(dtype=object))


@pytest.mark.filterwarnings("default::kinfed.UnusualRowsWarning")
def test_what_is_unlike_training_is_counted_in_one_warning():
    result, _, table = learn("logistic")
    rows = table.head(20).assign(sex=["x", "y", "x", *["f"] * 17])
    rows.loc[rows.index[:2], "dose (mg)"] = 400.0
    with pytest.warns(kinfed.UnusualRowsWarning) as told:
        result.predict("north", rows)
    (message,) = {str(one.message) for one in told}
    assert "column sex: categories never seen in 3 rows ('x', 'y')" in message
    assert "column dose (mg): more than 10 standard deviations from the training mean" in message
    assert "in 2 rows" in message


# ---------------------------------------------------------------- what is no model


def spoil(folder, how):
    text, archive = folder / "model.json", next(folder.glob("model-*.npz"))
    told = json.loads(text.read_text())
    match how:
        case "truncated archive":
            archive.write_bytes(archive.read_bytes()[:-20])
        case "changed archive":
            data = bytearray(archive.read_bytes())
            data[len(data) // 2] ^= 1
            archive.write_bytes(bytes(data))
        case "no archive":
            archive.unlink()
        case "truncated text":
            text.write_text(text.read_text()[:-30])
        case "changed text":
            text.write_text(json.dumps({**told, "agent": "another"}))
        case "binary":
            text.write_bytes(bytes(range(256)))
        case "a list":
            text.write_text("[1, 2]")
        case "foreign":
            text.write_text(json.dumps({"format": "somebody else's model"}))
        case "newer":
            text.write_text(json.dumps({**told, "version": VERSION + 1}))
        case "nothing":
            shutil.rmtree(folder)


@pytest.mark.parametrize(
    "how, words",
    [
        ("truncated archive", "is damaged"),
        ("changed archive", "a checksum is wrong"),
        ("no archive", "is damaged"),
        ("truncated text", "is damaged"),
        ("changed text", "a checksum is wrong"),
        ("binary", "is damaged"),
        ("a list", "is not a model of kinfed"),
        ("foreign", "is not a model of kinfed"),
        ("newer", f"written by a newer kinfed .format {VERSION + 1}, this one reads {VERSION}.; update kinfed"),
        ("nothing", "there is no model in"),
    ],
)
def test_what_is_no_model_is_one_line(how, words, tmp_path):
    learn("ridge")[0].model("north").save(tmp_path / "m")
    spoil(tmp_path / "m", how)
    with pytest.raises(kinfed.InputError, match=words) as raised:
        kinfed.load_model(tmp_path / "m")
    assert "\n" not in str(raised.value)


def test_a_model_is_not_overwritten_unless_that_is_said(tmp_path):
    result, *_ = learn("ridge")
    result.model("north").save(tmp_path)
    with pytest.raises(kinfed.InputError, match="holds a model already"):
        result.model("süd").save(tmp_path)
    assert kinfed.load_model(tmp_path).agent == "north"
    result.model("süd").save(tmp_path, overwrite=True)
    assert kinfed.load_model(tmp_path).agent == "süd"
    assert len(list(tmp_path.iterdir())) == 2


# ---------------------------------------------------------------- estimators


@pytest.mark.parametrize(
    "estimator, words",
    [
        (KNeighborsRegressor(), "nearest neighbours"),
        (SVR(), "support vectors"),
        (RandomForestRegressor(n_estimators=3), "stand for"),
        (make_pipeline(QuantileTransformer(n_quantiles=20), LinearRegression()), "quantiles"),
        (KMeans(n_clusters=30, n_init=1), "stand for"),
        (IsotonicRegression(), "isotonic"),
    ],
)
def test_estimators_that_remember_rows_are_known(estimator, words):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1))
    estimator.fit(X, X[:, 0] + rng.normal(size=60))
    assert words in rows_inside(estimator)


def test_estimators_that_remember_rows_are_not_written_unless_that_is_said(tmp_path):
    generated = kinfed.concept_shift(n_agents=4, n=30, dim=3, spread=0.0, seed=0)
    result = kinfed.personalize(generated.train, SVR(), "grand-mean")
    for write in (
        lambda: result.save(tmp_path / "r"),
        lambda: result.model(0).save(tmp_path / "m"),
        lambda: pickle.dumps(result),
    ):
        with pytest.raises(kinfed.InputError, match="support vectors, which are rows; set allow_rows"):
            write()
    assert not (tmp_path / "r").exists()
    result.save(tmp_path / "r", allow_rows=True)
    rows = generated.train[1].X
    np.testing.assert_array_equal(kinfed.load(tmp_path / "r").predict(1, rows), result.predict(1, rows))


def test_types_nobody_vouched_for_are_made_only_if_trusted(tmp_path):
    generated = kinfed.concept_shift(n_agents=4, n=30, dim=3, spread=0.0, seed=0)
    forest = RandomForestRegressor(n_estimators=2, min_samples_leaf=10)
    model = kinfed.personalize(generated.train, forest, "grand-mean").model(0)
    model.save(tmp_path)
    with pytest.raises(kinfed.InputError, match=r"sklearn\.tree\._tree\.Tree; if you trust it, pass trusted="):
        kinfed.load_model(tmp_path)
    rows = generated.train[0].X
    back = kinfed.load_model(tmp_path, trusted=["sklearn.tree._tree.Tree"])
    np.testing.assert_array_equal(back.predict(rows), model.predict(rows))


@pytest.mark.torch
def test_a_network_made_by_a_function_needs_its_learner_again(tmp_path):
    from torch import nn

    from kinfed.learners.neural import TorchLearner

    learner = TorchLearner(
        module=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), task="regression", epochs=2
    )
    train = kinfed.concept_shift(n_agents=4, n=12, dim=3, spread=0.0, seed=0).train
    model = kinfed.personalize(train, learner, "local").model(1)
    model.save(tmp_path)
    with pytest.raises(kinfed.InputError, match="module of it cannot be read from a file; pass that learner as learner="):
        kinfed.load_model(tmp_path)
    np.testing.assert_array_equal(
        kinfed.load_model(tmp_path, learner=learner).predict(train[1].X), model.predict(train[1].X)
    )


# ---------------------------------------------------------------- many models


def test_every_row_is_predicted_by_the_model_of_its_agent(tmp_path):
    result, _, table = learn("logistic")
    for name in result.known.names:
        result.model(name).save(tmp_path / "models" / folder_of(name))
    found = predict_table(models_in(tmp_path), table, "site")
    assert list(found.index) == list(range(1, len(table) + 1))
    for name in result.known.names:
        mine = (table["site"] == name).to_numpy()
        assert (found["agent"][mine] == name).all()
        assert (found["prediction"][mine] == result.predict(name, table[mine])).all()
        np.testing.assert_array_equal(found["probability of ill"][mine], result.predict_proba(name, table[mine])["ill"])
    with pytest.raises(kinfed.InputError, match="4 models; say which column"):
        predict_table(models_in(tmp_path), table)
    with pytest.raises(kinfed.InputError, match="no model of agent west"):
        predict_table(models_in(tmp_path), table.assign(site="west"), "site")
    with pytest.raises(kinfed.InputError, match="there is no model in"):
        models_in(tmp_path / "nowhere")


def test_predictions_of_a_table_have_intervals(tmp_path):
    table = messy().drop(columns="class")
    train = kinfed.Federation.from_table(table, target="y", agent="site")
    result = kinfed.personalize(train, "ridge", seed=0)
    for name in result.known.names:
        result.model(name).save(tmp_path / "models" / folder_of(name))
    models = models_in(tmp_path)
    found = predict_table(models, table, "site", 0.9)
    assert list(found.columns) == ["agent", "prediction", "low", "high"]
    for name in result.known.names:
        mine = (table["site"] == name).to_numpy()
        told = result.predict(name, table[mine], interval=0.9)
        np.testing.assert_array_equal(found.loc[mine, ["prediction", "low", "high"]], told)
    with pytest.raises(kinfed.InputError, match="between 0 and 1"):
        predict_table(models, table, "site", 9.0)


@pytest.mark.parametrize("name", ["north", "a/b", "..", ".", "", "süd", "x" * 300, "CON", "a\x00b", " padded "])
def test_folders_of_agents_are_names_of_their_own(name, tmp_path):
    others = {folder_of(one) for one in ("north", "a/b", "..", "x" * 299, "padded") if one != name}
    made = tmp_path / folder_of(name)
    made.mkdir()
    assert made.parent == tmp_path
    assert folder_of(name) not in others
