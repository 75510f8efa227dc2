"""The report as a file: what it says, that nothing breaks out of it, and that every agent finds a place in it."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

import kinfed
from kinfed.embedding import FEW_ROWS
from kinfed.report import ReportData, write_report
from kinfed.report.choices import drawn_candidates
from kinfed.report.context import context_of
from kinfed.report.headline import answer
from kinfed.report.page import embedded_data, page
from kinfed.report.text import Change, Measure, counted, listed, nbytes, percent, sentence, signed_percent, weight
from kinfed.reporting import report_data
from report_samples import (
    HOSTILE,
    calibrated_story,
    diagnosis_of,
    drawn_scores,
    story_of,
    trained,
    weights_of,
)

VOID = {"meta", "link", "input", "br", "hr", "img"}
SECTIONS = ["in-short", "weights", "map", "agents", "differences", "choices", "shared", "settings"]


class Page(HTMLParser):
    """The elements of a page with their attributes, its text outside of scripts, and whether tags are balanced."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.pieces, self._open, self.balanced = [], [], [], True
        self.feed(html)
        self.close()
        self.balanced = self.balanced and not self._open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        self.balanced = self.balanced and bool(self._open) and self._open.pop() == tag

    def handle_data(self, data):
        if not self._open or self._open[-1] not in ("script", "style"):
            self.pieces.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.pieces).replace("\N{MINUS SIGN}", "-"))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def calibrated():
    return calibrated_story()


@pytest.fixture(scope="module")
def plain():
    weights = weights_of(30, "similarity-test")
    return story_of(weights, **drawn_scores(weights.names), diagnosis=diagnosis_of(weights.names))


@pytest.fixture(params=["calibrated", "plain"])
def whole(request):
    return request.getfixturevalue(request.param)


def predicted_of(names, gain, error):
    """A prediction with these numbers; what theory adds is not told in the report."""
    points = {name: np.random.default_rng(k).standard_normal((6, 3)) for k, name in enumerate(names)}
    found = kinfed.predict_gain_of_points(points)
    made = {"gain": np.asarray(gain, float), "standard_error": np.asarray(error, float)}
    return kinfed.PredictedGain(**{**found.__dict__, **made, "mean_gain": 0.25, "interval": (0.2, 0.4)})


# The page


def test_page_is_well_formed(whole):
    read = Page(page(whole))
    assert read.balanced
    assert len(read.all("h1")) == 1
    headings = [int(tag[1]) for tag, _ in read.elements if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert max(np.diff(headings)) <= 1
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in read.all("a")]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert [one["id"] for one in read.all("section")] == SECTIONS


