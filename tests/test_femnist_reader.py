"""FEMNIST in its three forms: the same images give the same federation, and every mistake one clear sentence."""

import contextlib
import io
import json
import os
import string
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from kinfed.data import read_femnist
from kinfed.errors import InputError, MissingExtraError

pytestmark = pytest.mark.slow

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def drawings(n_writers=5, seed=0):
    """Dark strokes on white by writers of 6 to 10 images, the first one doubled as LEAF does: name -> (uint8, labels)."""
    rng = np.random.default_rng(seed)
    found = {}
    for k in range(n_writers):
        n = int(rng.integers(6, 11))
        X = np.where(rng.random((n, 784)) < 0.1, rng.integers(0, 255, (n, 784)), 255).astype(np.uint8)
        y = rng.integers(0, 62, n)
        found[f"f{k:04d}_{rng.integers(10, 99)}"] = (np.vstack([X[:1], X]), np.concatenate([y[:1], y]))
    return found


def png(pixels, mode="L"):
    file = io.BytesIO()
    Image.fromarray(pixels.reshape(28, 28)).convert(mode).save(file, format="PNG")
    return file.getvalue()


def features(names=tuple(CHARACTERS)):
    """The description of the columns that `datasets` keeps."""
    return {
        "image": {"_type": "Image"},
        "writer_id": {"dtype": "string", "_type": "Value"},
        "hsf_id": {"dtype": "int64", "_type": "Value"},
        "character": {"names": list(names), "_type": "ClassLabel"},
    }


def image_table(drawn, names=tuple(CHARACTERS), described=True, as_text=False, mode="L"):
    rows = [(writer, image, label) for writer, (X, y) in drawn.items() for image, label in zip(X, y, strict=True)]
    characters = [CHARACTERS[label] for _, _, label in rows]
    table = pa.table(
        {
            "image": pa.array([{"bytes": png(image, mode), "path": None} for _, image, _ in rows], type=STRUCT),
            "writer_id": [writer for writer, _, _ in rows],
            "hsf_id": pa.array([0] * len(rows), type=pa.int64()),
            "character": characters if as_text else pa.array([names.index(c) for c in characters], type=pa.int64()),
        }
    )
    description = json.dumps({"info": {"features": features(names)}, "fingerprint": "0123456789abcdef"})
    return table.replace_schema_metadata({"huggingface": description} if described else None)


def save_parquet(path, drawn, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(image_table(drawn, **options), path, row_group_size=7)
    return path


def save_to_disk(folder, drawn, shards=2, **options):
    """A folder as `datasets.Dataset.save_to_disk` writes it: Arrow streams, in portions, named in state.json."""
    folder.mkdir(parents=True)
    table = image_table(drawn, **options)
    size = -(-len(table) // shards)
    names = [f"data-{k:05d}-of-{shards:05d}.arrow" for k in range(shards)]
    for k, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table.slice(k * size, size), max_chunksize=4)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features(options.get("names", tuple(CHARACTERS)))}))
    return folder


def save_leaf(path, drawn, **changes):
    content = {
        "users": list(drawn),
        "num_samples": [len(y) for _, y in drawn.values()],
        "user_data": {name: {"x": (X / 255).tolist(), "y": y.tolist()} for name, (X, y) in drawn.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, **changes}))
    return path


def save_archive(path, drawn, scale=1, **changes):
    X = np.vstack([X for X, _ in drawn.values()])
    arrays = {
        "X": X if scale == 1 else (X / scale).astype(np.float32),
        "y": np.concatenate([y for _, y in drawn.values()]).astype(np.uint8),
        "agent": np.repeat(np.arange(len(drawn)), [len(y) for _, y in drawn.values()]),
        "agent_names": np.array(list(drawn)),
    }
    np.savez(path, **{key: value for key, value in {**arrays, **changes}.items() if value is not None})
    return path


def assert_equal(fed, other):
    assert fed.names == other.names
    assert fed.columns == other.columns
    assert fed.target == other.target == "y"
    for one, two in zip(fed, other, strict=True):
        np.testing.assert_array_equal(one.X, two.X)
        np.testing.assert_array_equal(one.y, two.y)


