"""Errors that may leave a site: the sentence without cells, labels and paths.

Errors quote what they are about, so that it can be found: a mistyped cell, an unknown label, a file. That is for whoever
holds the data. The server is told the same sentence with dots in place of these, and the site's own log has the whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from kinfed.errors import InputError, KinfedError

DOTS = "..."

# What kinfed and Python quote is escaped within its quotes. An apostrophe within a word neither opens nor closes them, and
# quotes that are not closed reach to the end: too much is left out rather than too little.
_QUOTED = r"""(?<!\w)b?(?:'(?P<single>(?:\\.|[^'\\]|'(?=\w))*)(?:'|\\?$)|"(?P<double>(?:\\.|[^"\\]|"(?=\w))*)(?:"|\\?$))"""
# The others stop at quotes: what is within them goes as a whole.
_SCALAR = r"""np\.\w+\([^()'"]*\)"""  # how NumPy writes a label that is a number
_PATH = r"""[^\s(),;='"]*[/\\][^\s'"]+?(?=[),;:.]*(?:[\s'"]|$))"""
_FILE = r"""[^\s(),;='"]+\.(?:csv|tsv|txt|json|npz|npy|parquet|arrow|gz|bz2|xz|zip)\b"""
_SECRET = re.compile("|".join([_QUOTED, _SCALAR, _PATH, _FILE]), re.DOTALL)


def discreet(error: KinfedError, spoken: Collection[str] = (), hidden: Iterable[str] = ()) -> KinfedError:
    """The error as the server may hear it; raise it ``from`` the whole one.

    Parameters
    ----------
    error : KinfedError
    spoken : collection of str
        Names the server knows anyhow, such as those of columns: they stay.
    hidden : iterable of str
        Texts to leave out as a whole, such as paths with spaces in them.
    """
    text = str(error)
    for secret in sorted(filter(None, hidden), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", DOTS, text)

    def told(found: re.Match[str]) -> str:
        names = (found["single"], found["double"], found[0])
        return found[0] if any(name in spoken for name in names if name) else DOTS

    return type(error)(_SECRET.sub(told, text))


def nameless(error: Exception, what: str) -> InputError:
    """What the server may hear of an error nobody foresaw: its kind alone, since any value may stand in its text."""
    return InputError(f"{what} failed ({type(error).__name__}); the log of the site says more")
