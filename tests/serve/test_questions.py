"""Questions: answers as the learner gives them, in one pass for many."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.learner.toys import Letters
from tests.serve.samples import files, png, rows

from evergrow.learner.modelfile import open_model
from evergrow.serve.batching import Batcher
from evergrow.serve.problems import Problem


def begin_texts(api: Any, name: str = "words") -> None:
    api.create(name, "texts", backbone="letters")
    for text, label in (("abba baab aba", "ab"), ("xyz zyx yxz", "xyz")):
        api.post("teach", {"texts": [text, text[::-1] + "e"], "label": label}, model=name)


def test_answers_are_those_of_the_learner(api: Any, folder: Path) -> None:
    api.create()
    for kind, name in enumerate("abc"):
        api.post("teach", {"rows": rows(kind, 5), "label": name})
    X = rows(0, 2, seed=3) + rows(4, 2)
    told = api.post("predict", {"rows": X, "k": 3, "false_alarm": 0.2}).json()
    expected = open_model(folder / "m.evg").ask(np.asarray(X), false_alarm=0.2)
    for answer, values, novelty, unknown in zip(
        told["answers"], expected.values, expected.novelty, expected.unknown, strict=True
    ):
        assert {entry["class"]: entry["value"] for entry in answer["top"]} == pytest.approx(
            dict(zip("abc", values, strict=True)), abs=1e-12
        )
        assert answer["novelty"] == pytest.approx(novelty, abs=1e-9)
        assert answer["unknown"] == unknown
    assert told["measure"] == "probability"


def test_images_and_texts(api: Any) -> None:
    api.create("pics", "images", backbone="colours")
    for hue in range(2):
        api.post("teach", model="pics", data={"label": f"hue {hue}"}, files=files(hue, 3))
    told = api.post("predict", model="pics", data={"k": "1"}, files=files(0, 1, 5) + files(1, 1, 5)).json()
    assert [answer["label"] for answer in told["answers"]] == ["hue 0", "hue 1"]
    begin_texts(api)
    told = api.post("predict", {"texts": ["zzyyx", "bab"]}, model="words").json()
    assert [answer["label"] for answer in told["answers"]] == ["xyz", "ab"]


def test_samples_of_another_kind_are_refused_in_the_words_of_the_request(api: Any) -> None:
    begin_texts(api)
    api.create()
    for kind in range(2):
        api.post("teach", {"rows": rows(kind, 2), "label": str(kind)})
    assert "texts must be given" in api.post("predict", model="words", files=files(0, 1)).json()["detail"]
    assert "rows must be given" in api.post("predict", {"texts": ["a"]}).json()["detail"]
    assert "columns" in api.post("predict", {"rows": [[1.0, 2.0]]}).json()["detail"]
    assert "rows must hold" in api.post("predict", {}).json()["detail"]
    assert "label must be given" in api.post("teach", {"rows": rows(0, 1)}).json()["detail"]


BAD_BODIES = (
    (b"{", 400),
    (b"[1]", 422),
    (b'{"rows": [[NaN, 1, 1, 1, 1, 1]]}', 400),
    (b'{"rows": [[1e400, 1, 1, 1, 1, 1]]}', 422),
    (b'{"rows": [[1], [1, 2]]}', 422),
    (b'{"rows": [["a"]]}', 422),
    (b'{"rows": [[1]], "colour": 1}', 422),
    (b'{"rows": "\xff"}', 400),
    (b'{"texts": ["\\ud800"]}', 422),
    (b'{"rows": ' + b"[" * 100_000, 400),
    (b'{"rows": [[1]], "k": 0}', 422),
    (b'{"rows": [[1]], "false_alarm": 1}', 422),
)


def test_bodies_that_are_wrong(api: Any) -> None:
    api.create()
    for kind in range(2):
        api.post("teach", {"rows": rows(kind, 2), "label": str(kind)})
    for body, status in BAD_BODIES:
        answer = api.post("predict", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == status, (body[:40], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "Traceback" not in answer.text
    for kind, status in (("text/plain", 415), ("multipart/form-data", 400), ("multipart/form-data; boundary=x", 400)):
        assert api.post("predict", content=b"abc", headers={"Content-Type": kind}).status_code == status


def test_class_names_that_cannot_be_seen_are_refused(api: Any) -> None:
    api.create()
    for label in ("", " ", "a\u0000", "a\nb", "\u202egnp", "x" * 201):
        assert api.post("teach", {"rows": rows(0, 2), "label": label}).status_code == 422
    assert api.counts() == {}


def test_an_image_that_is_none_is_named(api: Any) -> None:
    api.create("pics", "images", backbone="colours")
    sent = [("images", ("a.png", png(0, 0), "image/png")), ("images", ("b.png", b"GIF89a", "image/png"))]
    answer = api.post("teach", model="pics", data={"label": "x"}, files=sent)
    assert answer.status_code == 422
    assert "images[1]" in answer.json()["detail"]
    assert api.counts("pics") == {}


def test_models_of_one_backbone_share_it(api: Any) -> None:
    begin_texts(api, "one")
    begin_texts(api, "two")
    pool = api.client.app.service.pool
    assert len(set(pool._shared.values())) == 1


# -- batches --------------------------------------------------------------------------------------------------


class Recorder(Letters):
    """Takes note of its batches, and waits until it may go on."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def encode(self, batch: Any) -> torch.Tensor:
        self.batches.append(len(batch))
        self.begun.set()
        assert self.go_on.wait(20)
        return super().encode(batch)


