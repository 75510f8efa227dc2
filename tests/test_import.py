"""What `import kinfed` promises: all public names; `test_cli` says that it loads no heavy library."""

import ast
import importlib
import pkgutil
import types
from pathlib import Path

import numpy as np
import pytest

import kinfed


def test_every_public_name_exists_and_is_documented():
    assert sorted(kinfed.__all__) == sorted(set(kinfed.__all__))
    for name in kinfed.__all__:
        value = getattr(kinfed, name)
        assert value.__doc__ or not callable(value), f"kinfed.{name} has no docstring"


def test_a_sketch_is_a_function_and_no_module():
    features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=4, dim=2)
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'kinfed\.sketch'"):
        importlib.import_module("kinfed.sketch")
    assert kinfed.sketch(np.zeros((3, 2)), features).n == 3


def test_what_is_imported_under_the_name_of_a_module_is_that_module():
    """`import kinfed.embedding.sketch as module` would otherwise be a function of the same name, without an error."""
    kept_apart = {
        "kinfed.deployment.template",
        "kinfed.learners.neural",
        "kinfed.backends.flower",
        "kinfed.plotting.picture",
    }
    for found in pkgutil.walk_packages(kinfed.__path__, "kinfed."):
        if any(found.name.startswith(name) for name in kept_apart):  # need what may not be installed
            continue
        package, _, name = found.name.rpartition(".")
        importlib.import_module(found.name)
        assert isinstance(getattr(importlib.import_module(package), name), types.ModuleType), found.name


def test_no_docstring_is_a_fragment():
    """A word or two, such as "B.", say nothing that the name does not."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in Path(kinfed.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            told = ast.get_docstring(node) if isinstance(node, described) else None
            short = told is not None and len(told.split("\n\n")[0].split()) < 3
            assert not short, f"{path.name}, {getattr(node, 'name', 'the module')}: {told}"
