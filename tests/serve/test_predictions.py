"""Predictions equal those of the learner and are batched."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.learner.toys import Colours, Letters, write_folder
from tests.serve.samples import files, png, rows

from evergrow import tools
from evergrow.features import create_backbone, decode_image
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, open_model
from evergrow.learner.predictions import Predictions
from evergrow.serve import Limits
from evergrow.serve.backbones import Batcher
from evergrow.serve.monitoring import Metrics
from evergrow.serve.problems import Problem
from evergrow.tools.strictness import AcceptanceLimits, estimate_unknown, expected_rates

LETTERS = {"ab": "abba baab aba", "xyz": "xyz zyx yxz"}


def test_predictions_equal_those_of_the_learner(api: Any, folder: Path) -> None:
    api.taught("abc", 5)
    X = rows(0, 2, seed=3) + rows(4, 2)
    told = api.post("predict", {"rows": X, "k": 3, "false_alarm": 0.2}).json()
    expected = open_model(folder / "m.evg").predictions(np.asarray(X), false_alarm=0.2)
    assert_answers(told["answers"], expected, 1e-12, 1e-9)
    assert [
        answer["unknown"] for answer in told["answers"]
    ] == expected.unknown.tolist()
    assert told["measure"] == "probability"


def test_an_unknown_sample_has_no_label(api: Any) -> None:
    api.taught("abc", 8)
    strange = [[200.0] * 6, [-200.0] * 6]
    found = api.post("predict", {"rows": rows(0, 3) + strange, "k": 2}).json()
    answers = found["answers"]
    assert [answer["unknown"] for answer in answers[3:]] == [True, True]
    assert [answer["label"] for answer in answers[3:]] == [None, None]
    assert not all(answer["unknown"] for answer in answers)
    for answer in answers:
        assert answer["nearest"] == answer["top"][0]
        named = None
        if not answer["unknown"]:
            named = answer["nearest"]["class"]
        assert answer["label"] == named


def assert_answers(
    told: list[Any], expected: Predictions, atol: float, novelty: float
) -> None:
    assert [answer["novelty"] for answer in told] == pytest.approx(
        expected.novelty.tolist(), rel=novelty
    )
    for answer, values in zip(told, expected.values, strict=True):
        named = {entry["class"]: entry["value"] for entry in answer["top"]}
        assert [named[name] for name in expected.classes.tolist()] == pytest.approx(
            values.tolist(), abs=atol
        )


def test_images_and_texts_are_predicted_with_a_shared_backbone(api: Any) -> None:
    api.taught_images()
    told = api.post(
        "predict", model="pics", data={"k": "1"}, files=files(0, 1, 5) + files(1, 1, 5)
    ).json()
    nearest = [answer["nearest"]["class"] for answer in told["answers"]]
    assert nearest == ["0", "1"]
    api.taught_texts(LETTERS)
    told = api.post("predict", {"texts": ["zzyyx", "bab"]}, model="words").json()
    nearest = [answer["nearest"]["class"] for answer in told["answers"]]
    assert nearest == ["xyz", "ab"]
    api.taught_texts(LETTERS, "others")
    assert (
        len(set(api.client.app.state.service.pool._shared.values())) == 2
    )  # models of one backbone share it


def test_samples_of_another_kind_are_rejected_with_field_names(
    api: Any,
) -> None:
    api.taught_texts(LETTERS)
    api.taught(n=2)
    assert (
        "texts must be given"
        in api.post("predict", model="words", files=files(0, 1)).json()["detail"]
    )
    assert (
        "rows must be given" in api.post("predict", {"texts": ["a"]}).json()["detail"]
    )
    assert "columns" in api.post("predict", {"rows": [[1.0, 2.0]]}).json()["detail"]
    assert "rows must contain" in api.post("predict", {}).json()["detail"]
    assert (
        "give either label" in api.post("teach", {"rows": rows(0, 1)}).json()["detail"]
    )


BAD_BODIES = (
    (b"{", 400),
    (b"[1]", 422),
    (b'{"rows": [[NaN, 1, 1, 1, 1, 1]]}', 400),
    (b'{"rows": [[1e400, 1, 1, 1, 1, 1]]}', 400),
    (b'{"rows": [[1], [1, 2]]}', 422),
    (b'{"rows": [["a"]]}', 422),
    (b'{"rows": [[1]], "colour": 1}', 422),
    (b'{"rows": "\xff"}', 400),
    (b'{"texts": ["\\ud800"]}', 422),
    (b'{"rows": ' + b"[" * 90_000, 400),
    (b'{"rows": [[1]], "k": 0}', 422),
    (b'{"rows": [[1]], "false_alarm": 1}', 422),
)


def test_invalid_bodies_are_rejected(api: Any) -> None:
    api.taught(n=2)
    for body, status in BAD_BODIES:
        answer = api.post(
            "predict", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == status, (body[:40], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
        assert "Traceback" not in answer.text
    for kind, status in (
        ("text/plain", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=x", 400),
    ):
        assert (
            api.post(
                "predict", content=b"abc", headers={"Content-Type": kind}
            ).status_code
            == status
        )


def test_invisible_class_names_are_rejected(api: Any) -> None:
    api.create()
    for label in ("", " ", "a\u0000", "a\nb", "\u202egnp", "x" * 201):
        assert (
            api.post("teach", {"rows": rows(0, 2), "label": label}).status_code == 422
        )
    assert api.counts() == {}


def test_an_invalid_image_is_named_in_the_error(api: Any) -> None:
    api.create("pics", "images", backbone="colours")
    sent = [
        ("images", ("a.png", png(0, 0), "image/png")),
        ("images", ("b.png", b"GIF89a", "image/png")),
    ]
    answer = api.post("teach", model="pics", data={"label": "x"}, files=sent)
    assert answer.status_code == 422
    assert "images[1]" in answer.json()["detail"]
    assert api.counts("pics") == {}


def test_features_of_several_depths_are_joined_as_the_learner_joins_them(
    serve: Any, folder: Path, tmp_path: Path
) -> None:
    network = create_backbone("test_resnet", "random", device="cpu").with_recipe("rich")
    pictures = write_folder(tmp_path / "birds", {"red": 0, "blue": 5}, n=4)
    learner = Learner(
        network, options={"n_units": 20}, cache=False, extract={"progress": False}
    ).fit(pictures)
    assert len(learner.state_.spec.blocks.widths) > 1
    folder.mkdir()
    commit(folder / "pics.evg", learner)
    api = serve(backbones={"network": network})
    paths = sorted(pictures.rglob("*.png"))
    sent = [("images", (path.name, path.read_bytes(), "image/png")) for path in paths]
    told = api.post("predict", model="pics", files=sent, data={"k": "2"}).json()
    expected = learner.predictions([str(path) for path in paths], false_alarm=0.05)
    assert_answers(told["answers"], expected, 1e-4, 1e-3)


# -- batches ---------------------------------------------------------------------------


class Recorder(Letters):
    """Records its batches, and waits for an event."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def encode(self, batch: Any) -> torch.Tensor:
        self.batches.append(len(batch))
        self.begun.set()
        assert self.go_on.wait(20)
        return super().encode(batch)