def check(fed, drawn):
    assert fed.names == tuple(sorted(drawn))
    assert fed.dim == 784
    for agent in fed:
        X, y = drawn[agent.name]
        assert agent.X.dtype == np.float32
        assert agent.y.dtype == np.int64
        np.testing.assert_array_equal(np.rint(agent.X * 255), X[1:])  # the doubled first image is there once
        np.testing.assert_array_equal(agent.y, y[1:])


# --- the forms ---------------------------------------------------------------------------------------------------------


def halves(drawn):
    """Two parts by writer, the later names first."""
    names = list(drawn)
    return {name: drawn[name] for name in names[3:]}, {name: drawn[name] for name in names[:3]}


def leaf_folder(folder, drawn):
    for k, part in enumerate(halves(drawn)):
        save_leaf(folder / f"all_data_{k}.json", part)
    return folder


def parquet_folder(folder, drawn):
    for k, part in enumerate(halves(drawn)):
        save_parquet(folder / "data" / f"train-{k:05d}-of-00002.parquet", part)
    (folder / "README.md").write_text("a card")
    return folder


def partitions(folder, drawn):
    for k, name in enumerate(drawn):
        save_to_disk(folder / f"partition_{k}", {name: drawn[name]}, shards=1)
    return folder


def dataset_dict(folder, drawn):
    save_to_disk(folder / "train", drawn)
    (folder / "dataset_dict.json").write_text('{"splits": ["train"]}')
    return folder


def hub_cache(folder, drawn):
    """What `datasets` keeps of a data set it has loaded: no state.json, and tables of its own beside the data."""
    save_to_disk(folder / "0.0.0", drawn, shards=1)
    (folder / "0.0.0" / "state.json").unlink()
    (folder / "0.0.0" / "cache-0123.arrow").write_bytes(b"an index of rows")
    return folder