def submit(batcher: Batcher, texts: list[str], **settings: Any) -> Any:
    batcher.announce(len(texts))
    return batcher.submit(texts, **settings)


def test_questions_that_wait_go_together_and_lessons_alone() -> None:
    backbone = Recorder()
    batcher = Batcher(backbone, batch=4, queue=100)
    first = submit(batcher, ["a"])
    assert backbone.begun.wait(20)
    others = [submit(batcher, [text, text]) for text in ("b", "c", "d")]
    lesson = submit(batcher, ["e", "f"], alone=True)
    backbone.go_on.set()
    assert first.result(20)[0, 0] == 1
    assert [other.result(20)[1].argmax() for other in others] == [1, 2, 3]
    assert lesson.result(20).argmax(axis=1).tolist() == [4, 5]
    assert sorted(backbone.batches) == [1, 1, 1, 2, 4]
    assert batcher.depth == 0
    batcher.close()


def test_a_full_queue_refuses_and_gives_room_again() -> None:
    backbone = Recorder()
    batcher = Batcher(backbone, batch=4, queue=5)
    running = submit(batcher, ["a"] * 3)
    with pytest.raises(Problem, match="queue is full") as refused:
        batcher.announce(3)
    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    batcher.announce(2)
    batcher.withdraw(2)
    backbone.go_on.set()
    assert len(running.result(20)) == 3
    assert len(submit(batcher, ["b"] * 20).result(20)) == 20  # more than the queue, but nobody else waits
    batcher.close()


def test_a_backbone_that_fails_fails_its_requests_only() -> None:
    class Failing(Letters):
        def encode(self, batch: Any) -> torch.Tensor:
            if "bad" in batch:
                raise RuntimeError("broken")
            return super().encode(batch)

    batcher = Batcher(Failing(), batch=4, queue=10)
    with pytest.raises(RuntimeError, match="broken"):
        submit(batcher, ["bad"]).result(20)
    assert submit(batcher, ["good"]).result(20).shape == (1, 26)
    cancelled = submit(batcher, ["x"])
    cancelled.cancel()
    assert submit(batcher, ["good"]).result(20).shape == (1, 26)
    batcher.close()


def test_many_callers_get_their_own_answers(api: Any) -> None:
    begin_texts(api)
    texts = ["aab", "xxz", "bba", "zyx"] * 10
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda text: api.post("predict", {"texts": [text]}, model="words").json(), texts))
    assert [answer["answers"][0]["label"] for answer in told] == ["ab", "xyz", "ab", "xyz"] * 10
