"""What a notebook shows of every result: well-formed, escaped, small, and true."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas
import pytest

import kinfed
from conftest import embedded_agents
from kinfed.backends.audit import TO_SERVER, Absence, Audit
from kinfed.markup import card, escape, listing, paragraph, table

pytestmark = pytest.mark.slow

HOSTILE = ["</td><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b", "x\x00\x1b[31m", "'quoted'", "<!--"]
ALLOWED = {"div", "p", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "path", "img"}


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.words = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.words.append(data)


def read(shown):
    """The text of a card, after checking that it is well-formed and can do nothing."""
    ElementTree.fromstring(shown)
    reader = Reader()
    reader.feed(shown)
    reader.close()
    assert reader.tags <= ALLOWED
    assert not {name for name in reader.attributes if name.startswith("on")} | (reader.attributes & {"href", "srcset"})
    assert "url(" not in shown
    return " ".join(reader.words)


def rows_of(shown):
    """The cells of all rows of all tables, as text."""
    rows = ElementTree.fromstring(shown).iter("tr")
    return [["".join(cell.itertext()) for cell in row] for row in rows]


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6 * 14, 2))
    agent = np.repeat(HOSTILE, 14)
    y = X[:, 0] + np.repeat(rng.standard_normal(6), 14) + 0.1 * rng.standard_normal(len(X))
    train, test = kinfed.Federation.from_arrays(X, y, agent).split(0.3)
    return kinfed.personalize(train, rule="calibrated", test=test)


@pytest.fixture(scope="module")
def stacked(result):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6 * 14, 2))
    train = kinfed.Federation.from_arrays(X, X[:, 0] + rng.standard_normal(len(X)), np.repeat(HOSTILE, 14))
    return kinfed.personalize(train, test=train, method="stacked")


@pytest.fixture(scope="module")
def prediction():
    points = embedded_agents("clustered", len(HOSTILE), dim=4, n=9)
    return kinfed.predict_gain_of_points(dict(zip(HOSTILE, points, strict=True)), rule="similarity-test")


def every_result(result, prediction):
    audit = Audit()
    audit.crossed(HOSTILE[0], "sketch", TO_SERVER, 4000, ["mean"])
    audit.missed(Absence(HOSTILE[1], "training 3", "no <answer>"))
    return {
        "federation": result.train,
        "weights": result.weights,
        "calibration": result.weights.calibration,
        "comparison": result.compare(),
        "scores": result.scored["personalized"],
        "result": result,
        "unscored": replace(result, scored={}),
        "newcomer": result.onboard(np.zeros((3, 2)) + np.arange(3)[:, None], np.arange(3.0), name="<new>"),
        "prediction": prediction,
        "terms": prediction.terms,
        "diagnosis": kinfed.diagnose(result.train, permutations=19),
        "audit": audit,
        "empty audit": Audit(),
    }


def test_every_card_is_well_formed_and_hostile_names_are_text(result, prediction):
    for name, one in every_result(result, prediction).items():
        text = read(one._repr_html_())
        if name in ("federation", "result", "weights", "prediction", "terms", "scores"):
            assert "</td><script>alert(1)</script>" in text, name
            assert '"><img src=x onerror=alert(1)>' in text, name
            assert "x\N{REPLACEMENT CHARACTER}" in text, name


def test_results_without_weights_show_priors_and_who_speaks(stacked):
    names = [re.sub("[\x00\x1b]", "\N{REPLACEMENT CHARACTER}", name) for name in stacked.known.names]
    for one in (stacked, stacked.stacking, replace(stacked, scored={}), super(type(stacked), stacked)):
        shown = one._repr_html_()
        text = read(shown)
        assert "Priors and their shares" in text
        assert "Who speaks in whose model" in text
        rows = {row[0]: row for row in rows_of(shown) if len(row) == 4}
        assert float(rows[names[0]][2]) == pytest.approx(stacked.stacking.own[0], rel=1e-3)
    assert str(stacked.stacking) in str(stacked)
    shares = {row[0]: row[1] for row in rows_of(stacked._repr_html_()) if len(row) == 3}
    first = stacked.stacking.table.iloc[0]
    assert float(shares[str(first.name)]) == pytest.approx(first["share"], rel=1e-3)


def test_methods_that_tell_nothing_have_a_card_too(stacked):
    train = stacked.train
    found = kinfed.personalize(train, method="grand-mean", baselines=False)
    assert "Personal models of 6 agents" in read(found._repr_html_())
    told = replace(found, found={})
    assert "Method grand-mean" in read(super(type(told), told)._repr_html_())


def test_a_federation_shows_its_agents_sizes_and_targets(result):
    federation = result.train
    shown = federation._repr_html_()
    assert f"{federation.sizes.sum()} points" in read(shown)
    rows = {row[0]: row for row in rows_of(shown)[1:]}
    for agent in federation:
        found = rows[re.sub("[\x00\x1b]", "\N{REPLACEMENT CHARACTER}", agent.name)]
        assert int(found[1]) == len(agent)
        assert float(found[3]) == pytest.approx(agent.y.mean(), rel=1e-3)


def test_weights_show_their_numbers(result):
    weights = result.weights
    rows = rows_of(weights._repr_html_())
    assert [float(row[2]) for row in rows[1:]] == pytest.approx(weights.self_weight, rel=1e-3)
    assert [float(row[3]) for row in rows[1:]] == pytest.approx(weights.effective_sample_size, rel=1e-3)
    for word in set(weights.advice):
        assert f"{word}: {weights.advice.count(word)}" in read(weights._repr_html_())


def test_the_thumbnail_darkens_with_the_weight():
    matrix = np.array([[0.9, 0.0, 0.1], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    weights = replace(weights_of(3), matrix=matrix)
    svg = ElementTree.fromstring(weights._repr_html_()).find(".//{http://www.w3.org/2000/svg}svg")
    shown = weights.plot.weights_of_others()
    seen = np.zeros((3, 3))
    for path in svg:
        for column, row in re.findall(r"M(\d+) (\d+)h1v1h-1z", path.get("d")):
            seen[int(row), int(column)] = np.nan if path.get("fill") == "#E69F00" else float(path.get("fill-opacity"))
    np.testing.assert_array_equal(np.isnan(seen), np.isnan(shown))
    others = ~np.isnan(shown)
    assert (np.argsort(seen[others], kind="stable") == np.argsort(shown[others], kind="stable")).all()
    assert seen[shown == 0.5].tolist() == [1.0, 1.0]


def test_a_result_shows_both_comparisons_with_intervals_and_scores(result):
    text = read(result._repr_html_())
    for baseline in ("local", "grand-mean"):
        assert str(result.compare(baseline)) in text
    shown = rows_of(result._repr_html_())[1:7]
    scores = [[np.nan if cell == "\N{EN DASH}" else float(cell) for cell in row[1:5]] for row in shown]
    np.testing.assert_allclose(scores, result.scores.to_numpy(), rtol=1e-3)
    assert "Nothing is scored without test data" in read(replace(result, scored={})._repr_html_())


def test_a_comparison_leaves_as_a_table(result):
    comparison = result.compare()
    frame = comparison.to_frame()
    assert frame.index.tolist() == ["personalized against local"]
    row = frame.iloc[0]
    assert (row["low"], row["high"]) == comparison.interval
    assert row["mean"] - row["other mean"] == pytest.approx(row["difference"])
    assert row["better"] + row["equal"] + row["worse"] == pytest.approx(1.0)
    assert row["verdict"] == comparison.verdict


def test_predicted_gains_are_those_of_the_table(prediction):
    rows = rows_of(prediction._repr_html_())
    place = rows[0].index("gain")
    np.testing.assert_allclose([float(row[place]) for row in rows[1:]], prediction.gain, rtol=1e-3)


def weights_of(n_agents, rule="entropic"):
    points = embedded_agents("clustered", n_agents, dim=3, n=3)
    return kinfed.weigh(kinfed.explicit_geometry(points), rule)


def test_a_thousand_agents_stay_small():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 2))
    federation = kinfed.Federation.from_arrays(X, X[:, 0], np.repeat([f"{'long name ' * 20}{k}" for k in range(1000)], 3))
    names = federation.names
    weights = replace(weights_of(1000, "grand-mean"), names=names)
    scores = kinfed.Scores("regression", names, federation.sizes, {"mean squared error": rng.random(1000)})
    for one in (federation, weights, scores):
        shown = one._repr_html_()
        assert len(shown.encode()) < 100_000
        assert "10 of 1000 rows" in read(shown)


def test_figures_show_themselves_with_a_text_alternative():
    pytest.importorskip("matplotlib")
    shown = weights_of(3).plot.matrix()._repr_html_()
    assert 'alt="Who listens to whom: entropic, 3 agents"' in shown
    assert re.match(r'<img src="data:image/png;base64,[A-Za-z0-9+/=]+" alt="[^"<>]+" style="[^"]*">$', shown)


def test_tables_show_first_and_last_rows_and_format_values():
    frame = pandas.DataFrame(
        {
            "count": range(1000, 1012),
            "value": [np.nan, *np.linspace(1 / 3, 4, 11)],
            "yes": [True] + [False] * 11,
            "text": "t",
        },
        index=pandas.Index(list("abcdefghijkl"), name="who"),
    )
    shown = table(frame, "All <b>", most=5)
    rows = rows_of(shown)
    assert rows[0] == ["who", "count", "value", "yes", "text"]
    assert [row[0] for row in rows[1:]] == ["a", "b", "c", "…", "k", "l"]
    assert rows[1] == ["a", "1,000", "–", "yes", "t"]  # noqa: RUF001
    assert rows[2] == ["b", "1,001", "0.3333", "no", "t"]
    assert "All <b> (5 of 12 rows)" in read(card("", shown))
    assert [row[0] for row in rows_of(table(frame, "All", most=12))[1:]] == list(frame.index)
    assert rows_of(table(frame.iloc[:0], "None")) == [rows[0]]


def test_texts_are_escaped():
    assert escape('<a href="x">&\x07') == "&lt;a href=&quot;x&quot;&gt;&amp;\N{REPLACEMENT CHARACTER}"
    assert read(card("<t>", paragraph("<p>"), listing(["<1>", "<2>"]))).split() == ["<t>", "<p>", "<1>", "<2>"]
    assert listing([]) == ""
