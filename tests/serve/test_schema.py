"""The OpenAPI description, metrics and logs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.serve.running import Running, begin
from tests.serve.samples import files, rows

OPTIONS = [
    *("--phases", "examples,coverage,fuzzing,stateful"),
    *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
    *(
        "-n",
        os.environ.get("EVERGROW_SCHEMA_EXAMPLES", "10"),
        "--request-timeout",
        "300",
        "--max-response-time",
        "300",
    ),
    "--no-color",
]
SETTINGS = """
[parameters]
"path.m" = "m"

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 408, 412, 413, 415, 422, 431]

[[operations]]
include-name = "DELETE /api/v1/models/{m}"  # the others go on asking the model
parameters = { "path.m" = "spare" }
"""


def test_every_route_is_described(api: Any) -> None:
    document = api.client.get("/openapi.json").json()
    routes = [
        (path, verb, route)
        for path, verbs in document["paths"].items()
        for verb, route in verbs.items()
    ]
    assert len(routes) >= 25
    for path, verb, route in routes:
        assert route.get("description"), (path, verb)
        assert "default" in route["responses"], (path, verb)
        if verb == "post":
            assert route["requestBody"]["content"], path
    text = json.dumps(document)
    for name in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert name in document["components"]["schemas"], name


def test_the_reference_is_found_without_the_last_slash(api: Any) -> None:
    answer = api.client.get("/docs", follow_redirects=True)
    assert answer.status_code == 200
    assert answer.url.path == "/docs/"


def test_405_responses_list_the_allowed_methods(api: Any) -> None:
    paths = api.client.get("/openapi.json").json()["paths"]
    del paths["/api/v1/models/upload"]  # a model may have this name
    for path, verbs in {
        **paths,
        "/": ["get", "head"],
        "/docs/": ["get", "head"],
    }.items():
        place = path.replace("{m}", "m").replace("{j}", "j").replace("{k}", "0" * 32)
        for method in ("GET", "PUT", "OPTIONS"):
            if method.lower() not in verbs:
                answer = api.client.request(method, place)
                allowed = answer.headers["allow"].lower().split(", ")
                assert (answer.status_code, sorted(allowed)) == (405, sorted(verbs)), (
                    path,
                    method,
                )
    assert api.client.get("/nowhere").status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("teach", {"rows": [[0.0, "x"]], "label": "a"}, "rows[0][1]"),
        ("teach", {"rows": [[0.0]], "label": "\n"}, "label"),
        ("teach", {"rows": [[0.0]], "labels": [""]}, "labels[0]"),
        ("groups", {"rows": [[0.0]], "unknown": [0, -1]}, "unknown[1]"),
        ("rollback", {"to": 0}, "to"),
    ],
)
def test_errors_name_the_invalid_field(
    api: Any, path: str, body: dict[str, Any], field: str
) -> None:
    api.create()
    refused = api.post(path, body)
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == [field]
    assert refused.json()["detail"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("path", "sent", "field", "detail"),
    [
        (
            "teach",
            {"json": {"rows": [[0.0]], "lable": "a"}},
            "lable",
            "unknown field 'lable'. Did you mean 'label'?",
        ),
        (
            "predict",
            {"data": {"false_alarms": "0.1"}, "files": files(0, 1)},
            "false_alarms",
            "unknown field 'false_alarms'. Did you mean 'false_alarm'?",
        ),
        (
            "rename",
            {"json": {"odl": "a", "new": "b"}},
            "odl",
            "unknown field 'odl'. Did you mean 'old'?",
        ),
        (
            "redo",
            {"json": {"{name}": 1}},
            "{name}",
            "unknown field '{name}'. The fields are n.",
        ),
    ],
)
def test_unknown_fields_are_rejected_with_a_suggestion(
    api: Any, path: str, sent: dict[str, Any], field: str, detail: str
) -> None:
    api.taught()
    refused = api.post(path, **sent)
    assert refused.status_code == 422
    assert refused.json()["detail"] == detail
    assert refused.json()["errors"] == [{"field": field, "message": detail}]


def test_long_names_of_unknown_fields_are_shortened(api: Any) -> None:
    api.taught()
    refused = api.post("predict", {"x" * 1_000_000: 1})
    assert refused.status_code == 422
    assert len(refused.content) < 2000


def test_metrics_count_requests_and_samples(api: Any) -> None:
    api.taught()
    api.post("predict", {"rows": rows(0, 5)})
    text = api.client.get("/metrics").text
    assert 'evergrow_samples_total{work="teach"} 6.0' in text
    assert 'evergrow_samples_total{work="predict"} 5.0' in text
    labels = 'method="POST",route="/api/v1/models/{m}/teach",status="200"'
    assert f"evergrow_requests_total{{{labels}}} 2.0" in text
    assert "evergrow_change_seconds_count 2.0" in text


def test_logs_are_json_lines_without_request_content(api: Any, caplog: Any) -> None:
    from evergrow.serve.monitoring import JsonFormatter

    with caplog.at_level("INFO", logger="evergrow.serve"):
        api.create("a name")
        api.post("teach", {"rows": rows(0, 1), "label": "secret"}, model="a name")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["method"], line["status"]) for line in lines] == [
        ("POST", 201),
        ("POST", 200),
    ]
    assert lines[1]["path"] == "/api/v1/models/a name/teach"
    assert "secret" not in json.dumps(lines)


@pytest.mark.slow
def test_schemathesis_finds_no_failures(tmp_path: Path) -> None:
    # The check "positive_data_acceptance" is left out. It expects every request that
    # matches the schema to succeed, but no schema says which classes are known.
    here = os.pathsep.join(
        [os.path.dirname(sys.executable), os.environ.get("PATH", "")]
    )
    program = shutil.which("schemathesis", path=here)
    if program is None:
        pytest.skip("needs the package schemathesis")
    with Running(tmp_path / "models") as running, running.client() as client:
        begin(client)
        client.post("/api/v1/models", json={"name": "spare", "kind": "features"})
        document = client.get("/openapi.json").json()
        content = document["paths"]["/api/v1/models/{m}/jobs"]["post"]["requestBody"][
            "content"
        ]
        content["application/octet-stream"] = content.pop(
            "application/zip"
        )  # which schemathesis cannot make
        described = tmp_path / "openapi.json"
        settings = tmp_path / "schemathesis.toml"
        described.write_text(json.dumps(document))
        settings.write_text(SETTINGS)
        command = [
            program,
            "--config-file",
            str(settings),
            "run",
            str(described),
            "--url",
            running.address,
            *OPTIONS,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3000)
        assert done.returncode == 0, done.stdout[-6000:]