FORMS = {
    "archive": lambda folder, drawn: save_archive(folder / "f.npz", drawn),
    "archive of floats": lambda folder, drawn: save_archive(folder / "f.npz", drawn, scale=255),
    "LEAF": lambda folder, drawn: save_leaf(folder / "f.json", drawn),
    "LEAF folder": leaf_folder,
    "Parquet": lambda folder, drawn: save_parquet(folder / "f.parquet", drawn),
    "Parquet folder": parquet_folder,
    "Parquet, characters as text": lambda folder, drawn: save_parquet(folder / "f.parquet", drawn, as_text=True),
    "Parquet, not described": lambda folder, drawn: save_parquet(folder / "f.parquet", drawn, described=False),
    "Parquet, classes in another order": lambda folder, drawn: save_parquet(
        folder / "f.parquet", drawn, names=tuple(reversed(CHARACTERS))
    ),
    "Parquet of colour images": lambda folder, drawn: save_parquet(folder / "f.parquet", drawn, mode="RGB"),
    "saved": lambda folder, drawn: save_to_disk(folder / "saved", drawn),
    "saved, described beside it": lambda folder, drawn: save_to_disk(
        folder / "saved", drawn, described=False, names=tuple(sorted(CHARACTERS, key=str.lower))
    ),
    "one stream": lambda folder, drawn: save_to_disk(folder / "saved", drawn, shards=1) / "data-00000-of-00001.arrow",
    "partitions": partitions,
    "dictionary of splits": dataset_dict,
    "cache": hub_cache,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_federation(tmp_path, form):
    drawn = drawings()
    fed = read_femnist(FORMS[form](tmp_path, drawn))
    check(fed, drawn)
    assert_equal(fed, read_femnist(save_archive(tmp_path / "other.npz", drawn)))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_draws_the_same_writers(tmp_path, form):
    drawn = drawings()
    names = sorted(drawn)
    expected = tuple(names[k] for k in np.sort(np.random.default_rng(3).choice(5, 2, replace=False)))
    path = FORMS[form](tmp_path, drawn)
    fed = read_femnist(path, writers=2, seed=3)
    assert fed.names == expected
    check(fed, {name: drawn[name] for name in expected})
    assert read_femnist(str(path), writers=None).names == tuple(names)
    assert read_femnist(path, writers=5).names == tuple(names)


def test_writers_that_are_not_drawn_are_not_decoded(tmp_path):
    drawn = drawings()
    names = sorted(drawn)
    kept = [names[k] for k in np.random.default_rng(0).choice(5, 2, replace=False)]
    table = image_table(drawn)
    broken = [
        {"bytes": image["bytes"] if writer in kept else b"broken", "path": None}
        for image, writer in zip(table["image"].to_pylist(), table["writer_id"].to_pylist(), strict=True)
    ]
    pq.write_table(table.set_column(0, "image", pa.array(broken, type=STRUCT)), tmp_path / "f.parquet")
    check(read_femnist(tmp_path / "f.parquet", writers=2), {name: drawn[name] for name in kept})
    with pytest.raises(InputError, match="is not PNG or is damaged"):
        read_femnist(tmp_path / "f.parquet")


def test_leaf_users_after_the_data_are_found_too(tmp_path):
    drawn = drawings()
    content = json.loads(save_leaf(tmp_path / "f.json", drawn).read_text())
    (tmp_path / "f.json").write_text(json.dumps(dict(reversed(content.items()))))
    assert len(read_femnist(tmp_path / "f.json", writers=2)) == 2
    check(read_femnist(tmp_path / "f.json"), drawn)


def test_only_equal_images_with_equal_labels_of_one_writer_are_repeats(tmp_path):
    X, _ = next(iter(drawings(1).values()))
    drawn = {
        "a": (np.vstack([X[:1]] * 3), np.array([4, 5, 4])),
        "b": (X[:1], np.array([4])),
    }
    fed = read_femnist(save_archive(tmp_path / "f.npz", drawn))
    assert fed.sizes.tolist() == [2, 1]
    assert fed["a"].y.tolist() == [4, 5]


def test_marked_repeats_are_the_ones_found(tmp_path):
    drawn = drawings()
    first = np.concatenate([np.arange(len(y)) == 1 for _, y in drawn.values()])
    check(read_femnist(save_archive(tmp_path / "f.npz", drawn, dup=first)), drawn)


# --- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"writers": 0}, "writers must be a positive whole number"),
        ({"writers": 2.5}, "writers must be a positive whole number"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        read_femnist(save_archive(tmp_path / "f.npz", drawings()), **options)


def test_wrong_paths(tmp_path):
    (tmp_path / "f.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "both").mkdir()
    save_archive(tmp_path / "both" / "f.npz", drawings())
    for path, message in [
        ("nowhere", "nowhere does not exist"),
        ("f.csv", "files of type .csv are not read as FEMNIST"),
        ("empty", "empty holds no FEMNIST; give"),
        ("both", "both holds the archive f.npz; give the path of the archive itself"),
    ]:
        with pytest.raises(InputError, match=message):
            read_femnist(tmp_path / path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"y": None}, "f.npz has no array y; FEMNIST needs"),
        ({"X": np.full((47, 10), 255, dtype=np.uint8)}, "writer f0000_.*: an image has 10 values"),
        ({"y": np.full(47, 62)}, "writer f0000_.*, row 0: y is 62; labels go from 0 to 61"),
        ({"y": np.full(47, 0.5)}, "row 0: y is 0.5"),
        ({"X": np.full((47, 784), -1.0)}, "row 0: a pixel is not between 0 and 1"),
        ({"X": np.full((47, 784), 256.0)}, "row 0: a pixel is not between 0 and 255"),
        ({"X": np.full((47, 784), np.nan)}, "row 0: a pixel is not between 0 and 1"),
        ({"X": np.zeros((47, 784), dtype=np.uint8)}, r"images on a dark background \(their mean is 0.00\)"),
    ],
)
def test_wrong_archives(tmp_path, changes, message):
    drawn = drawings()
    n = sum(len(y) for _, y in drawn.values())
    fitted = {key: None if value is None else np.resize(value, (n, *value.shape[1:])) for key, value in changes.items()}
    with pytest.raises(InputError, match=message):
        read_femnist(save_archive(tmp_path / "f.npz", drawn, **fitted))


