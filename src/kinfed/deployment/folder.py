"""A ready Flower app in a folder: its configuration with every option, and the three small files Flower runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from kinfed.deployment.options import config_text
from kinfed.errors import InputError
from kinfed.files import write_whole

PACKAGE = "kinfed_app"
MODULES = ("__init__.py", "client.py", "server.py", "learner.py")

_PYPROJECT = """\
# A federation on Flower. Start it with:
#   flwr run . NAME-OF-THE-CONNECTION --stream
# or as a simulation on this machine, one node per agent:
#   flwr run . --stream --federation-config 'num-supernodes=20'
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "kinfed-app"
version = "1.0.0"
description = "Personal models for the sites of a federation"
license = "BSD-3-Clause"
# Every site installs these itself; Flower is not to install anything (see the environment in the guide).
dependencies = ["kinfed[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
# Your consortium.
publisher = "consortium"
fab-include = ["{package}/**/*.py"]

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

# Every value can be changed for one run: flwr run . NAME -c 'seed=1 rule="q-aggregation"'
[tool.flwr.app.config]
{config}"""


def write_app(folder: Path, options: Mapping[str, Any] | None = None, force: bool = False) -> tuple[Path, ...]:
    """Write the app; existing files are not overwritten unless that is forced.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    options : mapping, optional
        Values of `kinfed.settings.Settings` by field name, in place of the defaults.
    force : bool
        Overwrite files of an earlier app.

    Returns
    -------
    tuple of path
        The files.
    """
    template = files("kinfed.deployment.template")
    contents = {folder / PACKAGE / module: template.joinpath(module).read_text(encoding="utf-8") for module in MODULES}
    contents[folder / "pyproject.toml"] = _PYPROJECT.format(
        version=version("kinfed"), package=PACKAGE, config=config_text(options)
    )
    for path in contents:
        if path.exists() and not force:
            raise InputError(f"{path} exists already; give another folder, or --force to overwrite it")
    try:
        (folder / PACKAGE).mkdir(parents=True, exist_ok=True)
        for path, text in contents.items():
            _write_text(path, text)
    except OSError as error:
        raise InputError(f"the app cannot be written to {folder}: {error.strerror or error}") from None
    return tuple(contents)


def _write_text(path: Path, text: str) -> None:
    write_whole(path, lambda file: file.write(text.encode()))
