"""The page in a browser with a fake camera: teach, predict, undo, and errors."""

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
from tests.serve import page_tools as tools
from tests.serve.page_tools import Visit
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


# -- the whole way, with the camera ----------------------------------------------------


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
    assert all(n >= 4 for n in tools.counts(service, "birds").values())
    assert visit.samples("oriole") == tools.counts(service, "birds")["oriole"]

    visit.add_class("hummingbird")
    visit.card("hummingbird").locator("input[type=file]").set_input_files(
        tools.images(birds, "train", tools.HUMMINGBIRD)
    )
    visit.expect_samples("hummingbird", 5)  # of six one is held out
    assert tools.counts(service, "birds")["hummingbird"] == 5
    visit.wait_for_mark("first")
    visit.verdict("mallard")
    page.set_input_files(
        "#live-file", tools.images(birds, "test", tools.HUMMINGBIRD)[0]
    )
    visit.verdict("hummingbird")
    assert page.locator(".bars li").count() == 3

    page.set_input_files("#live-file", strange)
    visit.verdict("Unknown")
    page.fill("#name-it", "tractor")
    page.press("#name-it", "Enter")
    visit.verdict("tractor")
    assert tools.counts(service, "birds")["tractor"] == 1

    visit.menu("mallard", "Rename")
    page.get_by_label("New name").fill("wild duck")
    page.get_by_role("button", name="Rename", exact=True).click()
    visit.card("wild duck").wait_for()
    assert "mallard" not in tools.counts(service, "birds")

    before = tools.counts(service, "birds")["wild duck"]
    thumbs = visit.card("wild duck").locator(".thumb")
    shown = thumbs.count()
    taught = visit.card("wild duck").locator(".thumb:not(.held)").first
    taught.hover()
    taught.get_by_role("button").click()
    visit.expect_samples("wild duck", before - 1)
    assert tools.counts(service, "birds")["wild duck"] == before - 1
    assert thumbs.count() == shown - 1
    page.click("#undo")
    visit.expect_samples("wild duck", before)
    assert thumbs.count() == shown
    assert tools.counts(service, "birds")["wild duck"] == before

    page.reload()
    visit.expect_samples("wild duck", before)
    assert thumbs.count() == shown
    visit.context.set_offline(True)
    page.locator("#banner", has_text="cannot be reached").wait_for()
    visit.card("hummingbird").locator("input[type=file]").set_input_files(
        tools.images(birds, "test", tools.HUMMINGBIRD)[1:]
    )
    visit.card("hummingbird").locator(".thumb.waiting").first.wait_for()
    visit.context.set_offline(False)
    visit.expect_samples("hummingbird", 7)
    page.locator("#banner:empty").wait_for(state="attached")
    assert tools.counts(service, "birds")["hummingbird"] == 7


def test_a_large_zip_is_learned_by_the_service(
    visit: Visit, service: str, birds: Path
) -> None:
    page = visit.page

    def less(route: Any) -> None:  # a zip of five is large enough for a test
        text = route.fetch().text()
        assert "READ_HERE = 400" in text
        route.fulfill(
            body=text.replace("READ_HERE = 400", "READ_HERE = 3"),
            content_type="text/javascript",
        )

    page.route("**/script/importing.js", less)
    visit.create("large")
    some = {f"{species}/{i}.jpg": data for species, i, data in tools.two_species(birds)}
    tools.drop_zip(page, {**some, f"{tools.ORIOLE}/!torn.jpg": b"no image"})
    visit.expect("#passing", "Learned 10 images. 2 more are kept for testing.")
    page.get_by_text("1 image could not be read").click()
    page.get_by_text(f"{tools.ORIOLE}/!torn.jpg").wait_for()
    visit.expect_samples(tools.MALLARD, 5)
    assert tools.counts(service, "large") == {tools.MALLARD: 5, tools.ORIOLE: 5}
    assert visit.card(tools.MALLARD).locator(".thumb:not(.held)").count() == 0
    tools.drop_zip(page, some)
    visit.answer("Taught already from this browser (12)")
    visit.expect("#passing", "Nothing new to learn")
    visit.tab("Accuracy")
    visit.expect(".score", "2 of 2 images right")
    page.click("#undo")  # also of what is kept for testing
    visit.expect(".accuracy", "Nothing to test with yet")


