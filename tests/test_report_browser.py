"""The report in a real browser: silent and alone, both colour schemes, phone to desktop, pointer, keyboard and paper."""

import re
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from browser import started
from kinfed.report import write_report
from kinfed.reporting import report_data
from report_samples import (
    HOSTILE,
    calibrated_story,
    diagnosis_of,
    drawn_scores,
    stacked_result,
    story_of,
    weights_of,
)

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

WIDTHS = (320, 768, 1440)
SCHEMES = ("light", "dark")
LARGEST_FILE = 15_000_000  # bytes
LONGEST_OPENING = 10.0  # seconds, on a busy machine


@pytest.fixture(scope="module")
def browser():
    with started() as found:
        yield found


def told(weights):
    return story_of(weights, **drawn_scores(weights.names), diagnosis=diagnosis_of(weights.names))


def with_absent(weights, agent):
    """Weights of a federation in which one agent never answered: nobody knows how far it is."""
    silent = np.arange(len(weights.names)) == agent
    unknown = np.where(silent[:, None] | silent, np.nan, 1.0)
    found = weights.evidence
    known = replace(
        found,
        squared_distances=found.squared_distances * unknown,
        null_means=found.null_means * unknown,
        effective_dimension=np.where(silent, np.nan, found.effective_dimension),
    )
    return replace(weights, evidence=known)


@pytest.fixture(scope="module")
def stories():
    apart = report_data(stacked_result("logistic", backend="sites", names=[f"site {{row}} {k}" for k in range(9)]))
    return {
        "calibrated": calibrated_story(),
        "schools": told(weights_of(160, "similarity-test", spread=0.5, dim=8)),
        "hostile": told(weights_of(len(HOSTILE), names=list(HOSTILE))),
        "thousand": told(weights_of(1000)),
        "absent": told(with_absent(weights_of(6, "similarity-test"), 2)),
        "stacked": report_data(stacked_result()),
        "apart": replace(apart, ties=replace(apart.ties, evidence=None)),  # as it is told of sites far away
        "untold": replace(apart, ties=None, stacking=None, how="method of-ones-own"),
    }


