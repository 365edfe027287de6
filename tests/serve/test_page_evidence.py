"""One click in Sort and in Review shows where a prediction comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.serve import page_tools as tools
from tests.serve.page_tools import Visit

pytestmark = pytest.mark.slow
pytest_plugins = ("tests.serve.page_tools",)

ANSWERED = ".judge figcaption:not(:has-text('Asking'))"
NATURAL = "image => image.complete && image.naturalWidth"


def shown_evidence(page: Any, description: str) -> int:
    """Return the width in pixels of the evidence picture with this description."""
    image = page.get_by_alt_text(description, exact=True)
    image.wait_for()
    return int(image.evaluate(NATURAL))


def test_review_shows_evidence_and_the_contrast_with_the_second_class(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "why", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    visit.open("#/m/why")
    visit.tab("Review")
    page.set_input_files("#queue-files", tools.images(birds, "test", tools.MALLARD)[:1])
    page.locator(ANSWERED).wait_for()
    buttons = page.locator(".questions button")
    assert buttons.count() == 2
    first = buttons.nth(0).inner_text().removeprefix("Why ").removesuffix("?")
    second = buttons.nth(1).inner_text().removeprefix("Why not ").removesuffix("?")
    assert {first, second} == {tools.MALLARD, tools.ORIOLE}
    buttons.nth(0).click()
    assert shown_evidence(page, f"Evidence for {first}") > 100
    buttons.nth(1).click()
    assert shown_evidence(page, f"Evidence for {first} and not {second}") > 100
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"
    visit.shot("evidence")
    buttons.nth(1).click()
    page.get_by_alt_text("To be labelled").wait_for()
    assert page.locator(".evidence").count() == 0


def test_the_large_view_of_sort_shows_evidence(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "sorted why", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    path = tools.images(birds, "test", tools.ORIOLE)[0]
    visit.open("#/m/sorted%20why")
    visit.tab("Sort")
    page.set_input_files("#sort-files", [path])
    visit.expect(".sortbar", "1 image sorted")
    page.locator(f".tile-image[title$='{path.name}']").dblclick()
    page.locator("dialog .questions button").click()
    page.locator("dialog img.evidence").wait_for()
    assert page.locator("dialog img.evidence").evaluate(NATURAL) > 100
    page.keyboard.press("Escape")


def test_models_of_features_have_no_such_buttons(visit: Visit) -> None:
    page = tools.open_taught(visit, "numbers")
    visit.tab("Review")
    page.locator(".queue textarea").fill(tools.typed(0, 1))
    page.get_by_role("button", name="Add to the queue").click()
    page.locator(ANSWERED).wait_for()
    assert page.locator(".questions").count() == 0
