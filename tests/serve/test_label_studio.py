"""The ML backend for Label Studio."""

from __future__ import annotations

import base64
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.serve.samples import png

from evergrow.serve import ServeConfig
from evergrow.serve.label_studio import config_names, fetch_image
from evergrow.serve.problems import Problem

CONFIG = (
    '<View><Text name="msg" value="$body"/><Choices name="intent" toName="msg">'
    '<Choice value="ab"/></Choices></View>'
)


@pytest.fixture
def words(api: Any) -> Any:
    api.taught_texts({"ab": "abab", "xy": "xyxy"})
    return api


def test_health_setup_and_predict(words: Any) -> None:
    client = words.client
    assert client.get("/label-studio/words/health").json()["status"] == "UP"
    assert client.get("/label-studio/none/health").status_code == 404
    told = client.post(
        "/label-studio/words/setup",
        json={"project": "1.2", "schema": CONFIG, "hostname": "x"},
    )
    assert told.json() == {"model_version": "3"}
    tasks = [{"id": 1, "data": {"body": "bab"}}, {"id": 2, "data": {"body": "yxxy"}}]
    asked = {"tasks": tasks, "label_config": CONFIG, "project": "1.2", "params": {}}
    results = client.post("/label-studio/words/predict", json=asked).json()["results"]
    for result, label in zip(results, ("ab", "xy"), strict=True):
        for entry in result["result"]:
            assert (entry["from_name"], entry["to_name"], entry["type"]) == (
                "intent",
                "msg",
                "choices",
            )
            assert entry["value"] == {"choices": [label]}
        assert 0 <= result["score"] <= 1
        assert result["model_version"] == "3"
    assert (
        client.post("/label-studio/words/predict", json={"tasks": 1}).status_code == 422
    )


def test_task_scores_follow_suggestions_with_copies_last(words: Any) -> None:
    bodies = ["abxy", "bab", "yxxy", "aabx", "bab"]
    tasks = [{"data": {"body": body}} for body in bodies]
    answer = words.client.post(
        "/label-studio/words/predict", json={"tasks": tasks, "label_config": CONFIG}
    )
    scores = [result["score"] for result in answer.json()["results"]]
    order = words.client.post(
        "/api/v1/models/words/suggest", json={"texts": bodies, "n": 5}
    ).json()["order"]
    assert sorted(order, key=lambda row: scores[row]) == order
    copies = {1, 4} - set(order)
    assert [scores[row] for row in copies] == [1.0]


def test_images_come_from_the_task_or_the_configured_label_studio(
    api: Any,
) -> None:
    api.taught_images()
    inside = "data:image/png;base64," + base64.b64encode(png(0, 0)).decode()
    for where in (
        inside,
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "/data/upload/1.png",
    ):
        answer = api.client.post(
            "/label-studio/pics/predict", json={"tasks": [{"data": {"image": where}}]}
        )
        if where == inside:
            assert answer.status_code == 200, answer.text
        else:
            assert (answer.status_code, answer.json()["error"]) == (422, "NotFetched")


def test_only_the_configured_label_studio_is_called() -> None:
    config = ServeConfig(
        Path("models"), label_studio="http://127.0.0.1:9", label_studio_token="token"
    )
    for where in (
        "http://127.0.0.1:10/x",
        "https://127.0.0.1:9/x",
        "//evil.example/x",
        "file:///etc/passwd",
    ):
        with pytest.raises(Problem, match=r"only from 127\.0\.0\.1:9"):
            fetch_image(where, config)
    with pytest.raises(Problem, match="cannot be fetched"):
        fetch_image("/data/x.png", config)


def test_fetch_image_quotes_addresses_and_rejects_invalid_responses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard = []

        def speak() -> None:
            for answer in (
                b"HTTP/1.0 200 OK\r\n\r\nimage",
                b"HTTP/1.0 200 OK\r\n\r\nimage",
                b"nonsense\r\n\r\n",
            ):
                with listener.accept()[0] as caller:
                    heard.append(caller.recv(65536).partition(b"\r\n")[0])
                    caller.sendall(answer)

        thread = threading.Thread(target=speak)
        thread.start()
        config = ServeConfig(
            Path("models"), label_studio=f"http://127.0.0.1:{listener.getsockname()[1]}"
        )
        assert fetch_image("/data/my bird ♀.png", config) == b"image"
        assert fetch_image("/data/a%20b\r\nX: y", config) == b"image"
        with pytest.raises(Problem, match="cannot be fetched"):
            fetch_image("/data/x.png", config)
        thread.join()
    assert heard[0] == b"GET /data/my%20bird%20%E2%99%80.png HTTP/1.1"
    assert heard[1] == b"GET /data/a%20b%0D%0AX:%20y HTTP/1.1"


def test_a_config_with_entities_is_not_parsed() -> None:
    bomb = (
        '<!DOCTYPE a [<!ENTITY b "bbbb">]><View><Choices name="&b;" toName="x"/></View>'
    )
    assert (
        config_names(bomb, "texts")
        == config_names("", "texts")
        == config_names(None, "texts")
    )


@pytest.mark.parametrize("extra", ["<!-- pick one -->", "<![CDATA[a < b]]>"])
def test_a_config_with_comments_or_cdata_has_its_names(extra: str) -> None:
    config = CONFIG.replace("<View>", f"<View>{extra}")
    assert config_names(config, "texts") == ("intent", "msg", "body")


RECORDED = Path(__file__).parent / "data" / "label_studio.jsonl"
"""Requests of Label Studio 1.23.2 for a project of texts."""


def test_recorded_requests_of_label_studio_succeed(api: Any) -> None:
    api.taught_texts({"card": "my card is gone", "weather": "will it rain"})
    for line in RECORDED.read_text().splitlines():
        sent = json.loads(line)
        path = sent["path"].replace("/label-studio/MODEL", "/label-studio/words")
        answer = api.client.request(sent["method"], path, json=sent["body"])
        assert answer.status_code == 200, (sent["path"], answer.text)
