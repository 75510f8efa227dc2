"""The command ``kinfed`` from its first moment on: an interruption is one line and exit code 130, during imports too.

This module lies beside the package and imports nothing at its head that Python has not loaded itself: whatever is taken
from the package, numpy, scipy and pandas are imported first, for a second or more, and must not answer with a traceback.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        import atexit
        import signal

        heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored
        if heard:
            signal.signal(signal.SIGINT, _leave)
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the very last: everything is done
        sys.unraisablehook = _unraisable
        from kinfed.cli import main as command

        try:
            if heard:  # from here on there may be something to put away, and something more to tell
                signal.signal(signal.SIGINT, signal.default_int_handler)
            command()
        finally:
            if heard:
                signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:
        _leave()


def _leave(*_: object) -> None:
    """End at once: half imported modules, and Python on its way out, answer an exception with a traceback."""
    try:
        os.write(2, b"kinfed: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    """An interruption that fell into the end of an object, where Python prints a traceback and goes on."""
    if error.exc_type is KeyboardInterrupt:
        _leave()
    sys.__unraisablehook__(error)
