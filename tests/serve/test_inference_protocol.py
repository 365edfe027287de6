"""The Open Inference Protocol (V2), as clients of KServe, Triton and Seldon send it."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import image
from tests.serve.samples import files, png, rows

from evergrow.serve.config import Tokens

STRANGE = [200.0] * 6


def tensor(X: Any, datatype: str = "FP64", **members: Any) -> dict[str, Any]:
    X = np.asarray(X)
    given = {"name": "x", "shape": list(X.shape), "datatype": datatype}
    return {**given, "data": X.tolist(), **members}


def infer(
    api: Any, inputs: Any, *, model: str = "m", path: str = "", **members: Any
) -> Any:
    body = {"inputs": [inputs], **members}
    return api.client.post(f"/v2/models/{model}{path}/infer", json=body)


def infer_binary(
    api: Any, given: dict[str, Any], binary: bytes, model: str = "m", **members: Any
) -> Any:
    """Send a tensor as the Triton client does: bytes after the JSON."""
    parameters = {"binary_data_size": len(binary)}
    head = json.dumps({"inputs": [{**given, "parameters": parameters}], **members})
    return api.client.post(
        f"/v2/models/{model}/infer",
        content=head.encode() + binary,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )


def outputs(answer: Any) -> dict[str, list[Any]]:
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


def element(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def test_health_and_server_metadata_have_the_members_of_the_protocol(api: Any) -> None:
    for path in ("/v2", "/v2/"):
        server = api.client.get(path).json()
        assert server["name"] == "evergrow"
        assert isinstance(server["version"], str)
        assert server["extensions"] == ["binary_tensor_data"]
    assert api.client.get("/v2/health/live").json() == {"live": True}
    assert api.client.get("/v2/health/ready").json() == {"ready": True}


def test_a_model_is_ready_once_it_has_a_class(api: Any) -> None:
    api.create()
    starting = api.client.get("/v2/models/m/ready")
    assert starting.status_code == 409
    assert "no class yet" in starting.json()["error"]
    api.post("teach", {"rows": rows(0, 3), "label": "a"})
    ready = api.client.get("/v2/models/m/ready")
    assert (ready.status_code, ready.json()) == (200, {"name": "m", "ready": True})


def test_model_metadata_names_inputs_and_outputs(api: Any) -> None:
    api.taught()
    api.taught_images()
    told = api.client.get("/v2/models/m").json()
    assert told["name"] == "m"
    assert told["versions"] == ["3"]
    assert told["platform"] == "evergrow_evg"
    assert told["inputs"] == [{"name": "rows", "datatype": "FP64", "shape": [-1, 6]}]
    named = {output["name"]: output["datatype"] for output in told["outputs"]}
    found = infer(api, tensor(rows(0, 2))).json()["outputs"]
    assert {output["name"]: output["datatype"] for output in found} == named
    measured = ["probability", "novelty", "unknown", "unsure"]
    assert list(named) == ["label", "nearest", *measured]
    (pictures,) = api.client.get("/v2/models/pics").json()["inputs"]
    assert pictures == {"name": "images", "datatype": "BYTES", "shape": [-1]}


def test_outputs_equal_those_of_predict(api: Any) -> None:
    api.taught("abc", 8)
    X = [*rows(0, 3, seed=3), STRANGE]
    expected = api.post("predict", {"rows": X, "false_alarm": 0.2}).json()["answers"]
    found = outputs(infer(api, tensor(X), parameters={"false_alarm": 0.2}))
    assert found["label"] == [answer["label"] or "" for answer in expected]
    assert found["nearest"] == [answer["nearest"]["class"] for answer in expected]
    assert found["probability"] == [answer["nearest"]["value"] for answer in expected]
    assert found["novelty"] == [answer["novelty"] for answer in expected]
    assert found["unknown"] == [answer["unknown"] for answer in expected]
    assert found["unknown"][3] is True
    assert found["label"][3] == ""


def test_a_model_of_one_class_has_familiarity_in_place_of_probability(
    api: Any,
) -> None:
    api.taught("a", 12)
    told = api.client.get("/v2/models/m").json()["outputs"]
    names = [output["name"] for output in told]
    assert names == ["label", "nearest", "familiarity", "novelty", "unknown", "unsure"]
    X = [*rows(0, 5, seed=3), STRANGE]
    found = outputs(infer(api, tensor(X)))
    assert list(found) == names
    told = api.post("predict", {"rows": X}).json()
    assert told["measure"] == "familiarity"
    assert found["familiarity"] == [one["familiarity"] for one in told["answers"]]
    assert found["familiarity"][-1] < 0.05
    assert found["unsure"] == [one["unsure"] for one in told["answers"]]


def test_unsure_equals_that_of_predict_for_every_strictness(api: Any) -> None:
    api.taught("abc", 20)
    X = [*rows(0, 30, seed=3), *(np.asarray(rows(1, 6, seed=4)) * 2).tolist(), STRANGE]
    n_unsure = []
    for strangers in ("few", "some", "many"):
        body = {"rows": X, "strangers": strangers}
        expected = [a["unsure"] for a in api.post("predict", body).json()["answers"]]
        answer = infer(api, tensor(X), parameters={"strangers": strangers})
        assert outputs(answer)["unsure"] == expected
        assert expected[-1] is True
        n_unsure.append(sum(expected))
    assert n_unsure[0] < n_unsure[2]
    usual = outputs(infer(api, tensor(X)))["unsure"]
    assert sum(usual) == n_unsure[1]
    wrong = infer(api, tensor(X), parameters={"strangers": "lots"})
    assert wrong.status_code == 400
    assert "strangers must be few, some or many" in wrong.json()["error"]


def test_responses_have_id_model_version_and_requested_outputs(api: Any) -> None:
    api.taught()
    asked = [{"name": "unknown"}, {"name": "label", "parameters": {"x": 1}}]
    X = tensor(rows(0, 2))
    told = infer(api, X, id="42", outputs=asked, model_name="m").json()
    assert told["id"] == "42"
    assert (told["model_name"], told["model_version"]) == ("m", "3")
    assert [output["name"] for output in told["outputs"]] == ["unknown", "label"]
    assert all(output["shape"] == [2] for output in told["outputs"])
    assert "id" not in infer(api, X, id=None, parameters=None, outputs=None).json()


def test_only_the_current_version_is_served(api: Any) -> None:
    api.taught()
    X = tensor(rows(0, 2))
    for path in ("", "/ready"):
        assert api.client.get(f"/v2/models/m/versions/3{path}").status_code == 200
        old = api.client.get(f"/v2/models/m/versions/2{path}")
        assert old.status_code == 404
        assert "has version 3 only" in old.json()["error"]
    assert infer(api, X, path="/versions/3").status_code == 200
    assert infer(api, X, path="/versions/2").status_code == 404


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_flat_nested_and_binary_tensors_give_the_same_outputs(
    api: Any, datatype: str
) -> None:
    api.taught("abc", 5)
    X = np.asarray(rows(1, 3), dtype=np.float32)
    nested = outputs(infer(api, tensor(X, datatype)))
    flat = outputs(infer(api, tensor(X, datatype, data=X.ravel().tolist())))
    given = {"name": "x", "shape": [3, 6], "datatype": datatype}
    dtype = {"FP32": "<f4", "FP64": "<f8"}[datatype]
    binary = outputs(infer_binary(api, given, X.astype(dtype).tobytes()))
    assert nested == flat == binary


def test_outputs_are_binary_if_requested(api: Any) -> None:
    api.taught("abc", 5)
    X = rows(1, 3)
    expected = outputs(infer(api, tensor(X)))
    asked = {"binary_data_output": True}
    told = infer(api, tensor(X), parameters=asked)
    assert told.headers["content-type"] == "application/octet-stream"
    length = int(told.headers["inference-header-content-length"])
    described = json.loads(told.content[:length])["outputs"]
    binary = told.content[length:]
    found: dict[str, Any] = {}
    for output in described:
        size = output["parameters"]["binary_data_size"]
        assert "data" not in output
        found[output["name"]] = binary[:size]
        binary = binary[size:]
    assert binary == b""
    probability = np.frombuffer(found["probability"], "<f8")
    assert probability.tolist() == expected["probability"]
    assert np.frombuffer(found["unknown"], "?").tolist() == expected["unknown"]
    assert found["label"] == b"".join(
        element(label.encode()) for label in expected["label"]
    )


def test_images_are_files_in_base64_or_binary_or_pixels(api: Any) -> None:
    api.taught_images()
    sent = [png(0, 7), png(1, 8)]
    told = api.post("predict", model="pics", files=files(0, 1, 5)).json()
    assert told["answers"][0]["nearest"]["class"] == "0"
    encoded = [base64.b64encode(data).decode() for data in sent]
    as_text = infer(api, tensor(encoded, "BYTES"), model="pics")
    given = {"name": "x", "shape": [2], "datatype": "BYTES"}
    as_bytes = infer_binary(api, given, b"".join(map(element, sent)), "pics")
    pixels = np.stack([image(0, 7), image(1, 8)])
    as_pixels = infer(api, tensor(pixels, "UINT8"), model="pics")
    shape = list(pixels.shape)
    given = {"name": "x", "shape": shape, "datatype": "UINT8"}
    as_raw_pixels = infer_binary(api, given, pixels.tobytes(), "pics")
    expected = outputs(as_text)
    assert expected["nearest"] == ["0", "1"]
    for answer in (as_bytes, as_pixels, as_raw_pixels):
        assert outputs(answer) == expected


def test_texts_are_bytes_of_shape_n_or_n_1(api: Any) -> None:
    api.taught_texts({"ab": "abba baab aba", "xyz": "xyz zyx yxz"})
    texts = np.array(["zzyyx", "bab"])
    expected = outputs(infer(api, tensor(texts, "BYTES"), model="words"))
    assert expected["nearest"] == ["xyz", "ab"]
    column = infer(api, tensor(texts[:, None], "BYTES"), model="words")
    assert outputs(column) == expected
    given = {"name": "x", "shape": [2], "datatype": "BYTES"}
    binary = b"".join(element(text.encode()) for text in texts.tolist())
    assert outputs(infer_binary(api, given, binary, "words")) == expected


BAD_TENSORS: tuple[tuple[dict[str, Any], str], ...] = (
    (tensor([[1.0] * 6], shape=[2, 6]), "12 elements by its shape, got 6"),
    (tensor([[1.0] * 6], shape=[2**62, 2]), "elements by its shape, got 6"),
    (tensor([1.0] * 6), "must have the shape [samples, features]"),
    (tensor([[1.0, 2.0]]), "6 columns"),
    (tensor([[1.0] * 6], data=[[1.0], [1.0, 2.0]]), "must be flat or have the shape"),
    (tensor([["1"] * 6]), "must be numbers"),
    (tensor([[None] * 6]), "must be numbers"),
    (tensor([[1e300] * 6], "FP32"), "must be values of FP32"),
    (tensor([[1.5] * 6], "UINT8"), "must be values of UINT8"),
    (tensor([[-1] * 6], "UINT64"), "must be values of UINT64"),
    (tensor([[300] * 6], "INT8"), "must be values of INT8"),
    (tensor(["a"], "BYTES"), "must be a tensor of numbers"),
    (tensor(np.zeros((0, 6))), "at least one sample"),
    (tensor([[1.0] * 6], "BF16"), "datatype"),
    (tensor([[1.0] * 6], shape=[-1, 6]), "shape"),
    (tensor([[1.0] * 6], data=None), "either data, or the parameter"),
    (tensor([[1.0] * 6], parameters={"binary_data_size": 8}), "either data, or"),
    (tensor(np.zeros((1, 2, 2, 3), int), "UINT8"), "rows must be given alone"),
)


@pytest.mark.parametrize(("given", "message"), BAD_TENSORS)
def test_tensors_that_do_not_fit_are_rejected(
    api: Any, given: dict[str, Any], message: str
) -> None:
    api.taught()
    refused = infer(api, given)
    assert refused.status_code == 400
    assert list(refused.json()) == ["error"]
    assert message in refused.json()["error"]


BAD_IMAGES: tuple[tuple[dict[str, Any], str], ...] = (
    (tensor(["a!"], "BYTES"), "in base64"),
    (tensor([1], "BYTES"), "in base64"),
    (tensor(["Zm9v"], "BYTES"), "x[0]"),
    (tensor(["Zm9v", "Zm9v"], "BYTES", shape=[1]), "1 elements by its shape, got 2"),
    (tensor([["Zm9v", "Zm9v"]], "BYTES"), "must have the shape [samples]"),
    (tensor(np.zeros((1, 2, 2, 4), int), "UINT8"), "height, width, 3]"),
    (tensor(np.zeros((1, 0, 2, 3), int), "UINT8"), "x[0]"),
)


@pytest.mark.parametrize(("given", "message"), BAD_IMAGES)
def test_images_that_do_not_fit_are_rejected(
    api: Any, given: dict[str, Any], message: str
) -> None:
    api.taught_images()
    refused = infer(api, given, model="pics")
    assert refused.status_code == 400
    assert message in refused.json()["error"]


@pytest.mark.parametrize(
    ("shape", "datatype", "binary", "message"),
    [
        ([1], "BYTES", b"\x01", "end within a length"),
        ([1], "BYTES", b"\xff\xff\xff\xff", "end within an element"),
        ([2], "BYTES", element(b"a"), "2 elements by its shape, got 1"),
        ([1], "BYTES", element(b"\xff"), "texts in UTF-8"),
        ([1], "BYTES", element(b""), "at least 1 character"),
        ([1, 1], "FP32", b"abc", "4 bytes per element"),
    ],
)
def test_binary_tensors_that_do_not_fit_are_rejected(
    api: Any, shape: list[int], datatype: str, binary: bytes, message: str
) -> None:
    api.taught_texts({"ab": "abba", "xy": "xyxy"})
    given = {"name": "x", "shape": shape, "datatype": datatype}
    refused = infer_binary(api, given, binary, "words")
    assert refused.status_code == 400
    assert message in refused.json()["error"]


def test_bodies_that_are_not_of_the_protocol_are_rejected(api: Any) -> None:
    api.taught()
    path = "/v2/models/m/infer"
    X = tensor(rows(0, 1))
    kind = {"Content-Type": "application/json"}
    bad: list[dict[str, Any]] = [
        {"content": b"{", "headers": kind},
        {"json": []},
        {"json": {}},
        {"json": {"inputs": []}},
        {"json": {"inputs": [X, X]}},
        {"json": {"inputs": [X], "outputs": [{"name": "lable"}]}},
        {"json": {"inputs": [X], "parameters": {"false_alarm": 1.0}}},
        {"json": {"inputs": [X], "parameters": {"false_alarm": "0.1"}}},
        {"json": {"inputs": [X], "parameters": {"deep": {}}}},
        {"content": b"{}", "headers": {"Inference-Header-Content-Length": "9"}},
        {"content": b"{}", "headers": {"Inference-Header-Content-Length": "-1"}},
        {"content": b"{}", "headers": {"Inference-Header-Content-Length": "0"}},
    ]
    for sent in bad:
        refused = api.client.post(path, **sent)
        assert refused.status_code == 400, sent
        assert list(refused.json()) == ["error"]
    typo = {"inputs": [X], "outputs": [{"name": "lable"}]}
    assert "request 'label'" in api.client.post(path, json=typo).json()["error"]
    form = api.client.post(path, data={"a": "b"})
    assert (form.status_code, list(form.json())) == (415, ["error"])


def test_all_errors_have_the_document_of_the_protocol(serve: Any) -> None:
    tokens = Tokens.parse("read 0123456789abcdef anna", "tokens")
    api = serve(tokens=tokens)
    reader = {"Authorization": "Bearer 0123456789abcdef"}
    for path in ("/v2", "/v2/health/live", "/v2/health/ready"):
        assert api.client.get(path).status_code == 200
    cases = [
        ("GET", "/v2/models/m", {}, 401),
        ("GET", "/v2/models/none", reader, 404),
        ("POST", "/v2/models/none/infer", reader, 404),
        ("GET", "/v2/nowhere", reader, 404),
        ("PUT", "/v2", reader, 405),
        ("POST", "/v2/models/none/infer", {**reader, "Origin": "http://x"}, 403),
    ]
    for method, path, headers, status in cases:
        refused = api.client.request(method, path, headers=headers)
        assert (refused.status_code, list(refused.json())) == (status, ["error"]), path


def test_requests_have_the_limits_of_other_routes(serve: Any) -> None:
    api = serve({"samples": 3, "json_values": 1000, "json_bytes": 1000})
    api.taught()
    X = [[0.0] * 6] * 4
    many = infer(api, tensor(X))
    assert (many.status_code, "at most 3 samples" in many.text) == (413, True)
    wide = infer(api, tensor(np.zeros((1, 1001))))
    assert (wide.status_code, "1,000 values" in wide.text) == (413, True)
    long = infer(api, tensor([[0.0] * 6], x="a" * 8000))
    assert (long.status_code, "8,000 bytes" in long.text) == (413, True)
    given = {"name": "x" * 8000, "shape": [1, 6], "datatype": "FP64"}
    head = infer_binary(api, given, bytes(48))
    assert (head.status_code, "8,000 bytes" in head.text) == (413, True)


def test_binary_tensors_count_towards_the_memory_budget(serve: Any) -> None:
    api = serve({"unpacked_bytes": 100})
    api.taught()
    given = {"name": "x", "shape": [3, 6], "datatype": "UINT8"}
    refused = infer_binary(api, given, bytes(18))
    assert refused.status_code == 413
    service = api.client.app.state.service
    given["shape"] = [1, 6]
    assert infer_binary(api, given, bytes(6)).status_code == 200
    assert service.memory.held == 0
