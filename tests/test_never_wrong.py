"""The calibrated rule against simpler ones: what is promised is written, and every verdict follows from the numbers."""

import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.data import Preparation
from kinfed.errors import InputError
from kinfed.experiments import EXPERIMENTS, run_experiment
from kinfed.experiments.experiment import COLUMNS, Part, PartFindings, tidy
from kinfed.experiments.never_wrong import BASELINES, EMBEDDED, METRIC, OURS, SETTINGS, NeverWrong, raw_coefficients
from kinfed.experiments.real_federations import (
    ERROR_RATE,
    LOG_LOSS,
    PROBLEMS,
    SIMPLER,
    RealFederations,
    geometric_mean,
    leading_errors,
    read_problem,
    split,
)
from kinfed.learners.ridge import Ridge
from question_sites import fit

pytestmark = pytest.mark.slow

TINY = {
    "agents": 6,
    "features": 40,
    "folds": 2,
    "settings": ("groups-2-0", "same"),
    "repetitions": 1,
    "other_repetitions": 1,
}


@pytest.fixture
def folds_dealt_once(monkeypatch):
    """Small federations deal their folds several times, which makes their calibration better, and slower."""
    monkeypatch.setattr("kinfed.weights.calibration.cross_fitting.MOST_REPEATS", 1)


def few_rows(folder, names=("hsb82_schools", "heart_disease"), sizes=(12, 10, 12, 3)):
    """Archives of four small agents, the last of them too small to take part."""
    rng = np.random.default_rng(0)
    agent = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.standard_normal((len(agent), 2))
    score = X[:, 0] * np.where(agent % 2, -1, 1) + 0.3 * rng.standard_normal(len(agent))
    for name in names:
        y = score if name == "hsb82_schools" else (score > 0).astype(np.int64)
        np.savez(folder / f"{name}.npz", X=X, y=y, agent=agent, agent_names=np.array(list("abcd")))
    return folder


def claims_of(summary):
    lines = [line for line in summary.split("## Claims")[1].split("## Figures")[0].splitlines() if line.startswith("| ")]
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines[1:]]


def made_up(settings, values, metric, repetitions=3):
    """Results of two agents: `values` gives the error of a method in a setting, and repetitions differ by a tenth."""
    rows = [
        ("made-up", setting, method, r, agent, metric, value * (1 + 0.1 * r))
        for setting in settings
        for r in range(repetitions)
        for method, value in values(setting).items()
        for agent in ("0", "1")
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def made_up_findings(settings):
    return {Part(f"p{i}", 0): PartFindings((), {"chosen": np.array([one, "local"])}) for i, one in enumerate(settings)}


# --- the experiments as they are run ------------------------------------------------------------------------------------


def test_generators_write_what_is_promised(tmp_path, folds_dealt_once):
    seen = []
    experiment = NeverWrong(**TINY)
    summary = run_experiment(experiment, tmp_path, workers=1, progress=lambda *args: seen.append(args[1])).read_text()
    assert seen == sorted(seen)
    assert len(set(seen)) > 4
    results = pd.read_csv(tmp_path / "results.csv")
    assert set(results["method"]) == {*BASELINES, OURS}
    assert set(results["metric"]) == {METRIC}
    assert set(results["setting"]) == {SETTINGS[name].label for name in TINY["settings"]}
    # Noise of variance 2 is in every error; where all agents are the same, the oracle is the grand mean.
    assert (results["value"] > 2).all()
    same = results[results["setting"] == SETTINGS["same"].label].pivot(index="agent", columns="method", values="value")
    np.testing.assert_allclose(same["oracle"], same["grand-mean"])
    claims = claims_of(summary)
    assert [claim for claim, *_ in claims] == [
        "the error is at most 0.55 times that of q-aggregation",
        "the error is at most 1.25 times that of oracle",
        "the error is at most 1.05 times that of grand-mean",
    ]
    means = results.groupby(["setting", "method"])["value"].mean()
    for (_, measured, verdict, setting), name, other, limit in zip(
        claims,
        ("groups-2-0", "groups-2-0", "same"),
        ("q-aggregation", "oracle", "grand-mean"),
        (0.55, 1.25, 1.05),
        strict=True,
    ):
        ratio = means[SETTINGS[name].label, OURS] / means[SETTINGS[name].label, other]
        assert float(measured.split()[0]) == pytest.approx(ratio, abs=6e-4)
        assert verdict == ("holds" if ratio <= limit else "does not hold")
        assert setting.startswith(SETTINGS[name].label)
    assert "nan" not in summary
    assert "candidate: times" in summary
    assert (tmp_path / "ratios.png").stat().st_size > 5000
    assert (tmp_path / "ratios.svg").read_text().rstrip().endswith("</svg>")

    before = (tmp_path / "results.csv").read_bytes()
    next((tmp_path / "parts").glob("same*.npz")).write_bytes(b"not whole")
    run_experiment(experiment, tmp_path, workers=1)
    assert (tmp_path / "results.csv").read_bytes() == before


def test_federations_write_what_is_promised(tmp_path, folds_dealt_once):
    data = tmp_path / "data"
    data.mkdir()
    experiment = RealFederations(few_rows(data), points=6, folds=2, repetitions=1)
    summary = run_experiment(experiment, tmp_path / "out", workers=1).read_text()
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert set(results["method"]) == {*SIMPLER, OURS}
    assert set(results["agent"]) == {"a", "b", "c"}
    assert results["value"].notna().all()
    metrics = results.groupby("setting")["metric"].agg(set)
    assert len(metrics) == 6  # two amounts of the schools by ridge, and of the hospitals by both learners
    for setting, found in metrics.items():
        assert found == ({METRIC} if "learner=ridge" in setting else {ERROR_RATE, LOG_LOSS})
    rates = results[results["metric"] == ERROR_RATE]["value"]
    assert rates.between(0, 1).all()
    claims = claims_of(summary)
    assert len(claims) == 7
    assert {verdict for *_, verdict, _ in claims} <= {"holds", "does not hold"}
    assert claims[-1][0].startswith("over all problems, the geometric mean")
    assert "nan" not in summary
    assert (tmp_path / "out" / "ratios.png").stat().st_size > 5000


def test_settings_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match="--settings 'groups-9-0' is not known"):
        NeverWrong(settings=("groups-9-0",))
    with pytest.raises(InputError, match="--folds must be at least 2"):
        NeverWrong(folds=1)
    with pytest.raises(InputError, match="is not a folder"):
        RealFederations(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"holds none of landmine.npz, .*heart_disease.npz; give another with --data"):
        RealFederations(tmp_path)
    few_rows(tmp_path, ["heart_disease"])
    with pytest.raises(InputError, match=r"holds none of landmine.npz; give"):
        RealFederations(tmp_path, sets=("landmine",))
    with pytest.raises(InputError, match="--sets 'mines' is not known"):
        RealFederations(tmp_path, sets=("mines",))
    # A set that is not there is left out.
    assert {part.options[0].file for part in RealFederations(tmp_path).parts()} == {"heart_disease"}
    few_rows(tmp_path, ["heart_disease"], sizes=(7, 7, 7, 7))
    with pytest.raises(InputError, match=r"heart_disease.npz: no agent has 8 rows"):
        read_problem(tmp_path, PROBLEMS[-1])


