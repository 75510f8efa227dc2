"""The one list of experiments; a new one is one file and one line here."""

from __future__ import annotations

from kinfed.experiments.concept_shift import ConceptShift
from kinfed.experiments.covariate_shift import CovariateShift
from kinfed.experiments.early_stop import EarlyStop
from kinfed.experiments.experiment import Experiment
from kinfed.experiments.feature_count import FeatureCount
from kinfed.experiments.femnist import Femnist
from kinfed.experiments.identical_agents import IdenticalAgents

EXPERIMENTS: dict[str, type[Experiment]] = {
    ConceptShift.name: ConceptShift,
    CovariateShift.name: CovariateShift,
    Femnist.name: Femnist,
    EarlyStop.name: EarlyStop,
    FeatureCount.name: FeatureCount,
    IdenticalAgents.name: IdenticalAgents,
}
