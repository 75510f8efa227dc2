"""Gradient aggregation where points never meet: everybody answers with mean gradients, and targets solve their own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfed.engines.audit import Absence
from kinfed.engines.conversation import QuorumError, fits, short_text
from kinfed.engines.messages import Reply, Request
from kinfed.engines.workshop import Workshop, off_simplex
from kinfed.learners import Learner, Models
from kinfed.learners.remote import Form, remote_learner
from kinfed.weights.calibration.trials import Split
from kinfed.weights.mirror_descent import Minimum, stacked_minima
from kinfed.weights.rules.gradient_agents import GRADIENT_FEATURES

Array = NDArray[np.float64]

IN_FLIGHT = 2**28
"""Bytes of gradients that the server holds at once."""


@dataclass(eq=False)
class RemoteGradientAgents:
    """Agents of the gradient rule, elsewhere: see `kinfed.weights.rules.gradient_agents.GradientAgents`."""

    workshop: Workshop
    learner: Learner
    split: Split | None = None
    n_features: int = GRADIENT_FEATURES

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Points each agent trains on."""
        return self.workshop.terms(self.split).sizes

    def fit(self, rows: Array, targets: NDArray[np.int64]) -> Models:
        """One model per target."""
        return self.workshop.fit("gradient models", self.learner, rows, self.split)

    def common(self) -> Models:
        """One model for all."""
        return self.workshop.common(self.split, self.learner)

    def solve(
        self, models: Models, targets: NDArray[np.int64], *, c_q: float, strength: float, relative_gap: float
    ) -> Minimum:
        """Everybody answers with mean gradients at the models, and every target solves its own row."""
        how = {"c_q": c_q, "strength": strength, "relative_gap": relative_gap}
        if len(models) == 1:
            return self._solve(models, np.array([0]), targets, **how)
        # All agents' gradients at all models would not fit into memory, so some models come after others.
        step = max(1, IN_FLIGHT // (8 * self.n_features * self.workshop.n_agents))
        parts = [
            self._solve(models, np.arange(start, min(start + step, len(targets))), targets[start : start + step], **how)
            for start in range(0, len(targets), step)
        ]
        return stacked_minima(parts)

    def _solve(
        self,
        models: Models,
        rows: NDArray[np.int64],
        targets: NDArray[np.int64],
        *,
        c_q: float,
        strength: float,
        relative_gap: float,
    ) -> Minimum:
        """Rows of some targets, from the gradients at their models, or at the one model of all."""
        remote, n_agents = remote_learner(self.learner), self.workshop.n_agents
        left = self.workshop.left_classes(self.split)
        settings: dict[str, Any] = {"features": self.n_features, **left}
        packed = remote.pack(models, rows)

        def check_means(_: int, reply: Reply) -> str | None:
            width = reply.arrays["means"].shape[-1]
            forms = {"means": Form((len(rows), width), "float64"), "scatter": Form((len(rows),), "float64")}
            return fits(reply.arrays, forms) or ("it is negative" if (reply.arrays["scatter"] < 0).any() else None)

        requests = {k: Request("gradients", settings, packed) for k in range(n_agents)}
        answers = self.workshop.ask("gradients", requests, check_means, self.split)
        widths = [reply.arrays["means"].shape[-1] for reply in answers.values()]
        if not widths:
            raise QuorumError("gradients: nobody answered; see the audit log for the reasons")
        usual = max(set(widths), key=widths.count)
        present = [k for k in sorted(answers) if answers[k].arrays["means"].shape[-1] == usual]
        for k in answers.keys() - set(present):
            name = self.workshop.agreement.names[k]
            self.workshop.conversation.audit.missed(Absence(name, "gradients", "its gradients are not as long as others'"))
        means = np.array([answers[k].arrays["means"] for k in present])
        scatter = np.array([answers[k].arrays["scatter"] for k in present])
        absent = [k for k in range(n_agents) if k not in set(present)]
        solving = {**settings, "absent": absent, "c_q": c_q, "strength": strength, "relative gap": relative_gap}

        def own(row: int) -> Request:
            place = 0 if len(rows) == 1 else row
            arrays = remote.pack(models, rows[place : place + 1])
            return Request("gradient-weights", solving, {**arrays, "means": means[:, place], "scatter": scatter[:, place]})

        def check_row(_: int, reply: Reply) -> str | None:
            forms = {"row": Form((len(present),), "float64"), "numbers": Form((2,), "float64")}
            short_text(reply.settings["stop"])
            return fits(reply.arrays, forms) or off_simplex(reply.arrays["row"])

        asked = {int(t): own(row) for row, t in enumerate(targets) if int(t) in set(present)}
        replies = self.workshop.ask("gradient weights", asked, check_row, self.split)
        sizes = np.where(np.isin(np.arange(n_agents), present), self.sizes, 0)
        matrix = np.tile(sizes / sizes.sum(), (len(targets), 1))
        numbers = np.full((len(targets), 2), np.nan)
        stop = ["no answer: the grand mean stands in"] * len(targets)
        for row, t in enumerate(targets.tolist()):
            if t in replies:
                matrix[row] = 0.0
                matrix[row, present] = replies[t].arrays["row"]
                numbers[row] = replies[t].arrays["numbers"]
                stop[row] = str(replies[t].settings["stop"])
        return Minimum(matrix, numbers[:, 0], numbers[:, 1], stop)