def test_parts_have_names_of_their_own(tmp_path):
    for experiment in (NeverWrong(), RealFederations(few_rows(tmp_path))):
        names = [part.name for part in experiment.parts()]
        assert len(set(names)) == len(names)
        assert EXPERIMENTS[experiment.name] is type(experiment)
    full = NeverWrong()
    assert len(full.parts()) == 6 * full.repetitions + 14 * full.other_repetitions


# --- verdicts follow from the numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("above, answer", [(0.99, "holds"), (1.01, "does not hold")])
def test_every_bound_is_judged_by_its_ratio(above, answer):
    by_label = {setting.label: setting for setting in SETTINGS.values()}

    def levels(label):
        bounds = by_label[label].bounds
        found = {method: 10.0 + i for i, method in enumerate(BASELINES)}
        ours = above * bounds[0].limit * min(found[method] for method in bounds[0].against)
        for bound in bounds[1:]:
            (other,) = bound.against
            found[other] = ours / above / bound.limit
        return {**found, OURS: ours}

    results = made_up(by_label, levels, METRIC)
    conclusion = NeverWrong(repetitions=3, other_repetitions=3).conclude(results, made_up_findings(by_label))
    bounds = [(label, bound) for label, setting in by_label.items() for bound in setting.bounds]
    assert len(bounds) == 21
    for (label, bound), verdict in zip(bounds, conclusion.verdicts, strict=True):
        assert verdict.answer == answer
        assert f"{bound.limit:g} times" in verdict.claim
        assert float(verdict.measured.split()[0]) == pytest.approx(above * bound.limit, abs=6e-4)
        assert "± 0.000 times" in verdict.measured
        assert verdict.setting.startswith(f"{label};")


def test_one_bad_setting_fails_alone():
    labels = [setting.label for setting in SETTINGS.values()]
    bad = SETTINGS["dim-50-0.5"].label
    results = made_up(labels, lambda one: dict.fromkeys(BASELINES, 10.0) | {OURS: 11.0 if one == bad else 5.0}, METRIC)
    conclusion = NeverWrong(repetitions=3, other_repetitions=3).conclude(results, made_up_findings(labels))
    assert [one.setting for one in conclusion.verdicts if one.answer != "holds"] == [
        f"{bad}; 3 repetitions, all 100 agents"
    ]


