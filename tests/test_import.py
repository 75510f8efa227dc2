"""What `import kinfed` promises: all public names, and no heavy library."""

import subprocess
import sys

import kinfed

HEAVY = ("torch", "flwr", "ray", "plotly", "matplotlib", "PIL", "pyarrow.parquet")


def test_every_public_name_exists_and_is_documented():
    assert sorted(kinfed.__all__) == sorted(set(kinfed.__all__))
    for name in kinfed.__all__:
        value = getattr(kinfed, name)
        assert value.__doc__ or not callable(value), f"kinfed.{name} has no docstring"


def test_import_is_light():
    code = f"import sys, kinfed; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