def test_page_asks_for_nothing_from_elsewhere(whole):
    html = page(whole)
    read = Page(html)
    assert not any("src" in attributes for _, attributes in read.elements)
    assert all(one["href"].startswith("data:") for one in read.all("link"))
    assert {one["href"] for one in read.all("a") if not one["href"].startswith("#")} == {"https://arxiv.org/abs/2603.02233"}
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|WebSocket", html)
    (policy,) = [one["content"] for one in read.all("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy


def test_tables_and_drawings_are_named(whole):
    read = Page(page(whole))
    assert len(read.all("caption")) == len(read.all("table")) > 0
    assert all(one.get("scope") in ("row", "col") for one in read.all("th"))
    for drawing in read.all("svg"):
        assert drawing.get("aria-hidden") == "true" or drawing.get("role") in ("img", "group")
        assert drawing.get("aria-hidden") == "true" or "aria-label" in drawing or "aria-labelledby" in drawing


def test_every_agent_has_a_section(whole):
    read = Page(page(whole))
    agents = [one["id"] for one in read.all("details") if one.get("class") == "agent"]
    assert agents == [f"agent-{k}" for k in range(len(whole.names))]
    assert all(name in read.text for name in whole.names)


def test_numbers_that_are_not_there_are_not_shown(whole):
    assert not re.search(r"\b(nan|inf|None)\b", Page(page(whole)).text)


# The answer


def comparison(personal, baseline, metric="mean squared error"):
    names = [str(k) for k in range(len(personal))]
    return trained(names, personal, baseline, baseline, metric)["comparisons"]["local"]


def test_headline_tells_the_relative_change():
    local = np.array([10.0, 20.0, 30.0, 40.0] * 5)
    told = answer(comparison(0.87 * local, local), "learning alone").replace("\N{NO-BREAK SPACE}", " ")
    assert told.startswith(
        "Learning with kin lowers the mean squared error by 13.0 % against learning alone (95 % interval"
    )


def test_headline_of_accuracy_reads_the_other_way():
    local = np.linspace(0.4, 0.6, 20)
    found = comparison(local + 0.05, local, "accuracy")
    assert found.verdict == "better"
    told = answer(found, "learning alone").replace("\N{NO-BREAK SPACE}", " ")
    assert "raises the accuracy by 5.0 percentage points against" in told
    assert "%" not in told.replace("95 % interval", "")


def test_headline_says_worse_when_it_is():
    local = np.linspace(10, 20, 20)
    found = comparison(1.2 * local, local)
    assert found.verdict == "worse"
    assert "raises the mean squared error by 20.0\N{NO-BREAK SPACE}%" in answer(found, "learning alone")


def test_headline_without_interval_or_change_is_undecided():
    assert "undecided" in answer(comparison([1.0], [2.0]), "learning alone")
    assert "one agent is too few" in answer(comparison([1.0], [2.0]), "learning alone")


def test_an_impossible_interval_is_never_told():
    # The difference over a fixed mean would reach below -100 %: one agent has nearly all of the baseline's error.
    local = np.concatenate([[100.0], np.linspace(1.0, 2.0, 9)])
    found = comparison(np.concatenate([[30.0], local[1:]]), local)
    assert found.interval[0] / found.second_mean < -1
    assert Change.of(found).low >= -1


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 5.0)), min_size=2, max_size=12))
def test_words_do_not_contradict_the_verdict(pairs):
    found = comparison(*np.array(pairs).T)
    change = Change.of(found)
    assert change.unit == "difference" or change.low >= -1
    sides = {"undecided": 0, "better": -1, "worse": 1}
    assert change.side == sides[found.verdict]


def test_nothing_changed_is_said_once():
    same = comparison([1.0, 2.0], [1.0, 2.0])
    assert answer(same, "learning alone").endswith("every agent has the same model as when it learns alone.")
    assert answer(same, "one common model").endswith("every agent has the same model as all others, the common one.")
    weights = weights_of(3, "local")
    values = np.array([1.0, 2.0, 3.0])
    told = Page(page(story_of(weights, **trained(weights.names, values, values, values + 1)))).text
    assert "changes nothing against learning alone" in told
    assert "no change to no change" not in told
    right_as_often = answer(comparison([0.5, 0.7], [0.5, 0.7], "accuracy"), "learning alone")
    assert "same model" not in right_as_often


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=30), st.sampled_from(["mean squared error", "accuracy", "score"]))
def test_words_of_a_change_follow_its_sign(ratios, metric):
    baseline = np.linspace(1.0, 2.0, len(ratios))
    found = comparison(baseline * ratios, baseline, metric)
    change = Change.of(found)
    assert change.unit in {"mean squared error": ("share", "difference"), "accuracy": ("points",)}.get(
        metric, ("difference",)
    )
    unit = found.second_mean if change.unit == "share" else 1.0
    assert change.value == pytest.approx((np.array(ratios) * baseline - baseline).mean() / unit)
    words = change.words(change.value)
    assert words == "no change" or words.endswith("lower" if change.value < 0 else "higher")
    told = answer(found, "one common model")
    assert (found.verdict == "undecided") == ("undecided" in told or "changes nothing" in told)


def test_cards_count_the_agents():
    names = [f"site {k}" for k in range(30)]
    local = np.full(30, 10.0)
    personal = np.concatenate([np.full(17, 8.0), np.full(4, 10.0), np.full(9, 11.0)])
    read = Page(page(story_of(weights_of(30, names=names), **trained(names, personal, local, local))))
    for words in ("17 better (57 %)", "4 equal (13 %)", "9 worse (30 %)"):
        assert words in read.text


