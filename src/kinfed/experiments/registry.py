"""The one list of experiments; a new one is one file and one line here."""

from __future__ import annotations

from kinfed.experiments.calibrated_femnist import CalibratedFemnist
from kinfed.experiments.calibrated_networks import CalibratedNetworks
from kinfed.experiments.concept_shift import ConceptShift
from kinfed.experiments.covariate_shift import CovariateShift
from kinfed.experiments.early_stop import EarlyStop
from kinfed.experiments.experiment import Experiment
from kinfed.experiments.feature_count import FeatureCount
from kinfed.experiments.femnist import Femnist
from kinfed.experiments.identical_agents import IdenticalAgents
from kinfed.experiments.leaderboard import Leaderboard
from kinfed.experiments.never_wrong import NeverWrong
from kinfed.experiments.real_federations import RealFederations

EXPERIMENTS: dict[str, type[Experiment]] = {
    ConceptShift.name: ConceptShift,
    CovariateShift.name: CovariateShift,
    Femnist.name: Femnist,
    EarlyStop.name: EarlyStop,
    FeatureCount.name: FeatureCount,
    IdenticalAgents.name: IdenticalAgents,
    NeverWrong.name: NeverWrong,
    RealFederations.name: RealFederations,
    CalibratedNetworks.name: CalibratedNetworks,
    CalibratedFemnist.name: CalibratedFemnist,
    Leaderboard.name: Leaderboard,
}
