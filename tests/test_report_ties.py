"""The report of results without weights: who speaks in whose model, the priors, what to expect; or nothing of these."""

import base64
import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

import kinfed
from kinfed.analysis.ties import overlap_groups
from kinfed.report.context import context_of
from kinfed.report.page import page
from kinfed.reporting import report_data, ties_of
from report_samples import HOSTILE, stacked_result, two_kinds
from test_report import SECTIONS, Page

pytestmark = pytest.mark.slow

STACKED = ["influence" if one == "weights" else one for one in SECTIONS]
WHERE = ("pooled", "sites", "loaded")
DRAWN = 15  # priors at most


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of ridge and logistic regression, here, by sites, and from a file that was written before any report."""
    found = {}
    for learner in ("ridge", "logistic"):
        folder = tmp_path_factory.mktemp(learner)
        for backend in ("pooled", "sites"):
            found[learner, backend] = stacked_result(learner, backend=backend)
        found[learner, "pooled"].save(folder)
        found[learner, "loaded"] = kinfed.load(folder)
    return found


@pytest.fixture(params=[(learner, where) for learner in ("ridge", "logistic") for where in WHERE], ids="-".join)
def result(request, results):
    return results[request.param]


def embedded(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def part(html, start, end):
    return Page(html[html.index(f'<section id="{start}"') : html.index(f'<section id="{end}"')]).text


def test_page_is_whole(result):
    read = Page(page(report_data(result)))
    assert read.balanced
    assert [one["id"] for one in read.all("section")] == STACKED
    assert not re.search(r"\b(nan|inf)\b", read.text)
    assert [one["id"] for one in read.all("details") if one.get("class") == "agent"] == [f"agent-{k}" for k in range(12)]
    for drawing in read.all("svg"):
        assert drawing.get("aria-hidden") == "true" or "aria-label" in drawing or "aria-labelledby" in drawing


def test_matrix_is_the_influence(result):
    content = embedded(page(report_data(result)))
    order, count = content["agents"], len(content["agents"])
    shown = np.frombuffer(base64.b64decode(content["matrix"]), "<u2").reshape(count, count) / 65535 * content["top"]
    shown[np.diag_indices(count)] = content["own"]
    expected = result.influence.to_numpy()[np.ix_(order, order)]
    np.testing.assert_allclose(shown, expected, atol=1e-5)
    assert content["names"] == [result.known.names[k] for k in order]


def test_words_are_of_influence_and_explained_where_they_stand(result):
    html = page(report_data(result))
    told = part(html, "influence", "map")
    assert told.startswith("Who speaks in whose model")
    assert "that follows the column's outcomes: squared sensitivities that sum to 100" in told
    everything = Page(html).text
    for words in ("listens", "weight on itself", "Learns as if from", "effective sample size", "Own weight"):
        assert words not in everything
    assert f"Own influence, median{100 * np.median(result.stacking.own):.0f} %" in everything


def test_the_priors_are_told_with_shares_and_losses(result):
    html = page(report_data(result))
    told, table = part(html, "choices", "shared"), result.stacking.table
    loss = {"regression": "squared error", "classification": "log loss"}[result.learner.task]
    assert "A prior is what is believed of a model before the agent's own rows are seen" in told
    assert loss in told
    for name, (share, mean) in zip(table.index, table.to_numpy(), strict=True):
        assert f"{name}{100 * share:.1f} %{mean:.4g}" in told  # a row of the table
    drawing = next(one for one in Page(html).all("svg") if one.get("class") == "dots")
    assert (
        f"Shares of {min(len(table), DRAWN)} priors; the largest, {100 * table['share'].iloc[0]:.0f}"
        in (drawing["aria-label"])
    )
    assert html.count('<rect class="share"') == min(len(table), DRAWN)


def test_an_agents_section_has_the_loudest_others(result):
    html = page(report_data(result))
    chapter = Page(html[html.index('id="agent-3"') : html.index('id="agent-4"')]).text
    row = result.influence.iloc[3].drop(result.known.names[3]).sort_values(ascending=False)
    assert f"Own influence{100 * result.stacking.own[3]:.1f} %" in chapter
    assert f"Others that speak in the model of {result.known.names[3]}" in chapter
    assert f"{row.index[0]}{100 * row.iloc[0]:.2f} %" in chapter


def test_no_sketches_are_said_to_be_shared(result):
    told = Page(page(report_data(result))).text
    assert "sketch" not in told[told.index("What was shared") : told.index("Versions")]
    assert "epsilon is infinite" in told


def test_where_rows_are_not_known_the_map_is_of_who_speaks(results):
    loaded, here = (report_data(results["ridge", where]) for where in ("loaded", "pooled"))
    assert loaded.ties.evidence is None
    np.testing.assert_array_equal(loaded.ties.groups.labels, overlap_groups(loaded.ties.matrix).labels)
    html = page(loaded)
    assert embedded(html)["distances"] is None
    told = Page(html).text
    assert "MMD" not in told
    assert "in whose models much the same others speak" in told
    # Agents of one kind are kin; the generator knows which.
    assert "Of the pairs that were found to be kin 100 %" in Page(page(replace(loaded, groups=here.groups))).text
    assert here.ties.evidence is not None
    assert "The distance is the MMD of their data" in Page(page(here)).text


def test_distances_of_a_report_are_kept_with_the_result(tmp_path):
    result = stacked_result(test=False)
    before = ties_of(result)
    result.save(tmp_path)
    after = ties_of(kinfed.load(tmp_path))
    np.testing.assert_array_equal(after.squared_distances, before.squared_distances)
    np.testing.assert_array_equal(after.groups.labels, before.groups.labels)


def test_the_call_names_the_method():
    train, _ = two_kinds()
    told = report_data(kinfed.personalize(train, method="stacked", baselines=False, seed=3)).command
    assert told.startswith("kinfed.personalize(train, method='stacked', ")
    assert "seed=3" in told
    assert "rule=" not in told
    told = report_data(kinfed.personalize(train, rule="entropic")).command
    assert told.startswith("kinfed.personalize(train, rule='entropic', ")
    assert "method=" not in told


def test_hostile_names_do_no_harm():
    html = page(report_data(stacked_result(names=list(HOSTILE))))
    read = Page(html)
    assert read.balanced
    assert {tag for tag, _ in read.elements}.isdisjoint({"img", "iframe", "object", "base"})
    assert len(read.all("script")) == 2
    assert not any(key.startswith("on") or key == "autofocus" for _, attributes in read.elements for key in attributes)
    assert sorted(embedded(html)["names"]) == sorted(HOSTILE)


def test_agents_without_a_model_hear_nobody():
    story = report_data(stacked_result())
    lost = story.names[2]
    story = replace(story, ties=story.ties.without(np.array([2])), withheld={lost: "did not answer"})
    html = page(story)
    assert not re.search(r"\bnan\b", Page(html).text)
    chapter = html[html.index('id="agent-2"') : html.index('id="agent-3"')]
    assert "No model was delivered: it did not answer" in chapter
    assert "Others that speak" not in chapter


# Methods that tell neither weights nor influence


@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize("method", ["local", "grand-mean"])
def test_a_method_without_ties_has_a_report_without_them(method, test):
    train, later = two_kinds()
    result = kinfed.personalize(train, "ridge", test=later if test else None, method=method)
    story = replace(report_data(result), ties=None, stacking=None)  # learning alone may be tuned, and then tells
    html = page(story)
    read = Page(html)
    assert read.balanced
    assert [one["id"] for one in read.all("section")] == [one for one in SECTIONS if one not in ("weights", "map")]
    assert not read.all("canvas")
    assert not re.search(r"\b(nan|inf|None)\b", read.text)
    assert embedded(html) == {"names": list(story.names)}
    assert all(name in read.text for name in story.names)
    said = f"The method {method} " if test else f"The method {method}: what it is worth was neither predicted nor measured."
    assert said in read.text
    assert "Learning with kin" not in read.text


# What to expect


@dataclass(frozen=True)
class Expected:
    """Numbers of an expected gain."""

    names: tuple
    gain: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    probability: np.ndarray
    advice: tuple
    level: float = 0.9
    mean: float = 0.12
    interval: tuple = (0.05, 0.2)


@pytest.fixture(scope="module")
def expecting(results):
    """A story with a gain that is expected; of the last agent nothing is known, and their order is another one."""
    story = report_data(results["ridge", "pooled"])
    gain = np.append(np.linspace(-0.2, 0.4, 11), np.nan)
    sure = tuple("join" if one > 0.2 else "stay local" if one < -0.1 else "no clear difference" for one in gain)
    told = (gain, 0 * gain + 0.1, gain - 0.15, gain + 0.15, 0.5 + gain)
    found = Expected(story.names[::-1], *(one[::-1] for one in told), sure[::-1])
    return replace(story, expected=found)


def test_advice_and_gains_are_those_expected(expecting):
    prediction = context_of(expecting).prediction
    np.testing.assert_array_equal(prediction.gain, expecting.expected.gain[::-1])
    assert prediction.advice == expecting.expected.advice[::-1]
    read = Page(page(expecting)).text
    assert not re.search(r"\b(nan|inf|None)\b", read)
    assert "Learning with kin is expected to cost 20.0 % of the squared error that it has alone" in read
    assert "(90 % interval of what is saved: -35.0 % to -5.0 %). That it gains at all has a probability of 30 %." in read
    assert "It has too few rows to hold some out, so its squared error could not be compared." in read
    assert f"Advised to join{prediction.advice.count('join')} of 12" in read
    assert "Advice: join where a gain is probable enough" in read


def test_before_any_test_the_page_says_what_is_expected(expecting):
    told = part(page(replace(expecting, scored={}, comparisons={})), "in-short", "influence")
    assert "Predicted, not measured" in told
    assert "Learning with kin is expected to lower an agent's squared error by 12.0 % against learning alone" in told
    assert "90 % interval 5.0 % to 20.0 % lower" in told
    counts = {word: expecting.expected.advice.count(word) for word in ("join", "stay local")}
    assert all(f"{number} {word}" in told for word, number in counts.items())


def test_where_nothing_is_expected_nothing_is_advised(results):
    story = report_data(results["ridge", "pooled"])
    told = Page(page(replace(story, expected=None))).text
    assert "The method stacked makes no prediction" in told
    assert "no clear difference" not in told