def test_before_training_the_page_only_predicts():
    weights = weights_of(6, "similarity-test")
    predicted = predicted_of(weights.names, [0.3] * 6, [0.1] * 6)
    told = Page(page(story_of(weights, predicted=predicted))).text
    assert "Predicted, not measured" in told
    assert "predicted to save 25.0 %" in told
    assert "Measured" not in told


def test_calibration_predicts_before_training(calibrated):
    story = ReportData(**{**calibrated.__dict__, "scored": {}, "comparisons": {}})
    choice = story.calibration.choice
    saved = 1 - choice.mean[choice.chosen] / choice.mean[story.calibration.local]
    assert f"predicted to lower the squared error by {100 * saved:.1f} %" in Page(page(story)).text


def test_many_agents_are_not_predicted():
    told = Page(page(story_of(weights_of(301, "similarity-test")))).text
    assert "For so many agents (more than 300) nothing is predicted" in told
    assert "kinfed theory" in told
    assert "kinfed theory" not in Page(page(story_of(weights_of(5, "similarity-test")))).text


def changed(story, **choice):
    """A calibrated story before training, with another choice, or a loss of another name."""
    found = story.calibration
    loss = choice.pop("loss", found.loss)
    calibration = replace(found, choice=replace(found.choice, **choice), loss=loss)
    return replace(story, calibration=calibration, scored={}, comparisons={})


def short(story):
    """What the first section says."""
    html = page(story)
    return Page(html[html.index('<section id="in-short"') : html.index('<section id="weights"')]).text


def test_only_learning_alone_is_said_to_be_unbeaten(calibrated):
    found = calibrated.calibration
    unbeaten = "no way of learning with others was clearly better than learning alone"
    alone = {"chosen": found.local, "personal": np.full(12, found.local), "versus_local": np.zeros(12)}
    assert unbeaten in short(changed(calibrated, **alone))
    unknown = np.full(12, np.nan)
    nobody = short(changed(calibrated, **{**alone, "versus_local": unknown, "versus_local_error": unknown}))
    assert "Nothing could be predicted" in nobody
    assert unbeaten not in nobody
    negative = found.choice.mean - 5.0
    assert unbeaten not in short(changed(calibrated, mean=negative))


def test_a_negative_score_is_told_in_differences(calibrated):
    found = calibrated.calibration.choice
    story = changed(calibrated, loss="negative score", mean=found.mean - 5.0)
    lead = short(story)
    saved = found.mean[story.calibration.local] - found.mean[found.chosen]
    assert f"predicted to lower the negative score by {saved:.3g}, in units typical of it," in lead
    prediction = context_of(story).prediction
    assert all("%" not in reason for reason in prediction.reasons)
    assert all("%" not in prediction.told(agent) for agent in range(12))
    assert all("%" not in one for one in story.calibration.describe()[:-2] if "instead would cost" in one)


def test_learners_without_target_have_a_negative_score():
    generated = kinfed.concept_shift(n_agents=4, n=12, dim=2, spread=0.0, seed=0)
    weights = kinfed.weighting(generated.train, learner=KMeans(2, n_init=1, random_state=0)).weights
    assert weights.calibration.loss == "negative score"
    assert "the score by" not in short(story_of(weights))


# Agents


def test_advice_follows_the_prediction():
    weights = weights_of(5, "similarity-test")
    predicted = predicted_of(weights.names, [0.5, 0.1, -0.4, np.nan, -0.1], [0.2, 0.1, 0.1, np.nan, 0.1])
    found = context_of(story_of(weights, predicted=predicted)).prediction
    unsure = "too little data to say"
    assert found.advice == ("join", unsure, "stay local", unsure, unsure)


def test_pages_say_when_they_advise(calibrated):
    assert "farther from zero than one standard deviation of the posterior" in Page(page(calibrated)).text
    weights = weights_of(5, "similarity-test")
    told = Page(page(story_of(weights, predicted=predicted_of(weights.names, [0.5] * 5, [0.2] * 5)))).text
    assert "farther from zero than 2 standard errors" in told


