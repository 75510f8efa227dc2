"""What a site keeps to itself, whatever it is asked: cells, labels, paths, and all of it where its rows are few."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import kinfed
from kinfed.backends.agents import QUESTIONS
from kinfed.backends.audit import SiteAudit
from kinfed.backends.handshake import HANDSHAKE
from kinfed.backends.redaction import DOTS, discreet
from kinfed.backends.site import InProcess, Site
from kinfed.backends.site import answer as site_answer
from kinfed.backends.spec import digest_of
from kinfed.backends.transport import NO_SPEC, TimeoutPolicy
from kinfed.backends.wire import ENVELOPE, Failure, Message, Request, encode_settings
from kinfed.data.column_types import ColumnReading
from kinfed.federation import Federation
from kinfed.model import keep_model
from site_runs import Recording, run, spec_of


def patients(n: int, **columns: Any) -> pd.DataFrame:
    rng = np.random.default_rng(n)
    return pd.DataFrame({"age": rng.normal(50, 10, n), "y": rng.normal(size=n), **columns})


def sites_with(*tables: pd.DataFrame, learner: str = "ridge", **options: Any) -> list[Site]:
    """A site of each table; the places are their names."""
    frames = [one.assign(site=f"site {place}") for place, one in enumerate(tables)]
    alone = [Federation.from_table(frame, target="y", agent="site") for frame in frames]
    return [Site(one, None, place, kinfed.make_learner(learner), **options) for place, one in enumerate(alone)]


def failure(channel: InProcess, request: Request, place: int = 0) -> str:
    told = channel.ask({str(place): request}, 1.0)[str(place)]
    assert isinstance(told, Failure)
    return told.reason


def whole_error(site: Site, request: Request, notes: Mapping[str, NDArray[Any]]) -> str:
    """What the site's own log shows."""
    with pytest.raises(kinfed.KinfedError) as raised:
        site_answer(site, request, notes)
    return str(raised.value.__cause__)


def test_no_value_of_a_crowded_column_leaves_a_site() -> None:
    crowd = patients(220, name=[f"patient {k // 2}" for k in range(220)], ward=["north", "south"] * 110)
    few = patients(30, name=["patient 1", "nobody"] * 15, ward=["north", "south"] * 15)
    channel = Recording(sites_with(crowd, few))
    outcome = run(channel)
    assert outcome.exchange.attendance.empty
    assert spec_of(outcome).preparation.left_out == {"name": "more than 100 different text values"}
    assert "ward=north" in spec_of(outcome).preparation.columns
    from_the_crowd = b"".join(encode_settings(reply.settings) for place, _, reply in channel.crossed if place == "0")
    assert b"north" in from_the_crowd
    assert b"patient" not in from_the_crowd


def test_a_server_cannot_have_numbers_counted() -> None:
    channel = InProcess(sites_with(patients(30), patients(30)))
    asked = Request("columns", {"readings": [asdict(ColumnReading("age", "category"))], "task": "regression"})
    told = channel.ask({"0": asked}, 1.0)["0"]
    assert isinstance(told, Message)
    assert told.settings == {"counts": {"age": {}}, "crowded": ["age"]}


def test_cells_that_cannot_be_read_stay_at_the_site(tmp_path: Path) -> None:
    ages = [*map(str, range(20, 44)), "Mrs O'Brien, 71"]
    book = SiteAudit(tmp_path / "audit.jsonl", "1")
    sites = sites_with(patients(25).assign(age=ages), patients(25), patients(25), audit=book)
    channel = Recording(sites)
    outcome = run(channel)
    assert spec_of(outcome).names == ("site 0", "site 1", "site 2")
    assert spec_of(outcome).preparation.readings[0].unreadable == 1
    assert "age" in spec_of(outcome).preparation.columns
    assert b"Brien" not in b"".join(encode_settings(reply.settings) for _, _, reply in channel.crossed)
    notes = [line for line in (tmp_path / "audit.jsonl").read_text().splitlines() if '"note"' in line]
    assert ["Mrs O'Brien, 71" in one for one in notes] == [True]


def test_a_folder_that_cannot_be_written_to_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "Mrs Smith").write_text("a file")
    out = tmp_path / "Mrs Smith" / "her models"
    sites = [replace(site, keep_model=partial(keep_model, out)) for site in sites_with(patients(20), patients(20))]
    outcome = run(InProcess(sites), timeouts=TimeoutPolicy(quorum=0.0), audit=tmp_path / "audit.jsonl")
    reasons = outcome.exchange.attendance["reason"].tolist()
    assert reasons == [f"agent site {place} could not write its model (NotADirectoryError)" for place in range(2)]
    log = (tmp_path / "audit.jsonl").read_text()
    assert "could not write its model" in log
    assert not any(secret in log for secret in ("Smith", "her models", str(tmp_path)))


