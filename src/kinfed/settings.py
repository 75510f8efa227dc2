"""What a run is asked for: one record, whose fields carry their help text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kinfed.backends.spec import learner_text
from kinfed.embedding import Kernel
from kinfed.learners import LEARNERS
from kinfed.weights import RULES

BACKENDS = ("pooled", "sites", "flower")
TASKS = ("auto", "regression", "classification")


def _choice(default: Any, text: str) -> Any:
    """A field with its help text that also stands in the configuration of a deployed run."""
    return field(default=default, metadata={"help": text, "deployed": True})


@dataclass(frozen=True)
class Settings:
    """Every choice of a run.

    A field ``test_size`` is the option ``test-size`` in a configuration, and empty text there means none.
    """

    data: str = _choice("", "In a simulation: the file or folder with all agents. Deployed nodes name their own data.")
    target: str = _choice("", "Column to predict.")
    agent: str = _choice("", "Column that tells agents apart; empty where every agent has a file of its own.")
    leave_out: str = _choice("", "Columns not to use, separated by commas: identifiers, say.")
    task: str = _choice(
        "auto",
        "regression, classification, or auto: numbers with decimals are a regression. Say it if the learner is torch,\n"
        "or if some site may by chance hold whole numbers only.",
    )
    learner: str = _choice("ridge", f"What is trained: {', '.join(LEARNERS)}; or what learner.py makes of the name.")
    method: str = _choice("weighted", "The way to personal models; weighted is a rule's weights, then the weighted risk.")
    rule: str = _choice(
        "calibrated",
        f"How agents are weighed: {', '.join(name for name, one in RULES.items() if 'groups' not in one.needs)}.",
    )
    options: Mapping[str, Any] = field(
        default_factory=dict, metadata={"help": "Options of the rule, such as steps.", "deployed": False}
    )
    kernel: Kernel | str = field(default="auto", metadata={"help": "Kernel that compares agents.", "deployed": False})
    shift: str = _choice("auto", "Compare agents by (x, y): concept; by x: covariate; or auto.")
    n_features: int = _choice(500, "Random features, the numbers an agent shares about its data.")
    sampling: str = _choice("iid", "How random features are drawn: iid or orthogonal.")
    standardise: bool = _choice(True, "Give every column mean 0 and variance 1 over all agents.")
    baselines: bool = _choice(True, "Train learning alone and one common model too, to compare with.")
    test_size: float = _choice(
        0.2, "Share of every agent's rows to test on, 0 for none; a node may name a test file instead."
    )
    seed: int = _choice(0, "Equal seeds give equal results.")
    agents: int = _choice(1, "How many agents to wait for, as long as a phase may take.")
    seconds: float = _choice(600.0, "Time limit of every phase and round; whoever is late is left out of it.")
    quorum: float = _choice(0.5, "Share of the agents asked that must answer, else the run fails.")
    out: str = _choice("results", "Folder for the results, on the server; relative to where the SuperLink was started.")
    checkpoint: str = _choice(
        "", "Folder for checkpoints, on the server; a killed run that is started again goes on from it."
    )

    @property
    def shown_options(self) -> dict[str, Any]:
        """The rule's options without the labels of groups, of which there is one for every agent."""
        return {name: value for name, value in self.options.items() if name != "groups"}

    def telling(self, learner: Any) -> dict[str, str]:
        """What tells two runs apart, as texts."""
        apart = ("data", "agents", "seconds", "quorum", "out", "checkpoint", "learner", "options")
        told = {one.name: repr(getattr(self, one.name)) for one in fields(self) if one.name not in apart}
        options = {name: getattr(value, "tolist", lambda value=value: value)() for name, value in self.options.items()}
        return {**told, "options": repr(sorted(options.items())), "learner": learner_text(learner)}
