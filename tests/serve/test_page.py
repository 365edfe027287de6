"""The page in a real browser with a fake camera: teaching, asking, taking back, and everything that can go wrong."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.serve.page_tools import (
    HUMMINGBIRD,
    MALLARD,
    ORIOLE,
    Visit,
    ask,
    counts,
    drop_zip,
    images,
    make_taught,
    open_taught,
    rows,
    teach_new,
    two_species,
    typed,
)
from tests.serve.running import Running

from evergrow import Learner
from evergrow.serve.config import Tokens

pytestmark = pytest.mark.slow
pytest_plugins = ("tests.serve.page_tools",)


@pytest.fixture(scope="module")
def strange(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tractor, to a model that knows birds."""
    with np.load(shared / "images" / "cifar100_32px.npz") as file:
        tractor = file["X_test"][file["y_test"] == 89][0]
    path = tmp_path_factory.mktemp("strange") / "tractor.png"
    Image.fromarray(tractor).resize((256, 256), Image.Resampling.BICUBIC).save(path)
    return path


# -- the whole way, with the camera -----------------------------------------------------------------------------------


def test_teach_ask_name_rename_delete_undo_reload_and_go_offline(
    visit: Visit, service: str, birds: Path, strange: Path
) -> None:
    page = visit.page
    visit.create("birds")
    visit.add_class("mallard")
    visit.add_class("oriole")
    page.click("#camera")
    for i, (name, mark) in enumerate((("mallard", "first"), ("oriole", "second"))):
        visit.wait_for_mark(mark)
        visit.hold(name)
        page.locator(".bars li").nth(i).wait_for()  # it answers from the first class on
    assert all(n >= 4 for n in counts(service, "birds").values())
    assert visit.samples("oriole") == counts(service, "birds")["oriole"]

    visit.add_class("hummingbird")
    visit.card("hummingbird").locator("input[type=file]").set_input_files(images(birds, "train", HUMMINGBIRD))
    visit.expect_samples("hummingbird", 5)  # of six one is held out
    assert counts(service, "birds")["hummingbird"] == 5
    visit.wait_for_mark("first")
    visit.verdict("mallard")
    page.set_input_files("#live-file", images(birds, "test", HUMMINGBIRD)[0])
    visit.verdict("hummingbird")
    assert page.locator(".bars li").count() == 3

    page.set_input_files("#live-file", strange)
    visit.verdict("Unknown")
    page.fill("#name-it", "tractor")
    page.press("#name-it", "Enter")
    visit.verdict("tractor")
    assert counts(service, "birds")["tractor"] == 1

    visit.menu("mallard", "Rename")
    page.get_by_label("New name").fill("wild duck")
    page.get_by_role("button", name="Rename", exact=True).click()
    visit.card("wild duck").wait_for()
    assert "mallard" not in counts(service, "birds")

    before, thumbs = counts(service, "birds")["wild duck"], visit.card("wild duck").locator(".thumb")
    shown = thumbs.count()
    taught = visit.card("wild duck").locator(".thumb:not(.held)").first
    taught.hover()
    taught.get_by_role("button").click()
    visit.expect_samples("wild duck", before - 1)
    assert counts(service, "birds")["wild duck"] == before - 1
    assert thumbs.count() == shown - 1
    page.click("#undo")
    visit.expect_samples("wild duck", before)
    assert thumbs.count() == shown
    assert counts(service, "birds")["wild duck"] == before

    page.reload()
    visit.expect_samples("wild duck", before)
    assert thumbs.count() == shown
    visit.context.set_offline(True)
    page.locator("#banner", has_text="cannot be reached").wait_for()
    visit.card("hummingbird").locator("input[type=file]").set_input_files(images(birds, "test", HUMMINGBIRD)[1:])
    visit.card("hummingbird").locator(".thumb.waiting").first.wait_for()
    visit.context.set_offline(False)
    visit.expect_samples("hummingbird", 7)
    page.locator("#banner:empty").wait_for(state="attached")
    assert counts(service, "birds")["hummingbird"] == 7


def test_folders_of_a_zip_are_classes_and_loose_images_are_labelled_by_key(visit: Visit, birds: Path) -> None:
    page = visit.page
    visit.create("zipped")
    drop_zip(page, {f"birds/{species}/{i}.jpg": data for species, i, data in two_species(birds)})
    visit.expect_samples(MALLARD, 5)
    visit.expect_samples(ORIOLE, 5)

    visit.tab("Review")
    page.set_input_files("#queue-files", [*images(birds, "test", MALLARD)[:2], *images(birds, "test", ORIOLE)[:1]])
    page.locator(".desk", has_text="3 images to label").wait_for()
    for _ in range(3):
        page.locator(".judge figcaption", has_text="Asking").wait_for(state="detached")
        left = page.locator(".desk > p").inner_text()
        page.keyboard.press(page.locator(".labels .guess kbd").inner_text())
        page.locator(".desk > p", has_text=left).wait_for(state="detached")
    page.locator(".desk", has_text="Nothing to label").wait_for()
    visit.tab("Teach")
    visit.expect_samples(MALLARD, 7)

    visit.tab("Accuracy")
    page.locator(".score", has_text="2 of 2 images right").wait_for()
    page.locator(".confusion .right button").first.click()
    assert page.locator("dialog .thumb img").count() == 1
    page.keyboard.press("Escape")


