"""The paper's experiments: independent parts, verdicts on its claims, figures."""

from kinfed.experiments.calibrated_femnist import CalibratedFemnist
from kinfed.experiments.calibrated_networks import CalibratedNetworks
from kinfed.experiments.concept_shift import ConceptShift
from kinfed.experiments.covariate_shift import CovariateShiftNetworks
from kinfed.experiments.early_stop import EarlyStop
from kinfed.experiments.experiment import Experiment
from kinfed.experiments.feature_count import FeatureCount
from kinfed.experiments.femnist import Femnist
from kinfed.experiments.identical_agents import IdenticalAgents
from kinfed.experiments.interval_coverage import IntervalCoverage
from kinfed.experiments.leaderboard import Leaderboard
from kinfed.experiments.never_wrong import NeverWrong
from kinfed.experiments.real_federations import RealFederations
from kinfed.experiments.runner import run_experiment

_ALL: tuple[type[Experiment], ...] = (
    ConceptShift,
    CovariateShiftNetworks,
    Femnist,
    EarlyStop,
    FeatureCount,
    IdenticalAgents,
    NeverWrong,
    RealFederations,
    CalibratedNetworks,
    CalibratedFemnist,
    Leaderboard,
    IntervalCoverage,
)
EXPERIMENTS = {one.name: one for one in _ALL}
"""The one list of experiments; a new one is one file and one line above."""

__all__ = ["EXPERIMENTS", "run_experiment"]
