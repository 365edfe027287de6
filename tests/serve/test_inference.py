"""The Open Inference Protocol in JSON."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from tests.serve.samples import png, rows


def infer(api: Any, values: Any, model: str = "m") -> Any:
    return api.client.post(f"/v2/models/{model}/infer", json=values)


def tensor(X: Any, datatype: str = "FP64", name: str = "features") -> dict[str, Any]:
    array = np.asarray(X)
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.tolist()}


def test_health_and_metadata(api: Any) -> None:
    api.taught("abc", 4)
    api.create("new")
    client = api.client
    assert client.get("/v2").json()["extensions"] == []
    assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
    assert client.get("/v2/models/m/ready").status_code == 200
    assert client.get("/v2/models/new/ready").status_code == 409
    assert client.get("/v2/models/none/ready").status_code == 404
    about = client.get("/v2/models/m/versions/4").json()
    assert about["inputs"] == [{"name": "features", "datatype": "FP64", "shape": [-1, 6]}]
    assert {entry["name"] for entry in about["outputs"]} == {"label", "probabilities", "novelty", "unknown", "classes"}
    assert client.get("/v2/models/m/versions/3").status_code == 404


def test_answers_are_those_of_predict(api: Any) -> None:
    api.taught("abc", 4)
    X = rows(0, 2, seed=4) + rows(2, 1, seed=4)
    told = infer(api, {"id": "7", "inputs": [tensor(X)]}).json()
    outputs = {entry["name"]: entry for entry in told["outputs"]}
    answers = api.post("predict", {"rows": X, "k": 3}).json()["answers"]
    assert outputs["label"]["data"] == [answer["label"] for answer in answers]
    assert outputs["probabilities"]["shape"] == [3, 3]
    probabilities = np.reshape(outputs["probabilities"]["data"], (3, 3))
    assert probabilities.max(axis=1) == pytest.approx([answer["top"][0]["value"] for answer in answers])
    assert outputs["unknown"]["data"] == [answer["unknown"] for answer in answers]
    assert (told["id"], told["model_version"]) == ("7", "4")


def test_images_as_files_or_pixels_and_texts(api: Any) -> None:
    api.taught_images()
    data = [base64.b64encode(png(1, 9)).decode()]
    told = infer(api, {"inputs": [{"name": "images", "datatype": "BYTES", "shape": [1], "data": data}]}, "pics")
    assert told.json()["outputs"][0]["data"] == ["1"]
    from tests.learner.toys import image

    told = infer(api, {"inputs": [tensor([image(0, 77)], "UINT8", "images")]}, "pics")
    assert told.json()["outputs"][0]["data"] == ["0"]
    api.create("words", "texts", backbone="letters")
    for text in ("abab", "xyxy"):
        api.post("teach", {"texts": [text, text * 2], "label": text}, model="words")
    words = {"name": "texts", "datatype": "BYTES", "shape": [2, 1], "data": [["xxy"], ["ba"]]}
    assert infer(api, {"inputs": [words]}, "words").json()["outputs"][0]["data"] == ["xyxy", "abab"]


BAD: tuple[Any, ...] = (
    {},
    {"inputs": []},
    {"inputs": [1]},
    {"inputs": [tensor(rows(0, 1)), tensor(rows(0, 1))]},
    {"inputs": [{"name": "x", "datatype": [], "shape": [1], "data": [1]}]},
    {"inputs": [{"name": "x", "datatype": "FP99", "shape": [1], "data": [1]}]},
    {"inputs": [{"name": "x", "datatype": "FP64", "shape": [2, 6], "data": [1]}]},
    {"inputs": [{"name": "x", "datatype": "FP64", "shape": [-1], "data": []}]},
    {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 6], "data": ["a"] * 6}]},
    {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 6], "data": [-1] * 6}]},
    {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]},
    {"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 6], "data": [True] * 6}]},
    {"inputs": [tensor(rows(0, 1))], "outputs": [{"name": "nothing"}]},
    {"inputs": [tensor(rows(0, 1))], "parameters": {"false_alarm": 2}},
    {"inputs": [tensor([[1.0, 2.0]])]},
)


def test_requests_that_are_wrong_say_so_under_error(api: Any) -> None:
    api.taught("abc", 4)
    for values in BAD:
        answer = infer(api, values)
        assert answer.status_code == 422, values
        assert answer.json()["error"] == answer.json()["detail"]
    assert infer(api, {"inputs": [tensor(rows(0, 1))]}, "none").status_code == 404
    headers = {"Inference-Header-Content-Length": "2"}
    assert api.client.post("/v2/models/m/infer", content=b"{}abcd", headers=headers).status_code == 415
    assert api.client.post("/v2/models/m/infer", content=b"{").status_code == 400