def test_predicted_gains_of_calibration_are_no_measured_shares(calibrated):
    told = Page(page(calibrated)).text
    assert "as a share of a typical squared error" in told
    assert not re.search(r"its squared error with kin is [\d.]+ % lower", told)
    judged = [one for one in context_of(calibrated).prediction.reasons if "%" in one]
    assert judged
    assert all(one.startswith("Estimated from the rows that it and the others held out") for one in judged)
    assert all("of a typical squared error" in one for one in judged)


def test_advice_of_calibration_is_its_own(calibrated):
    assert context_of(calibrated).prediction.advice == tuple(calibrated.calibration.advice(agent) for agent in range(12))


def test_without_prediction_there_is_no_advice():
    weights = weights_of(4)
    told = Page(page(story_of(weights))).text
    assert "makes no prediction" in told
    assert "too little data to say" not in told


def test_gains_are_shares_of_an_error_and_points_of_accuracy():
    personal, baseline = np.array([8.0, 12.0, 1.0, np.nan]), np.array([10.0, 10.0, 0.0, 1.0])
    assert Measure("mean squared error").gains(personal, baseline) == pytest.approx(
        [0.2, -0.2, np.nan, np.nan], nan_ok=True
    )
    gains = Measure("accuracy").gains(np.array([0.8, 0.5]), np.array([0.0, 0.6]))
    assert gains == pytest.approx([0.8, -0.1])
    assert Measure("accuracy").told(0.8) == "+80.0\N{NO-BREAK SPACE}pt"


def test_scores_find_their_agent_by_name():
    weights = weights_of(3, names=["a", "b", "c"])
    told = trained(["c", "a"], [1.0, 5.0], [2.0, 10.0], [4.0, 50.0])
    gains = context_of(story_of(weights, **told)).gains
    assert gains["local"] == pytest.approx([0.5, np.nan, 0.5], nan_ok=True)
    assert gains["grand-mean"] == pytest.approx([0.9, np.nan, 0.75], nan_ok=True)


def test_own_tests_are_told(plain):
    html = page(plain)
    value = plain.diagnosis.agents["concept"].iloc[7]
    chapter = html[html.index('id="agent-7"') : html.index('id="agent-8"')]
    assert f"{value:.3f}" in chapter


# The numbers behind the matrix


def unpacked(html, key):
    content = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])
    return content, np.frombuffer(base64.b64decode(content[key]), "<u2").astype(float)


@pytest.mark.parametrize("rule", ["similarity-test", "multi-task-averaging", "local", "grand-mean"])
def test_embedded_data_holds_the_weights(rule):
    weights = weights_of(40, rule)
    html = embedded_data(context_of(story_of(weights)))
    content, codes = unpacked(html, "matrix")
    order = np.array(content["agents"])
    assert sorted(order) == list(range(40))
    assert content["names"] == [weights.names[k] for k in order]
    shown = codes.reshape(40, 40) / 65535 * content["top"]
    shown[np.diag_indices(40)] = content["own"]
    assert np.abs(shown - weights.matrix[np.ix_(order, order)]).max() < 1e-5


@pytest.mark.parametrize("spread", [0.2, 1e-6, 0.0])
def test_embedded_data_keeps_who_differs(spread):
    weights = weights_of(25, "similarity-test", spread=spread)
    html = embedded_data(context_of(story_of(weights)))
    content, _ = unpacked(html, "matrix")
    told = content["distances"]
    far, chance = (np.frombuffer(base64.b64decode(told[key]), "<u2").astype(float) for key in ("far", "chance"))
    grid = np.ix_(content["agents"], content["agents"])
    assert ((far > chance).reshape(25, 25) == weights.evidence.differ[grid]).all()
    exact = weights.evidence.squared_distances[grid].ravel()
    values = np.where(far > 0, told["low"] * (told["high"] / told["low"]) ** ((far - 1) / 65534), 0.0)
    assert values == pytest.approx(exact, rel=1e-3, abs=1e-15 * told["high"])


