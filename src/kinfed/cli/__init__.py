"""The command ``kinfed``: what it understands, what it runs and what it tells.

`options` says what can be asked for and turns it into what the library takes, `config` reads it from a file, `commands`
runs it, `outputs` tells and writes what was found, `application` ends every run with an exit code; `sites`,
`sketch` and `research` are the commands beside those that learn.
"""

from kinfed.cli.application import app, main

__all__ = ["app", "main"]
