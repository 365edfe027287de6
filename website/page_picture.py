"""Take the pictures of the page, with ``python -m website.page_picture [suspects]``.

A service learns the first classes of the demo images. The picture in the README shows
the view Sort with other images of these classes, and with images of classes that were
never taught. The picture of suspects shows the page after an import with two images in
wrong folders. It needs a browser of playwright or an installed Chromium, and the extras ``serve``,
``client`` and ``bundled``.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from evergrow.serve.client import Client

PICTURE = Path(__file__).parents[1] / "docs" / "assets" / "page.png"

SUSPECTS = PICTURE.with_name("suspects.png")

WIDTH = 1280
HEIGHT = 1180
SUSPECTS_HEIGHT = 780
COLOURS = 128
MODEL = "shapes"
PER_CLASS = 3
"""Images per class that are sorted."""

MISPLACED = {"circle": "star", "heart": "moon"}
"""Classes of which an image is in the folder of another class, in the second picture."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
COMMAND = (sys.executable, "-m", "evergrow")


@contextmanager
def running_service(folder: Path) -> Iterator[str]:
    """Yield the address of a service on a folder of models."""
    command = [*COMMAND, "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        try:
            yield first_line.split()[-1].rstrip("/")
        finally:
            process.terminate()


def teach_demo(address: str, pictures: Path) -> None:
    """Make a model of the classes in the folders ``first`` and ``later``."""
    paths = sorted([*pictures.glob("first/*/*"), *pictures.glob("later/*/*")])
    with Client(address) as client:
        client.create(MODEL, "images")
        client.teach(MODEL, images=paths, labels=[path.parent.name for path in paths])


def take_picture(address: str, pictures: Path) -> None:
    """Sort images of known and unknown classes on the page, and take a picture."""
    from playwright.sync_api import sync_playwright

    heap = []
    for folder in sorted([*pictures.glob("test/*"), *pictures.glob("unknown/*")]):
        heap += sorted(folder.iterdir())[:PER_CLASS]
    files = [_upload(path, number) for number, path in enumerate(heap)]
    with sync_playwright() as playwright:
        browser = _launch(playwright)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"{address}/#/m/{MODEL}")
        page.get_by_role("tab", name="Sort").click()
        page.set_input_files("#sort-files", files)
        page.locator(".sortbar", has_text=f"{len(heap)} images sorted").wait_for()
        page.locator(".estimate", has_text="images").wait_for()
        page.wait_for_timeout(1000)  # until thumbnails are drawn
        shot = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    shot.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)


def take_suspects_picture(address: str, pictures: Path) -> None:
    """Import folders with two misplaced images on the page, and take a picture."""
    from playwright.sync_api import sync_playwright

    folder = pictures / "first"
    for source, target in MISPLACED.items():
        image = sorted((folder / source).iterdir())[0]
        image.rename(folder / target / f"0 {source}.png")  # before those set aside
    with Client(address) as client:
        client.create(MODEL, "images")
    with sync_playwright() as playwright:
        browser = _launch(playwright)
        page = browser.new_page(viewport={"width": WIDTH, "height": SUSPECTS_HEIGHT})
        page.add_init_script("localStorage.setItem('evergrow-tour', 'seen')")
        page.goto(f"{address}/#/m/{MODEL}")
        page.set_input_files("#import-folder", folder)
        page.get_by_role("region", name="Labels that look wrong").wait_for()
        page.wait_for_timeout(10_000)  # until the message about the import is gone
        shot = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    shot.convert("RGB").quantize(COLOURS).save(SUSPECTS, optimize=True)


def _launch(playwright: Any) -> Any:
    """Return a browser."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    return playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])


def _upload(path: Path, number: int) -> dict[str, Any]:
    """Return a file as playwright chooses it in a dialog."""
    return {
        "name": f"photo {number:03}.png",
        "mimeType": "image/png",
        "buffer": path.read_bytes(),
    }


def main() -> None:
    """Take a picture, with the files of the service in a temporary folder."""
    is_suspects = sys.argv[1:] == ["suspects"]
    with tempfile.TemporaryDirectory() as folder:
        pictures = Path(folder, "pictures")
        demo = [*COMMAND, "demo", "--pictures", str(pictures)]
        subprocess.run(demo, check=True, stdout=subprocess.DEVNULL)
        with running_service(Path(folder, "models")) as address:
            if is_suspects:
                take_suspects_picture(address, pictures)
            else:
                teach_demo(address, pictures)
                take_picture(address, pictures)


if __name__ == "__main__":
    main()
