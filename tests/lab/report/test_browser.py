"""The page in a browser: no error, no sideways scrolling, every figure there, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from evergrow.lab.report import Report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs a browser: pip install playwright")
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip(f"needs a browser: {', '.join(NAMES)}")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=executable, headless=True, args=list(FLAGS))
        yield started
        started.close()


class Opened:
    """The page in a window, with what it complained about."""

    def __init__(self, browser: Any, report: Report, width: int, scheme: str) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self._note(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("requestfailed", lambda request: self.complaints.append(request.url))
        self.page.goto(report.page.resolve().as_uri())

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def colour(self, selector: str, name: str) -> str:
        return str(self.page.eval_on_selector(selector, f"node => getComputedStyle(node).{name}"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_cleanly(browser: Any, committed: Report, width: int, scheme: str) -> None:
    opened = Opened(browser, committed, width, scheme)
    page = opened.page
    page.eval_on_selector_all("details", "nodes => nodes.forEach(node => { node.open = true; })")
    assert opened.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("img.figure").count() == len(committed.figures)
    sizes = page.eval_on_selector_all("img.figure", "nodes => nodes.map(node => node.getBoundingClientRect().width)")
    assert min(sizes) > 120
    assert max(sizes) <= width
    ids = page.eval_on_selector_all("[id]", "nodes => nodes.map(node => node.id)")
    assert len(set(ids)) == len(ids)
    page.close()


@pytest.mark.slow
def test_the_page_follows_the_system_from_light_to_dark(browser: Any, committed: Report) -> None:
    colours = [
        Opened(browser, committed, 1280, scheme).colour("body", "backgroundColor") for scheme in ("light", "dark")
    ]
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 28)"]


@pytest.mark.slow
def test_a_wide_table_scrolls_inside_of_its_own_frame(browser: Any, committed: Report) -> None:
    opened = Opened(browser, committed, 390, "light")
    wider = opened.page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(node => node.scrollWidth > node.clientWidth).length"
    )
    assert wider > 0
    opened.page.close()