# Nothing breaks out


def test_hostile_names_do_no_harm():
    names = list(HOSTILE)
    weights = weights_of(len(names), "similarity-test", names=names)
    traffic = pd.DataFrame([(name, "sketches", "to the server", 1, 4000) for name in names])
    traffic.columns = ["agent", "phase", "direction", "messages", "bytes"]
    columns = ["agent", "phase", "reason", "what follows"]
    attendance = pd.DataFrame([(names[0], names[1], names[2], names[3 % len(names)])], columns=columns)
    html = page(
        story_of(
            weights,
            **drawn_scores(names),
            diagnosis=diagnosis_of(names),
            title=names[0],
            choices=tuple(names),
            settings=dict.fromkeys(names, names[1]),
            command=names[0],
            groups=tuple(names),
            traffic=traffic,
            attendance=attendance,
        )
    )
    read = Page(html)
    assert read.balanced
    assert {tag for tag, _ in read.elements}.isdisjoint({"img", "iframe", "object", "base"})
    assert len(read.all("script")) == 2
    assert not any(key.startswith("on") or key == "autofocus" for _, attributes in read.elements for key in attributes)
    content, _ = unpacked(html, "matrix")
    assert sorted(content["names"]) == sorted(names)
    assert read.text.count("onerror=alert(1)>") > 5  # told, as text


def test_names_that_html_may_not_hold(tmp_path):
    names = ["bell\x07", "half \ud83d", "nothing\x00", "next\x85"]
    weights = weights_of(4, names=names)
    told = write_report(story_of(weights, title=names[1], command=names[0]), tmp_path).read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f]", told)
    assert "half \N{REPLACEMENT CHARACTER}" in told


# Federations of every size and kind


@pytest.mark.parametrize("agents", [1, 2, 3, 201])
@pytest.mark.parametrize("after", [False, True])
def test_federations_of_every_size(agents, after):
    weights = weights_of(agents, "similarity-test")
    told = drawn_scores(weights.names) if after else {}
    read = Page(page(story_of(weights, **told, groups=tuple("ab"[k % 2] for k in range(agents)))))
    assert read.balanced
    assert not re.search(r"\b(nan|inf|None)\b", read.text)
    assert [one["id"] for one in read.all("section")] == SECTIONS


@pytest.mark.parametrize("rule", ["local", "grand-mean"])
def test_equal_agents(rule):
    points = {f"site {k}": np.ones((5, 3)) for k in range(8)}
    weights = kinfed.weigh(kinfed.explicit_geometry(points), rule)
    read = Page(page(story_of(weights, **drawn_scores(weights.names))))
    assert read.balanced
    assert not re.search(r"\b(nan|inf)\b", read.text)
    if rule == "local":
        assert "nobody listens to anybody else" in read.text


def test_agents_without_test_rows_are_told_apart():
    weights = weights_of(5, "similarity-test")
    values = np.array([1.0, np.nan, 2.0, np.nan, 3.0])
    html = page(story_of(weights, **trained(weights.names, values, values + 1, values + 2)))
    assert not re.search(r"\bnan\b", Page(html).text)
    chapter = html[html.index('id="agent-1"') : html.index('id="agent-2"')]
    assert "Measured, against learning alone</dt><dd>\N{EN DASH}</dd>" in chapter


def test_an_agent_that_never_answered_has_no_distances():
    weights = weights_of(6, "similarity-test")
    evidence = weights.evidence
    absent = np.arange(6) == 2
    quiet = np.where(absent[:, None] | absent, np.nan, 1.0)  # nobody knows how far it is
    effective_dimension = np.where(np.arange(6) == 2, np.nan, evidence.effective_dimension)
    known = type(evidence)(evidence.squared_distances * quiet, evidence.null_means * quiet, effective_dimension)
    html = page(story_of(replace(weights, evidence=known)))
    assert not re.search(r"\bnan\b", Page(html).text)
    content, _ = unpacked(html, "matrix")
    assert [content["agents"][place] for place in content["distances"]["silent"]] == [2]


