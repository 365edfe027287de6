"""The page stays readable: messages, windows and controls keep to their places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.serve import page_tools as tools
from tests.serve.page_tools import Visit
from tests.serve.samples import png

pytestmark = pytest.mark.slow
pytest_plugins = ("tests.serve.page_tools",)

PHONE = 390


def boxes(visit: Visit, selector: str) -> list[dict[str, float]]:
    """Return the boxes of all visible elements of a selector."""
    found = visit.page.locator(f"{selector}:visible").all()
    return [one.bounding_box() for one in found]


# -- messages --------------------------------------------------------------------------


@pytest.mark.parametrize("tab", ["Teach", "Sort", "Review"])
def test_a_file_without_images_is_named_and_the_message_goes_away(
    visit: Visit, service: str, birds: Path, tmp_path: Path, tab: str
) -> None:
    model = f"notes {tab}"
    tools.teach_birds(service, model, birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    visit.open(f"#/m/{model}")
    visit.tab(tab)
    notes = tmp_path / "shopping <b>list</b>.txt".replace("/", "")
    notes.write_text("milk")
    chooser = {"Teach": "#live-file", "Sort": "#sort-files", "Review": "#queue-files"}
    page.set_input_files(chooser[tab], notes)
    notice = visit.expect(".notice", f"No image found in “{notes.name}”.")
    if tab == "Sort":
        tools.drop_zip(page, {"inner.zip": b"PK"})
        visit.expect(".notice", "No image found in “birds.zip”, only other zips")
    notice.wait_for(state="detached")


def test_the_banner_stays_in_view_when_the_service_is_down(
    visit: Visit, service: str
) -> None:
    tools.make_taught(service, "banner", 4)
    page = visit.page
    visit.open("#/m/banner")
    visit.card("d").wait_for()
    page.set_viewport_size({"width": 700, "height": 400})
    visit.context.set_offline(True)
    visit.expect("#banner", "cannot be reached")
    page.mouse.move(300, 300)
    page.mouse.wheel(0, 5000)
    page.wait_for_function("scrollY > 300")
    banner = page.locator("#banner").bounding_box()
    assert banner["y"] == 0
    page.wait_for_timeout(200)
    assert page.locator(".toolbar").first.bounding_box()["y"] >= banner["height"] - 1
    visit.shot("service-down")
    visit.context.set_offline(False)
    page.locator("#banner:empty").wait_for(state="attached")


# -- windows ---------------------------------------------------------------------------


def test_nested_folders_are_shown_as_a_tree_with_counts(
    visit: Visit, service: str, axe: str
) -> None:
    visit.create("nested")
    names = ["gulls", "<img src=x>"]
    nested = {
        f"set/{name}/{year}/{i}.png": png(hue, i + 10 * year)
        for hue, name in enumerate(names)
        for year in (1, 2)
        for i in (3, 4, 5)
    }
    tools.drop_zip(visit.page, nested)
    tree = visit.expect("dialog .tree")
    rows = [text.replace("\n", " ") for text in tree.inner_text().split("\n")]
    assert rows == [
        "set 12 images",
        "<img src=x> 6 images",
        "1 3 images",
        "2 3 images",
        "gulls 6 images",
        "1 3 images",
        "2 3 images",
    ]
    assert tree.locator(".outer").all_inner_texts() == ["<img src=x>", "gulls"]
    assert tree.locator(".inner").all_inner_texts() == ["1", "2", "1", "2"]
    assert tools.accessibility_problems(visit, axe) == []
    visit.shot("folders")
    visit.answer("The outer folders are the classes: <img src=x>, gulls (2 classes)")
    visit.expect("#passing", "Learned")
    assert set(tools.counts(service, "nested")) == set(names)


# -- controls --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, PHONE])
def test_the_toolbar_keeps_its_place_while_sorting(
    browser: Any, service: str, birds: Path, width: int
) -> None:
    model = f"steady {width}"
    tools.teach_birds(service, model, birds, [tools.MALLARD, tools.ORIOLE])
    visit = Visit(browser, service, width=width)
    page = visit.page
    visit.open(f"#/m/{model}")
    visit.tab("Sort")
    held: list[Any] = []
    is_holding = True

    def hold(route: Any) -> None:
        if is_holding:
            held.append(route)
        else:
            route.continue_()

    page.route("**/predict", hold)
    tools.drop_zip(page, {f"{i}.png": png(i % 3, i) for i in range(30)})
    visit.expect(".sortbar", "Sorted 0 of 30")
    parts = ".sortbar, .sortbar .row, .sortbar .strictness, .sortbar .doing button"
    during = boxes(visit, parts)
    is_holding = False
    for route in held:
        route.continue_()
    visit.expect(".sortbar", "30 images sorted")
    page.locator(".cost", has_text="images").wait_for()
    assert boxes(visit, parts) == during
    page.locator(".tile-image").first.focus()
    page.keyboard.press("2")
    page.get_by_role("button", name="Teach 1 correction").wait_for()
    assert boxes(visit, parts) == during
    assert visit.complaints == []
    visit.close()


def test_controls_take_at_most_a_third_of_a_phone(
    browser: Any, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "small", birds, [tools.MALLARD, tools.ORIOLE])
    visit = Visit(browser, service, width=PHONE)
    page = visit.page
    visit.open("#/m/small")
    visit.card(tools.MALLARD).wait_for()
    third = page.viewport_size["height"] / 3
    assert page.locator("#panel-teach .toolbar").bounding_box()["height"] <= third
    visit.tab("Sort")
    page.set_input_files("#sort-files", tools.images(birds, "test", tools.MALLARD))
    visit.expect(".sortbar", "3 images sorted")
    page.locator(".cost", has_text="images").wait_for()
    assert page.locator(".sortbar").bounding_box()["height"] <= third
    assert not page.get_by_role("button", name="Table (CSV)").is_visible()
    more = page.get_by_role("button", name="More", exact=True)
    more.focus()
    page.keyboard.press("Enter")
    with page.expect_download():
        page.get_by_role("menuitem", name="Table (CSV)").click()
    first = page.locator(".tile-image").first.bounding_box()
    assert first["y"] < page.viewport_size["height"]  # an image is on the first screen
    visit.close()


@pytest.mark.parametrize("width", [1280, PHONE])
def test_thumbnails_are_not_covered_by_their_buttons(
    browser: Any, service: str, birds: Path, width: int
) -> None:
    visit = Visit(browser, service, width=width)
    page = visit.page
    visit.create(f"uncovered {width}")
    visit.add_class("mallard")
    visit.card("mallard").locator("input[type=file]").first.set_input_files(
        tools.images(birds, "train", tools.MALLARD)
    )
    visit.expect_samples("mallard", 5)
    visit.expect("#passing", "")
    for thumb in visit.card("mallard").locator(".thumb").all():
        thumb.hover()
        picture = thumb.locator(".picture").bounding_box()
        button = thumb.get_by_role("button").bounding_box()
        assert button["y"] >= picture["y"] + picture["height"]
        assert picture["height"] == pytest.approx(picture["width"], abs=1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visit.close()
