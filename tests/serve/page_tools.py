"""A fake camera and a real browser, for tests of the page."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.serve.running import Running
from tests.serve.samples import zipped

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
)
SCREENS = Path(__file__).parents[2] / "build" / "screens"
WIDTH = 320
HEIGHT = 240
RATE = 10
MARKS = {"none": (128, 128, 128), "first": (220, 40, 40), "second": (40, 40, 220)}
"""Colours of the corner of a frame, by which a test knows what is before the camera."""
MALLARD = "087.Mallard"
ORIOLE = "095.Baltimore_Oriole"
HUMMINGBIRD = "067.Anna_Hummingbird"


@contextmanager
def chromium(video: Path | None = None) -> Iterator[Any]:
    """Yield a browser whose camera shows a video, or skip if none is installed."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs a browser: pip install playwright"
    )
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip(f"needs a browser: {', '.join(NAMES)}")
    flags = [*FLAGS, *([f"--use-file-for-fake-video-capture={video}"] if video else [])]
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(
            executable_path=executable, headless=True, args=flags
        )
        yield started
        started.close()


def write_video(
    path: Path, segments: Sequence[tuple[str, Sequence[Path]]], seconds: float = 3.0
) -> Path:
    """Write a video for the fake camera.

    Each segment shows images in turn, with its mark in the corner.

    Parameters
    ----------
    path : Path
        A ``.y4m`` file; the browser plays it over and over.
    segments : sequence of (mark, paths)
        What is shown one after the other.
    seconds : float
        Length of each segment.
    """
    with open(path, "wb") as file:
        file.write(
            f"YUV4MPEG2 W{WIDTH} H{HEIGHT} F{RATE}:1 Ip A1:1 C420jpeg\n".encode()
        )
        for mark, images in segments:
            n = int(seconds * RATE)
            for i in range(n):
                file.write(b"FRAME\n" + _planes(images[i * len(images) // n], mark))
    return path


def _planes(image: Path, mark: str) -> bytes:
    with Image.open(image) as opened:
        frame = opened.convert("RGB").resize((WIDTH, HEIGHT))
    frame.paste(MARKS[mark], (0, 0, 16, 16))
    luma, blue, red = (np.asarray(band) for band in frame.convert("YCbCr").split())
    return luma.tobytes() + b"".join(band[::2, ::2].tobytes() for band in (blue, red))


CORNER = """() => {
    const video = document.querySelector('.stage video');
    if (!video || !video.videoWidth) return null;
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 1;
    const context = canvas.getContext('2d');
    const part = video.videoWidth / 40;
    context.drawImage(video, part / 4, part / 4, part / 2, part / 2, 0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""


class Visit:
    """The page in a browser window, with its console errors and requests.

    Parameters
    ----------
    browser : Browser
        Where to open it.
    address : str
        Of the service.
    width : int
        Of the window.
    scheme : {"light", "dark"}
        What the visitor's system prefers.
    tour : bool
        Whether it is the first visit.
    """

    def __init__(
        self,
        browser: Any,
        address: str,
        *,
        width: int = 1280,
        scheme: str = "light",
        tour: bool = False,
    ) -> None:
        self.address = address
        self.scheme = scheme
        size = {"width": width, "height": 900 if width > 600 else 844}
        self.context = browser.new_context(
            viewport=size,
            color_scheme=scheme,
            permissions=["camera"],
            accept_downloads=True,
        )
        if not tour:
            self.context.add_init_script(
                "localStorage.setItem('evergrow-tour', 'seen')"
            )
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        self.page.on("request", self._note_request)

    def _note(self, message: Any) -> None:
        if (
            message.type == "error" and "Failed to load resource" not in message.text
        ):  # a refused request is no mistake
            self.complaints.append(message.text)

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.elsewhere.append(request.url)

    def open(self, where: str = "") -> None:
        """Go to the page."""
        self.page.goto(f"{self.address}/{where}")

    def create(self, name: str, kind: str = "images") -> None:
        """Open the page, and make a model by the window for it."""
        page = self.page
        self.open()
        page.get_by_role("button", name="New model").click()
        page.get_by_label("Name", exact=True).fill(name)
        page.locator(f"input[name=kind][value={kind}]").check()
        page.get_by_role("button", name="Create").click()
        page.get_by_role("heading", name=name, exact=True).wait_for()

    def add_class(self, name: str) -> None:
        """Add an empty card."""
        self.page.get_by_label("Name of a new class").fill(name)
        self.page.locator(".adding button").click()
        self.card(name).wait_for()

    def teach(self, name: str, lines: str) -> None:
        """Type samples onto a card and teach them."""
        self.card(name).locator("textarea").fill(lines)
        self.card(name).get_by_role("button", name="Teach").click()

    def card(self, name: str) -> Any:
        """Return the card of a class."""
        return self.page.get_by_role("article", name=f"Class {name}", exact=True)

    def samples(self, name: str) -> int:
        """Return how many samples the card says the service has learned."""
        return int(self.card(name).locator(".numbers").inner_text().split()[0])

    def expect_samples(self, name: str, n: int) -> None:
        """Wait until the card says so."""
        self.card(name).locator(
            ".numbers", has_text=re.compile(rf"^{n} (image|text|row)s?\b")
        ).wait_for()

    def verdict(self, text: str) -> None:
        """Wait until the live answer is this."""
        self.page.locator(".verdict", has_text=text).wait_for()

    def tab(self, name: str) -> None:
        """Open a tab."""
        self.page.get_by_role("tab", name=name).click()

    def wait_for_mark(self, mark: str) -> None:
        """Wait until a segment of the video begins."""
        # Wait for another segment first, so that this one is shown from its start.
        for wanted in (False, True):
            self.page.wait_for_function(
                f"([mark, wanted]) => {{ const seen = ({CORNER})();"
                " const near = (value, i) => Math.abs(value - mark[i]) < 60;"
                " return seen && seen.every(near) === wanted; }",
                arg=[list(MARKS[mark]), wanted],
            )

    def hold(self, name: str, seconds: float = 1.5) -> None:
        """Hold the button of a card that records from the camera."""
        self.card(name).locator(".hold").click(delay=seconds * 1000)

    def menu(self, name: str, entry: str) -> None:
        """Choose from the menu of a card."""
        self.card(name).get_by_role("button", name="More about").click()
        self.page.get_by_role("menuitem", name=entry).click()

    def expect(self, selector: str, text: str = "") -> Any:
        """Wait until something with a text is shown, and return it."""
        found = self.page.locator(selector, has_text=text).first
        found.wait_for()
        return found

    def answer(self, *words: str, verb: str = "Continue") -> None:
        """Check the questions of a dialog, choose options after arrows, continue."""
        dialog = self.page.locator("dialog").last
        for word in words:
            asked, _, chosen = word.partition(" -> ")
            dialog.get_by_text(asked).first.wait_for()
            if chosen:
                dialog.get_by_text(chosen).click()
        dialog.get_by_role("button", name=verb, exact=True).click()

    def shot(self, view: str) -> None:
        """Keep a picture of the whole window for a reviewer, in ``build/screens``."""
        size = "phone"
        if self.page.viewport_size["width"] > 600:
            size = "desktop"
        SCREENS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENS / f"{view}-{size}-{self.scheme}.png")

    def close(self) -> None:
        """Close the window."""
        self.context.close()


# -- what the tests share --------------------------------------------------------------


@pytest.fixture(scope="module")
def birds(shared: Path) -> Path:
    return shared / "images" / "birds"


@pytest.fixture(scope="module")
def video(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    segments = [
        ("first", images(birds, "train", MALLARD)),
        ("second", images(birds, "train", ORIOLE)),
    ]
    return write_video(tmp_path_factory.mktemp("video") / "camera.y4m", segments)


@pytest.fixture(scope="module")
def browser(video: Path) -> Iterator[Any]:
    with chromium(video) as started:
        yield started


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Running(tmp_path_factory.mktemp("served") / "models") as running:
        yield running.address


@pytest.fixture
def visit(browser: Any, service: str) -> Iterator[Visit]:
    opened = Visit(browser, service)
    yield opened
    assert (opened.complaints, opened.elsewhere) == ([], [])
    opened.close()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, which finds accessibility problems."""
    places = [
        Path("node_modules"),
        Path(__file__).parents[2] / "examples" / "browser" / "node_modules",
    ]
    found = [place / "axe-core" / "axe.min.js" for place in places]
    if not any(path.is_file() for path in found):
        npm = shutil.which("npm")
        folder = tmp_path_factory.mktemp("axe")
        if npm is None:
            pytest.skip("needs axe-core: npm")
        installed = subprocess.run(
            [npm, "install", "--prefix", folder, "axe-core@4"],
            capture_output=True,
            timeout=120,
        )
        if installed.returncode:
            pytest.skip("needs axe-core: npm install axe-core")
        found = [folder / "node_modules" / "axe-core" / "axe.min.js"]
    return next(path for path in found if path.is_file()).read_text("utf-8")


def accessibility_problems(visit: Visit, axe: str) -> list[str]:
    """Return all violations that axe-core finds in the page as it is."""
    visit.page.evaluate(axe)
    found = visit.page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{one['impact']}: {one['id']}: {one['nodes'][0]['html'][:150]} "
        f"{one['nodes'][0]['any'][:1]}"
        for one in found
    ]


def images(birds: Path, part: str, name: str) -> list[Path]:
    return sorted((birds / part / name).iterdir())


def ask(address: str, path: str, values: Any = None) -> Any:
    """Ask the service without the page."""
    method = "GET" if values is None else "POST"
    answer = httpx.request(
        method, f"{address}/api/v1{path}", json=values, timeout=60, trust_env=False
    )
    return answer.raise_for_status().json()


def counts(address: str, model: str) -> dict[str, int]:
    return {
        entry["name"]: entry["samples"]
        for entry in ask(address, f"/models/{model}")["classes"]
    }


def rows(centre: int, n: int = 6) -> list[list[float]]:
    """Return rows of numbers around one of four corners."""
    noise = np.random.default_rng(centre).normal(size=(n, 4)) * 0.1
    return (np.eye(4)[centre] * 3 + noise).round(4).tolist()


def teach_birds(address: str, name: str, birds: Path, species: Sequence[str]) -> None:
    """Make a model of images that knows some species, through the service alone."""
    ask(address, "/models", {"name": name, "kind": "images"})
    for one in species:
        sent = [
            ("images", (path.name, path.read_bytes(), "image/jpeg"))
            for path in images(birds, "train", one)
        ]
        where = f"{address}/api/v1/models/{name}/teach"
        httpx.post(
            where, data={"label": one}, files=sent, timeout=60, trust_env=False
        ).raise_for_status()


def typed(centre: int, n: int = 6) -> str:
    return "\n".join(", ".join(map(str, row)) for row in rows(centre, n))


def make_taught(address: str, name: str, classes: int = 2) -> None:
    """Make a model of features through the service alone."""
    ask(
        address,
        "/models",
        {"name": name, "kind": "features", "options": {"n_units": 50}},
    )
    for i in range(classes):
        ask(address, f"/models/{name}/teach", {"rows": rows(i), "label": "abcd"[i]})


def open_taught(visit: Visit, name: str) -> Any:
    """Make a model of features that knows two classes, and open it on the page."""
    make_taught(visit.address, name)
    visit.open(f"#/m/{name}")
    return visit.page


def teach_new(visit: Visit, name: str, centre: int, n: int = 4) -> None:
    """Add a class on the page and type its samples."""
    visit.add_class(name)
    visit.teach(name, typed(centre, n))
    visit.expect_samples(name, n)


def two_species(birds: Path) -> list[tuple[str, int, bytes]]:
    found = (
        (species, enumerate(images(birds, "train", species)))
        for species in (MALLARD, ORIOLE)
    )
    return [
        (species, i, path.read_bytes()) for species, paths in found for i, path in paths
    ]


def drop_zip(page: Any, entries: dict[str, bytes]) -> None:
    """Drop a zip onto the page."""
    page.evaluate_handle(
        """async letters => {
            const transfer = new DataTransfer();
            const codeOf = (letter) => letter.charCodeAt(0);
            const bytes = Uint8Array.from(atob(letters), codeOf);
            transfer.items.add(new File([bytes], "birds.zip"));
            const drop = new DragEvent('drop', {dataTransfer: transfer, bubbles: true});
            document.querySelector("main").dispatchEvent(drop);
        }""",
        base64.b64encode(zipped(entries)).decode(),
    )


def group_sizes(visit: Visit) -> dict[str, int]:
    """Return the number of images in each group of Sort that has any."""
    shown = visit.page.locator(".group:not(.none)").evaluate_all(
        "groups => groups.map(group => [group.dataset.group,"
        " group.querySelector('.soft').textContent])"
    )
    return {name.removeprefix("class:"): int(n) for name, n in shown if n != "0"}


def sort_images(visit: Visit, model: str, paths: list[Path]) -> None:
    """Open a model and sort images with it."""
    visit.open(f"#/m/{model}")
    visit.tab("Sort")
    visit.page.set_input_files("#sort-files", paths)
    visit.expect(".sortbar", f"{len(paths)} images sorted")
