"""The documentation site: built strictly and without a network, whole, and loading nothing from elsewhere."""

import re
import shutil
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import kinfed
from browser import started

ROOT = Path(__file__).parents[1]
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("object", "data")}
MADE = ("generated", "gallery", "sg_execution_times.rst")  # what an earlier build has left among the sources

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]


class Page(HTMLParser):
    """What a page refers to: (tag, attribute, address), and the places in it that can be referred to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.references, self.places, self.untold = [], {""}, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        self.places |= {told[name] for name in ("id", "name") if told.get(name)}
        self.references += [(tag, name, told[name]) for name in ("href", "src", "data") if told.get(name)]
        if tag == "img" and not told.get("alt"):
            self.untold.append(told.get("src"))


def without_network() -> list[str]:
    """A command before a command that takes the network away, where the system allows it."""
    alone = ["unshare", "--map-root-user", "--net"]
    allowed = shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    return alone if allowed else []


def build(folder: Path) -> Path:
    """The site, built from a copy of its sources."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns(*MADE))
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", "built"]
    done = subprocess.run([*without_network(), *command], cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-5000:]
    return (folder / "built").rename(folder / "whole")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def html(site):
    """Its pages by path."""
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts}


def test_every_link_and_picture_leads_somewhere(html):
    assert len(html) > 60
    for path, page in html.items():
        for tag, _, address in page.references:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                assert tag == "a" or parts.scheme == "data", (path.name, address)
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            assert target.exists(), (path.name, address)
            if parts.fragment and target in html:
                assert unquote(parts.fragment) in html[target].places, (path.name, address)


def test_nothing_is_loaded_from_elsewhere(html, site):
    for path, page in html.items():
        for tag, attribute, address in page.references:
            if (tag, attribute) in LOADED:
                assert not urlsplit(address).netloc, (path.name, address)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"""(?:url\(|@import)\s*['"]?(?:https?:)?//""", sheet.read_text()), sheet.name
    own = [script for script in site.rglob("*.js") if "mathjax" not in script.parts]
    assert own
    for script in own:
        assert not re.search(r"""(?:fetch|importScripts|import)\(\s*['"]https?://""", script.read_text()), script.name
    assert (site / "_static" / "mathjax" / "tex-chtml.js").exists()


def test_every_picture_has_words(html):
    for path, page in html.items():
        missing = [source for source in page.untold if not re.search(r"logo|_thumb", source)]  # beside their names
        assert not missing, (path.name, missing)


def test_every_public_name_has_an_entry(site):
    inventory = (site / "objects.inv").read_bytes()
    start = inventory.index(b"zlib.\n") + len(b"zlib.\n")
    documented = {line.split()[0] for line in zlib.decompress(inventory[start:]).decode().splitlines()}
    missing = [name for name in kinfed.__all__ if f"kinfed.{name}" not in documented]
    assert not missing


def test_every_example_ran_and_shows_a_figure(site):
    examples = sorted(path.stem for path in (ROOT / "examples").glob("plot_*.py"))
    assert len(examples) >= 6
    pictures = [path.name for path in (site / "_images").iterdir()]
    for name in examples:
        assert (site / "gallery" / f"{name}.html").exists()
        assert any(picture.startswith(f"sphx_glr_{name}_0") for picture in pictures), name


def test_every_page_is_reached_from_the_first(html, site):
    seen, ahead = set(), [site / "index.html"]
    while ahead:
        path = ahead.pop()
        if path not in seen and path in html:
            seen.add(path)
            links = (urlsplit(address) for tag, _, address in html[path].references if tag == "a")
            ahead += [(path.parent / unquote(link.path)).resolve() for link in links if link.path and not link.netloc]
    assert set(html) - seen == {site / "search.html"}  # a form leads to that one


@pytest.mark.browser
def test_a_browser_shows_formulas_and_asks_nobody(site):
    """Formulas are set by scripts of the site itself; no request leaves it, and nothing is complained about."""
    asked, complaints = [], []
    with started() as browser:
        context = browser.new_context(offline=True)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for name in ("index", "method", "gallery/index", "generated/kinfed.q_aggregation"):
            page.goto((site / f"{name}.html").as_uri())
            if name == "method":
                page.wait_for_selector("mjx-container", timeout=30_000)
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
    assert not complaints