@pytest.fixture(scope="module")
def files(stories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {name: write_report(story, folder / name) for name, story in stories.items()}


@contextmanager
def opened(browser, path, *, width=1440, scheme="light", scripts=True):
    """A page, without a network, that must stay silent and ask for nothing but itself."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, java_script_enabled=scripts
    )
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    address = path.as_uri()
    page.goto(address)
    if scripts:
        page.wait_for_selector("html[data-ready]")
    try:
        yield page
        assert said == []
        assert {one.partition("#")[0] for one in asked if not one.startswith("data:")} == {address}
    finally:
        context.close()


def text_of(page, selector):
    return page.locator(selector).text_content().replace("\N{NO-BREAK SPACE}", " ")


def violations(page):
    from axe_playwright_python.sync_playwright import Axe

    # Of rows and agents that are alike the first ones stand for all: axe looks at every pair of elements.
    alike = "tbody tr:nth-child(n+6), .agent:nth-child(n+5), .node:nth-child(n+9), .edge:nth-child(n+9)"
    page.evaluate("alike => { for (const one of document.querySelectorAll(alike)) one.remove(); }", alike)
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    return [
        (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"])
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


# Looks


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["calibrated", "schools", "hostile", "stacked", "apart", "untold"])
def test_fits_every_screen(browser, files, name, width, scheme):
    with opened(browser, files[name], width=width, scheme=scheme) as page:
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = np.mean([int(part) for part in re.findall(r"\d+", paper)[:3]])
        assert (brightness > 128) == (scheme == "light")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "name, width",
    [
        *[("calibrated", 320), ("calibrated", 1440), ("schools", 768), ("hostile", 320)],
        *[("stacked", 320), ("stacked", 1440), ("apart", 768), ("untold", 768)],
    ],
)
def test_axe_finds_nothing_serious(browser, files, name, width, scheme):
    with opened(browser, files[name], width=width, scheme=scheme) as page:
        opens = "details:not(.agent), #agent-0, #agent-3"
        page.evaluate(f"for (const one of document.querySelectorAll('{opens}')) one.open = true")
        assert violations(page) == []


def test_colours_can_be_chosen(browser, files):
    with opened(browser, files["calibrated"], scheme="light") as page:
        picture = "document.getElementById('matrix').toDataURL()"
        light, paper = page.evaluate(picture), page.evaluate("getComputedStyle(document.body).backgroundColor")
        button = page.locator("#scheme")
        assert button.text_content() == "Colours: auto"
        button.click()
        assert button.text_content() == "Colours: light"
        assert page.evaluate(picture) == light
        button.click()
        assert button.text_content() == "Colours: dark"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != paper
        assert page.evaluate(picture) != light


# The matrix


def cells(page, count):
    """The colours in the middle of every cell, from a copy of the canvas that may be read often."""
    found = page.evaluate(
        """count => {
            const canvas = document.getElementById('matrix'), copy = document.createElement('canvas');
            copy.width = copy.height = canvas.width;
            const context = copy.getContext('2d', { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const middle = Array.from({ length: count }, (_, k) => Math.floor(((k + 0.5) * canvas.width) / count));
            return middle.map(y => middle.map(x => [...context.getImageData(x, y, 1, 1).data]));
        }""",
        count,
    )
    return np.array(found)[:, :, :3]


def shown_order(page):
    return page.evaluate("JSON.parse(document.getElementById('data').textContent).agents")


CELLS = {
    "weights": ("ROW gives its own data", "ROW listens to COLUMN with "),
    "influence": ("In its own model ROW speaks with ", "In the model of ROW, COLUMN speaks with "),
}


def check_cell(words, weights, row, column):
    """The words name both agents and hold the numbers that the weights hold; the last digit may be rounded otherwise.

    The page has numbers beside the diagonal with 16 bits, relative to the largest.
    """
    one, two = weights.names[row], weights.names[column]
    shown, exact = float(re.search(r"(\d+\.\d+) %", words)[1]), 100 * weights.matrix[row, column]
    step = 100 * (weights.matrix - np.diag(np.diagonal(weights.matrix))).max() / (2**16 - 1)
    tolerance = step / 2 + (0.0051 if exact >= 1 else 0.0)
    assert shown == pytest.approx(exact, abs=tolerance + 1e-5, rel=0 if exact >= 1 else 0.06)
    own, other = CELLS[weights.kind]
    if row == column:
        assert words.startswith(own.replace("ROW", one))
        return
    assert words.startswith(other.replace("ROW", one).replace("COLUMN", two))
    if weights.evidence is None:
        assert "MMD" not in words
        return
    far, chance = re.search(r"Squared MMD (\S+), chance explains up to (\S+):", words).groups()
    assert float(far) == pytest.approx(weights.evidence.squared_distances[row, column], rel=0.006)
    assert float(chance) == pytest.approx(weights.evidence.null_quantiles[row, column], rel=0.006)
    assert ("they differ" in words) == bool(weights.evidence.differ[row, column])


@pytest.mark.parametrize("name", ["calibrated", "schools", "hostile", "stacked", "apart"])
def test_hover_tells_the_numbers_of_a_cell(browser, files, stories, name):
    weights = stories[name].ties
    with opened(browser, files[name]) as page:
        canvas = page.locator("#matrix")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        order, count = shown_order(page), len(weights.names)
        for row, column in [(0, 1), (count - 1, 0), (count // 2, count // 3), (2, 2)]:
            x, y = ((place + 0.5) / count * box["width"] for place in (column, row))
            page.mouse.move(box["x"] + x, box["y"] + y)
            assert page.locator("#tip").is_visible()
            check_cell(text_of(page, "#tip"), weights, order[row], order[column])
        page.mouse.move(2, 2)
        assert page.locator("#tip").is_hidden()


def test_keyboard_moves_through_the_cells(browser, files, stories):
    weights = stories["calibrated"].ties
    with opened(browser, files["calibrated"]) as page:
        order = shown_order(page)
        page.locator("#matrix").focus()
        check_cell(text_of(page, "#matrix-readout"), weights, order[0], order[0])
        moves = {"ArrowRight": (0, 1), "ArrowDown": (1, 1), "End": (1, 11), "ArrowLeft": (1, 10), "ArrowUp": (0, 10)}
        for key, (row, column) in moves.items():
            page.keyboard.press(key)
            check_cell(text_of(page, "#matrix-readout"), weights, order[row], order[column])
        page.keyboard.press("ArrowUp")  # the edge holds
        check_cell(text_of(page, "#matrix-readout"), weights, order[0], order[10])
        assert page.locator("#matrix-readout").get_attribute("aria-live") == "polite"
        page.keyboard.press("Enter")
        assert page.locator(f"#agent-{order[0]}").get_attribute("open") is not None


def test_only_distances_of_absent_agents_are_unknown(browser, files, stories):
    weights = stories["absent"].ties
    with opened(browser, files["absent"]) as page:
        order = shown_order(page)
        page.locator("#matrix").focus()
        for row, column in [(row, column) for row in range(6) for column in range(6) if row != column]:
            for key, times in {"ArrowUp": 5, "Home": 1, "ArrowDown": row, "ArrowRight": column}.items():
                for _ in range(times):
                    page.keyboard.press(key)
            words = text_of(page, "#matrix-readout")
            if 2 in (order[row], order[column]):
                assert "is not known" in words
            else:
                check_cell(words, weights, order[row], order[column])


def test_no_other_script_runs(browser, files):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(files["hostile"].as_uri())
    page.wait_for_selector("html[data-ready]")
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.documentElement.dataset.broken = 'true'";
        document.body.append(script);
    }""")
    assert page.evaluate("document.documentElement.dataset.broken") is None
    context.close()


def test_diagonal_is_drawn_apart(browser, files, stories):
    count = len(stories["calibrated"].names)
    with opened(browser, files["calibrated"]) as page:
        shown = cells(page, count)
    red, blue = shown[:, :, 0], shown[:, :, 2]
    diagonal = np.eye(count, dtype=bool)
    assert (red > blue)[diagonal].all()  # warm
    assert (blue >= red)[~diagonal].all()  # cold


def test_stronger_colours_are_heavier_weights(browser, files, stories):
    weights = stories["calibrated"].ties
    count = len(weights.names)
    with opened(browser, files["calibrated"]) as page:
        order, shown = shown_order(page), cells(page, count)
    off = ~np.eye(count, dtype=bool)
    brightness = shown.sum(axis=2)[off]
    heavier = np.argsort(weights.matrix[np.ix_(order, order)][off], kind="stable")
    assert (np.diff(brightness[heavier]) <= 0).all()


# Network, map, agents


@pytest.mark.parametrize("drawing, readout", [("#network", "#network-readout"), ("#map-drawing", "#map-readout")])
def test_agents_in_drawings_tell_their_numbers(browser, files, stories, drawing, readout):
    weights = stories["schools"].ties
    with opened(browser, files["schools"]) as page:
        nodes = page.locator(f"{drawing} .node")
        assert nodes.count() == 160
        assert page.locator(f"{drawing} .node[tabindex='0']").count() == 1
        first = nodes.first
        first.focus()
        agent = int(first.get_attribute("data-agent"))
        words = text_of(page, readout)
        assert words.startswith(f"{weights.names[agent]}: {weights.sizes[agent]} rows")
        assert f"weight on itself {100 * weights.own[agent]:.1f} %" in words
        page.keyboard.press("ArrowRight")
        second = int(page.evaluate("document.activeElement.dataset.agent"))
        assert second != agent
        assert text_of(page, readout).startswith(f"{weights.names[second]}: ")
        nodes.nth(5).hover(force=True)
        assert page.locator("#tip").is_visible()


def test_arrows_of_an_agent_are_lit(browser, files):
    with opened(browser, files["calibrated"]) as page:
        agent = page.locator("#network .node").first.get_attribute("data-agent")
        page.locator("#network .node").first.focus()
        own = page.locator(f"#network .edge[data-source='{agent}'], #network .edge[data-target='{agent}']")
        assert 0 < own.count() < page.locator("#network .edge").count()
        assert page.locator("#network .edge.lit").count() == own.count()


@pytest.mark.parametrize("name", ["calibrated", "schools"])  # sections of few agents are unfolded, those of many are not
@pytest.mark.parametrize("start", ["#network .node >> nth=4", "#map-drawing .node >> nth=4", "#agents-table a >> nth=4"])
def test_links_open_the_section_of_an_agent(browser, files, name, start):
    with opened(browser, files[name]) as page:
        link = page.locator(start)
        target = link.get_attribute("href")
        assert page.locator(target).get_attribute("open") is None
        link.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("target => document.querySelector(target).open", arg=target)
        assert page.evaluate("document.activeElement.parentElement.id") == target[1:]
        assert page.locator(f"{target} > p").is_visible()


def test_table_is_filtered(browser, files, stories):
    names, calibration = stories["calibrated"].names, stories["calibrated"].calibration
    advice = [calibration.advice(agent) for agent in range(len(names))]
    with opened(browser, files["calibrated"]) as page:
        rows = page.locator("#agents-table tbody tr:not([hidden])")
        page.locator("#filter-name").fill("1")
        assert rows.count() == sum("1" in name for name in names)
        assert text_of(page, "#filter-count") == f"{rows.count()} of {len(names)} agents"
        page.locator("#filter-name").fill("no such agent")
        assert rows.count() == 0
        page.locator("#filter-name").fill("")
        page.locator("#filter-advice").select_option("join")
        assert rows.count() == advice.count("join")


def test_table_is_sorted(browser, files, stories):
    story = stories["schools"]
    with opened(browser, files["schools"]) as page:
        heading = page.locator("#agents-table thead th", has_text="Own weight")
        column = "[...document.querySelectorAll('#agents-table tbody tr')].map(row => row.cells[0].textContent)"
        assert page.evaluate(column) == list(story.names)
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == "ascending"
        own = dict(zip(story.names, story.ties.own.round(8), strict=True))
        assert [own[name] for name in page.evaluate(column)] == sorted(own.values())
        heading.locator("button").focus()
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == "descending"
        assert [own[name] for name in page.evaluate(column)] == sorted(own.values(), reverse=True)
        page.locator("#agents-table thead button", has_text="Agent").click()
        assert page.evaluate(column) == list(story.names)  # site 2 before site 10


# Paper, no scripts, many agents


def test_prints_light_and_whole(browser, files):
    with opened(browser, files["calibrated"], scheme="dark") as page:
        page.evaluate("document.getElementById('agent-2').open = true")
        page.emulate_media(media="print", color_scheme="dark")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        assert page.locator("#agent-2").is_visible()
        assert page.locator("#agent-3").is_hidden()
        assert page.locator("nav").is_hidden()
        assert cells(page, 12).max(axis=2).max() > 240  # light weights on white, not on black
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_tables_are_there_without_scripts(browser, files, stories):
    weights = stories["calibrated"].ties
    with opened(browser, files["calibrated"], scripts=False) as page:
        assert page.locator("#agents-table tbody tr").count() == len(weights.names)
        assert page.locator(".filter").is_hidden()
        assert page.locator("#network .node").count() == len(weights.names)
        assert page.locator("#weights details table").first.locator("tbody tr").count() == len(weights.names)
        assert "The matrix is drawn with JavaScript" in text_of(page, "noscript")


def test_a_page_without_a_matrix_still_filters_and_sorts(browser, files, stories):
    names = stories["untold"].names
    with opened(browser, files["untold"]) as page:
        assert page.locator("#matrix, #network, #map-drawing").count() == 0
        assert page.locator("#agents-table tbody tr").count() == len(names)
        page.locator("#filter-name").fill("8")
        assert page.locator("#agents-table tbody tr:not([hidden])").count() == sum("8" in name for name in names)
        page.locator("#agents-table thead button", has_text="Test rows").click()
        page.locator("#agents-table tbody tr:not([hidden]) a").first.click()
        page.wait_for_function("document.querySelector('details.agent[open]') !== null")
        page.locator("#scheme").click()
        page.locator("#scheme").click()
        assert page.locator("#scheme").text_content() == "Colours: dark"


def test_names_stay_text(browser, files):
    with opened(browser, files["hostile"]) as page:
        assert page.locator("img").count() == 0
        assert page.locator("#agents-table tbody th").all_text_contents() == list(HOSTILE)


def test_a_thousand_agents(browser, files, stories):
    path, weights = files["thousand"], stories["thousand"].ties
    assert path.stat().st_size < LARGEST_FILE
    start = time.perf_counter()
    with opened(browser, path) as page:
        assert time.perf_counter() - start < LONGEST_OPENING
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440
        order = shown_order(page)
        canvas = page.locator("#matrix")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.75 * box["height"])
        words = text_of(page, "#tip")
        row, column = (weights.names.index(name) for name in re.match(r"(.+) listens to (.+) with", words).groups())
        check_cell(words, weights, row, column)
        assert order.index(row) == pytest.approx(750, abs=3)
        assert order.index(column) == pytest.approx(250, abs=3)
        canvas.focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        check_cell(text_of(page, "#matrix-readout"), weights, row, order[1])
        page.locator("#filter-name").fill("site 999")
        assert page.locator("#agents-table tbody tr:not([hidden])").count() == 1
        page.locator("#agents-table tbody tr:not([hidden]) a").click()
        page.wait_for_function("document.getElementById('agent-999').open")
        assert page.locator("#agent-999 summary").is_visible()
        assert page.locator("#network").count() == 0
