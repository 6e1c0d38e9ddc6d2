"""A real browser, for tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def executable() -> str:
    """The browser; tests skip without one, or fail where one is required."""
    named = os.environ.get("BENCHMD_BROWSER")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        why = f"no browser: none of {', '.join(NAMES)} on PATH, and BENCHMD_BROWSER is not set"
        required = os.environ.get("BENCHMD_REQUIRE_BROWSER") == "1"
        (pytest.fail if required else pytest.skip)(why)
    return found


@contextmanager
def started_browser() -> Iterator[Any]:
    """A browser that ends with its block."""
    path = executable()
    from playwright.sync_api import sync_playwright  # a test extra; no browser, no need of it

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield opened
        opened.close()
