"""A Label Studio ML backend: annotations teach, each exactly once."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.samples import png

from evergrow.core.record import from_archive
from evergrow.learner.modelfile import open_model
from evergrow.serve import ServeConfig
from evergrow.serve.label_studio import Ledger, fetch_image, names_of
from evergrow.serve.requests import Problem

CONFIG = (
    '<View><Text name="msg" value="$body"/><Choices name="intent" toName="msg"><Choice value="ab"/></Choices></View>'
)


def event(action: str, number: int, choice: str | None, text: str = "") -> dict[str, Any]:
    result = [{"from_name": "intent", "to_name": "msg", "type": "choices", "value": {"choices": [choice]}}]
    return {
        "action": action,
        "project": {"id": 1, "label_config": CONFIG},
        "task": {"id": 5, "data": {"body": text, "other": "zzz"}},
        "annotation": {"id": number, "result": result if choice else [], "was_cancelled": choice is None},
    }


def deleted(*numbers: int) -> dict[str, Any]:
    annotations = [{"id": number} for number in numbers]
    return {"action": "ANNOTATIONS_DELETED", "annotations": annotations, "project": {"id": 1}}


def hook(api: Any, values: Any) -> dict[str, Any]:
    answer = api.client.post("/label-studio/words/webhook", json=values)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.fixture
def words(api: Any) -> Any:
    api.taught_texts({"ab": "abab", "xy": "xyxy"})
    return api


def scores(folder: Path) -> Any:
    return open_model(folder / "words.evg").settle().decision_function(np.eye(26))


def test_health_setup_and_predict(words: Any) -> None:
    client = words.client
    assert client.get("/label-studio/words/health").json()["status"] == "UP"
    assert client.get("/label-studio/none/health").status_code == 404
    told = client.post("/label-studio/words/setup", json={"project": "1.2", "schema": CONFIG, "hostname": "x"})
    assert told.json() == {"model_version": "3"}
    tasks = [{"id": 1, "data": {"body": "bab"}}, {"id": 2, "data": {"body": "yxxy"}}]
    asked = {"tasks": tasks, "label_config": CONFIG, "project": "1.2", "params": {}}
    results = client.post("/label-studio/words/predict", json=asked).json()["results"]
    for result, label in zip(results, ("ab", "xy"), strict=True):
        for entry in result["result"]:
            assert (entry["from_name"], entry["to_name"], entry["type"]) == ("intent", "msg", "choices")
            assert entry["value"] == {"choices": [label]}
        assert 0 <= result["score"] <= 1
        assert result["model_version"] == "3"
    assert client.post("/label-studio/words/predict", json={"tasks": 1}).status_code == 422


def test_created_updated_and_deleted_each_once(words: Any, folder: Path) -> None:
    before = scores(folder)
    steps = (CREATED, {"ab": 2, "klm": 1, "xy": 2}), (OTHER, {"ab": 3, "xy": 2}), (deleted(7), {"ab": 2, "xy": 2})
    for values, counts in steps:
        for _ in range(2):
            hook(words, values)
        assert words.counts("words") == counts
    np.testing.assert_allclose(scores(folder), before, rtol=0, atol=1e-9)
    assert hook(words, CREATED)["replayed"]  # late, and deleted since
    assert words.counts("words") == counts


def test_what_was_annotated_is_known_after_a_restart(words: Any, serve: Any) -> None:
    hook(words, event("ANNOTATION_CREATED", 7, "klm", "klmk"))
    again = serve()
    assert hook(again, event("ANNOTATION_CREATED", 7, "klm", "klmk"))["replayed"]
    hook(again, deleted(7))
    assert again.counts("words") == {"ab": 2, "xy": 2}


def at(second: int, values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "annotation": {**values["annotation"], "updated_at": f"2026-11-16T10:00:0{second}Z"}}


def two_choices(values: dict[str, Any]) -> dict[str, Any]:
    values["annotation"]["result"][0]["value"]["choices"] = ["ab", "xy"]
    return values


CREATED, OTHER = event("ANNOTATION_CREATED", 7, "klm", "klmk"), event("ANNOTATION_UPDATED", 7, "ab", "klmk")
EMPTIED = event("ANNOTATION_UPDATED", 7, None, "klmk")
RENAMED, FORGOTTEN = ("rename", {"old": "klm", "new": "letters"}), ("forget", {"names": ["no"]})
STORIES: dict[str, tuple[list[Any], dict[str, int]]] = {
    "renamed and forgotten since": (
        [CREATED, event("ANNOTATION_CREATED", 8, "no", "nonono"), RENAMED, FORGOTTEN, deleted(7, 8)],
        {"ab": 2, "xy": 2},
    ),
    "a class taken away": ([CREATED, EMPTIED, EMPTIED], {"ab": 2, "xy": 2}),
    "a class taken away and given again": ([CREATED, EMPTIED, OTHER], {"ab": 3, "xy": 2}),
    "messages that overtake each other": ([at(2, OTHER), at(1, CREATED)], {"ab": 3, "xy": 2}),
    "deleted before it came": ([deleted(7), CREATED], {"ab": 2, "xy": 2}),
    "rolled back, with the ledger": ([CREATED, ("rollback", {}), CREATED], {"ab": 2, "klm": 1, "xy": 2}),
    "forgotten and said again": ([CREATED, ("forget", {"names": ["klm"]}), OTHER], {"ab": 3, "xy": 2}),
    "skipped": ([event("ANNOTATION_CREATED", 3, None, "abc")], {"ab": 2, "xy": 2}),
    "several choices": ([two_choices(event("ANNOTATION_CREATED", 4, "ab", "abc"))], {"ab": 2, "xy": 2}),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_annotations_leave(words: Any, story: str) -> None:
    steps, counts = STORIES[story]
    for step in steps:
        if isinstance(step, tuple):
            assert words.post(*step, model="words").status_code == 200
        else:
            hook(words, step)
    assert words.counts("words") == counts


def test_a_model_may_begin_with_annotations(api: Any) -> None:
    api.create("words", "texts", backbone="letters")
    hook(api, event("ANNOTATION_CREATED", 1, "ab", "abab"))
    assert hook(api, deleted(1))["state"] == "starting"
    for number, (label, text) in enumerate((("ab", "abab"), ("ab", "baba"), ("xy", "xyxy"), ("xy", "yxyx")), 2):
        for _ in range(2):
            told = hook(api, event("ANNOTATION_CREATED", number, label, text))
    assert told["state"] == "ready"
    hook(api, event("ANNOTATION_UPDATED", 3, "xy", "baba"))
    hook(api, deleted(5))
    assert api.counts("words") == {"ab": 1, "xy": 2}


def test_messages_that_teach_nothing(words: Any) -> None:
    for values in ({"action": "START_TRAINING", "project": {"id": 1}}, {"action": "PROJECT_UPDATED"}, {}):
        assert hook(words, values)["status"] == "ignored"
    for bad in ({"action": "ANNOTATION_CREATED"}, {"action": "ANNOTATIONS_DELETED", "annotations": [{}]}):
        assert words.client.post("/label-studio/words/webhook", json=bad).status_code == 422


def test_images_come_with_the_task_or_from_the_label_studio_that_was_named(api: Any) -> None:
    api.create("words", "images", backbone="colours")
    where = "data:image/png;base64," + base64.b64encode(png(0, 0)).decode()
    values = event("ANNOTATION_CREATED", 1, "red")
    values["task"] = {"data": {"image": where}}
    assert hook(api, values)["n_samples"] == 1
    for elsewhere in ("http://169.254.169.254/latest", "file:///etc/passwd", "/data/upload/1.png"):
        values["task"] = {"data": {"image": elsewhere}}
        values["annotation"]["id"] = 2
        answer = api.client.post("/label-studio/words/webhook", json=values)
        assert (answer.status_code, answer.json()["error"]) == (422, "NotFetched")


def test_only_the_label_studio_that_was_named_is_called() -> None:
    config = ServeConfig(Path("models"), label_studio="http://127.0.0.1:9", label_studio_token="token")
    for where in ("http://127.0.0.1:10/x", "https://127.0.0.1:9/x", "//evil.example/x", "file:///etc/passwd"):
        with pytest.raises(Problem, match=r"from 127\.0\.0\.1:9 alone"):
            fetch_image(where, config)
    with pytest.raises(Problem, match="cannot be fetched"):
        fetch_image("/data/x.png", config)


def test_a_config_with_entities_is_not_parsed() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "bbbb">]><View><Choices name="&b;" toName="x"/></View>'
    assert names_of(bomb, "texts") == names_of("", "texts") == names_of(None, "texts")


RECORDED = Path(__file__).parent / "data" / "label_studio.jsonl"


def test_requests_that_a_real_label_studio_sent(api: Any) -> None:
    """Recorded from Label Studio 1.23.2: a project, one annotation created, changed and deleted, each sent twice."""
    api.taught_texts({"card": "my card is gone", "weather": "will it rain"})
    counts = []
    for line in RECORDED.read_text().splitlines():
        sent = json.loads(line)
        path = sent["path"].replace("/label-studio/MODEL", "/label-studio/words")
        answer = api.client.request(sent["method"], path, json=sent["body"])
        assert answer.status_code == 200, (sent["path"], answer.text)
        action = (sent["body"] or {}).get("action", "")
        if action.startswith("ANNOTATION"):
            counts.append((action, sum(api.counts("words").values())))
    expected = [("ANNOTATION_CREATED", 5), ("ANNOTATION_UPDATED", 5), ("ANNOTATIONS_DELETED", 4)]
    assert counts == [entry for entry in expected for _ in range(2)]  # two webhooks of the project sent each


def test_a_class_that_is_forgotten_leaves_no_vector_of_its_annotations(words: Any, folder: Path) -> None:
    hook(words, event("ANNOTATION_CREATED", 7, "klm", "klmk"))
    words.post("rename", {"old": "klm", "new": "k"}, model="words")
    for n in (1, 0):
        ledger = from_archive(Ledger, open_model(folder / "words.evg").attached("annotations"), name="ledger")
        assert (len(ledger.taught), len(ledger.rows)) == (n, n)
        words.post("forget", {"names": ["k"]}, model="words")
