"""Pictures of a report for the documentation: ``python docs/screenshots.py demo/index.html``.

Writes report-light.png, report-dark.png, report-phone.png and report-agent.png into docs/_static. Needs playwright and a
chromium on this machine, the one KINFED_CHROMIUM names or the first that is found.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent / "_static"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LARGEST = 400_000  # bytes of a picture


def main() -> None:
    """Open the report that is named and take its pictures."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        raise SystemExit("name one report: python docs/screenshots.py demo/index.html")
    address = Path(sys.argv[1]).resolve().as_uri()
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=ARGUMENTS)
        _picture(browser, address, "report-light", 1280, 1200, "light", "#in-short")
        _picture(browser, address, "report-dark", 1280, 1200, "dark", "#matrix-heading")
        _picture(browser, address, "report-phone", 390, 844, "light", "#in-short")
        _picture(browser, address, "report-agent", 1280, 900, "light", "#agent-0")
        browser.close()


def _picture(browser: Any, address: str, name: str, width: int, height: int, scheme: str, part: str) -> None:
    """One picture of what is seen when a part of the report is at the top."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(f"{address}{part}")
    page.wait_for_selector("html[data-ready]")
    if part == "#in-short":
        page.evaluate("scrollTo(0, 0)")
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(300)
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    page.close()
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}")


def _chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("KINFED_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise SystemExit("no chromium on this machine; install it or set KINFED_CHROMIUM")
    return found


if __name__ == "__main__":
    main()
