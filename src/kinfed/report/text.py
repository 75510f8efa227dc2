"""Numbers in words: percentages, sizes in bytes, probabilities, and lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SPACE = "\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
"""What stands for a number that there is not."""

_LEAST_WEIGHT = 1e-6


def percent(share: float, digits: int = 1) -> str:
    """A share such as 0.13 as "13.0 %"."""
    return NOTHING if not np.isfinite(share) else f"{_with_minus(f'{100 * share:,.{digits}f}')}{SPACE}%"


def signed_percent(share: float, digits: int = 1) -> str:
    """A share such as 0.13 as "+13.0 %"; what rounds to nothing has no sign."""
    if not np.isfinite(share):
        return NOTHING
    shown = f"{100 * share:+,.{digits}f}"
    return f"{_with_minus(shown if float(shown.replace(',', '')) else shown[1:])}{SPACE}%"


def weight(value: float) -> str:
    """A weight as a percentage with two decimals, or two digits where it is below one percent."""
    if not np.isfinite(value):
        return NOTHING
    if 0 < value < _LEAST_WEIGHT:
        return f"<{SPACE}0.0001{SPACE}%"
    return f"{100 * value:.2f}{SPACE}%" if value >= 0.01 or value == 0 else f"{100 * value:#.2g}{SPACE}%"


def number(value: float, digits: int = 3) -> str:
    """A number with that many significant digits, as people write them."""
    if not np.isfinite(value):
        return NOTHING
    shown = f"{value:.{digits}g}"
    if "e+" in shown and abs(value) < 1e9:
        shown = f"{value:,.0f}"
    return _with_minus(shown)


def figures(value: float) -> str:
    """A number with three significant digits, zeros at the end kept, for columns."""
    return NOTHING if not np.isfinite(value) else _with_minus(f"{value:#.3g}".rstrip("."))


def count(value: float) -> str:
    """A whole number with separators, such as "7,185"."""
    return NOTHING if not np.isfinite(value) else f"{value:,.0f}"


def counted(value: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, such as "1 agent" and "7 agents"."""
    return f"{count(value)} {noun if value == 1 else plural or noun + 's'}"


def times(value: float) -> str:
    """A factor such as "3.4" and a multiplication sign."""
    return NOTHING if not np.isfinite(value) else f"{value:,.1f}{SPACE}\N{MULTIPLICATION SIGN}"


def probability(value: float) -> str:
    """A p-value."""
    if not np.isfinite(value):
        return NOTHING
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def nbytes(size: float) -> str:
    """A number of bytes in B, kB, MB or GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * scale:
            return f"{size / scale:.3g}{SPACE}{unit}"
    return f"{size:,.0f}{SPACE}B"


def listed(words: Sequence[str], most: int = 8) -> str:
    """Words as "a, b and c"; beyond `most` of them the rest is counted."""
    shown = [*words[:most], f"{count(len(words) - most)} more"] if len(words) > most else list(words)
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def shortened(name: str, most: int = 24) -> str:
    """A name of at most that many characters, for labels in figures."""
    return name if len(name) <= most else f"{name[: most - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def sentence(words: str) -> str:
    """Words with a capital at the start and a full stop at the end."""
    told = words.strip()
    return told if not told else told[0].upper() + told[1:] + ("" if told[-1] in ".:?" else ".")


def _with_minus(shown: str) -> str:
    return shown.replace("-", MINUS)
