"""Sketches: streaming, files, and everything a received sketch may get wrong."""

import dataclasses
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kinfed
from kinfed.embedding import check_sketch

FEATURES = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=50, dim=3, seed=1)


@pytest.fixture(name="Z")
def forty_points():
    return np.random.default_rng(0).standard_normal((40, 3))


@pytest.mark.parametrize(
    "features",
    [
        FEATURES,
        kinfed.FourierFeatures(kinfed.Laplace(1.0), 50, dim=3, sampling="orthogonal"),
        kinfed.PolynomialFeatures(kinfed.Polynomial(), dim=3),
    ],
    ids=["iid", "orthogonal", "polynomial"],
)
@given(cuts=st.lists(st.integers(0, 40), max_size=5))
def test_batches_of_any_size_give_the_same_sketch(features, cuts):
    Z = np.random.default_rng(0).standard_normal((40, 3))
    batches = np.split(Z, sorted(cuts))
    streamed = kinfed.sketch((batch for batch in batches), features)
    np.testing.assert_allclose(streamed.mean, features(Z).mean(axis=0), atol=1e-13)
    assert streamed.n == 40
    assert streamed.trace == pytest.approx(kinfed.trace_covariance(features(Z)), rel=1e-10)


def test_lists_of_rows_and_single_precision(Z):
    whole = kinfed.sketch(Z, FEATURES)
    np.testing.assert_array_equal(kinfed.sketch(Z.tolist(), FEATURES).mean, whole.mean)
    single = kinfed.sketch(Z.astype(np.float32), FEATURES)
    assert single.mean.dtype == np.float64
    np.testing.assert_allclose(single.mean, whole.mean, atol=1e-6)


def test_memory_does_not_grow_with_the_number_of_points():
    features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=1000, dim=8)
    rng = np.random.default_rng(0)
    kinfed.sketch(rng.standard_normal((1000, 8)), features)
    tracemalloc.start()
    sketch = kinfed.sketch((rng.standard_normal((5000, 8)) for _ in range(10)), features)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sketch.n == 50_000
    assert peak < 60e6  # the features of all points would be 400 MB


def test_a_file_brings_back_the_sketch(Z, tmp_path):
    sketch = kinfed.sketch(Z, FEATURES)
    path = sketch.save(tmp_path / "site.sketch")
    loaded = kinfed.load_sketch(path)
    np.testing.assert_array_equal(loaded.mean, sketch.mean)
    assert (loaded.n, loaded.trace, loaded.recipe) == (sketch.n, sketch.trace, sketch.recipe)
    assert [file.name for file in tmp_path.iterdir()] == ["site.sketch"]


def test_the_file_holds_what_the_documentation_says(Z, tmp_path):
    path = kinfed.sketch(Z, FEATURES).save(tmp_path / "site.npz")
    with np.load(path, allow_pickle=False) as archive:
        assert sorted(archive.files) == ["format", "mean", "n", "recipe", "trace", "version"]
        assert str(archive["format"]) == "kinfed-sketch"
        assert archive["mean"].dtype == np.float64


def test_one_point_has_no_trace(Z, tmp_path):
    path = kinfed.sketch(Z[:1], FEATURES).save(tmp_path / "one")
    assert np.isnan(kinfed.load_sketch(path).trace)


def test_a_damaged_file_is_refused_wherever_the_damage_is(Z, tmp_path):
    path = kinfed.sketch(Z, FEATURES).save(tmp_path / "site.npz")
    content = path.read_bytes()
    original = kinfed.load_sketch(path)
    refused = 0
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            survived = kinfed.load_sketch(path)
        except kinfed.SketchError as error:
            refused += str(path) in str(error)
        else:  # some bytes of a zip archive, such as dates, carry no meaning
            np.testing.assert_array_equal(survived.mean, original.mean)
            assert survived.recipe == original.recipe
    assert refused > 100


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"a,b\n1,2\n"])
def test_foreign_files_are_refused(content, tmp_path):
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(kinfed.SketchError, match="foreign"):
        kinfed.load_sketch(path)


def test_other_archives_and_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", X=np.zeros(3))
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "pickle.npz", format=np.array([object()], dtype=object))
    with zipfile.ZipFile(tmp_path / "plain.zip", "w") as archive:
        archive.writestr("mean.npy", b"not an array")
    for name in ("other.npz", "array.npy", "pickle.npz", "plain.zip", "missing.npz"):
        with pytest.raises(kinfed.SketchError, match=name):
            kinfed.load_sketch(tmp_path / name)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda s: {"mean": s.mean * 100}, "features allow at most"),
        (lambda s: {"mean": np.eye(50)[0]}, "one coordinate of the mean"),
        (lambda s: {"mean": s.mean * np.nan}, "NaN"),
        (lambda s: {"mean": s.mean[:-1]}, "shape"),
        (lambda s: {"n": 0}, "0 points"),
        (lambda s: {"trace": -0.1}, "trace"),
        (lambda s: {"trace": 5.0}, "trace"),
        (lambda s: {"recipe": dataclasses.replace(s.recipe, version=99)}, "version 99"),
    ],
)
def test_impossible_numbers_are_refused(Z, change, words, tmp_path):
    sketch = kinfed.sketch(Z, FEATURES)
    lie = dataclasses.replace(sketch, **change(sketch))
    with pytest.raises(kinfed.SketchError, match=words):
        check_sketch(lie)
    with pytest.raises(kinfed.SketchError, match=r"lie\.npz"):
        kinfed.load_sketch(lie.save(tmp_path / "lie.npz"))


@pytest.mark.parametrize(
    "points, words",
    [
        (np.zeros((0, 3)), "no points"),
        (iter([]), "no points"),
        ([np.zeros((2, 3)), np.full((2, 3), np.inf)], "batch 1: row 0"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "batch 1: points of dimension 3"),
        (np.array([["a", "b", "c"]]), "not a table of numbers"),
        (np.zeros((2, 2, 2)), "shape"),
    ],
)
def test_points_that_cannot_be_sketched(points, words):
    with pytest.raises(kinfed.InputError, match=words):
        kinfed.sketch(points, FEATURES)


def test_saving_to_a_folder_that_is_not_there_leaves_nothing(Z, tmp_path):
    with pytest.raises(kinfed.SketchError, match="cannot be written"):
        kinfed.sketch(Z, FEATURES).save(tmp_path / "no" / "site.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_old_file(Z, tmp_path, monkeypatch):
    path = kinfed.sketch(Z, FEATURES).save(tmp_path / "site.npz")
    before = path.read_bytes()

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(kinfed.SketchError, match="No space left"):
        kinfed.sketch(Z[:5], FEATURES).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
