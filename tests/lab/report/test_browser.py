"""The page in a browser: no errors, no sideways scrolling, all figures, both themes."""

from __future__ import annotations

import pytest
from tests.serve.page_tools import chromium

from evergrow.lab.report import Report

BACKGROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
WIDER = (
    "[...document.querySelectorAll('.scroll')]"
    ".filter(node => node.scrollWidth > node.clientWidth).length"
)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_opens_cleanly(committed: Report, width: int, scheme: str) -> None:
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        page.on(
            "console",
            lambda said: (
                said.type in ("error", "warning") and complaints.append(said.text)
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.goto(committed.page.resolve().as_uri())
        page.eval_on_selector_all(
            "details", "nodes => nodes.forEach(node => { node.open = true; })"
        )
        assert complaints == []
        assert page.evaluate(
            "document.documentElement.scrollWidth <= window.innerWidth"
        )
        assert (
            page.evaluate("getComputedStyle(document.body).backgroundColor")
            == BACKGROUND[scheme]
        )
        # On phones, a wide table scrolls inside of its own frame.
        assert width > 390 or page.evaluate(WIDER) > 0
        sizes = page.eval_on_selector_all(
            "img.figure", "nodes => nodes.map(n => n.getBoundingClientRect().width)"
        )
        assert len(sizes) == len(committed.figures)
        assert min(sizes) > 120
        assert max(sizes) <= width
        ids = page.eval_on_selector_all("[id]", "nodes => nodes.map(node => node.id)")
        assert len(set(ids)) == len(ids)
