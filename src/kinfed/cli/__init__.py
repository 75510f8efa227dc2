"""The command line.

`options` says what can be asked for and `config` reads it from a file, `request` turns it into what the library takes,
`commands` runs it, `accounts` and `outputs` tell and write what was found, `mistakes` ends every run with an exit code.
"""

from kinfed.cli.application import app, main

__all__ = ["app", "main"]