def test_a_large_zip_is_learned_by_the_service(visit: Visit, service: str, birds: Path) -> None:
    page = visit.page

    def less(route: Any) -> None:  # a zip of five is large enough for a test
        text = route.fetch().text()
        assert "READ_HERE = 400" in text
        route.fulfill(body=text.replace("READ_HERE = 400", "READ_HERE = 3"), content_type="text/javascript")

    page.route("**/script/importing.js", less)
    visit.create("large")
    some = {f"{species}/{i}.jpg": data for species, i, data in two_species(birds) if i < 3}
    drop_zip(page, {**some, f"{ORIOLE}/torn.jpg": b"no image"})
    page.locator("#passing", has_text="Learned 6 images").wait_for()
    page.get_by_text("1 image could not be read").click()
    page.get_by_text(f"{ORIOLE}/torn.jpg").wait_for()
    visit.expect_samples(MALLARD, 3)
    assert counts(service, "large") == {MALLARD: 3, ORIOLE: 3}
    assert visit.card(MALLARD).locator(".thumb").count() == 0


# -- words and numbers ------------------------------------------------------------------------------------------------


def test_sentences_are_taught_by_typing(visit: Visit, service: str) -> None:
    page = visit.page
    visit.create("intents", "texts")
    lines = {
        "lost card": ["I lost my card", "my card is gone", "someone took my bank card", "I cannot find my card"],
        "weather": ["will it rain today", "is it sunny outside", "how cold is it", "what is the forecast"],
    }
    for name, sentences in lines.items():
        visit.add_class(name)
        visit.card(name).locator("textarea").fill("\n".join(sentences))
        visit.card(name).locator("textarea").press("Control+Enter")
        visit.expect_samples(name, 4)
    page.fill("#live-text", "my card was stolen")
    visit.verdict("lost card")
    page.fill("#live-text", "will it rain tomorrow")
    visit.verdict("weather")


def test_markup_in_names_stays_text(visit: Visit, service: str) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    make_taught(service, "hostile")
    ask(service, "/models/hostile/teach", {"rows": rows(2), "label": evil})
    page = visit.page
    visit.open("#/m/hostile")
    visit.card(evil).wait_for()
    page.fill("#live-text", ", ".join(map(str, rows(2)[0])))
    visit.verdict(evil)
    for tab in ("Review", "Accuracy", "Timeline", "Use it", "Teach"):
        visit.tab(tab)
    assert page.title() == "hostile · evergrow"
    assert page.locator("main script, main img[src=x]").count() == 0


def test_a_change_by_someone_else_is_seen_and_a_stale_one_is_refused(visit: Visit, service: str) -> None:
    page = open_taught(visit, "shared")
    visit.card("a").wait_for()
    visit.menu("a", "Rename")
    page.get_by_label("New name").fill("z")
    page.route("**/api/v1/models/shared", lambda route: route.fulfill(status=304))  # the page does not look meanwhile
    ask(service, "/models/shared/teach", {"rows": rows(2), "label": "c"})
    page.get_by_role("button", name="Rename", exact=True).click()
    page.locator("dialog .notice", has_text="Someone else changed this model").wait_for()
    assert counts(service, "shared").keys() == {"a", "b", "c"}
    page.unroute("**/api/v1/models/shared")
    visit.card("c").wait_for()
    page.locator("dialog .notice").get_by_role("button", name="Try again").click()
    visit.card("z").wait_for()
    assert counts(service, "shared").keys() == {"z", "b", "c"}


def test_busy_and_refused_requests_are_told_in_words_and_nothing_is_lost(visit: Visit, service: str) -> None:
    page = open_taught(visit, "busy")
    busy = {"type": "about:blank", "title": "busy", "status": 503, "detail": "too many wait", "error": "QueueFull"}
    answers = [{"status": 503, "json": busy, "headers": {"Retry-After": "1"}}]
    page.route("**/busy/teach", lambda route: route.fulfill(**answers.pop()) if answers else route.continue_())
    visit.teach("a", typed(0, 2))
    page.locator("#banner", has_text="busy").wait_for()
    visit.expect_samples("a", 8)
    visit.teach("a", "1, 2")
    visit.card("a").locator(".notice", has_text="4 columns").wait_for()
    visit.card("a").get_by_role("button", name="Discard").click()
    visit.card("a").locator(".thumb.waiting").wait_for(state="detached")
    visit.teach("a", "one, two")
    visit.card("a").locator(".notice", has_text="must be numbers").wait_for()
    assert visit.card("a").locator("textarea").input_value() == "one, two"
    assert counts(service, "busy") == {"a": 8, "b": 6}