def test_the_best_is_the_one_of_least_mean_and_the_stronger_baseline_is_only_shown():
    label = SETTINGS["groups-3-0"].label
    levels = {"local": 5.0, "grand-mean": 4.0, "q-aggregation": 6.0, EMBEDDED: 1.0, "oracle": 1.0, OURS: 4.1}
    conclusion = NeverWrong(settings=("groups-3-0",), other_repetitions=3).conclude(
        made_up([label], lambda _: levels, METRIC), made_up_findings([label])
    )
    (verdict,) = conclusion.verdicts
    assert verdict.measured == "1.025 ± 0.000 times (the best is grand-mean)"
    assert verdict.answer == "holds"
    ratios = next(iter(conclusion.tables.values()))
    assert ratios.loc[label, EMBEDDED] == "4.100 ± 0.000"


def test_standard_errors_of_ratios_and_the_table_of_choices():
    label = SETTINGS["same"].label
    results = made_up([label], lambda _: dict.fromkeys((*BASELINES, OURS), 2.0), METRIC, repetitions=2)
    results.loc[(results["method"] == OURS) & (results["repetition"] == 0), "value"] = 1.6
    findings = {Part(str(i), i): PartFindings((), {"chosen": np.array([label, m])}) for i, m in enumerate("aba")}
    conclusion = NeverWrong(settings=("same",), other_repetitions=2).conclude(results, findings)
    # Means 1.6 and 2.2 against 2.0 and 2.2: the residuals of the ratio 3.8 / 4.2 have deviation s, its error s / sqrt(2).
    ratio = 3.8 / 4.2
    error = np.std([1.6 - ratio * 2.0, 2.2 - ratio * 2.2], ddof=1) / 2.1 / np.sqrt(2)
    assert conclusion.verdicts[0].measured == f"{ratio:.3f} ± {error:.3f} times"
    assert list(conclusion.tables.values())[-1].loc[label, "candidate: times"] == "a: 2; b: 1"


def real_results(levels, repetitions=3):
    labels = [f"set=one, n={n}, learner={learner}" for n in (20, "half") for learner in ("ridge", "logistic")]
    ridge = made_up(labels[::2], levels, METRIC, repetitions)
    rates = made_up(labels[1::2], levels, ERROR_RATE, repetitions)
    # The log loss is shown but not judged: here it would be a bad one.
    losses = made_up(labels[1::2], lambda one: {**levels(one), OURS: 9.0}, LOG_LOSS, repetitions)
    return labels, pd.concat([ridge, rates, losses], ignore_index=True)


@pytest.mark.parametrize(
    "ours, each, together",
    [(0.36, "holds", "does not hold"), (0.34, "holds", "holds"), (0.40, "does not hold", "does not hold")],
)
def test_real_federations_are_judged_one_by_one_and_together(tmp_path, ours, each, together):
    labels, results = real_results(lambda _: {"local": 0.5, "grand-mean": 0.36, "q-aggregation": 0.4, OURS: ours})
    experiment = RealFederations(few_rows(tmp_path), repetitions=3)
    conclusion = experiment.conclude(results, made_up_findings(labels))
    assert [verdict.answer for verdict in conclusion.verdicts] == [each] * 4 + [together]
    assert conclusion.verdicts[-1].measured == f"{ours / 0.36:.3f} ± 0.000"
    assert "4 problems" in conclusion.verdicts[-1].setting


def test_one_bad_problem_fails_alone_and_the_geometric_mean_is_that_of_the_ratios(tmp_path):
    def levels(setting):
        ours = 0.8 if "half, learner=logistic" in setting else 0.3
        return {"local": 0.5, "grand-mean": 0.4, "q-aggregation": 0.6, OURS: ours}

    labels, results = real_results(levels)
    results["value"] *= 1 + 0.2 * np.random.default_rng(0).random(len(results))
    conclusion = RealFederations(few_rows(tmp_path), repetitions=3).conclude(results, made_up_findings(labels))
    answers = {verdict.setting.split(";")[0]: verdict.answer for verdict in conclusion.verdicts[:-1]}
    assert answers == dict.fromkeys(labels[:-1], "holds") | {labels[-1]: "does not hold"}

    leading = results[results["metric"] != LOG_LOSS]

    def by_hand(rows):
        means = rows.groupby(["setting", "method"])["value"].mean().unstack()
        return np.exp(np.log(means[OURS] / means["grand-mean"]).mean())

    mean, error = geometric_mean(leading_errors(results))
    assert mean == pytest.approx(by_hand(leading))
    without = [by_hand(leading[leading["repetition"] != r]) for r in range(3)]
    assert error == pytest.approx(np.sqrt(2 * np.var(without)))