@pytest.mark.parametrize(
    "x, y, message",
    [
        ([[1.0] * 783 + [1.5]], [3], "f.json: writer a, row 0: a pixel is not between 0 and 1"),
        ([[1.0] * 784, [255.0] * 784], [3, 3], "f.json: writer a, row 1: a pixel is not between 0 and 1"),
        ([[1.0] * 10], [3], "f.json: writer a: an image has 10 values; FEMNIST has 28 x 28 = 784 pixels"),
        ([[1.0] * 784], ["c"], "f.json: writer a, row 0: y is c; labels go from 0 to 61"),
        ([[1.0] * 784], [[3]], r"f.json: writer a, row 0: y is \[3\]"),
        ([[1.0] * 784], [-1], "f.json: writer a, row 0: y is -1"),
        ([["white"] * 784], [1], "f.json: user a, row 0: x is not a list of numbers"),
    ],
)
def test_wrong_leaf_files(tmp_path, x, y, message):
    content = {"users": ["a"], "num_samples": [len(y)], "user_data": {"a": {"x": x, "y": y}}}
    (tmp_path / "f.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        read_femnist(tmp_path / "f.json")


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"users": ["a"', "f.json is not JSON or is damaged"),
        ('{"users": ["a"], "num_samples": [1]}', "f.json is not a LEAF file"),
        ('{"users": [], "num_samples": [], "user_data": {}}', "f.json names no users"),
        ("[1, 2]", "f.json is not a LEAF file"),
    ],
)
def test_damaged_leaf_files(tmp_path, text, message):
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_femnist(tmp_path / "f.json")


def test_a_writer_in_two_leaf_files(tmp_path):
    drawn = drawings()
    save_leaf(tmp_path / "test.json", drawn)
    save_leaf(tmp_path / "train.json", drawn)
    with pytest.raises(InputError, match=r"user f0000_\d\d is in test.json and in train.json"):
        read_femnist(tmp_path)


def with_image(encoded, row=3):
    """The tables of the drawings with another image in one row."""
    table = image_table(drawings())
    images = table["image"].to_pylist()
    images[row] = {"bytes": encoded, "path": "a.png"}
    return table.set_column(0, "image", pa.array(images, type=STRUCT))


def with_column(name, values):
    table = image_table(drawings())
    return table.set_column(table.column_names.index(name), name, pa.array((values * len(table))[: len(table)]))


def large_png():
    file = io.BytesIO()
    Image.new("L", (32, 28)).save(file, format="PNG")
    return file.getvalue()


def deep_png():
    file = io.BytesIO()
    Image.fromarray(np.full((28, 28), 40000, dtype=np.uint16)).save(file, format="PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: image_table(drawings()).drop_columns("writer_id"), "FILE has no column 'writer_id', so it is not FEMNIST"),
        (lambda: pa.table({"age": [1]}), "FILE has no column 'image', so it is not FEMNIST; .* and it has age"),
        (lambda: with_image(b"\x89PNG broken"), r"FILE: writer f0000_\d\d, row 3: the image is not PNG or is damaged"),
        (lambda: with_image(png(np.zeros(784, np.uint8))[:-30]), "row 3: the image is not PNG or is damaged"),
        (lambda: with_image(None), "row 3 has no image in the table"),
        (lambda: with_image(large_png()), "row 3: the image has 32 x 28 pixels; FEMNIST has 28 x 28"),
        (lambda: with_image(deep_png()), "row 3: the image has mode I;16; FEMNIST has 8-bit grey"),
        (lambda: with_column("character", [1, 70]), "row 1: character 70 is none of the 62 of FEMNIST"),
        (lambda: with_column("character", ["a", "ä"]), "row 1: character 'ä' is none of the 62"),
        (lambda: with_column("character", [None]), "row 0: character None is none of the 62"),
        (lambda: with_column("writer_id", ["a", "b", None]), "FILE: row 2 has no writer_id"),
        (lambda: with_column("image", [1.5]), "FILE: column 'image' holds double, not PNG images"),
        (lambda: image_table(drawings()).slice(0, 0), "FILE holds no images"),
        (lambda: image_table({"a": (np.zeros((2, 784), np.uint8), np.array([1, 2]))}), "images on a dark background"),
        (
            lambda: image_table(drawings()).replace_schema_metadata(
                {"huggingface": json.dumps({"info": {"features": features(CHARACTERS[:10])}})}
            ),
            "FILE has 10 classes of characters, not the 62 of FEMNIST",
        ),
        (
            lambda: image_table(drawings()).replace_schema_metadata({"huggingface": "{"}),
            "FILE: the description of its columns is damaged",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_wrong_tables(tmp_path, make, message, suffix):
    path = tmp_path / f"f{suffix}"
    table = make()
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    with pytest.raises(InputError, match=message.replace("FILE", path.name)):
        read_femnist(path)


@pytest.mark.parametrize("suffix, kind", [(".parquet", "a Parquet file"), (".arrow", "an Arrow stream")])
@pytest.mark.parametrize("content", [b"", b"not a table at all", b"PAR1" + bytes(100)])
def test_files_that_are_no_tables(tmp_path, suffix, kind, content):
    (tmp_path / f"f{suffix}").write_bytes(content)
    with pytest.raises(InputError, match=f"f{suffix} is not {kind} or is damaged"):
        read_femnist(tmp_path / f"f{suffix}")


def test_a_cut_or_altered_stream_is_refused_or_read(tmp_path):
    path = save_to_disk(tmp_path / "saved", drawings(), shards=1) / "data-00000-of-00001.arrow"
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for cut in rng.integers(0, len(whole) - 16, 20):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            read_femnist(path)
    for place in rng.integers(0, len(whole), 60):
        altered = bytearray(whole)
        altered[place] ^= 0xFF
        path.write_bytes(altered)
        with contextlib.suppress(InputError):
            read_femnist(path)


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("dataset_dict.json", '{"splits": ["test", "train"]}', "holds the splits test, train; give the folder of one"),
        ("dataset_dict.json", "{", "dataset_dict.json has no list 'splits', so the data set is damaged"),
        ("state.json", "{}", "state.json has no list '_data_files', so the data set is damaged"),
        ("state.json", '{"_data_files": [{"filename": "gone.arrow"}]}', "gone.arrow is not an Arrow stream or is damaged"),
    ],
)
def test_damaged_saved_folders(tmp_path, name, text, message):
    folder = save_to_disk(tmp_path / "saved", drawings())
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_femnist(folder)