@pytest.fixture
def held() -> Any:
    """A backbone that blocks, its queue, and the first submitted request."""
    backbone = Recorder()
    batcher = Batcher(backbone, Limits(batch=4, queue=10), Metrics())
    first = batcher.submit(["a"])
    assert backbone.begun.wait(20)
    yield backbone, batcher, first
    assert first.result(20)[0, 0] == 1
    assert batcher.depth == 0
    batcher.close()


def test_queued_predictions_are_batched_and_taught_samples_encoded_alone(
    held: Any,
) -> None:
    backbone, batcher, _ = held
    others = [batcher.submit([text, text]) for text in ("b", "c", "d")]
    lesson = batcher.submit(["e", "f"], alone=True)
    backbone.go_on.set()
    assert [other.result(20)[1].argmax() for other in others] == [1, 2, 3]
    assert lesson.result(20).argmax(axis=1).tolist() == [4, 5]
    assert sorted(backbone.batches) == [1, 1, 1, 2, 4]


class Model:
    """Predicts the features, and records its calls."""

    def __init__(self, name: str) -> None:
        self.classes = np.asarray([f"{name}{i}" for i in range(26)])
        self.asked = []

    def predict(self, questions: Any) -> list[Predictions]:
        self.asked.append(sum(map(len, questions)))
        return [
            Predictions(self.classes, rows, "score", np.arange(len(rows)))
            for rows in questions
        ]


