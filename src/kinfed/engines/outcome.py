"""What a run across sites found, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kinfed.collaboration import choices_of
from kinfed.engines.agreement import Agreement
from kinfed.engines.audit import Audit
from kinfed.engines.wishes import Wishes
from kinfed.evaluation import Scores
from kinfed.files import write_whole
from kinfed.learners import Learner, Models
from kinfed.learners.remote import remote_learner
from kinfed.personalization import comparisons
from kinfed.report import Story, write_report
from kinfed.weights import Weights


@dataclass(frozen=True, eq=False)
class Joined:
    """An agent that came late: its weights, its model as the only row, and its test scores by metric."""

    name: str
    weights: Weights
    models: Models
    scores: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run across sites found.

    Attributes
    ----------
    agreement : Agreement
    learner : Learner
    wishes : Wishes
        What was asked for.
    weights : Weights
    methods : mapping from "personalized", and the baselines, to Models
    scored : mapping from method to Scores
        Empty where no agent has test rows.
    joined : mapping from name to Joined
        Agents that came late.
    audit : Audit
        What crossed, and who missed what.
    """

    agreement: Agreement
    learner: Learner
    wishes: Wishes
    weights: Weights
    methods: Mapping[str, Models]
    scored: Mapping[str, Scores]
    joined: Mapping[str, Joined]
    audit: Audit

    def write(self, out: Path) -> None:
        """Write weights, explanations, scores, models, traffic, attendance and the report into a folder."""
        import pandas

        out.mkdir(parents=True, exist_ok=True)
        self.weights.to_frame().to_csv(out / "weights.csv")
        self.weights.explanation.to_csv(out / "explanation.csv")
        if self.weights.calibration is not None:
            self.weights.calibration.table.to_csv(out / "calibration.csv")
        if self.scored:
            columns = {name: scores[scores.metric] for name, scores in self.scored.items()}
            index = pandas.Index(self.agreement.names, name="agent")
            pandas.DataFrame(columns, index=index).to_csv(out / "scores.csv")
        remote = remote_learner(self.learner)
        arrays: dict[str, Any] = {
            f"{method}/{name}": array
            for method, models in self.methods.items()
            for name, array in remote.pack(models, np.arange(len(models))).items()
        }
        if self.joined:
            rows = [one.weights.to_frame() for one in self.joined.values()]
            pandas.concat(rows).fillna(0.0).to_csv(out / "newcomers-weights.csv")
            scores = {name: dict(one.scores) for name, one in self.joined.items()}
            pandas.DataFrame.from_dict(scores, orient="index").rename_axis("agent").to_csv(out / "newcomers-scores.csv")
        for name, one in self.joined.items():
            arrays |= {f"newcomer {name}/{key}": array for key, array in remote.pack(one.models, np.array([0])).items()}
        write_whole(out / "models.npz", lambda file: np.savez(file, **arrays))
        self.audit.traffic.to_csv(out / "traffic.csv", index=False)
        self.audit.attendance.to_csv(out / "attendance.csv", index=False)
        write_report(self.story(), out)

    def story(self) -> Story:
        """What the report tells; the rows are at the sites, so it holds no test of how they differ."""
        agreement = self.agreement
        choices = choices_of(
            self.weights, agreement.preparation, agreement.embeddings, self.wishes.shown_options, self.learner
        )
        return Story(
            title=f"Personal models of {len(agreement.names)} sites",
            weights=self.weights,
            scored=self.scored,
            comparisons=comparisons(self.scored, agreement.seed),
            predicted=None,
            diagnosis=None,
            choices=tuple(choices),
            sketch_sizes=tuple(one.features.n_features for one in agreement.embeddings),
            norm_bound=agreement.embeddings[0].norm_bound,
            traffic=self.audit.traffic,
            attendance=self.audit.attendance,
            settings={name: str(value) for name, value in self.wishes.settings(self.learner).items()},
            seed=agreement.seed,
            command=None,
        )

    def sentences(self) -> list[str]:
        """The run in a few sentences."""
        return [
            f"{len(self.agreement.names)} agents took part",
            *self.audit.describe(),
            *(f"agent {name} came late and has weights and a model" for name in self.joined),
        ]