@pytest.mark.parametrize("package", ["pyarrow", "PIL"])
def test_without_the_extra(tmp_path, monkeypatch, package):
    drawn = drawings()
    monkeypatch.delitem(sys.modules, "kinfed.data.image_tables", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'kinfed\[femnist\]'"):
        read_femnist(tmp_path)
    check(read_femnist(save_archive(tmp_path / "f.npz", drawn)), drawn)  # other forms do without
    check(read_femnist(save_leaf(tmp_path / "f.json", drawn)), drawn)


# --- real files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def real_data():
    """The folder of real federations: $KINFED_DATA, or ../shared/data beside the repository."""
    folder = Path(os.environ.get("KINFED_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / "femnist.npz").is_file():
        pytest.skip("femnist.npz is absent; set KINFED_DATA to the folder of real federations")
    return folder


def test_real_archive(real_data, tmp_path):
    fed = read_femnist(real_data / "femnist.npz")
    with np.load(real_data / "femnist.npz") as raw:
        X, y, agent, names, dup = (raw[key] for key in ("X", "y", "agent", "agent_names", "dup"))
    assert fed.names == tuple(names)
    assert fed.sizes.sum() == 42590 - 192
    assert np.unique(fed.pooled()[1]).tolist() == list(range(62))
    np.testing.assert_array_equal(np.rint(fed.pooled()[0] * 255), X[~dup])
    few = agent < 20  # without the mark, exactly the marked rows are found
    np.savez(tmp_path / "unmarked.npz", X=X[few], y=y[few], agent=agent[few], agent_names=names)
    assert_equal(read_femnist(tmp_path / "unmarked.npz"), fed.select(range(20)))
    assert dup[few].sum() == 20


def test_real_images_in_all_forms(real_data, tmp_path):
    sample = read_femnist(real_data / "femnist_leaf_sample.json")
    assert sample.sizes.tolist() == [11, 11, 11]
    content = json.loads((real_data / "femnist_leaf_sample.json").read_text())
    drawn = {
        user: (np.rint(255 * np.array(data["x"])).astype(np.uint8), np.array(data["y"]))
        for user, data in content["user_data"].items()
    }
    check(sample, drawn)
    for form in FORMS:
        folder = tmp_path / form
        folder.mkdir()
        made = {**drawn, **drawings(2)} if "folder" in form else drawn
        fed = read_femnist(FORMS[form](folder, made))
        assert_equal(fed.select([fed.names.index(name) for name in sample.names]), sample)