def test_what_was_sent_twice_counts_once(visit: Visit, service: str) -> None:
    page = open_taught(visit, "twice")
    failed: list[int] = []

    def lose_the_answer(route: Any) -> None:
        if failed:
            route.continue_()
            return
        failed.append(1)
        route.fetch()  # the service learns it, and the page never hears of that
        route.abort()

    page.route("**/twice/teach", lose_the_answer)
    visit.teach("b", typed(1, 3))
    visit.card("b").locator(".thumb").nth(2).wait_for()
    visit.expect_samples("b", 9)
    visit.card("b").locator(".thumb.waiting").first.wait_for(state="detached")
    assert failed
    assert counts(service, "twice")["b"] == 9


def test_undo_to_any_revision_sets_samples_aside_and_redo_brings_them_back(visit: Visit, service: str) -> None:
    page = open_taught(visit, "times")
    teach_new(visit, "c", 2)
    assert not page.locator("#redo").is_visible()
    page.click("#undo")
    page.locator(".tray", has_text="4 rows of c").wait_for()
    page.click("#redo")
    visit.expect_samples("c", 4)
    for gone in (".tray", "#redo"):
        page.locator(gone).wait_for(state="hidden")
    teach_new(visit, "d", 3)
    visit.menu("d", "Merge into another class")
    page.get_by_label("Into").select_option("c")
    page.get_by_role("button", name="Merge", exact=True).click()
    visit.expect_samples("c", 8)
    assert visit.card("c").locator(".thumb").count() == 5  # the newest of eight lines
    visit.tab("Timeline")
    page.locator(".timeline li", has_text="new: b").get_by_role("button", name="Go back to here").click()
    page.locator("#passing", has_text="Back at: Learned 6 rows, new: b").wait_for()
    visit.tab("Teach")
    page.locator(".tray", has_text="8 rows of c, d").wait_for()
    assert counts(service, "times") == {"a": 6, "b": 6}
    page.get_by_role("button", name="Teach again").click()
    visit.expect_samples("c", 4)
    visit.expect_samples("d", 4)
    assert counts(service, "times") == {"a": 6, "b": 6, "c": 4, "d": 4}


def test_a_model_is_deleted_after_its_name_was_typed(visit: Visit, service: str) -> None:
    page = open_taught(visit, "short lived")
    teach_new(visit, "c", 2)
    visit.tab("Use it")
    page.get_by_role("button", name="Delete this model").click()
    act = page.get_by_role("button", name="Delete permanently")
    for written in ("", "short", "Short lived"):
        page.get_by_label("Type the name of the model").fill(written)
        assert act.is_disabled()
    page.get_by_label("Type the name of the model").fill("short lived")
    act.click()
    page.get_by_role("heading", name="Models", exact=True).wait_for()
    assert "short lived" not in [entry["name"] for entry in ask(service, "/models")["models"]]
    make_taught(service, "short lived")  # nothing of the old one is in this browser
    visit.open("#/m/short lived")
    visit.card("a").wait_for()
    assert page.locator(".tray").is_visible() is False
    assert visit.card("c").count() == 0


def test_thumbnails_follow_a_class_that_someone_else_renamed(visit: Visit, service: str) -> None:
    open_taught(visit, "renamed")
    teach_new(visit, "c", 2, 3)
    ask(service, "/models/renamed/rename", {"old": "c", "new": "z"})
    visit.expect_samples("z", 3)
    assert visit.card("z").locator(".thumb").count() == 3
    visit.card("z").locator(".thumb").first.get_by_role("button").click()
    visit.expect_samples("z", 2)
    assert counts(service, "renamed")["z"] == 2
    visit.tab("Timeline")
    visit.page.locator(".timeline li", has_text="Renamed c to z").wait_for()


