"""Flower without telemetry, update checks and installs, and a clear word where it is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from kinfed.errors import MissingExtraError

QUIET: Mapping[str, str] = MappingProxyType(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
)
"""What Flower and Ray would do over the network unasked, switched off."""


def require_flower() -> None:
    """Make sure that Flower is installed, and quiet when it is imported next.

    Flower reads these variables as it is imported, so this comes first. What the user has set stays.
    """
    if find_spec("flwr") is None:
        raise MissingExtraError("the Flower engine needs Flower, which is not installed: pip install 'kinfed[flower]'")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def flower_environment(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment for a Flower process of its own.

    Parameters
    ----------
    home : path
        Folder in which Flower keeps connections and unpacked apps, in place of one in the user's home.
    base : mapping, optional
        The environment to start from; that of this process by default.
    """
    given = dict(os.environ if base is None else base)
    # Flower starts its helpers by name, so the folder of this Python's programs has to be searched first.
    programs = str(Path(sys.executable).parent)
    # One thread per process: many agents share a machine in a simulation, and each would take all cores.
    own = {"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join([programs, given.get("PATH", "")])}
    return {**given, **QUIET, **own}
