"""What every site runs. Its data are named in the configuration of its node and never leave it."""

from kinfed.backends.flower.nodes import client_app
from kinfed.deployment.site import site_from_context

from .learner import make_learner

app = client_app(lambda context: site_from_context(context, make_learner))
