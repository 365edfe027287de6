"""The page with many images and classes: sort, import, review, accuracy."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serve import page_tools as tools
from tests.serve.page_tools import Visit
from tests.serve.samples import png

pytestmark = pytest.mark.slow
pytest_plugins = ("tests.serve.page_tools",)


def saved(visit: Visit, button: str) -> bytes:
    with visit.page.expect_download() as download:
        visit.page.get_by_role("button", name=button).click()
    return Path(download.value.path()).read_bytes()


def group(visit: Visit, name: str) -> Any:
    return visit.page.locator(f".group[data-group='{name}']")


def drag(page: Any, what: Any, to: Any) -> None:
    """Drag as a hand does, in small steps and without scrolling."""
    to.scroll_into_view_if_needed()
    for element, press in ((what, page.mouse.down), (to, page.mouse.up)):
        box = element.bounding_box()
        page.mouse.move(
            box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=8
        )
        press()


# -- sort ------------------------------------------------------------------------------


def test_a_folder_is_sorted_corrected_taught_and_saved(
    visit: Visit, service: str, birds: Path, tmp_path: Path
) -> None:
    tools.teach_birds(service, "sorter", birds, [tools.MALLARD, tools.ORIOLE])
    for species in (tools.MALLARD, tools.ORIOLE, tools.HUMMINGBIRD):
        for path in tools.images(birds, "test", species):
            (tmp_path / "in").mkdir(exist_ok=True)
            (tmp_path / "in" / f"{species[:3]}-{path.name}").write_bytes(
                path.read_bytes()
            )
    (tmp_path / "in" / "torn.jpg").write_bytes(b"no image")
    page = visit.page
    visit.open("#/m/sorter")
    visit.tab("Sort")
    page.set_input_files("#sort-folder", tmp_path / "in")
    visit.expect(".sortbar", "10 images sorted")
    before = tools.group_sizes(visit)
    assert sum(before.values()) == 10
    assert before["unreadable"] == 1
    assert "%" not in " ".join(
        group(visit, "unknown").locator("li span").all_inner_texts()
    )  # no figure as if it were one
    visit.expect(".sort .hint", "Percentages are rough guesses")
    row = next(
        row
        for row in csv.DictReader(io.StringIO(saved(visit, "Table (CSV)").decode()))
        if row["probability"]
    )
    sent = {
        "images": (tmp_path / row["file"]).read_bytes()
    }  # small images are sent as they are
    told = httpx.post(
        f"{service}/api/v1/models/sorter/predict",
        files=sent,
        timeout=60,
        trust_env=False,
    ).json()
    assert float(row["probability"]) == pytest.approx(
        told["answers"][0]["top"][0]["value"], abs=1e-4
    )
    page.locator("#strict-certainty").fill("0")
    page.locator("#strict-familiarity").fill("5")
    assert "unsure" not in tools.group_sizes(visit)

    tile = group(visit, f"class:{tools.MALLARD}").get_by_role("option").first
    drag(page, tile, group(visit, f"class:{tools.ORIOLE}").locator("h2"))
    group(visit, f"class:{tools.ORIOLE}").locator("li.corrected").wait_for()
    strange = page.get_by_role("option", name=re.compile("^067-")).first
    strange.focus()
    page.keyboard.press("m")
    page.locator("dialog input").fill("Hummingbird")
    page.keyboard.press("Enter")
    group(visit, "class:Hummingbird").get_by_role("option").wait_for()
    page.get_by_role("option", name=re.compile("^067-(?!.*Corrected)")).first.focus()
    page.keyboard.press("1")  # the first class by number
    page.get_by_role("button", name="Teach 3 corrections").click()
    visit.expect("#passing", "Learned 3 corrections")
    assert tools.counts(service, "sorter") == {
        tools.MALLARD: 7,
        tools.ORIOLE: 7,
        "Hummingbird": 1,
    }
    assert (
        len(tools.ask(service, "/models/sorter")["history"]) == 4
    )  # made, two lessons, and all corrections as one

    table = list(csv.DictReader(io.StringIO(saved(visit, "Table (CSV)").decode())))
    assert len(table) == 10
    assert sum(row["note"] == "corrected" for row in table) == 3
    assert all(
        (row["probability"] == "") == (row["destination"] in ("unknown", "unreadable"))
        for row in table
        if not row["note"]
    )
    archive = zipfile.ZipFile(io.BytesIO(saved(visit, "Folders (zip)")))
    assert archive.testzip() is None
    inside = [name for name in archive.namelist() if name != "sorted.csv"]
    places = {row["file"].split("/")[-1]: row["destination"] for row in table}
    assert {Path(name).name: Path(name).parent.name for name in inside} == {
        name: place for name, place in places.items() if place != "unreadable"
    }
    for name in inside:
        assert archive.read(name) == (tmp_path / "in" / Path(name).name).read_bytes()


def test_a_large_zip_is_sorted_a_few_at_a_time(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "stream", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    steps: list[int] = []
    for event, step in (("request", 1), ("requestfinished", -1)):
        page.on(
            event,
            lambda sent, step=step: (
                steps.append(step) if sent.url.endswith("/predict") else None
            ),
        )
    visit.open("#/m/stream")
    visit.tab("Sort")
    tools.drop_zip(page, {f"all/{i}.png": png(i % 3, i) for i in range(200)})
    visit.expect(".sortbar", "200 images sorted")
    assert sum(tools.group_sizes(visit).values()) == 200
    assert max(np.cumsum(steps)) <= 2
    page.wait_for_timeout(1000)
    assert page.locator(".tile-image").count() <= 60 * len(tools.group_sizes(visit))
    seen = page.locator(".tile-image img[src]").count()
    assert 0 < seen < page.locator(".tile-image").count()  # those in sight alone


# -- import ----------------------------------------------------------------------------


def test_an_import_lists_wrong_labels_and_one_click_moves_them(
    visit: Visit, service: str, tmp_path: Path
) -> None:
    page = visit.page
    visit.create("mixed")
    for name, hue, n in (("gull", 0, 16), ("tern", 1, 16)):
        (tmp_path / "in" / name).mkdir(parents=True)
        for seed in range(n):
            (tmp_path / "in" / name / f"{seed}.png").write_bytes(png(hue, seed))
    for seed in range(50, 56):  # at most four are set aside for testing
        (tmp_path / "in" / "gull" / f"0{seed}.png").write_bytes(png(1, seed))
    page.set_input_files("#import-folder", tmp_path / "in")
    panel = page.get_by_role("region", name="Labels that look wrong")
    panel.wait_for()
    entries = panel.get_by_role("listitem")
    n_found = entries.count()
    assert n_found >= 1
    assert "Taught as gull, looks like tern" in entries.first.inner_text()
    before = tools.counts(service, "mixed")
    visit.shot("suspects")
    entries.first.get_by_role("button", name="It is tern").click()
    visit.expect("#passing", "Moved from gull to tern")
    after = tools.counts(service, "mixed")
    assert (after["gull"], after["tern"]) == (before["gull"] - 1, before["tern"] + 1)
    assert tools.ask(service, "/models/mixed")["history"][-1]["what"] == "relabel"
    visit.expect_samples("tern", after["tern"])
    while entries.count():
        left = entries.count()
        entries.first.get_by_role("button", name="It is gull").click()
        assert entries.count() == left - 1
    panel.wait_for(state="hidden")
    page.click("#undo")
    visit.expect_samples("tern", before["tern"])


def test_an_import_asks_about_what_is_doubtful_and_is_one_change(
    visit: Visit, service: str, tmp_path: Path
) -> None:
    page = visit.page
    visit.create("doubts")
    names = (
        "gull/1",
        "gull/copy",
        "gull/2",
        "gull/both",
        "tern/both",
        "tern/1",
        "tern/2",
        "Gull /3",
    )
    files = {
        f"{name}.png": png(int(name[0] == "t"), seed)
        for name, seed in zip(names, (1, 1, 2, 9, 9, 3, 4, 5), strict=True)
    }
    files["tern/both.png"] = files["gull/both.png"]
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    page.set_input_files("#import-folder", tmp_path / "in")
    visit.answer("“gull” and “Gull ” -> One class, “gull”")
    visit.answer("The same image in two classes (2)", "The same image twice (1)")
    visit.expect("#passing", "Learned 5 images of 2 classes")
    assert tools.counts(service, "doubts") == {"gull": 3, "tern": 2}
    assert len(tools.ask(service, "/models/doubts")["history"]) == 2
    tools.drop_zip(page, {"gull/1.png": files["gull/1.png"], "tern/9.png": png(1, 9)})
    visit.answer("Taught already from this browser (1)")
    visit.expect_samples("tern", 3)
    for left in (5, 0):  # an undo for each import
        page.click("#undo")
        visit.expect("#counts", f"{left} images")
    visit.add_class("owl")
    page.get_by_label("Name of a new class").fill("OWL")
    page.locator(".adding button").click()
    visit.answer("There is already a class “owl” -> I mean “owl”")
    assert page.locator("article.card").count() == 1
    nested = {
        f"set/{name}/{year}/{i}.png": png(hue, i)
        for hue, name in enumerate("ab")
        for year in (1, 2)
        for i in (3, 4)
    }
    tools.drop_zip(page, {**nested, "set/cover.png": png(2, 20)})
    visit.answer(
        "The outer folders are the classes: a, b (2 classes)",
        "The inner folders are the classes: 1, 2 (2 classes)",
    )
    visit.answer("The same image twice (4)")
    visit.expect("#counts", "2 classes · 4 images")
    visit.expect("#tab-review", "1")  # the one beside the class folders
    parts = {
        f"set/{name}/{i}.png": png(hue, i)
        for hue, name in enumerate(("a", "Train", "val"))
        for i in (31, 32)
    }
    for choice, classes, waiting in (
        ("I label them under Review", "2 classes · 6 images", "5"),
        ("It is a class: teach it", "4 classes · 10 images", "5"),
    ):
        tools.drop_zip(page, parts)
        title = "“Train” and “val” are usual names of a part of a data set"
        visit.answer(f"{title} -> {choice}")
        if classes.startswith("4"):
            visit.answer("Taught already from this browser (2)")
        visit.expect("#counts", classes)
        visit.expect("#tab-review", waiting)
    visit.menu("a", "Rename")
    page.get_by_label("New name").fill("B")
    page.get_by_role("button", name="Rename", exact=True).click()
    visit.answer("There is already a class “b” -> I mean “b”")
    visit.expect("dialog .notice", "There is already a class “b”")


def test_a_model_begins_with_a_folder(visit: Visit, service: str, birds: Path) -> None:
    page = visit.page
    visit.open()
    page.locator("#begin-folder").wait_for(state="attached")
    tools.drop_zip(
        page,
        {
            f"set/{name}/{i}.png": png(hue, i)
            for hue, name in enumerate(("Goldfinch ♀", "鳥"))
            for i in range(3)
        },
    )
    page.get_by_label("Name", exact=True).fill("模型 2")
    page.get_by_role("button", name="Create").click()
    visit.expect_samples("Goldfinch ♀", 3)
    assert tools.counts(service, "模型 2") == {"Goldfinch ♀": 3, "鳥": 3}
    visit.tab("Timeline")
    visit.expect(".timeline li", "Began with 3 images of Goldfinch ♀, 3 of 鳥")


# -- it does not contradict itself -----------------------------------------------------


def test_accuracy_headline_words_and_table_count_the_same(
    visit: Visit, service: str
) -> None:
    names = [f"Species {letter}" for letter in "ABCDEFGHI"]
    tools.ask(
        service,
        "/models",
        {"name": "judged", "kind": "features", "options": {"n_units": 50}},
    )
    visit.open("#/m/judged")
    page = visit.page
    for i, name in enumerate(
        names
    ):  # all of them lie in one place, so that many are taken for another
        visit.add_class(name)
        visit.teach(
            name,
            tools.typed(0, 10)
            if i == 0
            else re.sub(r"(\d)\b", rf"\g<1>{i}", tools.typed(0, 10)),
        )
        visit.expect_samples(name, 8)
    visit.tab("Accuracy")
    headline = visit.expect(".score", "right").inner_text()
    hits, counted = map(
        int, re.search(r"(\d+) of (\d+) rows? right", headline).groups()
    )  # type: ignore[union-attr]
    wrong = [
        re.fullmatch(r"(.+) taken for (.+): (\d+) of (\d+)", text)
        for text in page.locator(".mistakes li").all_inner_texts()
    ]
    assert hits + sum(int(found[3]) for found in wrong if found) == counted
    assert None not in wrong
    assert not page.locator(".confusion").is_visible()  # more than eight classes
    page.get_by_text("All answers as a table").click()
    page.locator(".confusion").wait_for()
    cells = page.locator(".confusion td button").all_inner_texts()
    assert sum(map(int, cells)) == counted
    assert (
        page.evaluate(
            "getComputedStyle(document.querySelector('.confusion tbody th')).position"
        )
        == "sticky"
    )
    page.locator(".mistakes button").first.click()
    assert page.locator("dialog .thumb").count() == int(wrong[0][3])  # type: ignore[index]


def test_answers_and_errors_disappear_with_their_subject(
    visit: Visit, service: str, birds: Path, tmp_path: Path
) -> None:
    tools.teach_birds(service, "live", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    visit.open("#/m/live")
    page.set_input_files("#live-file", tools.images(birds, "test", tools.MALLARD)[0])
    visit.verdict(tools.MALLARD)
    visit.expect(".live .hint", "fewer than 10 images")  # so percentages say little
    held: list[Any] = []
    page.route("**/live/predict", lambda route: held.append(route))
    with page.expect_request("**/live/predict"):
        page.set_input_files("#live-file", tools.images(birds, "test", tools.ORIOLE)[0])
    visit.expect(".answer", "Asking")
    assert page.locator(".verdict").count() == 0
    held[0].continue_()
    page.unroute("**/live/predict")
    visit.verdict(tools.ORIOLE)
    (tmp_path / "torn.jpg").write_bytes(b"no image")
    page.set_input_files("#live-file", tmp_path / "torn.jpg")
    visit.expect(".live .notice", "torn.jpg")
    visit.expect(".answer", "Ready to answer")
    page.set_input_files(
        "#live-file", tools.images(birds, "test", tools.HUMMINGBIRD)[0]
    )
    page.locator(".live .notice").wait_for(state="detached")
    visit.verdict("Unknown")
    assert "Looks most like" in page.locator(".answer").inner_text()
    assert "%" not in page.locator(".answer").inner_text()
    visit.add_class("owl")
    page.get_by_label("Name of a new class").fill("owl")
    page.locator(".adding button").click()
    visit.expect(".adding .notice", "already")
    page.get_by_label("Name of a new class").fill("owls")
    page.locator(".adding .notice").wait_for(state="detached")


# -- many classes ----------------------------------------------------------------------


def test_two_hundred_classes_stay_in_reach(visit: Visit, service: str) -> None:
    tools.ask(
        service,
        "/models",
        {"name": "many", "kind": "features", "options": {"n_units": 20}},
    )
    labels = [f"Species {i:03d}" for i in range(200) for _ in range(2 + (i == 150))]
    tools.ask(
        service,
        "/models/many/teach",
        {
            "rows": [tools.rows(i % 4, 1)[0] for i in range(len(labels))],
            "labels": labels,
        },
    )
    page = visit.page
    visit.open("#/m/many")
    visit.card("Species 199").scroll_into_view_if_needed()
    for label in ("Name of a new class", "Find a class"):
        box = page.get_by_label(label).bounding_box()
        assert 0 <= box["y"] < 300  # in sight, however far down
    page.get_by_label("Order of the classes").select_option("most")
    assert (
        page.locator("article.card").first.get_attribute("data-name") == "Species 150"
    )
    page.get_by_label("Find a class").fill("species 07")
    page.locator(".finding", has_text="10 of 200 classes").wait_for()
    assert page.locator("article.card:visible").count() == 10
    page.get_by_role("button", name="Collapse all").click()
    assert page.locator("article.card .body:visible").count() == 0
    page.get_by_role("button", name="Expand Species 071").press("Enter")
    assert visit.card("Species 071").locator("textarea").is_visible()
    names = page.locator("article button:visible").evaluate_all(
        "all => all.map(one => one.ariaLabel || one.innerText)"
    )
    assert len(set(names)) == len(names)  # screen readers tell them apart


def test_review_keeps_its_buttons_and_fits_a_phone(
    browser: Any, service: str, birds: Path
) -> None:
    species = sorted(path.name for path in (birds / "train").iterdir())[:10]
    tools.teach_birds(service, "reviewed", birds, species)
    visit = Visit(browser, service, width=390)
    page = visit.page
    visit.open("#/m/reviewed")
    visit.tab("Review")
    visit.expect(".queue", "Nothing to label")
    page.set_input_files(
        "#queue-files",
        tools.images(birds, "test", tools.MALLARD)
        + tools.images(birds, "test", tools.ORIOLE),
    )
    visit.expect(".desk", "6 images to label")
    page.set_input_files("#queue-files", tools.images(birds, "test", tools.ORIOLE))
    visit.expect("#passing", "3 were here or taught already")
    visit.expect(".queue .hint", "in this browser only")
    page.locator(".judge figcaption", has_text="Asking").wait_for(state="detached")
    order = page.locator(".labels button").evaluate_all(
        "all => all.map(one => one.dataset.name)"
    )
    assert order == species
    for part in (".judge figure", ".labels", ".judge .actions"):
        box = page.locator(part).bounding_box()
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 844, part
    page.keyboard.press("s")
    page.keyboard.press("2")
    visit.expect(".desk", "5 images to label")
    assert (
        page.locator(".labels button").evaluate_all(
            "all => all.map(one => one.dataset.name)"
        )
        == species
    )
    page.keyboard.press("n")
    page.keyboard.type(species[9][4:9].lower())  # the tenth has no number
    assert (
        page.locator(".labels button:visible").first.get_attribute("data-name")
        == species[9]
    )
    page.keyboard.press("Enter")
    visit.expect(".desk", "4 images to label")
    visit.tab("Teach")
    for name in (species[1], species[9]):
        visit.expect_samples(name, 7)
    assert visit.complaints == []
    visit.close()


def test_a_queue_is_learned_without_labels(visit: Visit, service: str) -> None:
    page = tools.open_taught(visit, "guessed")
    visit.tab("Review")
    page.get_by_label("Without a label, one per line").fill(
        f"{tools.typed(0, 5)}\n{tools.typed(1, 5)}"
    )
    page.get_by_role("button", name="Add to the queue").click()
    visit.expect(".desk", "10 rows to label")
    page.locator(".judge figcaption", has_text="Asking").wait_for(state="detached")
    shown = page.locator(".judge .said").inner_text()
    page.fill(
        "#queue-new", "half a na"
    )  # who types is not interrupted, and looks at the same row
    page.get_by_role("button", name="Learn from 10 without labels").click()
    visit.expect("#passing", "Learned from")
    page.wait_for_timeout(1500)
    assert (
        page.input_value("#queue-new"),
        page.locator(".judge .said").inner_text(),
    ) == ("half a na", shown)
    page.fill("#queue-new", "")
    assert tools.counts(service, "guessed") == {"a": 6, "b": 6}
    page.keyboard.press("Tab")
    page.keyboard.press("s")
    page.get_by_role("button", name="Forget what was learned without labels").click()
    visit.expect("#passing", "Forgotten")
    visit.tab("Timeline")
    visit.expect(".timeline li", "without labels")


def test_groups_of_unknown_things_are_named_and_the_curve_is_drawn(
    visit: Visit, service: str, axe: str
) -> None:
    tools.ask(
        service,
        "/models",
        {"name": "grouped", "kind": "features", "options": {"n_units": 50}},
    )
    visit.open("#/m/grouped")
    page = visit.page
    for i, name in enumerate("ab"):
        visit.add_class(name)
        visit.teach(name, tools.typed(i, 30))
        visit.expect_samples(name, 24)
    visit.tab("Review")
    page.get_by_label("Without a label, one per line").fill(
        f"{tools.typed(2, 8)}\n{tools.typed(3, 8)}"
    )
    page.get_by_role("button", name="Add to the queue").click()
    page.get_by_role("button", name="Group the 16 unknown ones").click()
    first = page.get_by_role("form", name="Group 1")
    first.wait_for()
    assert tools.accessibility_problems(visit, axe) == []
    n = int(first.get_by_role("button", name="Teach").inner_text().split()[1])
    first.get_by_role("textbox").or_(first.get_by_role("combobox")).fill("new")
    first.get_by_role("button", name="Teach").click()
    visit.expect("dialog", f"Learned {n} examples of new")
    page.keyboard.press("Escape")
    assert (
        0 < tools.counts(service, "grouped")["new"] <= n
    )  # some may be kept for testing
    visit.tab("Accuracy")
    visit.expect(".score", "right")
    page.get_by_role("button", name="Would more examples help?").click()
    visit.expect(".curve", "Ten more examples of each class")
    assert page.locator(".curve-picture polyline").count() == 2
    assert tools.accessibility_problems(visit, axe) == []


def test_every_entry_of_the_timeline_has_a_way_back_or_says_why_not(
    visit: Visit, service: str
) -> None:
    page = tools.open_taught(visit, "past")
    visit.teach("a", tools.typed(0, 4))
    visit.expect_samples("a", 10)
    page.click("#undo")
    visit.expect("#passing", "Undone: Learned 4 rows of a")
    visit.tab("Timeline")
    visit.expect(".timeline li", "Went back to")
    assert "evision" not in page.locator("main").inner_text()
    for entry in page.locator(".timeline li").all()[1:]:
        assert entry.get_by_role("button").count() or entry.locator(".why").inner_text()
    visit.expect(".timeline li", "Redo brings it back")
    page.locator(".timeline li", has_text="Created, empty").get_by_role(
        "button"
    ).click()
    visit.expect("#passing", "Back at: Created, empty")


# -- with the service's help -----------------------------------------------------------


def needs(service: str, route: str) -> None:
    known = httpx.get(f"{service}/openapi.json", timeout=60, trust_env=False).json()[
        "paths"
    ]
    if route not in known:
        pytest.skip(f"needs the route {route}")


def test_test_images_and_the_queue_are_shared_where_the_owner_wants_it(
    browser: Any, visit: Visit, service: str, birds: Path
) -> None:
    needs(service, "/api/v1/models/{m}/kept")
    name = "My birds! ♀"
    page = visit.page
    visit.open()
    page.get_by_role("button", name="New model").click()
    page.get_by_label("Name", exact=True).fill("a/b")
    page.get_by_role("button", name="Create").click()
    assert not re.search(
        r"[\\^$\[]", visit.expect("dialog .notice").inner_text()
    )  # no pattern is shown
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name=name, exact=True).wait_for()
    tools.drop_zip(
        page,
        {
            f"{one}/{path.name}": path.read_bytes()
            for one in (tools.MALLARD, tools.ORIOLE)
            for path in tools.images(birds, "train", one)
        },
    )
    visit.expect("#passing", "Learned 10 images")
    visit.tab("Accuracy")
    visit.expect(".accuracy .hint", "in this browser only")
    assert not page.locator("#on-server").is_checked()
    page.check("#on-server")
    visit.expect(".accuracy .hint", "kept on the server")
    score = visit.expect(".score", "2 of 2 images right").inner_text()
    visit.tab("Review")
    page.set_input_files("#queue-files", tools.images(birds, "test", tools.MALLARD)[:2])
    visit.expect(".queue .hint", "2 images waiting here are kept on the server")

    other = Visit(browser, service)
    other.open(f"#/m/{quote(name)}")
    other.tab("Accuracy")
    assert other.expect(".score", "right").inner_text() == score
    other.tab("Review")
    other.expect(".desk", "2 images to label")
    other.page.keyboard.press("1")
    other.expect(".desk", "1 image to label")
    other.tab("Teach")
    other.expect_samples(tools.MALLARD, 6)
    visit.tab("Accuracy")
    visit.tab("Review")
    visit.expect(".desk", "1 image to label")
    visit.tab("Accuracy")
    page.locator("#on-server").click()
    visit.answer("stays in this browser", verb="Remove")
    visit.expect(".accuracy .hint", "in this browser only")
    assert tools.ask(service, f"/models/{quote(name)}/kept")["images"] == []
    visit.expect(".score", "2 of 2 images right")
    other.close()


def test_images_that_browsers_cannot_read_are_accepted(
    visit: Visit, service: str, birds: Path, tmp_path: Path
) -> None:
    needs(service, "/api/v1/preview")
    tools.teach_birds(service, "formats", birds, [tools.MALLARD, tools.ORIOLE])
    bird = Image.open(tools.images(birds, "test", tools.ORIOLE)[0])
    bird.save(tmp_path / "bird.tif")
    deep = np.asarray(bird.convert("L")).astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    heif = pytest.importorskip(
        "pillow_heif", reason="needs HEIC: pip install pillow-heif"
    )
    heif.from_pillow(bird).save(tmp_path / "bird.heic")
    visit.open("#/m/formats")
    visit.page.set_input_files("#live-file", tmp_path / "bird.tif")
    visit.verdict(tools.ORIOLE)
    visit.page.locator(".stage img").wait_for()
    with visit.page.expect_response("**/preview"):
        visit.page.set_input_files("#live-file", tmp_path / "deep.png")
    for n, name in enumerate(("bird.tif", "bird.heic")):
        visit.card(tools.ORIOLE).locator("input[type=file]").first.set_input_files(
            tmp_path / name
        )
        visit.expect_samples(tools.ORIOLE, 7 + n)
    visit.tab("Sort")
    visit.page.set_input_files("#sort-files", tmp_path / "bird.heic")
    group(visit, f"class:{tools.ORIOLE}").get_by_role(
        "option", name="bird.heic"
    ).wait_for()


# -- everybody -------------------------------------------------------------------------


def test_a_tour_of_three_steps_greets_once(browser: Any, service: str) -> None:
    visit = Visit(browser, service, tour=True)
    visit.open()
    for step in ("1 of 3", "2 of 3", "3 of 3"):
        visit.expect(".tour", step).locator(".primary").click()
    visit.page.reload()
    visit.page.get_by_role("button", name="How it works").wait_for()
    assert visit.page.locator(".tour").count() == 0
    visit.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_every_view_is_kept_as_a_picture(
    browser: Any, service: str, birds: Path, axe: str, width: int, scheme: str
) -> None:
    name = f"Birds {width} {scheme}"
    tools.ask(service, "/models", {"name": name, "kind": "images"})
    visit = Visit(browser, service, width=width, scheme=scheme, tour=True)
    page = visit.page

    def look(view: str) -> None:
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        visit.shot(view)
        assert tools.accessibility_problems(visit, axe) == [], view

    visit.open()
    visit.expect(".tour", "1 of 3")
    look("models")
    page.get_by_role("button", name="Skip", exact=True).click()
    drawn = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9'>"
        "<path d='M0 0h9v9z'/></svg>"
    )
    told = {
        "address": "https://192.0.2.1:8080/#token=x",
        "expires": "",
        "seconds": 3000,
        "svg": drawn,
    }
    page.route("**/api/v1/lan", lambda route: route.fulfill(json=told))
    page.reload()
    page.get_by_role("button", name="Use your phone").click()
    look("phone")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New model").click()
    look("new-model")
    visit.open(f"#/m/{name}")
    empty = (
        ("teach", "Teach"),
        ("sort", "Sort"),
        ("review", "Review"),
        ("accuracy", "Accuracy"),
    )
    for view, tab in empty:
        visit.tab(tab)
        look(f"{view}-empty")
    visit.tab("Teach")
    species = [path.name for path in sorted((birds / "train").iterdir())[:9]]
    folders = {
        one[4:].replace("_", " "): tools.images(birds, "train", one)[:5]
        for one in species
    }
    tools.drop_zip(
        page,
        {
            f"{one}/{path.name}": path.read_bytes()
            for one, paths in folders.items()
            for path in paths
        },
    )
    visit.expect(
        "#passing", "Learned 36 images of 9 classes. 9 more are kept for testing."
    )
    page.set_input_files("#live-file", tools.images(birds, "test", tools.MALLARD)[0])
    page.locator(".verdict").wait_for()
    look("teach")
    tools.drop_zip(
        page,
        {
            f"{one}/{path.name}": path.read_bytes()
            for one, paths in folders.items()
            for path in paths
        },
    )
    visit.expect("dialog", "Taught already from this browser (45)")
    look("question")
    page.keyboard.press("Escape")
    visit.card("Mallard").get_by_role("button", name="More about").click()
    look("menu")
    page.get_by_role("menuitem", name="Rename").click()
    look("rename")
    page.keyboard.press("Escape")
    visit.tab("Sort")
    some = [
        path
        for one in sorted((birds / "test").iterdir())[:11]
        for path in tools.images(birds, "test", one.name)[:2]
    ]
    page.set_input_files("#sort-files", some)
    visit.expect(".sortbar", f"{len(some)} images sorted")
    page.get_by_role("option").first.click()
    look("sort")
    page.get_by_role("option").first.press("Enter")
    visit.expect("dialog .large-image")
    look("enlarged")
    page.keyboard.press("Escape")
    visit.tab("Review")
    page.set_input_files("#queue-files", some[-4:])
    page.locator(
        ".judge figcaption", has_text=re.compile("says|Either|Unknown|Perhaps")
    ).wait_for()
    look("review")
    visit.tab("Accuracy")
    visit.expect(".score", "right")
    look("accuracy")
    page.get_by_text("All answers as a table").click()
    look("accuracy-table")
    page.locator(".confusion td button").first.click()
    look("answers")
    page.keyboard.press("Escape")
    visit.tab("Timeline")
    look("timeline")
    visit.tab("Download")
    look("download")
    assert (visit.complaints, visit.elsewhere) == ([], [])
    visit.close()
