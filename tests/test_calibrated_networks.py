"""The calibrated rule for networks: what is promised is written, and every verdict follows from the numbers."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.analysis import score_models
from kinfed.data import Preparation, covariate_shift
from kinfed.errors import InputError
from kinfed.experiments import EXPERIMENTS, run_experiment
from kinfed.experiments import calibrated_femnist as femnist
from kinfed.experiments.calibrated_femnist import METHODS, TUNED, CalibratedFemnist, best_length, tuned_accuracies
from kinfed.experiments.calibrated_networks import BASELINES, FINAL, CalibratedNetworks, paper_weights
from kinfed.experiments.covariate_shift import CovariateShiftNetworks
from kinfed.experiments.experiment import COLUMNS, Part, PartFindings
from kinfed.experiments.femnist import split_writers
from kinfed.experiments.never_wrong import OURS, stage
from kinfed.experiments.paper_settings import repetition_seed
from question_sites import fit, pooled

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TINY = {
    "agents": 7, "points": 10, "features": 30, "hidden_layers": (1,), "widths": (4,), "epochs": 10, "batch": 16,
    "test_points": 30, "repetitions": 1,
}  # fmt: skip
SHAPES = ("hidden=1x16", "hidden=1x32", "hidden=3x16")


def claims_of(summary):
    lines = [line for line in summary.split("## Claims")[1].split("## Figures")[0].splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[1:]]


def table(rows):
    return pd.DataFrame(rows, columns=list(COLUMNS))


# --- networks ------------------------------------------------------------------------------------------------------------


def test_networks_write_what_is_promised(tmp_path):
    seen = []
    experiment = CalibratedNetworks(**TINY)
    summary = run_experiment(experiment, tmp_path, workers=1, progress=lambda *args: seen.append(args[1])).read_text()
    assert seen == sorted(seen)
    assert len(set(seen)) > 20
    results = pd.read_csv(tmp_path / "results.csv")
    assert set(results["method"]) == {*BASELINES, OURS}
    assert set(results["metric"]) == {FINAL}
    assert (results["value"] > 0).all()
    claims = claims_of(summary)
    means = results.groupby("method")["value"].mean()
    best = means[["local", "grand-mean", "q-aggregation"]].min()
    for (_, measured, verdict, _), other, limit in zip(claims, (means["oracle"], best), (1.05, 1.03), strict=True):
        assert float(measured.split()[0]) == pytest.approx(means[OURS] / other, abs=6e-4)
        assert verdict == ("holds" if means[OURS] <= limit * other else "does not hold")
    assert "nan" not in summary
    assert "| hidden=1x4 | " in summary.split("What was chosen")[1]
    assert (tmp_path / "ratios.png").stat().st_size > 5000

    # The baselines are what a training on prepared data gives, whatever trains beside them.
    from kinfed.learners.neural import TorchLearner

    seed = repetition_seed(0, 0)
    generated = covariate_shift(experiment.group_sizes, 10, 4, seed=seed)
    preparation = Preparation.fit(generated.train)
    learner = TorchLearner(hidden=(4,), task="regression", epochs=10, batch_size=16, steps_per_epoch=1)
    models = fit(learner, preparation.transform(generated.train), np.eye(7), seed=seed)
    alone = score_models(models, preparation.transform(generated.test(30)), "regression")["mean squared error"]
    np.testing.assert_allclose(results[results["method"] == "local"]["value"], alone, rtol=1e-4)


def test_the_papers_weights_are_those_of_its_experiment(tmp_path):
    seed = repetition_seed(0, 0)
    train = covariate_shift((3, 3, 4), 12, 4, seed=seed).train
    experiment = CovariateShiftNetworks(features=40, group_sizes=(3, 3, 4), points=12)
    theirs = experiment.run(Part("weights-repetition-0", 0), lambda share: None, tmp_path).arrays
    matrices = paper_weights(train, BASELINES, 40, 1.0, seed)
    np.testing.assert_array_equal(matrices["local"], np.eye(10))
    for method in ("grand-mean", "q-aggregation", "oracle"):
        np.testing.assert_array_equal(matrices[method], theirs[method])


def test_groups_and_parts():
    assert CalibratedNetworks().group_sizes == CovariateShiftNetworks().group_sizes
    quick = CalibratedNetworks(**CalibratedNetworks.quick)
    assert quick.group_sizes == (10, 10, 12)
    assert [part.name for part in quick.parts()] == ["3x16-repetition-0", "1x16-repetition-0"]
    names = [part.name for part in CalibratedNetworks().parts()]
    assert len(set(names)) == len(names) == 6 * CalibratedNetworks().repetitions
    assert EXPERIMENTS["calibrated-networks"] is CalibratedNetworks
    assert EXPERIMENTS["calibrated-femnist"] is CalibratedFemnist
    for shared in ("points", "dim", "features", "constant", "hidden_layers", "widths", "epochs", "learning_rate", "batch"):
        assert getattr(CalibratedNetworks(), shared) == getattr(CovariateShiftNetworks(), shared)
    with pytest.raises(InputError, match="--agents must be at least 4"):
        CalibratedNetworks(agents=3)


def network_results(levels, repetitions=3):
    """Two agents; `levels` gives the error of a method on an architecture; the largest comes first, as from a run."""
    results = table(
        [
            ("made-up", shape, method, r, agent, FINAL, value * (1 + 0.1 * r))
            for shape in reversed(SHAPES)
            for r in range(repetitions)
            for method, value in levels(shape).items()
            for agent in ("0", "1")
        ]
    )
    findings = {Part(one, 0): PartFindings((), {"chosen": np.array([one, "local"])}) for one in reversed(SHAPES)}
    return CalibratedNetworks(repetitions=repetitions).conclude(results, findings)


@pytest.mark.parametrize(
    "ours, near_oracle, never_wrong",
    [(1.02, "holds", "holds"), (1.04, "holds", "does not hold"), (1.06, "does not hold", "does not hold")],
)
def test_networks_are_judged_by_their_ratios(ours, near_oracle, never_wrong):
    levels = {"local": 3.0, "grand-mean": 1.0, "q-aggregation": 2.0, "oracle": 1.0}

    def one_bad(shape):
        return levels | {OURS: ours if shape == "hidden=1x32" else 0.9}

    conclusion = network_results(one_bad)
    assert [one.answer for one in conclusion.verdicts] == ["holds", near_oracle, "holds", "holds", never_wrong, "holds"]
    assert [one.setting.split(";")[0] for one in conclusion.verdicts] == [*SHAPES, *SHAPES]
    assert conclusion.verdicts[1].measured == f"{ours:.3f} ± 0.000 times"
    assert conclusion.verdicts[4].measured == f"{ours:.3f} ± 0.000 times (the best is grand-mean)"
    for one in conclusion.tables.values():
        assert tuple(one.index) == SHAPES


def test_stages_report_their_share():
    seen = []
    report = stage(seen.append, 0.2, 0.6, "calibrating")
    report("training", 1, 2)
    report("calibrating", 1, 2)
    report("calibrating", 2, 2)
    assert seen == pytest.approx([0.4, 0.6])


# --- characters ----------------------------------------------------------------------------------------------------------


def few_images(folder, writers=5, images=24):
    """Writers of noisy images of three characters, as an archive."""
    path = folder / "few.npz"
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 2, (3, 784)) * 200
    y = np.tile([0, 1, 2], writers * images // 3)
    X = np.clip(255 - shapes[y] * (rng.random((len(y), 784)) < 0.3), 0, 255).astype(np.uint8)
    np.savez(path, X=X, y=y, agent=np.repeat(np.arange(writers), images))
    return path


def check_run(experiment, folder):
    seen = []
    summary = run_experiment(experiment, folder, workers=1, progress=lambda *args: seen.append(args[1])).read_text()
    assert seen == sorted(seen)
    results = pd.read_csv(folder / "results.csv")
    assert set(results["method"]) == set(METHODS)
    assert set(results["metric"]) == {femnist.FINAL, femnist.LOG_LOSS}
    assert results["value"].notna().all()
    accuracy = results[results["metric"] == femnist.FINAL]
    assert accuracy["value"].between(0, 1).all()
    means = accuracy.groupby("method")["value"].mean()
    claims = claims_of(summary)
    assert len(claims) == 4
    difference = 100 * (means[OURS] - means[TUNED])
    assert float(claims[2][1].split(": ")[1].split(" ")[0]) == pytest.approx(difference, abs=6e-3)
    assert claims[2][2] == ("holds" if difference >= 3 else "does not hold")
    assert "nan" not in summary
    assert (folder / "accuracy.png").stat().st_size > 5000
    return results, summary


def test_characters_write_what_is_promised(tmp_path):
    experiment = CalibratedFemnist(
        few_images(tmp_path), features=30, hidden=4, epochs=10, batch=8, tuning=(2, 6), repetitions=2
    )
    assert len(experiment.parts()) == 5 * experiment.repetitions
    _, summary = check_run(experiment, tmp_path / "out")
    tuning = summary.split("Fine-tuning, accuracy")[1].splitlines()[2:6]
    assert tuning[0] == "|  | 2 | 6 | chosen |"
    assert tuning[2].startswith("| split 1 | ")
    for line in tuning[2:]:
        two, six, chosen = line.strip("| ").split(" | ")[1:]
        assert chosen == ("6" if float(six) > float(two) else "2")


def test_real_characters(tmp_path):
    folder = Path(os.environ.get("KINFED_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "femnist.npz").is_file():
        pytest.skip("femnist.npz is absent; set KINFED_DATA to the folder of real federations")
    experiment = CalibratedFemnist(
        folder / "femnist.npz", writers=4, features=30, hidden=4, epochs=4, tuning=(1, 2), repetitions=1
    )
    results, summary = check_run(experiment, tmp_path)
    assert results["agent"].nunique() == 4
    assert "| writers=4 | " in summary


def test_settings_that_cannot_be_used(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        CalibratedFemnist(tmp_path / "nowhere")
    with pytest.raises(InputError, match="--test-share must lie between 0 and 1"):
        CalibratedFemnist(tmp_path, test_share=1.0)
    with pytest.raises(InputError, match="--tuning has a value twice"):
        CalibratedFemnist(tmp_path, tuning=(5, 5))


def test_one_long_fine_tuning_passes_through_the_shorter_ones(tmp_path):
    from kinfed.learners.base import common_model
    from kinfed.learners.neural import TorchLearner

    raw, _ = split_writers(kinfed.read_femnist(few_images(tmp_path)), 0.2, 0)
    train = Preparation.fit(raw).transform(raw)
    learner = TorchLearner(hidden=(4,), epochs=10, batch_size=8)
    found = tuned_accuracies(learner, train, (9, 3), 0, lambda share: None, tmp_path / "choice")
    assert sorted(found) == [3, 9]
    kept, aside = train.split(0.2, 0)
    agents = pooled(kept, learner)
    start = common_model(learner, agents)
    for length, accuracy in found.items():
        models = learner.trained_for(length / 10, start).fit(agents, np.eye(len(kept)))
        assert models.history.loss.shape[0] == length
        assert score_models(models, aside, "classification").mean("accuracy") == accuracy
    assert best_length({20: 0.5, 5: 0.5, 10: 0.4}) == 5
    assert best_length({5: 0.5, 10: 0.6}) == 10


def character_results(tmp_path, agents, splits=2, **levels):
    """Accuracies by method: numbers, or one per agent."""
    rows = []
    for method, level in levels.items():
        for r in range(splits):
            for agent, value in enumerate(np.broadcast_to(level, agents)):
                name = method.replace("_", "-")
                shifted = value + (0.01 if name == OURS else 0.0) * (r - (splits - 1) / 2)
                rows.append(("made-up", "writers=9", name, r, str(agent), femnist.FINAL, shifted))
                rows.append(("made-up", "writers=9", name, r, str(agent), femnist.LOG_LOSS, 1.0))
    findings = {
        Part("ours", 0, (OURS,)): PartFindings((), {"chosen": np.array(["writers=9", "entropic"])}),
        Part("tuned", 0, (TUNED,)): PartFindings((), {"tuning": np.array([[5.0, 0.5], [10.0, 0.7]])}),
    }
    return CalibratedFemnist(few_images(tmp_path), repetitions=splits).conclude(table(rows), findings)


@pytest.mark.parametrize(
    "ours, answers",
    [
        (0.82, ["holds", "holds", "holds", "holds"]),
        (0.80, ["holds", "holds", "holds", "does not hold"]),
        (0.78, ["holds", "holds", "does not hold", "does not hold"]),
        (0.70, ["does not hold", "holds", "does not hold", "does not hold"]),
        (0.60, ["does not hold", "does not hold", "does not hold", "does not hold"]),
    ],
)
def test_characters_are_judged_by_their_differences(tmp_path, ours, answers):
    levels = {"q_aggregation": 0.75, "local": 0.698, "fine_tuning": 0.76, "grand_mean": 0.65, OURS: ours}
    conclusion = character_results(tmp_path, 10, **levels)
    assert [one.answer for one in conclusion.verdicts] == answers
    assert conclusion.verdicts[0].measured.endswith(f"{100 * (ours - 0.75):.2f} ± 0.00 points")
    assert conclusion.verdicts[0].setting == "10 writers, 2 splits, 1000 epochs"


def test_agents_below_local_are_counted_in_means_and_in_single_splits(tmp_path):
    # Splits shift ours by half a point up or down: agents level with local fall behind in the first split alone.
    alone = np.r_[np.full(2, 0.9), np.full(30, 0.8), np.full(68, 0.5)]
    levels = {"q_aggregation": 0.79, "local": alone, "fine_tuning": 0.5, "grand_mean": 0.5, OURS: 0.8}
    _, share, *_ = character_results(tmp_path, 100, **levels).verdicts
    assert share.measured == "98.0% ± 1.4% of the agents; within single splits 68.0%, 98.0%"
    assert share.answer == "holds"
    levels["local"] = np.r_[np.full(4, 0.9), alone[4:]]
    assert character_results(tmp_path, 100, **levels).verdicts[1].answer == "does not hold"


def test_a_difference_within_chance_holds_in_part(tmp_path):
    ours = 0.76 + 0.2 * np.resize([-1.0, 1.0], 10)
    levels = {"q_aggregation": 0.75, "local": 0.5, "fine_tuning": 0.5, "grand_mean": 0.5, OURS: ours}
    conclusion = character_results(tmp_path, 10, **levels)
    assert conclusion.verdicts[0].answer == "holds in part"
    tuning = list(conclusion.tables.values())[-1]
    assert tuning.loc["split 1"].tolist() == ["50.00", "70.00", "10"]
