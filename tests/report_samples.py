"""Stories to report: small and large federations, hostile names, missing values."""

from dataclasses import replace

import numpy as np
import pandas as pd

import kinfed
from kinfed.analysis import METRICS, Diagnosis, ShiftTest
from kinfed.analysis.ties import Ties
from kinfed.federation import Agent
from kinfed.report import ReportData

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "\"><svg onload=alert(2)>' autofocus onfocus=alert(3) x='",
    "<!--<script>",
    "]]>&amp;&lt;\u2028\u2029",
    "a" * 300,
    "Hôpital Saint-Étienne, 北京 🙂",
)


def weights_of(n_agents, rule="multi-task-averaging", *, n=10, dim=20, kinds=5, names=None, seed=0, spread=0.2):
    """Weights between agents of a few kinds."""
    rng = np.random.default_rng(seed)
    names = names or [f"site {k}" for k in range(n_agents)]
    sizes = n + rng.integers(0, n, n_agents)
    centres = np.eye(dim)
    points = {
        name: centres[k % kinds] + spread * rng.standard_normal((size, dim))
        for k, (name, size) in enumerate(zip(names, sizes, strict=True))
    }
    return kinfed.weigh(kinfed.explicit_geometry(points), rule)


def scores_of(names, values, metric="mean squared error"):
    """Scores that hold these values."""
    task = {"mean squared error": "regression", "accuracy": "classification", "score": "unsupervised"}[metric]
    return kinfed.Scores(task, tuple(names), np.full(len(names), 70), {metric: np.asarray(values, dtype=float)})


def trained(names, personal, local, common, metric="mean squared error"):
    """What a story tells after training: scores and comparisons."""
    scored = {
        "local": scores_of(names, local, metric),
        "grand-mean": scores_of(names, common, metric),
        "personalized": scores_of(names, personal, metric),
    }
    comparisons = {
        baseline: kinfed.paired_comparison(
            scored["personalized"][metric],
            scored[baseline][metric],
            higher_is_better=METRICS[metric].higher_is_better,
            metric=metric,
            first_name="personalized",
            second_name=baseline,
        )
        for baseline in ("local", "grand-mean")
    }
    return {"scored": scored, "comparisons": comparisons}


def drawn_scores(names, seed=0, gain=0.13):
    """Scores of personal models that are better than local ones by about `gain`."""
    rng = np.random.default_rng(seed)
    local = 40 * rng.gamma(20, 1 / 20, len(names))
    return trained(names, local * (1 - gain + 0.05 * rng.standard_normal(len(names))), local, local * 0.9)


def diagnosis_of(names, seed=0):
    """Tests of which two find a difference."""
    rng = np.random.default_rng(seed)
    questions = {
        "covariate": ("Do the inputs x differ between agents?", 12.3, 0.002, 0.18),
        "label": ("Does the target y differ between agents?", 4.1, 0.004, 0.15),
        "concept": ("Does y depend on x differently from agent to agent?", 1.2, 0.21, 0.02),
    }
    tests = tuple(ShiftTest(name, *told, 0.05) for name, told in questions.items())
    own = pd.DataFrame({name: rng.random(len(names)) for name in questions}, index=pd.Index(names, name="agent"))
    return Diagnosis(tests, 0.05, own, 499)


def story_of(weights, **told):
    """A story about weights; everything else is absent unless it is told."""
    absent = {
        "names": weights.names,
        "sizes": weights.sizes,
        "how": f"rule {weights.rule}",
        "ties": Ties.of_weights(weights),
        "calibration": weights.calibration,
        "title": "Agents of a test",
        "scored": {},
        "comparisons": {},
        "predicted": None,
        "diagnosis": None,
        "choices": ("all columns standardised", "rule asked for"),
        "sketch_sizes": (500, 500),
        "norm_bound": 2**0.5,
        "traffic": None,
        "attendance": None,
        "settings": {"rule": weights.rule},
        "seed": 0,
        "command": "kinfed personalize data.csv --out results",
    }
    return ReportData(**{**absent, **told})


def calibrated_story(backend="pooled"):
    """Twelve agents of two kinds, calibrated, trained and tested."""
    generated = kinfed.concept_shift(n_agents=12, n=15, dim=3, spread=0.0, seed=0)
    result = kinfed.personalize(generated.train, rule="calibrated", test=generated.test(50, seed=1), backend=backend)
    exchange = result.exchange
    return story_of(
        result.weights,
        scored=result.scored,
        comparisons={baseline: result.compare(baseline) for baseline in ("local", "grand-mean")},
        choices=tuple(result.choices),
        diagnosis=diagnosis_of(result.weights.names),
        traffic=None if exchange is None else exchange.traffic,
        attendance=None if exchange is None else exchange.attendance,
        groups=tuple(f"kind {label}" for label in generated.train.groups),
    )


def two_kinds(learner="ridge", n_agents=12, names=None):
    """Agents of two opposite kinds, to train and to test on; numbers for ridge, else two classes."""
    generated = kinfed.concept_shift(n_agents=n_agents, n=20, dim=3, spread=0.05, seed=0)
    names = generated.train.names if names is None else names

    def told(federation):
        return replace(
            federation,
            agents=tuple(
                Agent(name, one.X, one.y if learner == "ridge" else (one.y > 0).astype(int))
                for name, one in zip(names, federation, strict=True)
            ),
        )

    return told(generated.train), told(generated.test(30, seed=1))


def stacked_result(learner="ridge", *, test=True, names=None, **options):
    """Stacked priors of agents of two kinds."""
    train, later = two_kinds(learner, 12 if names is None else len(names), names)
    return kinfed.personalize(train, learner, test=later if test else None, method="stacked", **options)