def test_a_score_may_be_negative():
    weights = weights_of(6, "similarity-test")
    values = -np.linspace(3.0, 4.0, 6)
    read = Page(page(story_of(weights, **trained(weights.names, values + 0.5, values, values, "score"))))
    assert "raises the score by 0.5 against learning alone" in read.text


# Groups, choices, what was shared


def test_groups_and_outliers_are_counted():
    rng = np.random.default_rng(0)
    points = {f"site {k}": 0.1 * rng.standard_normal((30, 4)) + np.eye(4)[0 if k < 5 else 1] for k in range(8)}
    points["lonely"] = 0.1 * rng.standard_normal((30, 4)) + 5 * np.eye(4)[2]
    weights = kinfed.weigh(kinfed.explicit_geometry(points), "similarity-test")
    known = ("left",) * 5 + ("right",) * 4
    told = Page(page(story_of(weights, groups=known))).text
    assert "There are 2 groups of agents that look alike, of 5 and 3 agents, and 1 outlier that differs" in told
    assert "by more than chance explains: lonely." in told
    assert (
        "The agents came with 2 known groups. Of the pairs that were found to be kin 100 % are in one known group" in told
    )


def test_choices_show_the_table_of_calibration(calibrated):
    read = Page(page(calibrated))
    table = calibrated.calibration.table
    assert all(name in read.text for name in table.index)
    assert f"judged {len(table)} candidates" in read.text
    drawing = next(one for one in read.all("svg") if one.get("class") == "dots")
    assert str(table.index[0]) in drawing["aria-label"]
    assert drawing["role"] == "img"
    assert "learning alone" in read.text


def test_simple_candidates_are_always_drawn(calibrated):
    found = calibrated.calibration
    last = found.choice.mean.copy()
    last[[found.local, found.common]] = 1e3, 2e3  # worse than all others
    calibration = replace(found, choice=replace(found.choice, mean=last))
    drawn = drawn_candidates(calibration)
    assert len(drawn) == 15
    assert drawn[-2:] == [found.local, found.common]
    assert drawn[:13] == np.argsort(last, kind="stable")[:13].tolist()
    html = page(replace(calibrated, calibration=calibration))
    drawing = html[html.index('class="dots"') :]
    drawing = drawing[: drawing.index("</svg>")]
    assert ">learning alone<" in drawing
    assert ">one common model<" in drawing


def test_sizes_of_shifts_are_explained(plain):
    told = Page(page(plain)).text
    assert (
        "of the variance of the target that the inputs leave open is explained by an agent's own function of them" in told
    )
    assert "of the variance of the inputs lies between agents" in told
    assert "size is the share of the variance between agents" not in told


def test_in_one_process_nothing_crossed(plain):
    told = Page(page(plain)).text
    assert "Nothing crossed a border" in told
    assert "1,000 numbers for 2 views of its data, 8 kB" in told
    assert 'kinfed personalize --backend sites, or backend="sites" in Python, counts every message' in told


def test_traffic_adds_up():
    weights = weights_of(3, names=["a", "b", "c"])
    rows = [
        ("a", "sketches", "to the server", 1, 4000),
        ("b", "sketches", "to the server", 1, 6000),
        ("a", "weights", "to the agent", 2, 1_500_000),
        ("b", "weights", "to the agent", 2, 500_000),
    ]
    traffic = pd.DataFrame(rows, columns=["agent", "phase", "direction", "messages", "bytes"])
    missed = ("c", "sketches", "no answer", "it learns alone")
    attendance = pd.DataFrame([missed], columns=["agent", "phase", "reason", "what follows"])
    told = Page(page(story_of(weights, traffic=traffic, attendance=attendance))).text
    assert "In all 10 kB left the agents and 2 MB came to them, in 6 messages." in told
    assert "The agent that sent most, b, sent 6 kB" in told
    assert "no answer" in told