def test_queued_predictions_of_one_model_are_computed_together(held: Any) -> None:
    backbone, batcher, _ = held
    one = Model("one")
    two = Model("two")
    asked = ((one, ["a"]), (two, ["b"]), (one, ["c", "ac"]))
    waiting = [batcher.submit(texts, model=model) for model, texts in asked]
    backbone.go_on.set()
    told = [entry.result(20) for entry in waiting]
    assert (one.asked, two.asked) == ([3], [1])
    assert [answers.classes[0] for answers in told] == ["one0", "two0", "one0"]
    assert told[2].values[:, :3].tolist() == [[0, 0, 1], [1, 0, 1]]
    assert told[2].rows.tolist() == [0, 1]


@pytest.mark.parametrize("alone", [False, True])
def test_images_of_a_batch_are_spread_over_cores_in_order(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr("evergrow.serve.backbones.cores", lambda: 3)
    backbone = create_backbone(Colours(), device="cpu")
    threads = set()
    encode = backbone.encode

    def seen(batch: Any) -> torch.Tensor:
        threads.add((threading.current_thread().name, torch.get_num_threads()))
        return encode(batch)

    monkeypatch.setattr(backbone, "encode", seen)
    samples = [backbone.transform(decode_image(png(hue, hue))) for hue in range(8)]
    batcher = Batcher(backbone, Limits(), Metrics())
    found = batcher.submit(samples, alone=alone).result(20)
    np.testing.assert_allclose(found, encode(torch.stack(samples)).numpy(), rtol=1e-5)
    assert threads
    assert all(
        "crew" in name and n == 1 for name, n in threads
    )  # of the crew, each computing by itself
    batcher.close()


def test_a_full_queue_rejects_requests_until_it_has_room(held: Any) -> None:
    backbone, batcher, first = held
    with pytest.raises(Problem, match="is full") as refused:
        batcher.submit(["b"] * 10)
    assert (refused.value.status_code, refused.value.headers["Retry-After"]) == (
        503,
        "1",
    )
    backbone.go_on.set()
    assert len(first.result(20)) == 1
    assert (
        len(batcher.submit(["b"] * 20).result(20)) == 20
    )  # more than the queue, but nobody else waits


def test_an_exception_in_a_backbone_fails_only_its_requests() -> None:
    class Failing(Letters):
        def encode(self, batch: Any) -> torch.Tensor:
            if "bad" in batch:
                raise RuntimeError("broken")
            return super().encode(batch)

    batcher = Batcher(Failing(), Limits(batch=4, queue=10), Metrics())
    with pytest.raises(RuntimeError, match="broken"):
        batcher.submit(["bad"]).result(20)
    assert batcher.submit(["good"]).result(20).shape == (1, 26)
    cancelled = batcher.submit(["x"])
    cancelled.cancel()
    assert batcher.submit(["good"]).result(20).shape == (1, 26)
    batcher.close()


def test_suggest_groups_drift_and_learning_curve_equal_the_tools(
    api: Any,
) -> None:
    api.taught("ab", 20)
    known = rows(0, 8, seed=5) + rows(1, 8, seed=6)
    strange = rows(2, 6, seed=7)
    next_ones = api.post("suggest", {"rows": known + strange, "n": 10}).json()
    assert len(set(next_ones["order"])) == len(next_ones["order"]) <= 10
    assert any(next_ones["unknown"])
    found = api.post("groups", {"rows": known + strange}).json()["groups"]
    assert set(range(16, 22)) <= {place for group in found for place in group}
    marked = {"rows": known + strange, "unknown": [0, 17, 5]}
    found = api.post("groups", marked).json()["groups"]
    assert sorted(place for group in found for place in group) == [0, 5, 17]
    refused = api.post("groups", {"rows": known, "unknown": [16]})
    assert refused.status_code == 422
    assert "16 samples" in refused.json()["detail"]
    told = api.post("drift", {"rows": known}).json()
    assert {entry["name"] for entry in told["classes"]} <= {"a", "b"}
    curve = api.post(
        "learning-curve", {"rows": known, "labels": ["a"] * 8 + ["b"] * 8}
    ).json()
    assert len(curve["sizes"]) == len(curve["accuracy"]) == len(curve["interval"])


def test_suspects_and_blame_equal_the_tools(api: Any, folder: Path) -> None:
    api.taught("ab", 20)
    X = rows(0, 20, seed=2) + rows(1, 20, seed=3)
    labels = ["a"] * 20 + ["b"] * 20
    wrong = rows(0, 1, seed=8)
    api.post("teach", {"rows": X, "labels": labels})
    api.post("teach", {"rows": wrong, "label": "b"})
    learner = open_model(folder / "m.evg")
    data = (X + wrong, [*labels, "b"])
    sent = {"rows": data[0], "labels": data[1]}
    expected = tools.suspects(learner, *data)
    found = api.post("suspects", {**sent, "n": 5}).json()
    assert [entry["sample"] for entry in found["suspects"]] == [
        sample.row for sample in expected.samples[:5]
    ]
    assert found["suspects"][0]["sample"] == 40
    assert found["suspects"][0]["suggestion"] == "a"
    assert found["n_likely"] == len(expected.likely)
    new = api.post("suspects", {**sent, "learned": False}).json()
    assert new["n_new"] == 41
    question = rows(1, 1, seed=9)
    asked = {
        "rows": X[:3] + question + X[3:] + wrong,
        "labels": ["a", "a", "a", "b", *labels[3:], "b"],
        "question": 3,
    }
    blamed = api.post("blame", asked).json()
    by_tool = tools.blame(learner, question, *data)
    assert blamed["answer"] == by_tool.answer
    assert blamed["probability"] == pytest.approx(by_tool.probability)
    for entry, sample in zip(blamed["samples"], by_tool.samples, strict=False):
        assert entry["sample"] == sample.row + (sample.row >= 3)
        assert entry["effect"] == pytest.approx(sample.effect)
    refused = api.post("blame", {**asked, "question": 99})
    assert refused.status_code == 422
    assert "index" in refused.json()["detail"]
    refused = api.post("suspects", {"rows": X[:2], "label": "owl"})
    assert refused.status_code == 422
    assert "'owl'" in refused.json()["detail"]


def test_relabelled_samples_are_learned_as_their_new_class(api: Any) -> None:
    api.taught("ab", 20)
    wrong = rows(0, 3, seed=8)
    api.post("teach", {"rows": wrong, "label": "b"})
    moved = api.post("relabel", {"rows": wrong, "source": "b", "target": "a"})
    assert moved.json()["change"]["what"] == "relabel"
    counts = {entry["name"]: entry["samples"] for entry in moved.json()["classes"]}
    assert counts == {"a": 23, "b": 20}
    again = api.post("relabel", {"rows": wrong, "source": "owl", "target": "a"})
    assert again.status_code == 422


def test_a_sample_exceeds_a_threshold_if_its_familiarity_is_at_most_the_rate(
    api: Any, folder: Path
) -> None:
    api.taught("abcde", 12)
    X = [row for kind in range(7) for row in rows(kind, 6, seed=3)]
    answers = api.post("predict", {"rows": X}).json()["answers"]
    familiarity = np.array([answer["familiarity"] for answer in answers])
    novelty = np.array([answer["novelty"] for answer in answers])
    calibration = open_model(folder / "m.evg").state_.calibration
    assert len(np.unique(familiarity)) > 5
    between = (np.unique(familiarity)[1:] + np.unique(familiarity)[:-1]) / 2
    for rate in (0.001, 0.05, 0.15, 0.3, 0.5, 0.9, *between):
        above = novelty > calibration.threshold(rate)
        assert np.array_equal(above, familiarity <= rate)
    unknown = [answer["unknown"] for answer in answers]
    assert unknown == (familiarity <= 0.05).tolist()
    extremes = np.array([np.nan, np.inf, -np.inf])
    assert calibration.familiarity(extremes).tolist() == [0, 0, 1]


def test_strictness_says_what_limits_cost_and_how_many_samples_are_unknown(
    api: Any, folder: Path
) -> None:
    api.taught("abcdef", 12)
    X = [row for kind in range(8) for row in rows(kind, 6, seed=3)]
    answers = api.post("predict", {"rows": X}).json()["answers"]
    samples = [
        {"novelty": answer["novelty"], "probability": answer["top"][0]["value"]}
        for answer in answers
    ]
    body = {"false_alarm": 0.2, "probability": 0.6, "samples": samples}
    told = api.post("strictness", body).json()
    calibration = open_model(folder / "m.evg").state_.calibration
    limits = AcceptanceLimits(0.2, 0.6)
    rates = expected_rates(calibration, limits)
    assert told["known_not_accepted"] == rates.known_not_accepted
    assert told["unknown_accepted"] == rates.unknown_accepted
    novelty, probability = np.array([list(one.values()) for one in samples]).T
    found = estimate_unknown(calibration, novelty, probability, limits)
    assert found is not None
    assert told["estimate"]["accepted"] == found.accepted
    assert tuple(told["estimate"]["accepted_interval"]) == found.accepted_interval
    assert api.post("strictness", {}).json()["estimate"] is None
    assert api.post("strictness", {"false_alarm": 0}).status_code == 422


def test_strictness_of_a_model_without_calibration_is_null(api: Any) -> None:
    api.taught("ab", 1)
    told = api.post("strictness", {}).json()
    assert (
        told["known_not_accepted"]
        is told["unknown_accepted"]
        is told["estimate"]
        is None
    )
    answers = api.post("predict", {"rows": rows(0, 1)}).json()["answers"]
    assert answers[0]["familiarity"] is None


def test_sets_equal_those_of_the_learner(api: Any, folder: Path) -> None:
    api.taught("abc", 8)
    X = rows(0, 3, seed=3) + rows(2, 2) + [[200.0] * 6]
    told = api.post("predict", {"rows": X, "coverage": 0.9}).json()
    expected = open_model(folder / "m.evg").predict_set(np.asarray(X), 0.9)
    sets = [answer["set"] for answer in told["answers"]]
    assert sets == [labels.tolist() for labels in expected.labels]
    assert told["note"] == expected.note != ""
    assert sets[-1] == []
    each = api.post("predict", {"rows": X, "coverage": 0.9, "per_class": True}).json()
    assert "share one limit" in each["note"]
    plain = api.post("predict", {"rows": X}).json()
    assert [answer["set"] for answer in plain["answers"]] == [None] * 6
    assert plain["note"] == ""


def test_sets_need_held_out_samples_and_a_coverage_between_0_and_1(api: Any) -> None:
    api.taught("ab", 1)
    answer = api.post("predict", {"rows": rows(0, 1), "coverage": 0.9})
    assert answer.status_code == 409
    assert "at least two samples of a class" in answer.json()["detail"]
    for coverage in (0, 1, "0.9"):
        answer = api.post("predict", {"rows": rows(0, 1), "coverage": coverage})
        assert answer.status_code == 422
