"""Docstrings as the site shows them: bars are absolute values, and the two registries are shown by what they hold."""

from kinfed import LEARNERS, RULES


def bars_are_bars(lines):
    """Escape ``|`` in plain text, where reStructuredText would take it for a substitution; formulas and code stay."""
    margin = None
    for place, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if margin is not None and line.strip() and indent <= margin:
            margin = None
        if line.lstrip().startswith(".. math::"):
            margin = indent
        elif margin is None and not line.lstrip().startswith((">>>", "...")):
            pieces = line.split("`")
            pieces[::2] = [piece.replace("|", r"\|") for piece in pieces[::2]]
            lines[place] = "`".join(pieces)


def registry(name):
    """What a registry holds, a line for each entry; None for anything else."""
    if name == "kinfed.RULES":
        return ["The weight rules by name.", "", *(f"- ``{key}``: {rule.summary}" for key, rule in RULES.items())]
    if name == "kinfed.LEARNERS":
        return ["The learners that have a name, by that name.", "", *(f"- ``{key}``" for key in LEARNERS)]
    return None


def process(app, what, name, obj, options, lines):
    """The hook of autodoc."""
    lines[:] = registry(name) or lines
    bars_are_bars(lines)


def skip(app, what, name, obj, skipped, options):
    """Leave out what classes inherit from other libraries."""
    home = getattr(obj, "__module__", None) or "kinfed"
    return True if not home.startswith("kinfed") else None


def setup(app):
    """Connect both."""
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
