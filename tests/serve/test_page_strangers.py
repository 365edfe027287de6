"""The page is honest about images of classes that were never taught, and about doubt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serve import page_tools as tools
from tests.serve.page_tools import Visit

pytestmark = pytest.mark.slow
pytest_plugins = ("tests.serve.page_tools",)

KNOWN = 8
"""Number of species that the model of these tests knows."""


@pytest.fixture(scope="module")
def species(birds: Path) -> list[str]:
    return sorted(path.name for path in (birds / "train").iterdir())


@pytest.fixture(scope="module")
def heap(birds: Path, species: list[str]) -> list[Path]:
    """Three images of each of twenty species."""
    return [path for one in species for path in tools.images(birds, "test", one)]


def teach_all(address: str, model: str, birds: Path, species: list[str]) -> None:
    """Make a model of some species with a single lesson."""
    tools.ask(address, "/models", {"name": model, "kind": "images"})
    paths = [(one, p) for one in species for p in tools.images(birds, "train", one)]
    httpx.post(
        f"{address}/api/v1/models/{model}/teach",
        data={"labels": [name for name, _ in paths]},
        files=[("images", (p.name, p.read_bytes(), "image/jpeg")) for _, p in paths],
        timeout=60,
        trust_env=False,
    ).raise_for_status()


def predictions(
    address: str, model: str, paths: list[Path], **fields: str
) -> dict[str, Any]:
    """Return what the service answers, by file name."""
    answers = httpx.post(
        f"{address}/api/v1/models/{model}/predict",
        data=fields,
        files=[("images", (p.name, p.read_bytes(), "image/jpeg")) for p in paths],
        timeout=60,
        trust_env=False,
    ).json()["answers"]
    return {path.name: answer for path, answer in zip(paths, answers, strict=True)}


def titles(visit: Visit, selector: str) -> list[str]:
    """Return the file names of images in the groups of a selector, in their order."""
    return visit.page.locator(f"{selector} .tile-image").evaluate_all(
        "all => all.map((one) => one.title.split('/').pop())"
    )


FILED = ".group[data-group^='class:']"
UNSURE = ".group[data-group='unsure']"


# -- strictness ------------------------------------------------------------------------


def test_images_are_filed_as_the_service_files_them_at_each_step(
    visit: Visit, service: str, birds: Path, species: list[str], heap: list[Path]
) -> None:
    teach_all(service, "steps", birds, species[:KNOWN])
    page = visit.page
    tools.sort_images(visit, "steps", heap)
    for step in ("few", "many", "some"):
        page.get_by_role("radio", name=step.capitalize()).check(force=True)
        answers = predictions(service, "steps", heap, strangers=step)
        filed = {name for name, answer in answers.items() if not answer["unsure"]}
        assert set(titles(visit, FILED)) == filed
    for group in page.locator(FILED).all():
        name = group.get_attribute("data-group")
        shown = titles(visit, f".group[data-group='{name}']")
        familiarity = [answers[one]["familiarity"] for one in shown]
        assert familiarity == sorted(familiarity)  # the least familiar first


def test_unsure_images_name_the_classes_that_they_may_show(
    visit: Visit, service: str, birds: Path, species: list[str], heap: list[Path]
) -> None:
    teach_all(service, "sets", birds, species[:KNOWN])
    tools.sort_images(visit, "sets", heap)
    answers = predictions(service, "sets", heap, coverage="0.95")
    tiles = visit.page.locator(f"{UNSURE} .tile-image").evaluate_all(
        "all => all.map((one) => [one.title.split('/').pop(), one.textContent])"
    )
    n_named = 0
    for name, words in tiles:
        if words.endswith("Unfamiliar"):
            continue
        candidates = answers[name]["set"]
        if len(candidates) == 2:
            assert words == " or ".join(candidates) + "?"
            n_named += 1
        elif len(candidates) > 3:
            assert words.startswith(f"One of {len(candidates)}: {candidates[0]}, ")
            n_named += 1
    assert n_named > 0


def test_sort_says_what_its_limits_cost_and_how_many_strangers_it_filed(
    visit: Visit, service: str, birds: Path, species: list[str], heap: list[Path]
) -> None:
    teach_all(service, "costs", birds, species[:KNOWN])
    page = visit.page
    tools.sort_images(visit, "costs", heap)
    cost = visit.expect(".cost", "may still be filed").inner_text()
    assert re.fullmatch(
        r"About \d+ of 100 known images will land in Unsure or Unknown; "
        r"(about 1 in \d+|about \d+ of 100|fewer than 1 in 100) strangers "
        r"\(images of things you never taught\) may still be filed\.",
        cost,
    )
    answer = tools.ask(
        service,
        "/models/costs/strictness",
        {"false_alarm": 0.15, "probability": 0.7},
    )
    assert f"About {round(100 * answer['known_not_accepted'])} of 100" in cost
    estimate = visit.expect(".estimate", "may be strangers").inner_text()
    n_filed = len(titles(visit, FILED))
    assert f"Of the {n_filed} filed images" in estimate
    assert re.search(r"about \d+( \(probably \d+ to \d+\))? may be", estimate)

    slider = page.get_by_label("How strict about strangers")
    slider.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "Check the 16 % least familiar"
    assert page.locator("input[name=strangers]:checked").count() == 0
    for _ in range(15):
        slider.press("ArrowRight")
    page.wait_for_function("text => document.querySelector('.cost') !== text", arg=cost)
    assert len(titles(visit, FILED)) <= n_filed
    visit.expect(f"{UNSURE} .tile-image span", "Unfamiliar")
    page.reload()
    visit.tab("Sort")
    assert page.get_by_label("How strict about strangers").input_value() == "31"


def test_the_accuracy_tab_says_how_many_unknown_things_would_be_noticed(
    visit: Visit, service: str, birds: Path, species: list[str]
) -> None:
    teach_all(service, "noticed", birds, species[:KNOWN])
    answer = tools.ask(
        service,
        "/models/noticed/strictness",
        {"false_alarm": 0.15, "probability": 0.7},
    )
    visit.open("#/m/noticed")
    visit.tab("Accuracy")
    noticed = round(100 * (1 - answer["unknown_accepted"]))
    visit.expect(".unknown", f"About {noticed} of 100 unknown things would be noticed")
    tools.teach_birds(service, "two species", birds, species[:2])
    visit.open("#/m/two species")
    visit.tab("Accuracy")
    visit.expect(".unknown", "it takes at least four classes")


# -- comparison with the taught images -------------------------------------------------


def test_a_comparison_names_unknown_images_first_and_goes_with_its_model(
    visit: Visit, service: str, birds: Path, species: list[str], heap: list[Path]
) -> None:
    teach_all(service, "compared", birds, species[:KNOWN])
    page = visit.page
    tools.sort_images(visit, "compared", heap)
    n = len(titles(visit, ".group[data-group='unknown']"))
    assert n > 0.1 * len(heap)
    page.get_by_role("button", name="Compare with taught").click()
    told = visit.expect(
        ".about", f"{n} of 60 images look like nothing that was taught: see Unknown"
    )
    assert "compared: " in told.inner_text()
    rename = {"old": species[0], "new": "Albatross"}
    tools.ask(service, "/models/compared/rename", rename)
    visit.page.get_by_text("look like nothing that was taught").wait_for(
        state="detached"
    )


# -- groups ----------------------------------------------------------------------------


def test_a_group_is_taught_without_the_images_that_were_left_out(
    visit: Visit, service: str, birds: Path, axe: str
) -> None:
    tools.teach_birds(service, "edited", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    strange = tools.images(birds, "train", tools.HUMMINGBIRD)
    tools.sort_images(visit, "edited", strange)
    for tile in page.locator(".tile-image").all():
        tile.focus()
        page.keyboard.press("u")
    page.get_by_role("button", name=f"Group the {len(strange)} unknown ones").click()
    form = page.get_by_role("form", name="Group 1")
    form.wait_for()
    pickers = form.get_by_role("button", name="Leave out number")
    n = pickers.count()
    assert n >= 3
    pickers.nth(1).click()
    pickers.nth(2).focus()
    page.keyboard.press("Space")
    pickers.nth(2).press("Enter")  # and in again
    assert pickers.nth(1).get_attribute("aria-pressed") == "true"
    visit.shot("sort-group-edited")
    assert tools.accessibility_problems(visit, axe) == []
    form.locator("input").fill("Hummingbird")
    form.get_by_role("button", name=f"Teach {n - 1}").click()
    visit.expect("dialog", f"Learned {n - 1} examples of Hummingbird. 1 left out.")
    assert tools.counts(service, "edited")["Hummingbird"] == n - 1
    page.keyboard.press("Escape")
    unknown = page.locator(".group[data-group='unknown'] .tile-image")
    assert unknown.count() == len(strange) - (n - 1)


# -- what the model says ---------------------------------------------------------------


def test_equal_probabilities_have_no_headline_of_one_class(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "even", birds, [tools.MALLARD, tools.ORIOLE])
    shares = [0.5, 0.5]

    def answer(route: Any) -> None:
        told = route.fetch().json()
        for one in told["answers"]:
            one.update(label=one["top"][0]["class"], unknown=False, unsure=True)
            for entry, share in zip(one["top"], shares, strict=True):
                entry["value"] = share
        route.fulfill(json=told)

    visit.page.route("**/even/predict", answer)
    visit.open("#/m/even")
    image = tools.images(birds, "test", tools.MALLARD)[0]
    visit.page.set_input_files("#live-file", image)
    headline = visit.expect(".verdict", " or ").inner_text()
    assert re.fullmatch(r"\d+\.\w+ or \d+\.\w+\?", headline)
    shares[:] = [0.65, 0.35]
    visit.page.set_input_files("#live-file", image)
    visit.expect(".verdict", "Perhaps ")
    visit.expect(".answer", "Unsure: ")
    visit.tab("Review")
    shares[:] = [0.55, 0.45]
    visit.page.set_input_files("#queue-files", image)
    visit.expect(".judge figcaption", "Either ")


def test_a_corrected_image_shows_what_the_model_had_said(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "said", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    tools.sort_images(visit, "said", tools.images(birds, "test", tools.MALLARD))
    page.locator("#strict-certainty").fill("0")
    page.locator("#strict-familiarity").fill("5")
    tile = page.locator(f"{FILED} .tile-image").first
    name = tile.get_attribute("title")
    percent = tile.locator("span").inner_text()
    tile.focus()
    page.keyboard.press("2")
    moved = page.locator(f".corrected[title='{name}']")
    moved.wait_for()
    assert moved.locator("span").inner_text() == (
        f"Corrected. The model said: {tools.MALLARD} {percent}"
    )
