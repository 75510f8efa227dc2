"""The command line."""

from kinfed.cli.commands import app, main

__all__ = ["app", "main"]
