"""``kinfed leaderboard``: the run of ``kinfed reproduce leaderboard``, under a name of its own."""

from __future__ import annotations

from kinfed.cli.reproduce import experiment_command
from kinfed.experiments.leaderboard import Leaderboard

leaderboard = experiment_command(Leaderboard)
leaderboard.__doc__ = Leaderboard.__doc__
