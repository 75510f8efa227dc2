"""Sites behind Flower: the same requests and answers, carried by Flower's messages.

`records` puts requests and answers into Flower's form, `nodes` is the sites' end, `channel` the server's. What a deployment
starts from is in `kinfed.deployment`.

Nothing of Flower is imported here: it decides on its first import whether it sends telemetry, so `QUIET` has to be in the
environment before any of the modules is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

QUIET: Mapping[str, str] = MappingProxyType(
    {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
)
"""What Flower and Ray would do over the network unasked, switched off."""
