"""Work on the page that must not be lost: corrections in Sort and typed text."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from tests.serve import page_tools as tools
from tests.serve.page_tools import Visit
from tests.serve.running import Running
from tests.serve.samples import png

pytestmark = pytest.mark.slow
pytest_plugins = ("tests.serve.page_tools",)

STORED = """async () => {
    const opened = indexedDB.open("evergrow");
    const database = await new Promise((ok, no) => {
        opened.onsuccess = () => ok(opened.result);
        opened.onerror = () => no(opened.error);
    });
    const counted = async (store) => new Promise((ok) => {
        const request = database.transaction(store).objectStore(store).count();
        request.onsuccess = () => ok(request.result);
    });
    const counts = [await counted("sorted"), await counted("sortedBytes")];
    database.close();
    return counts;
}"""


@pytest.fixture(scope="module")
def some(birds: Path) -> list[Path]:
    """Four mallards and orioles, and two hummingbirds, under names of their own."""
    species = (tools.MALLARD, tools.ORIOLE, tools.HUMMINGBIRD)
    return [path for one in species for path in tools.images(birds, "test", one)[:2]]


def group(visit: Visit, name: str) -> Any:
    return visit.page.locator(f".group[data-group='{name}']")


def tile(visit: Visit, path: Path | str) -> Any:
    name = path if isinstance(path, str) else path.name
    return visit.page.locator(f".tile-image[title$='{name}']")


def shown_classes(visit: Visit) -> set[str]:
    """Return the classes that have a group in Sort, with images or without."""
    names = visit.page.locator(".group").evaluate_all(
        "groups => groups.map(group => group.dataset.group)"
    )
    return {name.removeprefix("class:") for name in names if name.startswith("class:")}


def move(visit: Visit, path: Path | str, name: str | None) -> None:
    """Move an image to a class by keys, or to the unknown ones."""
    tile(visit, path).focus()
    if name is None:
        visit.page.keyboard.press("u")
        return
    visit.page.keyboard.press("m")
    visit.page.locator("dialog input").fill(name)
    visit.page.keyboard.press("Enter")
    visit.page.locator("dialog").wait_for(state="detached")
    group(visit, f"class:{name}").locator(
        f".corrected[title$='{path if isinstance(path, str) else path.name}']"
    ).wait_for()


def saved_soon(visit: Visit, n: int) -> None:
    """Wait until the browser has stored `n` images."""
    stored: list[int] = []
    for _ in range(100):
        stored = visit.page.evaluate(STORED)
        if stored == [n, n]:
            return
        visit.page.wait_for_timeout(100)
    raise AssertionError(stored)


# -- kept until taught or discarded ----------------------------------------------------


def test_corrections_are_kept_across_views_and_reloads(
    visit: Visit, service: str, birds: Path, some: list[Path]
) -> None:
    tools.teach_birds(service, "kept", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    sent: list[str] = []
    page.on(
        "request",
        lambda request: (
            sent.append(request.url.split("/")[-1])
            if request.method == "POST"
            else None
        ),
    )
    tools.sort_images(visit, "kept", some)
    move(visit, some[0], tools.ORIOLE)
    move(visit, some[4], "Hummingbird")
    move(visit, some[2], None)
    before = tools.group_sizes(visit)
    assert before["unknown"] >= 1
    visit.expect("#tab-sort .count", "2")
    saved_soon(visit, len(some))
    asked = sent.count("predict")

    visit.open("#/")
    visit.expect("h1", "Models")
    page.go_back()
    visit.tab("Sort")
    visit.expect(".sortbar", "Teach 2 corrections")
    assert tools.group_sizes(visit) == before
    page.reload()
    visit.expect("#tab-sort .count", "2")
    visit.tab("Sort")
    visit.expect(".sortbar", f"{len(some)} images sorted")
    assert tools.group_sizes(visit) == before
    page.set_viewport_size({"width": 1280, "height": 1600})  # all images are in sight
    page.locator(".tile-image img[src]").nth(len(some) - 1).wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Folders (zip)").click()
    archive = zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes()))
    inside = {Path(name).name: archive.read(name) for name in archive.namelist()}
    for path in some:
        assert inside[path.name] == path.read_bytes()
    assert sent.count("predict") == asked  # answers are kept, too
    # Nothing else leaves the browser but numbers of the predictions.
    assert set(sent) == {"predict", "strictness"}

    page.get_by_role("button", name="Teach 2 corrections").click()
    visit.expect("#passing", "Learned 2 corrections")
    assert tools.counts(service, "kept")["Hummingbird"] == 1
    saved_soon(visit, len(some) - 2)
    assert group(visit, "class:Hummingbird").locator(".corrected").count() == 1
    page.reload()
    visit.tab("Sort")
    visit.expect(".sortbar", f"{len(some) - 2} images")
    assert page.locator("#tab-sort .count").is_hidden()
    page.get_by_role("button", name="Remove all").click()
    visit.answer("1 correction not taught yet will be lost", verb="Cancel")
    assert tools.group_sizes(visit)
    page.get_by_role("button", name="Remove all").click()
    visit.answer("1 correction not taught yet", verb="Remove")
    visit.expect(".sort .ways-in", "Sort images")
    saved_soon(visit, 0)


def test_a_reload_in_the_middle_goes_on(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "middle", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    visit.open("#/m/middle")
    visit.tab("Sort")
    page.route("**/predict", lambda route: None)  # no answer comes
    tools.drop_zip(page, {f"all/{i}.png": png(i % 3, i) for i in range(60)})
    visit.expect(".sortbar", "Sorted 0 of 60")
    saved_soon(visit, 60)
    page.unroute("**/predict")
    page.reload()
    visit.tab("Sort")
    visit.expect(".sortbar", "60 images sorted")
    assert sum(tools.group_sizes(visit).values()) == 60


def test_corrections_are_shared_by_tabs(
    visit: Visit, service: str, birds: Path, some: list[Path]
) -> None:
    tools.teach_birds(service, "tabs", birds, [tools.MALLARD, tools.ORIOLE])
    tools.sort_images(visit, "tabs", some)
    other = Visit.__new__(Visit)
    other.__dict__.update(visit.__dict__, page=visit.context.new_page())
    other.open("#/m/tabs")
    other.tab("Sort")
    other.expect(".sortbar", f"{len(some)} images sorted")
    move(other, some[4], "Hummingbird")
    group(visit, "class:Hummingbird").locator(".corrected").wait_for()
    move(visit, some[5], "Hummingbird")
    other.page.get_by_role("button", name="Teach 2 corrections").click()
    other.expect("#passing", "Learned 2 corrections")
    visit.page.get_by_text("4 images sorted").wait_for()  # not to be taught twice
    assert tools.counts(service, "tabs")["Hummingbird"] == 2
    group(visit, "class:Hummingbird").wait_for(state="attached")  # now without images
    visit.page.get_by_role("button", name="Remove all").click()
    visit.answer("Remove 4 images from this page?", verb="Remove")
    other.page.locator(".sort .tile-image").nth(2).wait_for(state="detached")
    saved_soon(visit, 0)
    other.page.close()


def test_images_of_another_model_with_the_name_are_not_mixed_in(
    visit: Visit, service: str, birds: Path, some: list[Path], axe: str
) -> None:
    species = [tools.MALLARD, tools.ORIOLE]
    tools.teach_birds(service, "twice", birds, species)
    page = visit.page
    tools.sort_images(visit, "twice", some)
    move(visit, some[4], "Hummingbird")
    saved_soon(visit, len(some))
    visit.open("#/")
    visit.expect("h1", "Models")
    where = f"{service}/api/v1/models/twice"
    tools.httpx.delete(where, timeout=60, trust_env=False).raise_for_status()
    page.reload()
    visit.expect(".notice", "6 images from sorting with “twice”, which is not here")
    assert tools.accessibility_problems(visit, axe) == []
    visit.shot("models-left-from-sort")
    tools.teach_birds(service, "twice", birds, species[::-1])
    visit.open("#/m/twice")
    visit.tab("Sort")
    visit.expect(".keeping", "6 images in this browser belong to another model")
    assert page.locator(".tile-image").count() == 0
    assert tools.accessibility_problems(visit, axe) == []
    visit.shot("sort-another-model")
    page.get_by_role("button", name="Sort them with this model").click()
    visit.expect(".sortbar", "6 images sorted")
    assert tools.group_sizes(visit)["Hummingbird"] == 1
    page.get_by_text("belong to another model").wait_for(state="detached")
    visit.tab("Download")
    page.get_by_role("button", name="Delete this model").click()
    page.get_by_label("Type the name of the model").fill("twice")
    page.get_by_role("button", name="Delete permanently").click()
    visit.expect("h1", "Models")
    saved_soon(visit, 0)


NO_STORE = """
for (const name of ["indexedDB", "localStorage", "sessionStorage"]) {
  const get = () => { throw new DOMException("no", "SecurityError"); };
  Object.defineProperty(window, name, { get });
}
"""


def test_without_browser_storage_the_page_works_until_it_is_closed(
    browser: Any, service: str, birds: Path, some: list[Path]
) -> None:
    tools.teach_birds(service, "private", birds, [tools.MALLARD, tools.ORIOLE])
    visit = Visit(browser, service, tour=True)
    page = visit.page
    visit.context.add_init_script(NO_STORE)
    tools.sort_images(visit, "private", some)
    visit.expect("#banner", "does not let this page keep anything")
    move(visit, some[4], "Hummingbird")
    visit.expect(".keeping .notice", "1 correction cannot be kept in this browser")
    visit.shot("sort-private")
    visit.page.evaluate("location.hash = '#/'")
    visit.expect("h1", "Models")
    page.go_back()
    visit.tab("Sort")
    visit.expect(".sortbar", "Teach 1 correction")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.get_by_role("button", name="Table (CSV)").focus()
    page.keyboard.press("Tab")
    page.close(run_before_unload=True)
    page.wait_for_timeout(1000)
    assert asked == ["beforeunload"]
    page.get_by_role("button", name="Teach 1 correction").click()
    visit.expect("#passing", "Learned 1 correction")
    assert tools.counts(service, "private")["Hummingbird"] == 1
    assert visit.complaints == []
    visit.close()


def test_a_full_store_keeps_corrections_first_and_says_so(
    browser: Any, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "full", birds, [tools.MALLARD, tools.ORIOLE])
    visit = Visit(browser, service)
    page = visit.page

    def less(route: Any) -> None:  # two images are enough for a test
        text = route.fetch().text()
        assert "KEPT_BYTES = 2 ** 30" in text
        few = text.replace("KEPT_BYTES = 2 ** 30", "KEPT_BYTES = 5000")
        route.fulfill(body=few, content_type="text/javascript")

    page.route("**/script/sortset.js", less)
    visit.open("#/m/full")
    visit.tab("Sort")
    entries = {f"{i:02d}.png": png(i % 3, i) for i in range(20)}
    kept = 5000 // len(entries["00.png"])
    tools.drop_zip(page, entries)
    visit.expect(".sortbar", "20 images sorted")
    visit.expect(".keeping .notice", "of 20 images in this browser: a reload loses")
    for name in ("17.png", "18.png", "19.png"):
        move(visit, name, "Other")
    page.wait_for_timeout(1000)
    visit.shot("sort-no-room")
    page.reload()
    visit.tab("Sort")
    visit.expect(".sortbar", "Teach 3 corrections")
    assert 3 <= sum(tools.group_sizes(visit).values()) <= kept + 4
    assert visit.complaints == []
    visit.close()


def noise(seed: int) -> bytes:
    """Return a PNG file of about 300 kB."""
    pixels = np.random.default_rng(seed).integers(0, 256, (320, 320, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("quota", [1_000, 3_000_000])
def test_a_full_browser_reports_what_it_cannot_keep(
    browser: Any, service: str, birds: Path, quota: int
) -> None:
    name = f"quota {quota}"
    tools.teach_birds(service, name, birds, [tools.MALLARD, tools.ORIOLE])
    visit = Visit(browser, service)
    page = visit.page
    visit.open(f"#/m/{name}")
    visit.tab("Sort")
    session = visit.context.new_cdp_session(page)
    session.send(
        "Storage.overrideQuotaForOrigin", {"origin": service, "quotaSize": quota}
    )
    tools.drop_zip(page, {f"{i:02d}.png": noise(i) for i in range(16)})
    visit.expect(".sortbar", "16 images sorted")
    visit.expect(".keeping .notice", "of 16 images in this browser: a reload loses")
    for i in range(13, 16):
        move(visit, f"{i}.png", "Other")
    page.wait_for_timeout(2000)
    told = visit.expect(".keeping .notice").inner_text()
    if quota < 10_000:
        assert "3 corrections cannot be kept" in told
        visit.shot("sort-full")
    else:  # there is room for the corrections, at the cost of other images
        assert "Your corrections are kept" in told
        page.reload()
        visit.tab("Sort")
    visit.expect(".sortbar", "Teach 3 corrections")
    page.get_by_role("button", name="Teach 3 corrections").click()
    visit.expect("#passing", "Learned 3 corrections")
    assert tools.counts(service, name)["Other"] == 3
    assert visit.complaints == []
    visit.close()


# -- groups ----------------------------------------------------------------------------


def test_images_that_were_moved_to_unknown_by_hand_are_grouped(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "unknowns", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    known = tools.images(birds, "train", tools.MALLARD)[:4]
    strange = tools.images(birds, "train", tools.HUMMINGBIRD)[:4]
    tools.sort_images(visit, "unknowns", known + strange)
    for path in known:
        move(visit, path, None)
    n = tools.group_sizes(visit)["unknown"]
    assert n >= len(known)
    page.get_by_role("button", name=f"Group the {n} unknown ones").click()
    page.get_by_role("form", name="Group 1").wait_for()
    buttons = page.locator("dialog form button.primary").all_inner_texts()
    assert sum(int(text.split()[1]) for text in buttons) == n
    shown = page.locator("dialog .group-form li.thumb").count()
    assert shown == n
    visit.shot("sort-groups")
    # The window does not say "Learned" if the service refused the images.
    page.route("**/unknowns/teach", lambda route: route.fulfill(status=500, body="x"))
    form = page.get_by_role("form", name="Group 1")
    n_first = int(form.locator("button.primary").inner_text().split()[1])
    form.locator("input").fill("new")
    form.locator("button.primary").click()
    visit.expect("dialog .notice", "could not be taught")
    assert form.get_by_text("Learned").count() == 0
    page.unroute("**/unknowns/teach")
    page.keyboard.press("Escape")
    visit.tab("Teach")
    visit.card("new").get_by_role("button", name="Try again").click()
    visit.expect_samples("new", n_first)


# -- changes of the model --------------------------------------------------------------


def test_sort_follows_every_change_of_the_model(
    visit: Visit, service: str, birds: Path, some: list[Path]
) -> None:
    tools.teach_birds(service, "changing", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    tools.sort_images(visit, "changing", some)
    before = tools.group_sizes(visit)
    for path in some[4:]:
        move(visit, path, "Hummingbird")
    visit.expect(".group .badge-text:visible", "New class")
    page.get_by_role("button", name="Teach 2 corrections").click()
    visit.expect("#passing", "Learned 2 corrections")
    page.click("#undo")
    group(visit, "class:Hummingbird").wait_for(state="detached")
    visit.expect(".sortbar", "6 images sorted")
    assert shown_classes(visit) == {tools.MALLARD, tools.ORIOLE}
    assert tools.group_sizes(visit) == before
    page.click("#redo")
    group(visit, "class:Hummingbird").locator(".corrected").nth(1).wait_for()
    visit.expect(".sortbar", "6 images sorted")

    move(visit, some[0], "Hummingbird")  # what is not taught yet follows new names
    tools.ask(
        service,
        "/models/changing/rename",
        {"old": "Hummingbird", "new": "Colibri <b>ü</b>"},
    )
    group(visit, "class:Colibri <b>ü</b>").locator(".corrected").nth(2).wait_for()
    group(visit, "class:Hummingbird").wait_for(state="detached")
    page.click("#undo")
    group(visit, "class:Hummingbird").locator(".corrected").nth(2).wait_for()
    group(visit, "class:Colibri <b>ü</b>").wait_for(state="detached")

    page.get_by_role("button", name="Sort again").click()
    visit.expect(".sortbar", "6 images sorted")
    move(visit, some[0], tools.MALLARD)
    tools.ask(service, "/models/changing/forget", {"names": [tools.ORIOLE]})
    group(visit, f"class:{tools.ORIOLE}").wait_for(state="detached")
    visit.expect(".sortbar", "6 images sorted")
    assert sum(tools.group_sizes(visit).values()) == 6
    assert tools.ORIOLE not in page.locator("#panel-sort").inner_text()
    saved_soon(visit, 4)  # but for the two that are taught
    page.reload()
    visit.tab("Sort")
    visit.expect(".sortbar", "4 images sorted")
    assert shown_classes(visit) == {tools.MALLARD, "Hummingbird"}


@pytest.mark.parametrize("form", ["now", "label of unknown null", "without nearest"])
def test_an_unknown_answer_may_have_no_label(
    visit: Visit, service: str, birds: Path, some: list[Path], form: str
) -> None:
    name = f"nearest {form}"
    tools.teach_birds(service, name, birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page

    def answer(route: Any) -> None:
        told = route.fetch().json()
        for one in told["answers"]:
            one["unknown"] = True
            nearest = one["top"][0]["class"]
            if form == "now":
                one["label"] = nearest
                continue
            one["label"] = None
            one.pop("nearest", None)
            if form == "label of unknown null":
                one["nearest"] = one["top"][0]
        route.fulfill(json=told)

    page.route("**/predict", answer)
    tools.sort_images(visit, name, some)
    assert tools.group_sizes(visit) == {"unknown": 6}
    for path in some:
        label = tile(visit, path).get_attribute("aria-label")
        assert re.search(r", Like \d+\.\w+\?$", label), label
    page.reload()
    page.set_input_files("#live-file", some[0])
    visit.verdict("Unknown")
    visit.expect(".answer", "Looks most like 0")
    visit.tab("Review")
    page.set_input_files("#queue-files", some[:2])
    visit.expect(".judge figcaption", "Unknown. Looks most like 0")
    page.get_by_role("button", name="Group the 2 unknown ones").wait_for()


# -- other work that vanished ----------------------------------------------------------


def test_typed_text_is_kept_until_it_is_used(visit: Visit, service: str) -> None:
    page = tools.open_taught(visit, "drafts")
    visit.card("a").locator("textarea").fill("1, 2, 3, 4")
    visit.tab("Review")
    page.get_by_label("Without a label, one per line").fill("5, 6, 7, 8")
    page.reload()
    visit.card("a").wait_for()
    assert visit.card("a").locator("textarea").input_value() == "1, 2, 3, 4"
    tools.ask(service, "/models/drafts/rename", {"old": "a", "new": "z"})
    visit.card("z").wait_for()
    assert visit.card("z").locator("textarea").input_value() == "1, 2, 3, 4"
    visit.card("z").get_by_role("button", name="Teach").click()
    visit.expect_samples("z", 7)
    visit.open("#/")
    page.get_by_role("link", name="drafts").click()
    visit.tab("Review")
    box = page.get_by_label("Without a label, one per line")
    assert box.input_value() == "5, 6, 7, 8"
    page.get_by_role("button", name="Add to the queue").click()
    visit.expect(".desk", "1 row to label")
    page.reload()
    assert visit.card("z").locator("textarea").input_value() == ""
    assert box.input_value() == ""


def test_a_window_with_typed_text_is_not_closed_by_a_slip(
    visit: Visit, service: str
) -> None:
    page = tools.open_taught(visit, "slips")
    visit.menu("a", "Rename")
    name = page.get_by_label("New name")
    box = name.bounding_box()
    page.mouse.move(box["x"] + 30, box["y"] + 10)
    page.mouse.down()  # select the text, and let go beside the window
    page.mouse.move(5, 5, steps=5)
    page.mouse.up()
    assert page.locator("dialog").is_visible()
    page.mouse.click(5, 5)  # nothing is typed yet
    page.locator("dialog").wait_for(state="detached")
    visit.menu("a", "Rename")
    name.fill("a longer name")
    page.mouse.click(5, 5)
    page.wait_for_timeout(200)
    assert name.input_value() == "a longer name"
    page.keyboard.press("Escape")


def test_a_cancelled_import_is_reported(visit: Visit, service: str) -> None:
    visit.create("called off")
    tools.drop_zip(visit.page, {f"gull/{i}.png": png(0, i) for i in range(2)})
    visit.expect("dialog", "2 images in one folder")
    visit.page.keyboard.press("Escape")
    visit.expect("#passing", "Nothing was taught")
    assert tools.counts(service, "called off") == {}


# -- everybody -------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_corrections_are_kept(
    browser: Any,
    service: str,
    birds: Path,
    some: list[Path],
    axe: str,
    width: int,
    scheme: str,
) -> None:
    name = f"look {width} {scheme}"
    tools.teach_birds(service, name, birds, [tools.MALLARD, tools.ORIOLE])
    visit = Visit(browser, service, width=width, scheme=scheme)
    page = visit.page

    def look(view: str) -> None:
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        visit.shot(view)
        assert tools.accessibility_problems(visit, axe) == [], view

    tools.sort_images(visit, name, some)
    move(visit, some[4], "Hummingbird")
    move(visit, some[0], None)
    saved_soon(visit, len(some))
    page.reload()
    visit.tab("Sort")
    visit.expect(".sortbar", "Teach 1 correction")
    look("sort-kept")
    remove = "Remove all"
    if width < 600:
        page.get_by_role("button", name="More", exact=True).click()
        look("sort-more")
        page.get_by_role("menuitem", name=remove).click()
    else:
        page.get_by_role("button", name=remove).click()
    visit.expect("dialog", "Remove 6 images from this page?")
    look("sort-remove")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Teach 1 correction").click()
    visit.expect("#passing", "Learned 1 correction")
    look("sort-taught")
    assert (visit.complaints, visit.elsewhere) == ([], [])
    visit.close()


def test_the_service_may_restart_in_between(
    browser: Any, birds: Path, some: list[Path], tmp_path: Path
) -> None:
    with Running(tmp_path / "models") as first:
        port = int(first.address.rsplit(":", 1)[1])
        tools.teach_birds(first.address, "again", birds, [tools.MALLARD, tools.ORIOLE])
        visit = Visit(browser, first.address)
        tools.sort_images(visit, "again", some)
        move(visit, some[4], "Hummingbird")
    visit.expect("#banner", "cannot be reached")
    move(visit, some[5], "Hummingbird")
    visit.page.get_by_role("button", name="Teach 2 corrections").click()
    visit.page.locator(".tile-image.corrected", has_text="Waiting").nth(1).wait_for()
    with Running(tmp_path / "models", port=port) as second:
        visit.page.locator("#banner:empty").wait_for(state="attached")
        visit.page.locator(".tile-image", has_text="Taught").nth(1).wait_for()
        assert tools.counts(second.address, "again")["Hummingbird"] == 2
        assert visit.complaints == []
        visit.close()


# -- hostile names, and many -----------------------------------------------------------

EVIL = (
    "<img src=x onerror=\"document.title='owned'\">"
    "<script>document.title='owned'</script>"
)
NAMES = (
    "<b onclick=alert(1)>&amp;'\".png",
    "\u202egnp.gnorw.png",
    "שלום.png",
    "constructor.png",
    "__proto__.png",
    "a\nb\tc.png",
    "=1+1.png",
    "very" * 60 + ".png",
)


def test_hostile_names_stay_names_and_are_kept_as_they_are(
    visit: Visit, service: str, birds: Path
) -> None:
    model = "a'b &lt;b&gt; שלום"
    tools.teach_birds(service, model, birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    visit.open(f"#/m/{quote(model)}")
    visit.tab("Sort")
    tools.drop_zip(page, {name: png(i % 3, i) for i, name in enumerate(NAMES)})
    visit.expect(".sortbar", f"{len(NAMES)} images sorted")
    for i, label in enumerate((EVIL, "constructor", "__proto__", "unknown")):
        tiles = page.locator(".tile-image:not(.corrected)")
        tiles.first.focus()
        page.keyboard.press("m")
        page.locator("dialog input").fill(label)
        page.keyboard.press("Enter")
        page.locator(".tile-image.corrected").nth(i).wait_for()
    before = tools.group_sizes(visit)
    titles = set(
        page.locator(".tile-image").evaluate_all("all => all.map((one) => one.title)")
    )
    assert titles == set(NAMES)
    saved_soon(visit, len(NAMES))
    page.reload()
    visit.tab("Sort")
    visit.expect(".sortbar", "Teach 4 corrections")
    assert tools.group_sizes(visit) == before
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    visit.shot("sort-hostile")
    page.get_by_role("button", name="Teach 4 corrections").click()
    visit.expect("#passing", "Learned 4 corrections")
    renamed = {"old": "constructor", "new": "toString"}
    tools.ask(service, f"/models/{quote(model)}/rename", renamed)
    group(visit, "class:toString").locator(".corrected").wait_for()
    for _ in range(2):
        revision = tools.ask(service, f"/models/{quote(model)}")["revision"]
        page.click("#undo")
        visit.page.wait_for_function(
            "() => document.querySelector('#passing').classList.contains('shown')"
        )
        page.wait_for_timeout(1000)
        assert revision
    group(visit, "class:__proto__").wait_for(state="detached")
    assert shown_classes(visit) == {tools.MALLARD, tools.ORIOLE}
    assert page.title() == f"{model} · evergrow"
    assert page.locator("main script, main img[src=x]").count() == 0
    assert (
        page.evaluate(
            "({}).polluted === undefined && Object.keys(Object.prototype).length"
        )
        == 0
    )


def test_five_hundred_images_are_there_again_after_a_reload(
    visit: Visit, service: str, birds: Path
) -> None:
    tools.teach_birds(service, "five", birds, [tools.MALLARD, tools.ORIOLE])
    page = visit.page
    visit.open("#/m/five")
    visit.tab("Sort")
    tools.drop_zip(page, {f"all/{i:03d}.png": png(i % 3, i) for i in range(500)})
    visit.expect(".sortbar", "500 images sorted")
    for _ in range(4):
        name = page.locator(".tile-image:not(.corrected)").first.get_attribute("title")
        move(visit, name or "", "New")
    before = tools.group_sizes(visit)
    n = before["New"]
    saved_soon(visit, 500)
    page.reload()
    page.go_forward()
    visit.tab("Sort")
    visit.expect(".sortbar", f"Teach {plural(n)}")
    assert tools.group_sizes(visit) == before
    page.get_by_role("button", name=re.compile("^Group")).first.wait_for()


def plural(n: int) -> str:
    return f"{n} correction{'' if n == 1 else 's'}"
