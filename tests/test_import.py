"""What `import kinfed` promises: all public names; `test_cli` says that it loads no heavy library."""

import kinfed


def test_every_public_name_exists_and_is_documented():
    assert sorted(kinfed.__all__) == sorted(set(kinfed.__all__))
    for name in kinfed.__all__:
        value = getattr(kinfed, name)
        assert value.__doc__ or not callable(value), f"kinfed.{name} has no docstring"