# -- words and numbers -----------------------------------------------------------------


def test_sentences_are_taught_by_typing(visit: Visit, service: str) -> None:
    page = visit.page
    visit.create("intents", "texts")
    lines = {
        "lost card": [
            "I lost my card",
            "my card is gone",
            "someone took my bank card",
            "I cannot find my card",
        ],
        "weather": [
            "will it rain today",
            "is it sunny outside",
            "how cold is it",
            "what is the forecast",
        ],
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
    evil = (
        "<img src=x onerror=\"document.title='owned'\">"
        "<script>document.title='owned'</script>"
    )
    tools.make_taught(service, "hostile")
    tools.ask(service, "/models/hostile/teach", {"rows": tools.rows(2), "label": evil})
    page = visit.page
    visit.open("#/m/hostile")
    visit.card(evil).wait_for()
    page.fill("#live-text", ", ".join(map(str, tools.rows(2)[0])))
    visit.verdict(evil)
    for tab in ("Review", "Accuracy", "Timeline", "Download", "Teach"):
        visit.tab(tab)
    assert page.title() == "hostile · evergrow"
    assert page.locator("main script, main img[src=x]").count() == 0


def test_a_change_by_someone_else_is_seen_and_a_stale_one_is_refused(
    visit: Visit, service: str
) -> None:
    page = tools.open_taught(visit, "shared")
    visit.card("a").wait_for()
    visit.menu("a", "Rename")
    page.get_by_label("New name").fill("z")
    page.route(
        "**/api/v1/models/shared", lambda route: route.fulfill(status=304)
    )  # the page does not look meanwhile
    tools.ask(service, "/models/shared/teach", {"rows": tools.rows(2), "label": "c"})
    page.get_by_role("button", name="Rename", exact=True).click()
    page.locator(
        "dialog .notice", has_text="Someone else changed this model"
    ).wait_for()
    assert tools.counts(service, "shared").keys() == {"a", "b", "c"}
    page.unroute("**/api/v1/models/shared")
    visit.card("c").wait_for()
    page.locator("dialog .notice").get_by_role("button", name="Try again").click()
    visit.card("z").wait_for()
    assert tools.counts(service, "shared").keys() == {"z", "b", "c"}


def test_busy_and_refused_requests_are_explained_and_nothing_is_lost(
    visit: Visit, service: str
) -> None:
    page = tools.open_taught(visit, "busy")
    busy = {
        "type": "about:blank",
        "title": "busy",
        "status": 503,
        "detail": "too many wait",
        "error": "QueueFull",
    }
    answers = [{"status": 503, "json": busy, "headers": {"Retry-After": "1"}}]
    page.route(
        "**/busy/teach",
        lambda route: route.fulfill(**answers.pop()) if answers else route.continue_(),
    )
    visit.teach("a", tools.typed(0, 2))
    page.locator("#banner", has_text="busy").wait_for()
    visit.expect_samples("a", 8)
    visit.teach("a", "1, 2")
    visit.card("a").locator(".notice", has_text="4 columns").wait_for()
    visit.card("a").get_by_role("button", name="Discard").click()
    visit.card("a").locator(".thumb.waiting").wait_for(state="detached")
    visit.teach("a", "one, two")
    visit.card("a").locator(".notice", has_text="must be numbers").wait_for()
    assert visit.card("a").locator("textarea").input_value() == "one, two"
    assert tools.counts(service, "busy") == {"a": 8, "b": 6}


def test_examples_sent_twice_count_once(visit: Visit, service: str) -> None:
    page = tools.open_taught(visit, "twice")
    failed: list[int] = []

    def lose_the_answer(route: Any) -> None:
        if failed:
            route.continue_()
            return
        failed.append(1)
        route.fetch()  # the service learns it, and the page never hears of that
        route.abort()

    page.route("**/twice/teach", lose_the_answer)
    visit.teach("b", tools.typed(1, 3))
    visit.card("b").locator(".thumb").nth(2).wait_for()
    visit.expect_samples("b", 9)
    visit.card("b").locator(".thumb.waiting").first.wait_for(state="detached")
    assert failed
    assert tools.counts(service, "twice")["b"] == 9


def test_undo_to_any_revision_sets_samples_aside_and_redo_brings_them_back(
    visit: Visit, service: str
) -> None:
    page = tools.open_taught(visit, "times")
    tools.teach_new(visit, "c", 2)
    assert not page.locator("#redo").is_visible()
    page.click("#undo")
    page.get_by_label("Kept but not in the model").filter(
        has_text="4 rows of c"
    ).wait_for()
    page.click("#redo")
    visit.expect_samples("c", 4)
    for gone in ('[aria-label="Kept but not in the model"]', "#redo"):
        page.locator(gone).wait_for(state="hidden")
    tools.teach_new(visit, "d", 3)
    visit.menu("d", "Merge into another class")
    page.get_by_label("Into").select_option("c")
    page.get_by_role("button", name="Merge", exact=True).click()
    visit.expect_samples("c", 8)
    assert visit.card("c").locator(".thumb").count() == 5  # the newest of eight lines
    visit.tab("Timeline")
    page.locator(".timeline li", has_text="new: b").get_by_role(
        "button", name="Go back to here"
    ).click()
    page.locator("#passing", has_text="Back at: Learned 6 rows, new: b").wait_for()
    visit.tab("Teach")
    page.get_by_label("Kept but not in the model").filter(
        has_text="8 rows of c, d"
    ).wait_for()
    assert tools.counts(service, "times") == {"a": 6, "b": 6}
    page.get_by_role("button", name="Teach again").click()
    visit.expect_samples("c", 4)
    visit.expect_samples("d", 4)
    assert tools.counts(service, "times") == {"a": 6, "b": 6, "c": 4, "d": 4}


def test_a_model_is_deleted_after_its_name_was_typed(
    visit: Visit, service: str
) -> None:
    page = tools.open_taught(visit, "short lived")
    tools.teach_new(visit, "c", 2)
    visit.tab("Download")
    page.get_by_role("button", name="Delete this model").click()
    act = page.get_by_role("button", name="Delete permanently")
    for written in ("", "short", "Short lived"):
        page.get_by_label("Type the name of the model").fill(written)
        assert act.is_disabled()
    page.get_by_label("Type the name of the model").fill("short lived")
    act.click()
    page.get_by_role("heading", name="Models", exact=True).wait_for()
    assert "short lived" not in [
        entry["name"] for entry in tools.ask(service, "/models")["models"]
    ]
    tools.make_taught(
        service, "short lived"
    )  # nothing of the old one is in this browser
    visit.open("#/m/short lived")
    visit.card("a").wait_for()
    assert page.get_by_label("Kept but not in the model").is_visible() is False
    assert visit.card("c").count() == 0


def test_thumbnails_follow_a_class_that_someone_else_renamed(
    visit: Visit, service: str
) -> None:
    tools.open_taught(visit, "renamed")
    tools.teach_new(visit, "c", 2, 3)
    tools.ask(service, "/models/renamed/rename", {"old": "c", "new": "z"})
    visit.expect_samples("z", 3)
    assert visit.card("z").locator(".thumb").count() == 3
    visit.card("z").locator(".thumb").first.get_by_role("button").click()
    visit.expect_samples("z", 2)
    assert tools.counts(service, "renamed")["z"] == 2
    visit.tab("Timeline")
    visit.page.locator(".timeline li", has_text="Renamed c to z").wait_for()


# -- who it is for ---------------------------------------------------------------------


def test_a_token_is_asked_for_or_comes_with_a_code_for_phones(
    browser: Any, tmp_path: Path
) -> None:
    tokens = Tokens.parse("teach a-long-secret-of-anna anna", "tokens")
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
    with Running(tmp_path / "models", tokens=tokens) as running:
        visit = Visit(browser, running.address)
        visit.open()
        visit.expect(".notice", "token")
        visit.page.fill("#token", "a-long-secret-of-anna")
        visit.page.press("#token", "Enter")
        visit.expect("h1", "Models")
        visit.create("mine", "features")
        visit.close()
        phone = Visit(browser, running.address, width=390)
        phone.page.route("**/api/v1/lan", lambda route: route.fulfill(json=told))
        phone.open("#token=a-long-secret-of-anna")
        phone.expect(".models", "mine")
        assert "secret" not in phone.page.url
        phone.page.get_by_role("button", name="Use your phone").click()
        assert phone.page.locator("dialog img").evaluate(
            "image => image.decode().then(() => image.naturalWidth > 0)"
        )
        phone.expect("dialog", "https://192.0.2.1:8080/")
        phone.close()


def test_text_is_pasted_onto_a_card(visit: Visit, service: str) -> None:
    tools.open_taught(visit, "pasted")
    visit.card("b").get_by_role("button", name="More about b").focus()
    visit.page.evaluate(
        """text => {
            const transfer = new DataTransfer();
            transfer.setData('text/plain', text);
            const settings = {clipboardData: transfer, bubbles: true};
            const paste = new ClipboardEvent('paste', settings);
            document.activeElement.dispatchEvent(paste);
        }""",
        tools.typed(1, 3),
    )
    visit.expect_samples("b", 9)
    assert tools.counts(service, "pasted") == {"a": 6, "b": 9}


def test_everything_is_reached_by_keyboard(visit: Visit, service: str) -> None:
    page = tools.open_taught(visit, "keys")
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
        reached.add(
            page.evaluate(
                "document.activeElement.ariaLabel || document.activeElement.textContent"
            )
        )
    assert {"More about a", "More about b", "Name of a new class"} <= reached
    visit.card("a").get_by_role("button", name="More about a").focus()
    for key in ("Enter", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.keyboard.type("first")
    page.keyboard.press("Enter")
    visit.card("first").wait_for()


def test_copied_snippets_work(visit: Visit, service: str, tmp_path: Path) -> None:
    tools.make_taught(service, "two words")
    tools.ask(service, "/models/two words/rename", {"old": "a", "new": "a's $(x)"})
    page = visit.page
    visit.open("#/m/two%20words")
    visit.tab("Download")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Model file").click()
    file = tmp_path / "two words.evg"
    saved.value.save_as(file)
    page.locator("#task").select_option("rename")
    lines = {
        form: page.locator(f"[data-form={form}] code").inner_text()
        for form in ("command", "python", "curl")
    }
    assert shlex.split(lines["command"]) == [
        "evergrow",
        "rename",
        "two words.evg",
        "a's $(x)",
        "new name",
    ]
    subprocess.run([sys.executable, "-c", lines["python"]], cwd=tmp_path, check=True)
    assert Learner.load(file).classes_.tolist() == ["b", "new name"]
    page.goto(f"{service}/#/")
    page.set_input_files(
        "input[accept='.evg']",
        {"name": "brought.evg", "mimeType": "", "buffer": file.read_bytes()},
    )
    visit.card("new name").wait_for()
    assert tools.counts(service, "brought") == {"b": 6, "new name": 6}
    visit.open("#/m/two%20words")
    visit.tab("Download")
    subprocess.run(
        shlex.split(lines["curl"].replace("\\\n", " ")), capture_output=True, check=True
    )
    assert tools.counts(service, "two words") == {"b": 6, "new name": 6}
    for task in page.locator("#task option").evaluate_all(
        "options => options.map(option => option.value)"
    ):
        page.locator("#task").select_option(task)
        ast.parse(page.locator("[data-form=python] code").inner_text())
        assert "two words.evg" in shlex.split(
            page.locator("[data-form=command] code").inner_text()
        )
        assert (
            shlex.split(page.locator("[data-form=curl] code").inner_text())[0] == "curl"
        )
