"""Every response has a schema and an example, and real responses fit both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serve.running import until
from tests.serve.samples import files, png, rows, zipped
from tests.test_docs import DOCS, blocks

from evergrow.serve.examples import EXAMPLES

JSON = "application/json"
LIKE_OTHERS = {"JobList", "KeptEvaluation"}
"""Responses that the manual describes by those of other routes."""


def responses(document: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Yield method, path and status of each response without an error, and content."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if status.startswith("2"):
                    yield method, path, status, response.get("content", {})


def check(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> None:
    """Check a value against a schema. Members that the schema lacks are errors."""
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")
    schemas = {
        name: {**entry, "additionalProperties": False}
        if entry.get("properties")
        else entry
        for name, entry in document["components"]["schemas"].items()
    }
    jsonschema.validate(value, {**schema, "components": {"schemas": schemas}})


def test_every_json_response_has_a_named_schema_and_a_complete_example(
    api: Any,
) -> None:
    document = api.client.get("/openapi.json").json()
    n_examples = 0
    for method, path, status, content in responses(document):
        if JSON not in content:
            assert status == "204" or content, (method, path)
            continue
        example = content[JSON]["example"]
        schema = content[JSON]["schema"]
        check(example, schema, document)
        name = schema["$ref"].rpartition("/")[2]
        members = document["components"]["schemas"][name]["properties"]
        assert set(example) == set(members), (method, path)
        n_examples += 1
    assert n_examples >= 35
    metrics = document["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert metrics["text/plain"]["example"].startswith("evergrow_samples_total{")


def test_no_example_is_unused(api: Any) -> None:
    document = api.client.get("/openapi.json").json()
    used = {
        content[JSON]["schema"]["$ref"].rpartition("/")[2]
        for *_, content in responses(document)
        if JSON in content
    }
    assert set(EXAMPLES) == used


def test_the_manual_shows_the_example_of_every_response() -> None:
    shown = [
        json.loads(body)
        for language, body in blocks("reference/http.md")
        if language == "json"
    ]
    expected = [value for name, value in EXAMPLES.items() if name not in LIKE_OTHERS]
    for example in expected:
        assert example in shown
    assert len(shown) == len(expected)


def test_requests_of_the_manual_succeed_in_their_order(api: Any) -> None:
    page = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
    requests = re.findall(r"^\| `POST (\S+)` \| `(\{.*\})` \|$", page, re.MULTILINE)
    for path, body in requests:
        address = path.replace("...", "/api/v1/models/birds")
        response = api.client.post(address, json=json.loads(body))
        assert response.is_success, (path, response.text)
    assert len(requests) == 17


class Checked:
    """Sends requests and checks their responses against the description."""

    def __init__(self, api: Any) -> None:
        self.client = api.client
        self.document = api.client.get("/openapi.json").json()
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, method: str, path: str, model: str = "m", **content: Any) -> Any:
        place = path.replace("{m}", model)
        response = self.client.request(method, place, **content)
        assert response.is_success, response.text
        operation = self.document["paths"][path][method.lower()]
        described = operation["responses"][str(response.status_code)]["content"]
        check(response.json(), described[JSON]["schema"], self.document)
        self.seen.add((method, path))
        return response.json()


def test_real_responses_fit_their_schemas(api: Any) -> None:
    call = Checked(api)
    base = "/api/v1/models/{m}"
    new = {"name": "m", "kind": "features", "options": {"n_units": 20}}
    call("POST", "/api/v1/models", json=new)
    for kind, label in enumerate(["gull", "tern", "owl"]):
        call("POST", f"{base}/teach", json={"rows": rows(kind, 12), "label": label})
    unlike = [[200.0 + n] * 6 for n in range(4)]
    X = [*rows(0, 20, seed=4), *rows(1, 20, seed=4), *unlike]
    labels = ["gull"] * 20 + ["owl"] * 20 + ["heron"] * 4
    call("GET", "/api/v1/models")
    call("GET", "/api/v1/backbones")
    call("GET", base)
    call("POST", f"{base}/predict", json={"rows": X})
    call("POST", f"{base}/evaluate", json={"rows": X, "labels": labels})
    call("POST", f"{base}/suggest", json={"rows": X})
    call("POST", f"{base}/groups", json={"rows": X})
    call("POST", f"{base}/drift", json={"rows": X[:40]})
    scored = {"samples": [{"novelty": 0.5, "probability": 0.9}]}
    call("POST", f"{base}/strictness", json=scored)
    samples = {"rows": X[:40], "labels": ["gull"] * 20 + ["tern"] * 20}
    call("POST", f"{base}/learning-curve", json=samples)
    taught = {"rows": rows(0, 12), "label": "gull"}
    call("POST", f"{base}/suspects", json=taught)
    call("POST", f"{base}/blame", json=taught)
    moved = {"rows": rows(1, 12)[:1], "source": "tern", "target": "gull"}
    call("POST", f"{base}/relabel", json=moved)
    call("POST", f"{base}/unlearn", json={"rows": rows(0, 12)[:2], "label": "gull"})
    call("POST", f"{base}/learn-unlabelled", json={"rows": rows(0, 8, seed=7)})
    call("POST", f"{base}/forget-unlabelled", json={})
    call("POST", f"{base}/rename", json={"old": "owl", "new": "barn owl"})
    merged = {"names": ["gull", "tern"], "into": "seabird"}
    call("POST", f"{base}/merge-classes", json=merged)
    call("POST", f"{base}/forget", json={"names": ["barn owl"]})
    call("POST", f"{base}/rollback", json={})
    call("POST", f"{base}/redo", json={})
    tensor = {"name": "x", "shape": [2, 6], "datatype": "FP64", "data": rows(0, 2)}
    call("POST", "/v2/models/{m}/infer", json={"id": "1", "inputs": [tensor]})
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/health"):
        call("GET", path)
    call("GET", "/v2/models/{m}")
    call("GET", "/v2/models/{m}/ready")
    assert len(call.seen) == 30


def test_real_responses_of_models_of_images_and_texts_fit_their_schemas(
    api: Any,
) -> None:
    call = Checked(api)
    api.taught_images()
    kept = "/api/v1/models/{m}/kept"
    call("PUT", kept, "pics", json={"on": True})
    test_image = {"label": "0", "set": "test"}
    call("POST", kept, "pics", data=test_image, files=files(0, 1))
    call("GET", kept, "pics")
    call("GET", f"{kept}/evaluation", "pics")
    archive = zipped({"0/a.png": png(0, 1), "1/b.png": png(1, 1), "1/c.png": b"x"})
    zip_type = {"Content-Type": "application/zip"}
    jobs = "/api/v1/models/{m}/jobs"
    job = call("POST", jobs, "pics", content=archive, headers=zip_type)["id"]

    def describe() -> Any:
        return api.client.get(f"/api/v1/jobs/{job}").json()

    until(lambda: describe()["state"] == "done")
    operation = call.document["paths"]["/api/v1/jobs/{j}"]["get"]
    schema = operation["responses"]["200"]["content"][JSON]["schema"]
    check(describe(), schema, call.document)
    call("GET", "/api/v1/jobs")
    api.taught_texts({"ab": "abab", "xy": "xyxy"})
    tasks = {"tasks": [{"data": {"text": "abba"}}]}
    call("GET", "/label-studio/{m}/health", "words")
    call("POST", "/label-studio/{m}/setup", "words", json={})
    call("POST", "/label-studio/{m}/predict", "words", json=tasks)