def test_errors_of_zero_are_compared_all_the_same(tmp_path):
    for ours, answer in ((0.0, "holds"), (0.1, "does not hold")):
        labels, results = real_results(lambda _, ours=ours: {"local": 0.0, "grand-mean": 1, "q-aggregation": 1, OURS: ours})
        conclusion = RealFederations(few_rows(tmp_path), repetitions=3).conclude(results, made_up_findings(labels))
        assert {verdict.answer for verdict in conclusion.verdicts[:-1]} == {answer}
        assert conclusion.verdicts[-1].measured == ("inf" if ours else "1.000 ± 0.000")
        assert conclusion.verdicts[-1].answer == "does not hold"


# --- the pieces ----------------------------------------------------------------------------------------------------------


def test_coefficients_converted_back_predict_the_same():
    generated = kinfed.concept_shift(n_agents=5, n=12, dim=4, seed=0)
    X, y, agent = generated.train.pooled()
    X = np.insert(X * [1, 10, 0.1, 3] + [5, 0, -2, 1], 2, 7.0, axis=1)  # the constant column is left out
    train = kinfed.Federation.from_arrays(X, y, agent)
    preparation = Preparation.fit(train)
    prepared = preparation.transform(train)
    models = fit(Ridge(), prepared, np.eye(5))
    raw = raw_coefficients(models.coefficients, preparation)
    assert raw.shape == (5, 6)
    for row in range(5):
        expected = models.predict(row, prepared[row].X)
        np.testing.assert_allclose(train[row].X @ raw[row, :-1] + raw[row, -1], expected, rtol=1e-10)


def test_errors_on_the_population_are_those_on_many_points():
    generated = kinfed.concept_shift(n_agents=4, n=30, dim=3, seed=1)
    preparation = Preparation.fit(generated.train)
    models = fit(Ridge(), preparation.transform(generated.train), np.eye(4))
    exact = generated.population_mse(raw_coefficients(models.coefficients, preparation))
    sampled = kinfed.score_models(models, preparation.transform(generated.test(40_000)), "regression")[METRIC]
    # A mean over 40,000 squared errors has a relative standard error near sqrt(2 / 40,000) = 0.7 %.
    np.testing.assert_allclose(sampled, exact, rtol=0.04)


def test_splits_keep_what_is_promised(tmp_path):
    fed = read_problem(few_rows(tmp_path, sizes=(40, 22, 9, 7)), PROBLEMS[-1])
    assert fed.names == ("a", "b", "c")
    for points, sizes in ((20, [20, 18, 5]), (None, [20, 11, 5])):
        train, test = split(fed, points, seed=0)
        assert train.sizes.tolist() == sizes
        assert (test.sizes >= 4).all()
        for agent in fed:
            rows = np.vstack([train[agent.name].X, test[agent.name].X])
            np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(agent.X, axis=0))
            # Classes are in proportion, up to rounding.
            share = len(train[agent.name]) / len(agent)
            assert abs(train[agent.name].y.sum() - share * agent.y.sum()) <= 1
    again, _ = split(fed, None, seed=0)
    other, _ = split(fed, None, seed=1)
    np.testing.assert_array_equal(again["a"].X, train["a"].X)
    assert not np.array_equal(other["a"].X, train["a"].X)


@pytest.fixture
def real_data():
    """The folder of real federations: $KINFED_DATA, or ../shared/data beside the repository."""
    folder = Path(os.environ.get("KINFED_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("the folder of real federations is absent; set KINFED_DATA to it")
    return folder


def test_real_files_are_read_and_split(real_data):
    experiment = RealFederations(real_data)
    assert len(experiment.parts()) == 18 * experiment.repetitions
    agents = {"landmine": 29, "hsb82_schools": 160, "communities_crime": 37, "tcga_brca": 6, "heart_disease": 4}
    for problem in PROBLEMS:
        federation = read_problem(real_data, problem)
        assert len(federation) == agents[problem.file]
        assert federation[0].y.dtype.kind == ("i" if problem.classes else "f")
        train, test = split(federation, 20, seed=0)
        assert train.sizes.max() == 20
        assert (test.sizes >= 4).all()


def test_a_part_of_real_data(real_data, tmp_path, folds_dealt_once):
    experiment = RealFederations(real_data, sets=("heart_disease",), folds=2, points=10)
    part = next(part for part in experiment.parts() if part.options[1:] == ("10", "ridge"))
    found = experiment.run(part, lambda share: None, tmp_path)
    results = tidy(experiment.name, [found])
    assert set(results["method"]) == {*SIMPLER, OURS}
    assert (results["value"] > 0).all()
    assert found.arrays["chosen"][0] == "set=heart_disease, n=10, learner=ridge"
    assert found.arrays["chosen"][1]