# -- who it is for ----------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_and_taken(browser: Any, tmp_path: Path) -> None:
    tokens = Tokens.parse("teach a-long-secret-of-anna anna", "tokens")
    with Running(tmp_path / "models", tokens=tokens) as running:
        visit = Visit(browser, running.address)
        page = visit.page
        visit.open()
        page.locator(".notice", has_text="token").wait_for()
        page.fill("#token", "a-long-secret-of-anna")
        page.press("#token", "Enter")
        page.get_by_role("heading", name="Models").wait_for()
        visit.create("mine", "features")
        visit.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_is_named_and_can_be_read(browser: Any, service: str, width: int, scheme: str) -> None:
    name = f"fits-{width}-{scheme}"
    make_taught(service, name, 4)
    visit = Visit(browser, service, width=width, scheme=scheme)
    page = visit.page
    visit.open(f"#/m/{name}")
    page.fill("#live-text", ", ".join(map(str, rows(2)[0])))
    page.locator(".verdict").wait_for()
    for tab in ("Teach", "Review", "Accuracy", "Timeline", "Use it"):
        visit.tab(tab)
        page.wait_for_timeout(100)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), tab
        assert page.evaluate(NAMELESS) == [], tab
        assert page.evaluate(FAINT) == [], tab
        ids = page.eval_on_selector_all("[id]", "nodes => nodes.map(node => node.id)")
        assert len(set(ids)) == len(ids)
    assert visit.complaints == []
    visit.close()


NAMELESS = """() => [...document.querySelectorAll('button, a, input, textarea, select, img')].filter(node => {
    if (!node.checkVisibility() || node.type === 'file') return false;
    if (node.tagName === 'IMG') return !node.hasAttribute('alt');
    return !(node.textContent.trim() || node.getAttribute('aria-label') || (node.labels && node.labels.length));
}).map(node => node.outerHTML)"""

FAINT = """() => {
    const parsed = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = node => {
        for (let at = node; at; at = at.parentElement) {
            const colour = parsed(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('body *')].filter(node => {
        const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.checkVisibility({opacityProperty: true})) return false;
        if (node.closest(':disabled, .unseen, .skip, #passing')) return false;
        const [a, b] = [light(parsed(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
        return (a + 0.05) / (b + 0.05) < 4.5;
    }).map(node => `${node.className}: ${node.textContent.slice(0, 60)}`);
}"""


def test_text_is_pasted_onto_a_card(visit: Visit, service: str) -> None:
    open_taught(visit, "pasted")
    visit.card("b").get_by_role("button", name="More about b").focus()
    visit.page.evaluate(
        """text => {
            const transfer = new DataTransfer();
            transfer.setData('text/plain', text);
            document.activeElement.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true}));
        }""",
        typed(1, 3),
    )
    visit.expect_samples("b", 9)
    assert counts(service, "pasted") == {"a": 6, "b": 9}


def test_everything_is_reached_by_keyboard(visit: Visit, service: str) -> None:
    page = open_taught(visit, "keys")
    visit.card("a").wait_for()
    page.locator("#tab-teach").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-review").is_visible()
    page.keyboard.press("End")
    assert page.locator("#panel-share").is_visible()
    page.keyboard.press("Home")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
    assert {"More about a", "More about b", "Name of a new class"} <= reached
    visit.card("a").get_by_role("button", name="More about a").focus()
    for key in ("Enter", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.keyboard.type("first")
    page.keyboard.press("Enter")
    visit.card("first").wait_for()


def test_lines_to_copy_do_what_they_say(visit: Visit, service: str, tmp_path: Path) -> None:
    make_taught(service, "two words")
    ask(service, "/models/two words/rename", {"old": "a", "new": "a's $(x)"})
    page = visit.page
    visit.open("#/m/two%20words")
    visit.tab("Use it")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Model file").click()
    file = tmp_path / "two words.evg"
    saved.value.save_as(file)
    page.locator("#task").select_option("rename")
    lines = {form: page.locator(f"[data-form={form}] code").inner_text() for form in ("command", "python", "curl")}
    assert shlex.split(lines["command"]) == ["evergrow", "rename", "two words.evg", "a's $(x)", "new name"]
    subprocess.run([sys.executable, "-c", lines["python"]], cwd=tmp_path, check=True)
    assert Learner.load(file).classes_.tolist() == ["b", "new name"]
    page.goto(f"{service}/#/")
    page.set_input_files("input[accept='.evg']", {"name": "brought.evg", "mimeType": "", "buffer": file.read_bytes()})
    visit.card("new name").wait_for()
    assert counts(service, "brought") == {"b": 6, "new name": 6}
    visit.open("#/m/two%20words")
    visit.tab("Use it")
    subprocess.run(shlex.split(lines["curl"].replace("\\\n", " ")), capture_output=True, check=True)
    assert counts(service, "two words") == {"b": 6, "new name": 6}
    for task in page.locator("#task option").evaluate_all("options => options.map(option => option.value)"):
        page.locator("#task").select_option(task)
        ast.parse(page.locator("[data-form=python] code").inner_text())
        assert "two words.evg" in shlex.split(page.locator("[data-form=command] code").inner_text())
        assert shlex.split(page.locator("[data-form=curl] code").inner_text())[0] == "curl"
