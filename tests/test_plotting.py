"""Figures of results: what is drawn equals what was found, whatever the number of agents."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

import kinfed
from conftest import embedded_agents
from kinfed.analysis import Diagnosis, Scores, ShiftTest
from kinfed.backends.audit import TO_AGENT, TO_SERVER, Audit
from kinfed.plotting.style import NAMED_UP_TO, block_maxima, panels, short
from kinfed.reporting import ties_of
from report_samples import stacked_result

pytestmark = pytest.mark.slow


def weights_of(n_agents, rule="entropic", **options):
    points = embedded_agents("clustered", n_agents, dim=6, n=8, seed=n_agents)
    return kinfed.weigh(kinfed.explicit_geometry({f"site {k}": one for k, one in enumerate(points)}, **options), rule)


def federation_of(n_agents, seed=0, classes=False):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 30, n_agents)
    agent = np.repeat([f"site {k}" for k in range(n_agents)], sizes)
    y = rng.standard_normal(len(agent)) + np.repeat(rng.standard_normal(n_agents), sizes)
    return kinfed.Federation.from_arrays(
        rng.standard_normal((len(agent), 2)), np.where(y > 0, "well", "ill") if classes else y, agent
    )


@pytest.fixture(scope="module")
def result():
    generated = kinfed.concept_shift(n_agents=6, n=12, dim=2, spread=0.1, seed=0)
    return kinfed.personalize(generated.train, rule="calibrated", test=generated.test(20, seed=1))


@pytest.fixture(scope="module", params=["ridge", "logistic"])
def stacked(request):
    return stacked_result(request.param)


@pytest.fixture(scope="module")
def prediction():
    points = embedded_agents("clustered", 7, dim=4, n=12)
    points[2] = points[2][:2]  # too few to hold one out
    return kinfed.predict_gain_of_points(points, rule="similarity-test")


def lengths(axes):
    """The lengths of the bars, from the top."""
    return np.array([bar.get_width() for bar in sorted(axes.patches, key=lambda bar: bar.get_y())])


def row_names(axes):
    return [tick.get_text() for tick in axes.get_yticklabels()]


def dots(axes):
    """The points of all scatter plots, as an array of shape (points, 2)."""
    return np.concatenate([np.asarray(one.get_offsets()) for one in axes.collections if isinstance(one, PathCollection)])


def drawn(figure):
    """A figure that can be drawn, with words on its axes; returns its first axes."""
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_title("left")
    assert axes.get_xlabel() or not axes.axison
    return axes


# Federation


def test_sizes_are_the_bars_of_named_agents():
    federation = federation_of(9)
    axes = drawn(federation.plot.sizes())
    np.testing.assert_array_equal(lengths(axes), np.sort(federation.sizes)[::-1])
    assert [federation[name].X.shape[0] for name in row_names(axes)] == lengths(axes).tolist()


def test_many_agents_are_counted_instead_of_named():
    axes = drawn(federation_of(NAMED_UP_TO + 1).plot.sizes())
    assert row_names(axes) == []
    assert f"{NAMED_UP_TO + 1} agents" in axes.get_ylabel()


def test_numeric_targets_of_few_agents_are_boxes_around_their_medians():
    federation = federation_of(7)
    axes = drawn(federation.plot.targets())
    middles = sorted(float(line.get_xdata()[0]) for line in axes.lines if line.get_linewidth() == 1.4)
    np.testing.assert_allclose(middles, sorted(np.median(agent.y) for agent in federation))
    first = federation[row_names(axes)[0]]
    assert np.median(first.y) == max(np.median(agent.y) for agent in federation)


def test_numeric_targets_of_many_agents_are_bands_around_their_medians():
    federation = federation_of(NAMED_UP_TO + 5)
    axes = drawn(federation.plot.targets())
    np.testing.assert_allclose(axes.lines[0].get_xdata(), sorted((np.median(a.y) for a in federation), reverse=True))
    widest = axes.collections[0].get_datalim(axes.transData)
    assert widest.x0 == pytest.approx(min(np.quantile(agent.y, 0.05) for agent in federation))


@pytest.mark.parametrize("n_agents", [3, NAMED_UP_TO + 2])
def test_shares_of_classes_fill_every_row(n_agents):
    federation = federation_of(n_agents, classes=True)
    axes = drawn(federation.plot.targets())
    shares = np.array([bar.get_width() for bar in axes.patches]).reshape(2, n_agents)
    np.testing.assert_allclose(shares.sum(axis=0), 1.0)
    common = axes.get_legend_handles_labels()[1][0]
    expected = sorted((np.mean(agent.y == common) for agent in federation), reverse=True)
    np.testing.assert_allclose(shares[0], expected)


def test_rare_classes_are_drawn_together():
    y = np.arange(40) % 10
    axes = drawn(kinfed.Federation.from_arrays(np.zeros((40, 1)), y, np.repeat(["a", "b"], 20)).plot.targets())
    assert axes.get_legend_handles_labels()[1][-1] == "3 others"
    np.testing.assert_allclose(sum(bar.get_width() for bar in axes.patches), 2.0)


def test_agents_without_points_are_left_out_of_the_targets():
    _, test = kinfed.Federation.from_arrays(np.zeros((6, 1)), np.arange(6.0), list("abbbbb")).split(0.4)
    assert len(test["a"]) == 0
    assert row_names(drawn(test.plot.targets())) == ["b"]


def test_a_federation_without_a_target_says_so():
    federation = kinfed.Federation.from_arrays(np.zeros((4, 1)), None, list("aabb"))
    with pytest.raises(kinfed.InputError, match="no target to show; name its column"):
        federation.plot.targets()


# Weights


@pytest.mark.parametrize("n_agents", [1, 2, 3, 30, NAMED_UP_TO + 1])
def test_the_matrix_shows_the_weights_of_others_and_self_weights_apart(n_agents):
    weights = weights_of(n_agents)
    axes = drawn(weights.plot.matrix())
    image = np.asarray(axes.images[0].get_array())
    assert image.shape == (n_agents, n_agents)
    assert np.isnan(np.diag(image)).all()
    own = axes.child_axes[0]
    np.testing.assert_allclose(np.nansum(image, axis=1) + lengths(own), 1.0)
    np.testing.assert_allclose(np.sort(lengths(own)), np.sort(weights.self_weight))
    if n_agents <= NAMED_UP_TO:
        order = [weights.names.index(name) for name in row_names(axes)]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == row_names(axes)
        off = ~np.eye(n_agents, dtype=bool)
        np.testing.assert_array_equal(image[off], weights.matrix[np.ix_(order, order)][off])


def test_kin_stand_side_by_side():
    points = [one + 5.0 * (k % 3) for k, one in enumerate(embedded_agents("same", 24, dim=4, n=8))]
    weights = kinfed.weigh(kinfed.explicit_geometry({str(k): one for k, one in enumerate(points)}), "similarity-test")
    order = [int(name) % 3 for name in row_names(weights.plot.matrix().axes[0])]
    assert np.count_nonzero(np.diff(order)) == 2


def test_no_heavy_weight_is_lost_among_many_agents():
    weights = weights_of(600, "similarity-test")
    axes = drawn(weights.plot.matrix())
    image = np.asarray(axes.images[0].get_array())
    assert image.shape == (200, 200)
    others = weights.matrix - np.diag(weights.self_weight)
    assert np.nanmax(image) == others.max()
    assert axes.get_xlim() == (-0.5, 599.5)


def test_the_matrix_of_some_targets_keeps_their_order():
    weights = weights_of(9, targets=[4, 2])
    axes = drawn(weights.plot.matrix())
    assert row_names(axes) == ["site 4", "site 2"]
    image = np.asarray(axes.images[0].get_array())
    np.testing.assert_array_equal(np.isnan(image), np.eye(9, dtype=bool)[[4, 2]])
    np.testing.assert_array_equal(np.nan_to_num(image)[1, :2], weights.matrix[1, :2])


def test_targets_in_another_order_give_the_same_picture():
    order = [3, 0, 2, 1]
    one, two = (weights_of(4, targets=targets).plot.matrix().axes[0].images[0].get_array() for targets in (None, order))
    np.testing.assert_allclose(np.asarray(one), np.asarray(two))


@pytest.mark.parametrize("picture", ["map", "network"])
def test_maps_and_networks_need_all_agents(picture):
    with pytest.raises(kinfed.InputError, match="needs weights for all 9 agents, but only 2 were asked for"):
        getattr(weights_of(9, targets=[4, 2]).plot, picture)()


@pytest.mark.parametrize("n_agents", [1, 2, 3, 12, 40])
def test_the_map_keeps_distances_that_fit_a_plane(n_agents):
    rng = np.random.default_rng(1)
    points = [rng.standard_normal(2) * 3 + 0.1 * rng.standard_normal((9, 2)) for _ in range(n_agents)]
    axes = drawn(kinfed.weigh(kinfed.explicit_geometry(points), "local").plot.map())
    means = np.array([one.mean(axis=0) for one in points])
    found = dots(axes)
    assert found.shape == (n_agents, 2)
    expected = np.linalg.norm(means[:, None] - means, axis=2)
    np.testing.assert_allclose(
        np.sort(np.linalg.norm(found[:, None] - found, axis=2), axis=None), np.sort(expected, axis=None), atol=1e-6
    )


def test_outliers_are_named_on_a_map_of_many():
    points = embedded_agents("same", 50, dim=4, n=10)
    points[17] = points[17] + 5.0
    names = [f"site {k}" for k in range(50)]
    weights = kinfed.weigh(kinfed.explicit_geometry(dict(zip(names, points, strict=True))), "local")
    axes = drawn(weights.plot.map())
    assert "site 17" in [text.get_text() for text in axes.texts]
    assert "outlier (1)" in axes.get_legend_handles_labels()[1]


@pytest.mark.parametrize("n_agents", [1, 2, 3, 40])
def test_arrows_of_the_network_lead_from_the_heaviest_agents_to_the_listener(n_agents):
    weights = weights_of(n_agents)
    axes = drawn(weights.plot.network())
    arrows = next(one for one in axes.collections if hasattr(one, "U"))
    others = weights.matrix - np.diag(weights.self_weight)
    heaviest = np.sort(others, axis=1)[:, -3:]
    assert set(np.round(np.asarray(arrows.get_array()), 12)) <= set(np.round(heaviest.ravel(), 12))
    assert len(dots(axes)) >= n_agents


def test_a_network_of_too_many_agents_says_what_to_use():
    with pytest.raises(kinfed.InputError, match=r"201 agents cannot be read, only one of up to 200; use plot.matrix\(\)"):
        weights_of(201, "local").plot.network()


def test_effective_sample_sizes_stand_over_the_own_ones():
    weights = weights_of(15)
    axes = drawn(weights.plot.effective_sample_size())
    np.testing.assert_allclose(dots(axes), np.column_stack((weights.sizes, weights.effective_sample_size)))


def test_effective_sample_sizes_tell_the_advice(result):
    labels = result.plot.effective_sample_size().axes[0].get_legend_handles_labels()[1]
    assert {f"{word} ({result.weights.advice.count(word)})" for word in result.weights.advice} <= set(labels)


def test_why_shows_weights_and_distances_beside_chance():
    weights = weights_of(12)
    figure = weights.plot.why("site 3", most=5)
    left, right = figure.axes
    table = weights.why("site 3", most=5)
    assert drawn(figure) is left
    np.testing.assert_allclose(lengths(left), table["weight"])
    assert row_names(left) == list(table.index)
    found = dots(right)
    assert set(np.round(found[:, 0], 9)) == set(np.round([*table["squared MMD"], *table["null quantile"]], 9))
    with pytest.raises(kinfed.InputError, match="agent 'nobody' is not known"):
        weights.plot.why("nobody")


# Calibration, scores and personal training


def test_calibration_shows_the_best_members_and_always_the_simple_ones(result):
    calibration = result.weights.calibration
    axes = drawn(calibration.plot.scores(most=3))
    table = calibration.table
    assert {"local", "grand-mean", calibration.chosen} <= set(row_names(axes))
    shown = {name: float(table.loc[name, "score"]) for name in row_names(axes)}
    found = [float(container.lines[0].get_xdata()[0]) for container in axes.containers]
    np.testing.assert_allclose(found, list(shown.values()))
    assert found == sorted(found)
    errors = [float(np.ptp(container.lines[2][0].get_segments()[0][:, 0])) / 2 for container in axes.containers]
    np.testing.assert_allclose(errors, table.loc[list(shown), "standard error"], atol=1e-12)


def test_scores_are_paired_over_agents(result):
    figure = result.plot.scores()
    for axes, baseline in zip(figure.axes, ("local", "grand-mean"), strict=True):
        found = dots(axes)
        expected = result.scores[[baseline, "personalized"]].to_numpy()
        np.testing.assert_allclose(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])
        better = int((expected[:, 1] < expected[:, 0]).sum())
        assert not better or f"better for {better}" in axes.get_legend_handles_labels()[1]


@pytest.mark.parametrize("baseline", ["local", "grand-mean"])
def test_gains_are_sorted_and_their_mean_is_that_of_the_comparison(result, baseline):
    axes = drawn(result.plot.gains(baseline))
    expected = (result.scores[baseline] - result.scores["personalized"]).sort_values(ascending=False)
    np.testing.assert_allclose([bar.get_width() for container in axes.containers for bar in container], expected, rtol=1e-9)
    assert row_names(axes) == list(expected.index)
    marks = [float(line.get_xdata()[0]) for line in axes.lines]
    assert -result.compare(baseline).difference in marks


def test_gains_of_a_metric_that_should_be_high_point_the_same_way():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((160, 2))
    agent = np.repeat(list("abcd"), 40)
    labels = np.where(X[:, 0] + 0.3 * rng.standard_normal(160) > 0, "yes", "no")
    train, test = kinfed.Federation.from_arrays(X, labels, agent).split(0.4)
    found = kinfed.personalize(train, "logistic", "grand-mean", test, metric=("accuracy",))
    gain = found.scores["personalized"] - found.scores["local"]
    axes = drawn(found.plot.gains())
    np.testing.assert_allclose([bar.get_width() for container in axes.containers for bar in container], sorted(gain)[::-1])
    with pytest.raises(kinfed.InputError, match="rule 'grand-mean' does not calibrate; use rule='calibrated'"):
        found.plot.calibration()


def test_results_without_test_data_say_what_is_missing(result):
    with pytest.raises(kinfed.InputError, match="needs test data"):
        replace(result, scored={}).plot.gains()


def test_a_result_shows_the_figures_of_its_weights(result):
    image = np.asarray(result.plot.weights().axes[0].images[0].get_array())
    np.testing.assert_array_equal(image, result.weights.plot.weights_of_others())
    for figure in (result.plot.map(), result.plot.network(), result.plot.calibration(), result.plot.why(0)):
        drawn(figure)


# Results without weights


def test_influence_is_drawn_in_kin_order_with_own_parts_apart(stacked):
    figure = stacked.plot.influence()
    axes = drawn(figure)
    names = row_names(axes)
    expected = stacked.influence.loc[names, names].to_numpy()
    image = np.asarray(axes.images[0].get_array())
    np.testing.assert_array_equal(np.isnan(image), np.eye(12, dtype=bool))
    np.testing.assert_allclose(image[~np.eye(12, dtype=bool)], expected[~np.eye(12, dtype=bool)])
    beside = next(one for one in axes.child_axes if one.get_xlabel() == "own influence")
    np.testing.assert_allclose(lengths(beside), np.diagonal(expected))
    assert axes.get_title("left") == "Who speaks in whose model: 12 agents"


def test_members_are_the_bars_of_their_shares(stacked):
    axes = drawn(stacked.plot.members(most=5))
    table = stacked.stacking.table.head(5)
    np.testing.assert_allclose(lengths(axes), table["share"])
    assert row_names(axes) == list(table.index)
    assert [f"{loss:.4g}" for loss in table["out-of-fold loss"]] == [one.get_text().split()[-1] for one in axes.texts]


def test_maps_and_networks_are_of_data_where_they_are_known_else_of_influence(stacked, tmp_path):
    stacked = replace(stacked, found={**stacked.found})
    stacked.found.pop("evidence", None)
    stacked.save(tmp_path)
    loaded = kinfed.load(tmp_path)
    for one, unit in ((stacked, "MMD"), (loaded, "distance of who speaks")):
        axes = drawn(one.plot.map())
        assert axes.get_xlabel() == f"first coordinate ({unit})"
        chart = ties_of(one).chart.coordinates
        np.testing.assert_allclose(np.sort(dots(axes), axis=0), np.sort(chart, axis=0))
        drawn(one.plot.network())


def test_one_agents_row_has_distances_where_they_are_known(stacked, tmp_path):
    name = stacked.known.names[4]
    figure = stacked.plot.why(name, most=6)
    row = stacked.influence.loc[name].sort_values(ascending=False).head(6)
    np.testing.assert_allclose(lengths(figure.axes[0]), row)
    assert row_names(figure.axes[0]) == list(row.index)
    assert len(figure.axes) == 2
    found = {one: value for one, value in stacked.found.items() if one != "evidence"}
    replace(stacked, found=found).save(tmp_path)
    assert len(kinfed.load(tmp_path).plot.why(4).axes) == 1
    with pytest.raises(kinfed.InputError, match="agent 'nobody' is not known"):
        stacked.plot.why("nobody")


@pytest.mark.parametrize("figure", ["weights", "effective_sample_size", "calibration"])
def test_results_without_weights_say_what_they_show_instead(stacked, figure):
    with pytest.raises(kinfed.InputError, match=r"no weights to show; plot\.influence\(\) shows who speaks"):
        getattr(stacked.plot, figure)()


def test_results_of_weights_say_that_they_have_no_influence(result):
    with pytest.raises(kinfed.InputError, match=r"no influence to show; plot\.weights\(\) shows"):
        result.plot.influence()
    with pytest.raises(kinfed.InputError, match=r"combines no priors; plot\.weights\(\) shows"):
        result.plot.members()


def test_methods_that_tell_neither_say_so():
    generated = kinfed.concept_shift(n_agents=4, n=8, dim=2, spread=0.1, seed=0)
    found = kinfed.personalize(generated.train, method="grand-mean")
    for figure in (found.plot.map, found.plot.network, found.plot.influence, found.plot.members, found.plot.weights):
        with pytest.raises(kinfed.InputError, match=r"method 'grand-mean'.*; (method='stacked'|rule='calibrated')"):
            figure()


def test_scores_leave_out_agents_without_test_points():
    scores = Scores(
        "regression", ("a", "b", "c"), np.array([2, 0, 5]), {"mean squared error": np.array([3.0, np.nan, 1.0])}
    )
    axes = drawn(scores.plot.agents())
    assert row_names(axes) == ["c", "a"]
    assert lengths(axes).tolist() == [1.0, 3.0]
    assert float(axes.lines[0].get_xdata()[0]) == 2.0
    with pytest.raises(kinfed.InputError, match="no agent has test points"):
        replace(scores, values={"mean squared error": np.full(3, np.nan)}).plot.agents()


# Theory, audit


def test_predicted_gains_stand_with_two_standard_errors(prediction):
    axes = drawn(prediction.plot.gains())
    known = [k for k in np.argsort(-np.nan_to_num(prediction.gain, nan=-np.inf)) if not np.isnan(prediction.gain[k])]
    assert len(known) == 6
    assert row_names(axes) == [prediction.names[k] for k in known]
    found = dots(axes)
    found = found[np.argsort(found[:, 1])]
    np.testing.assert_allclose(found[:, 0], prediction.gain[known])
    reach = {}
    for lines in (one for one in axes.collections if hasattr(one, "get_segments")):
        reach |= {int(segment[0, 1]): float(np.ptp(segment[:, 0])) for segment in lines.get_segments()}
    np.testing.assert_allclose([reach[row] for row in range(6)], 4 * prediction.standard_error[known])


def test_terms_of_the_bound_add_up(prediction):
    terms = prediction.terms
    figure = terms.plot.terms()
    left, right = figure.axes
    assert drawn(figure) is left
    order = [terms.names.index(name) for name in row_names(left)]
    assert (np.diff(terms.alone[order]) <= 0).all()
    for axes, total in ((left, terms.bracket), (right, terms.bound)):
        stacked = np.array([[bar.get_width() for bar in container] for container in axes.containers]).sum(axis=0)
        np.testing.assert_allclose(stacked, total[order])
        np.testing.assert_allclose(axes.lines[0].get_xdata(), terms.alone[order])


def test_traffic_adds_up_by_phase_and_direction():
    audit = Audit()
    with pytest.raises(kinfed.InputError, match="nothing crossed"):
        audit.plot.traffic()
    for agent in "ab":
        audit.crossed(agent, "sketch", TO_SERVER, 4000, ["mean"])
        audit.crossed(agent, "training 1", TO_AGENT, 1_000_000, ["model"])
        audit.crossed(agent, "training 2", TO_SERVER, 70_000, ["model"])
    axes = drawn(audit.plot.traffic())
    assert row_names(axes) == ["sketch", "training"]
    up, down = ([bar.get_width() for bar in container] for container in axes.containers)
    assert (up, down) == ([8000, 140_000], [0, 2_000_000])
    assert axes.get_legend_handles_labels()[1] == ["from the agents: 148 kB", "to the agents: 2 MB"]


def diagnosis_of(*p_values):
    tests = tuple(
        ShiftTest(name, f"Does {name} differ?", 1.0, p_value, 0.1 * (place + 1), 0.05)
        for place, (name, p_value) in enumerate(zip(("covariate", "label", "concept"), p_values, strict=False))
    )
    own = pandas.DataFrame({test.name: [0.01, 0.5] for test in tests}, index=pandas.Index(["a", "b"], name="agent"))
    return Diagnosis(tests, 0.05, own, 99)


def test_a_diagnosis_shows_how_much_differs_and_whether_chance_explains_it():
    axes = drawn(diagnosis_of(0.01, 0.3, 0.05).plot.tests())
    np.testing.assert_allclose(lengths(axes), [0.1, 0.2, 0.3])
    words = [text.get_text() for text in axes.texts]
    assert words == [
        "10.0%, p = 0.01: differs",
        "20.0%, p = 0.3: no difference found",
        "30.0%, p = 0.05: differs",
    ]
    assert [name.split("\n")[0] for name in row_names(axes)] == ["covariate", "label", "concept"]
    with pytest.raises(kinfed.InputError, match="made no test"):
        diagnosis_of().plot.tests()


# What holds for all figures


def test_one_panel_figures_draw_into_given_axes(result, prediction):
    pictures = [
        result.train.plot.sizes,
        result.train.plot.targets,
        result.plot.weights,
        result.plot.map,
        result.plot.network,
        result.plot.effective_sample_size,
        result.plot.calibration,
        stacked_result().plot.influence,
        stacked_result().plot.members,
        lambda axes: result.plot.gains("local", axes),
        result.scored["local"].plot.agents,
        prediction.plot.gains,
        diagnosis_of(0.2).plot.tests,
    ]
    for picture in pictures:
        figure, both = panels(2)
        assert picture(both[1]) is figure
        assert len(both[0].get_children()) < len(both[1].get_children())
        assert isinstance(both[1], Axes)


@pytest.mark.slow
def test_figures_leave_no_trace_in_pyplot_or_the_settings():
    code = (
        "import sys, matplotlib, numpy as np, kinfed\n"
        "settings = lambda: [matplotlib.rcParams[name] for name in ('font.size', 'axes.grid', 'axes.titlelocation')]\n"
        "before = settings()\n"
        "points = list(np.random.default_rng(0).standard_normal((4, 5, 3)))\n"
        "picture = kinfed.weigh(kinfed.explicit_geometry(points), 'entropic').plot.matrix()\n"
        "assert picture._repr_png_().startswith(b'\\x89PNG')\n"
        "assert settings() == before\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(kinfed.MissingExtraError, match=r"pip install 'kinfed\[plots\]'"):
        federation_of(3).plot.sizes()


def test_long_and_strange_names_fit_beside_an_axis():
    assert short("a" * 24) == "a" * 24
    assert short("clinic " * 9 + "17").endswith("17")
    assert len(short("a" * 25)) == 24
    names = ["$x^", "two\nlines", "名前", "very " * 30, "<b>"]
    X = np.random.default_rng(0).standard_normal((25, 2))
    federation = kinfed.Federation.from_arrays(X, X[:, 0], np.repeat(names, 5))
    axes = federation.plot.sizes().axes[0]
    assert "two lines" in row_names(axes)
    drawn(federation.without("名前").plot.targets())  # matplotlib's font has no such letters


def test_blocks_keep_their_largest_entry():
    matrix = np.arange(35.0).reshape(5, 7)
    matrix[0, 0] = np.nan
    found = block_maxima(matrix, 3)
    assert found.shape == (2, 3)
    for row in range(found.shape[0]):
        for column in range(found.shape[1]):
            assert found[row, column] == np.nanmax(matrix[3 * row : 3 * row + 3, 3 * column : 3 * column + 3])
    assert block_maxima(matrix, 7) is matrix
    assert np.isnan(block_maxima(np.full((4, 4), np.nan), 2)).all()
