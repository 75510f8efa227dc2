"""The one exception tree: every error a user can cause is a `KinfedError`.

Messages are one sentence that says what is wrong, with which agent, file or key, and what to do about it.
"""


class KinfedError(Exception):
    """Root of every error a user of kinfed can cause."""


class InputError(KinfedError, ValueError):
    """An argument, an agent's data or an option is not usable as given."""


class SketchError(KinfedError, ValueError):
    """A sketch file or a sketch received from elsewhere cannot be trusted."""


class MissingExtraError(KinfedError, ImportError):
    """A feature needs an optional dependency; the message holds the install command."""
