"""The route that explains a prediction: pictures, words, and hostile requests."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.serve.conftest import backbones
from tests.serve.samples import files, png, rows

from evergrow import Learner
from evergrow.features import decode_image


def explained(api: Any, data: bytes, **fields: str) -> Any:
    sent = [("images", ("a.png", data, "image/png"))]
    return api.post("explain", model="pics", files=sent, data=fields)


def picture(answer: Any) -> Image.Image:
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(base64.b64decode(answer.json()["picture"])))


def test_an_image_gets_a_picture_of_its_evidence(api: Any) -> None:
    api.taught_images()
    answer = explained(api, png(1, 50))
    found = picture(answer)
    assert (found.format, found.size) == ("PNG", (24, 24))
    told = answer.json()
    assert (told["label"], told["against"], told["words"]) == ("1", None, None)
    assert told["score"] > 0
    other = explained(api, png(1, 50), why="0", against="1").json()
    assert (other["label"], other["against"]) == ("0", "1")
    assert other["score"] < 0


def test_the_picture_equals_that_of_the_library(api: Any, folder: Any) -> None:
    api.taught_images()
    data = png(0, 51)
    backbone = backbones()["colours"]
    learner = Learner.load(folder / "pics.evg", backbone=backbone, device="cpu")
    image = decode_image(data)
    expected = learner.explain(image, "1").overlay(image)
    shown = picture(explained(api, data, why="1"))
    np.testing.assert_allclose(
        np.asarray(shown).astype(int), np.asarray(expected).astype(int), atol=2
    )
    assert np.ptp(np.asarray(shown).astype(int), axis=2).max() > 0


def test_the_side_bounds_the_picture(api: Any) -> None:
    api.taught_images()
    buffer = io.BytesIO()
    Image.fromarray(np.full((300, 600, 3), 90, np.uint8)).save(buffer, "PNG")
    assert picture(explained(api, buffer.getvalue(), side="100")).size == (100, 50)
    for side in ("15", "2049", "-1", "x"):
        assert explained(api, buffer.getvalue(), side=side).status_code == 422


@pytest.mark.parametrize(
    "fields", [{"why": "7"}, {"against": "7"}, {"why": "0", "against": "0"}]
)
def test_unknown_or_equal_classes_are_refused(api: Any, fields: dict[str, str]) -> None:
    api.taught_images()
    refused = explained(api, png(0, 1), **fields)
    assert refused.status_code == 422
    assert "class" in refused.json()["detail"]


def test_hostile_images_are_refused(serve: Any) -> None:
    api = serve({"pixels": 10_000})
    api.taught_images()
    assert explained(api, b"no image").status_code == 422
    assert explained(api, b"").status_code == 422
    assert explained(api, png(0, 1)[:200]).status_code == 422
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((101, 100, 3), np.uint8)).save(buffer, "PNG")
    refused = explained(api, buffer.getvalue())
    assert refused.status_code in (413, 422)
    assert "pixels" in refused.json()["detail"]


def test_anything_but_one_image_is_refused(api: Any) -> None:
    api.taught_images()
    two = api.post("explain", model="pics", files=files(0, 2))
    assert two.status_code == 422
    assert "one image or text" in two.json()["detail"]
    vector = api.post("explain", {"rows": [[0.5] * 27]}, model="pics")
    assert vector.status_code == 422
    assert api.post("explain", {"texts": ["a"]}, model="pics").status_code == 422
    assert api.post("explain", {}, model="pics").status_code == 422


def test_models_without_positions_classes_or_gradients_say_so(api: Any) -> None:
    api.taught("ab")
    vector = api.post("explain", {"rows": rows(0, 1)})
    assert vector.status_code == 422
    api.create("pics", "images", backbone="colours")
    assert explained(api, png(0, 1)).status_code == 409
    api.post("teach", model="pics", data={"label": "0"}, files=files(0, 3))
    refused = explained(api, png(0, 1))
    assert refused.status_code == 422
    assert "second class" in refused.json()["detail"]
    api.taught_texts({"ab": "abab", "xy": "xyxy"})
    refused = api.post("explain", {"texts": ["abx"]}, model="words")
    assert refused.status_code == 422
    assert "gradients" in refused.json()["detail"]
    long = api.post("explain", {"texts": ["a" * 30_000]}, model="words")
    assert long.status_code == 422


def test_a_read_only_service_explains(serve: Any) -> None:
    serve().taught_images()
    assert picture(explained(serve(read_only=True), png(0, 1))).size == (24, 24)