def test_a_folder_for_what_a_site_keeps_is_not_named_either(tmp_path: Path) -> None:
    (tmp_path / "ward of Mrs Smith here").write_text("a file")
    kept = tmp_path / "ward of Mrs Smith here" / "all of her losses"
    sites = [replace(site, kept=kept) for site in sites_with(patients(20), patients(20))]
    with pytest.raises(kinfed.KinfedError):
        run(InProcess(sites), rule="calibrated", audit=tmp_path / "audit.jsonl")
    log = (tmp_path / "audit.jsonl").read_text()
    assert '"missed"' in log
    assert not any(secret in log for secret in ("Smith", "all of her losses", str(tmp_path)))


@pytest.mark.parametrize("label, odd", [("text", "O'Brien (dead)"), ("number", 37)])
def test_a_label_is_not_told_in_an_error(label: str, odd: Any) -> None:
    usual = ["low", "high"] * 10 if label == "text" else [0, 1] * 10
    sites = sites_with(patients(20).assign(y=usual), patients(20).assign(y=usual), learner="logistic")
    outcome = run(InProcess(sites), kinfed.make_learner("logistic"))
    (other,) = sites_with(patients(20).assign(y=[*usual[:-1], odd]), learner="logistic")
    _, notes = site_answer(other, Request("agree", {"text": spec_of(outcome).to_text()}), {})
    settings = {"agreement": digest_of(spec_of(outcome).to_text()), "asked": {}}
    with pytest.raises(kinfed.InputError) as raised:
        site_answer(other, Request("class-counts", settings), notes)
    told = r"agent site 0 has the label (np\.str_\()?\.\.\.\)?, which is not among the 2 classes .*"
    assert re.fullmatch(told, str(raised.value))
    assert str(odd) in whole_error(other, Request("class-counts", settings), notes).replace("\\", "")


def test_of_an_unforeseen_error_the_kind_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (site,) = sites_with(patients(20, name=["Mrs Smith", "Mr Smith"] * 10))

    def fails(agent: Any, *others: Any, **how: Any) -> None:
        raise ValueError(f"nobody knows {agent.X['name'].iloc[0]}")

    monkeypatch.setattr("kinfed.backends.handshake.summarise", fails)
    readings = [ColumnReading("age", "number"), ColumnReading("name", "category")]
    request = Request("columns", {"readings": [asdict(one) for one in readings], "task": "regression"})
    told = failure(InProcess([site]), request)
    assert told == "the question columns failed (ValueError); the log of the site says more"
    assert "Smith" in whole_error(site, request, {})
    assert failure(InProcess([site]), Request("no such task")).startswith("there is no question no such task")


def test_a_lost_agreement_is_still_recognised() -> None:
    (site,) = sites_with(patients(20))
    for task in QUESTIONS:
        assert failure(InProcess([site]), Request(task, {"agreement": "x"})) == NO_SPEC


def test_a_site_of_few_rows_answers_nothing_and_the_others_go_on() -> None:
    small, large, other = sites_with(patients(9), patients(10), patients(12), least_rows=10)
    channel = InProcess([small])
    for task in [*HANDSHAKE, "agree", ENVELOPE, *QUESTIONS, "no such task"]:
        reason = failure(channel, Request(task, {"agreement": "x", "text": "x"}))
        assert reason == (
            "this site has fewer than 10 rows to train on, too few to answer; "
            "set least-rows in its node config to change that"
        )
    outcome = run(InProcess([small, large, other]))
    assert spec_of(outcome).names == ("site 1", "site 2")
    assert "least-rows" in outcome.exchange.attendance["reason"].iloc[0]


words = st.text(st.characters(codec="utf-8"), min_size=1)


@given(words, st.sampled_from(["it isn't", "the agents' data aren't", "a", "it's 'age' and"]))
def test_quoted_text_never_survives(secret: str, before: str) -> None:
    for quoted_text in (repr(secret), repr(np.array([secret])[0]), repr(secret.encode())):
        error = kinfed.InputError(f"{before} here: column age holds {quoted_text}, but it's numeric; correct it")
        told = str(discreet(error, ["age"]))
        assert re.fullmatch(rf"{before} here: column age holds (np\.str_\()?\.\.\.\)?, but it's numeric; correct it", told)


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0/\n"), min_size=1), min_size=1, max_size=3))
def test_known_paths_never_survive(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    told = str(discreet(kinfed.SketchError(f"it cannot be written to {path}: no space"), (), [path]))
    assert told == f"it cannot be written to {DOTS}: no space"


@pytest.mark.parametrize(
    "whole, told",
    [
        ("/data/smith.csv, row 3: no", "..., row 3: no"),
        ("C:\\data\\smith, row 3", "..., row 3"),
        ("smith.csv.gz and a/b differ in 'age', not in 'smith'", "... and ... differ in 'age', not in ..."),
        ("agent a has 12 rows in shape (3, 4), but 10", "agent a has 12 rows in shape (3, 4), but 10"),
        ("it holds 'smith and does not end", "it holds ..."),
        ("it holds 'smith\\", "it holds ..."),
        ("column mg/l holds 'x'", "column mg/l holds ..."),
        ("label 'O'Brien' is raw", "label ... is raw"),
    ],
)
def test_sentences_stay_readable_without_what_they_quote(whole: str, told: str) -> None:
    heard = discreet(kinfed.InputError(whole), ["age", "mg/l"])
    assert (type(heard), str(heard)) == (kinfed.InputError, told)
