"""What the server runs: it asks the sites, and writes what they found into the folder `out` of the run's configuration."""

from kinfed.backends.flower.channel import server_app
from kinfed.deployment.server import run_federation

from .learner import make_learner

app = server_app(lambda channel, run_config: run_federation(channel, run_config, make_learner))