def test_privacy_is_not_promised(plain):
    told = Page(page(plain)).text
    least = int(plain.sizes.min())
    assert "epsilon is infinite" in told
    assert f"by {2 * 2**0.5 / least:.3g} for the smallest agent ({least} rows)" in told
    assert f"fewer than {FEW_ROWS} rows here is 100 %" in told
    some = weights_of(8, n=2 * FEW_ROWS // 3, dim=5)
    few = 100 * np.mean(some.sizes < FEW_ROWS)
    assert 0 < few < 100
    assert f"fewer than {FEW_ROWS} rows here is {few:.0f} %" in Page(page(story_of(some))).text
    assert "by any length" in Page(page(replace(plain, norm_bound=None))).text


def test_settings_let_others_repeat_it(plain):
    told = Page(page(plain)).text
    assert "kinfed personalize data.csv --out results" in told
    assert kinfed.__version__ in told
    assert np.__version__ in told
    assert "2603.02233" in told


# Words


@given(st.floats(-1e6, 1e6, allow_nan=False))
def test_percentages_read_back(share):
    read = float(signed_percent(share).replace("\N{MINUS SIGN}", "-").replace(",", "").split("\N{NO-BREAK SPACE}")[0])
    assert read == pytest.approx(100 * share, abs=0.0501)
    assert percent(np.nan) == signed_percent(np.inf) == "\N{EN DASH}"


@given(st.integers(0, 10**12))
def test_bytes_read_back(size):
    value, unit = nbytes(size).replace(",", "").split("\N{NO-BREAK SPACE}")
    assert float(value) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit] == pytest.approx(size, rel=0.006)


@given(st.floats(1e-6, 1.0))
def test_weights_read_back(value):
    assert float(weight(value).split("\N{NO-BREAK SPACE}")[0]) == pytest.approx(100 * value, rel=0.051)
    assert weight(0.0) == "0.00\N{NO-BREAK SPACE}%"
    assert weight(1e-9).startswith("<")


def test_lists_and_counts():
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcd"), 2) == "a, b and 2 more"
    assert counted(1, "agent") == "1 agent"
    assert counted(1200, "agent") == "1,200 agents"
    assert sentence("rule local: every agent alone") == "Rule local: every agent alone."


# The file


def test_file_is_whole_or_not_there(plain, tmp_path, monkeypatch):
    path = write_report(plain, tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "index.html"
    before = path.read_bytes()
    assert before.endswith(b"</html>")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(kinfed.InputError, match="cannot be written"):
        write_report(replace(plain, title="another"), path.parent)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["index.html"]


def test_folder_that_is_a_file(plain, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(kinfed.InputError, match="name another folder") as error:
        write_report(plain, tmp_path / "taken")
    assert "\n" not in str(error.value)


def test_story_needs_all_agents():
    rng = np.random.default_rng(0)
    geometry = kinfed.explicit_geometry([rng.standard_normal((4, 2)) for _ in range(3)], targets=[1])
    with pytest.raises(kinfed.InputError, match="all agents"):
        story_of(kinfed.weigh(geometry, "local"))
    with pytest.raises(kinfed.InputError, match="2 group labels for 3 agents"):
        story_of(weights_of(3), groups=("a", "b"))


def test_models_worse_than_the_floor_are_said_to_be_in_the_first_line():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(180, 6)), rng.integers(0, 2, 180)
    names = np.repeat([f"ward {k}" for k in range(6)], [60, 40, 40, 20, 10, 10])
    train, test = kinfed.Federation.from_arrays(X, y, names).split(test_size=0.4, seed=0)
    result = kinfed.personalize(train, kinfed.make_learner("logistic", penalty=0.01), "local", test)
    told = Page(page(report_data(result))).text
    first = told.index(
        "On average personal models are worse than the agents' own class shares, which need no model: log loss"
    )
    assert first < told.index("changes nothing against learning alone")
    assert "Against the agent's own class shares" in told
    assert "Accuracy, over agents" in told
    assert "Mean over rows" in told
    assert "Spread between agents" in told
    assert "agents with fewer than 10 test rows count together as" in told
    assert "8, few" in told
