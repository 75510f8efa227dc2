"""The browser that the tests of pages share: a chromium on this machine, or none."""

import os
import shutil
from contextlib import contextmanager

import pytest

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable():
    """The browser to start: the one KINFED_CHROMIUM names, or the first that is installed."""
    return os.environ.get("KINFED_CHROMIUM") or next((path for path in map(shutil.which, NAMES) if path), None)


@contextmanager
def started():
    """A browser; without one the tests are skipped, unless KINFED_NEEDS_BROWSER is 1: then they fail."""
    miss = pytest.fail if os.environ.get("KINFED_NEEDS_BROWSER") == "1" else pytest.skip
    path = executable()
    if path is None:
        miss("no chromium on this machine; install it or set KINFED_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        miss("playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()
