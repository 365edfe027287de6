"""Changes are exact, ordered, applied once and undone completely."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.samples import files, png, rows

from evergrow.core.files import locked
from evergrow.learner import modelfile, settle
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import open_model


def test_one_image_of_a_taught_batch_is_unlearned_exactly(
    api: Any, folder: Path
) -> None:
    api.taught_images()
    X = np.random.default_rng(0).normal(size=(5, 27))
    taught = open_model(folder / "pics.evg")
    before = taught.decision_function(X)
    three = files(2, 3)
    api.post("teach", model="pics", data={"labels": ["0", "0", "1"]}, files=three)
    for place, label in ((2, "1"), (0, "0"), (1, "0")):
        done = api.post(
            "unlearn", model="pics", data={"label": label}, files=[three[place]]
        )
        assert done.status_code == 200, done.text
    np.testing.assert_allclose(
        open_model(folder / "pics.evg").decision_function(X), before, rtol=0, atol=1e-9
    )
    # The last of the three leaves nothing behind in probabilities and novelty either.
    assert done.json()["change"]["influenced_scores"] == 0
    unlearned = open_model(folder / "pics.evg")
    gap = np.abs(unlearned.predict_proba(X) - taught.predict_proba(X)).max()
    assert gap < 1e-8
    np.testing.assert_allclose(
        unlearned.novelty_score(X), taught.novelty_score(X), rtol=1e-6, atol=1e-6
    )
    again = api.post("unlearn", model="pics", data={"label": "2"}, files=three)
    assert (again.status_code, again.json()["error"]) == (422, "LabelError")


def test_a_model_without_its_last_class_is_empty_and_can_be_taught_again(
    api: Any,
) -> None:
    api.create()
    lesson = {"rows": rows(0, 3), "label": "a"}
    for path, values in (("unlearn", lesson), ("forget", {"names": ["a"]})):
        api.post("teach", lesson)
        gone = api.post(path, values).json()
        assert (gone["state"], gone["n_samples"], gone["gone_classes"]) == (
            "starting",
            0,
            ["a"],
        )
        assert api.post("predict", {"rows": rows(0, 1)}).status_code == 409
    assert api.post("rollback", {}).json()["n_samples"] == 3
    assert (
        api.post("predict", {"rows": rows(0, 1)}).json()["answers"][0]["label"] == "a"
    )
    one = {"rows": lesson["rows"][1:2], "label": "a"}
    assert [api.post("unlearn", one).status_code for _ in range(2)] == [200, 422]
    assert api.post("rename", {"old": "a", "new": "b"}).json()["classes"] == [
        {"name": "b", "samples": 2}
    ]


def test_samples_without_labels_are_learned_and_forgotten_again(api: Any) -> None:
    api.taught("ab", 20)
    asked = {"rows": rows(0, 3, seed=7)}
    before = api.counts()
    said = api.post("predict", asked).json()["answers"]
    done = api.post(
        "learn-unlabelled", {"rows": rows(0, 8, seed=5) + rows(1, 8, seed=6)}
    ).json()
    assert done["change"]["what"] == "unlabelled"
    assert 8 < done["change"]["samples"] <= 16  # some may look unknown
    assert api.counts() == before  # guesses are no samples
    assert api.post("predict", asked).json()["answers"] != said
    assert (
        api.post("forget-unlabelled", {}).json()["change"]["what"]
        == "forget-unlabelled"
    )
    assert api.post("predict", asked).json()["answers"] == said
    api.create("one")
    api.post("teach", {"rows": rows(0, 3), "label": "a"}, model="one")
    refused = api.post("learn-unlabelled", asked, model="one")
    assert refused.status_code == 422
    assert "two learned classes" in refused.json()["detail"]


def test_rename_and_merge_change_classes_and_history(api: Any) -> None:
    api.taught("ab", 4)
    X = rows(0, 1, seed=2) + rows(2, 3)
    done = api.post(
        "teach", {"rows": X, "labels": ["a", "c", "c", "c"]}
    ).json()  # a label for each
    assert (done["new_classes"], done["change"]["samples"]) == (["c"], 4)
    assert api.post("rename", {"old": "a", "new": "z"}).json()["gone_classes"] == ["a"]
    taken = api.post("rename", {"old": "b", "new": "z"})
    assert taken.status_code == 422
    assert api.post("merge-classes", {"names": ["b", "c"], "into": "bc"}).json()[
        "classes"
    ] == [
        {"name": "bc", "samples": 7},
        {"name": "z", "samples": 5},
    ]
    what = [entry["what"] for entry in api.get().json()["history"]]
    assert what == ["begin", "fit", "update", "update", "rename", "merge-classes"]


def test_rollback_restores_the_file_byte_for_byte(api: Any, folder: Path) -> None:
    api.taught("ab", 4)
    before = (folder / "m.evg").read_bytes()
    api.post("forget", {"names": ["a"]})
    api.post("teach", {"rows": rows(2, 2), "label": "c"})
    assert api.post("rollback", {"to": 9}).status_code == 422
    done = api.post("rollback", {"to": 3}).json()
    assert (done["revision"], done["change"]["what"]) == (3, "rollback")
    assert (folder / "m.evg").read_bytes() == before
    told = [entry["what"] for entry in api.get().json()["history"]]
    assert told == ["begin", "fit", "update", "forget", "update", "rollback"]
    assert api.post("rollback", {"n": 3}).status_code == 422
    assert api.post("rollback", {"n": 2}).json()["n_samples"] == 0


def test_redo_undoes_rollbacks_until_something_else_is_learned(
    api: Any, folder: Path
) -> None:
    api.create("new")  # has nothing to undo, nor to redo
    assert [
        api.post(path, {}, model="new").status_code for path in ("redo", "rollback")
    ] == [422, 422]
    api.taught("ab", 4)
    api.post("teach", {"rows": rows(2, 2), "label": "c"})
    latest = (folder / "m.evg").read_bytes()
    assert api.get().json()["redoable"] == 0
    assert api.post("redo", {}).status_code == 422
    api.post("rollback", {})
    assert api.get().json()["redoable"] == 1
    done = [
        api.post("redo", {}, headers={"Idempotency-Key": "again"}).json()
        for _ in range(2)
    ]
    assert [told["revision"] for told in done] == [4, 4]
    assert [told["replayed"] for told in done] == [False, True]
    assert (folder / "m.evg").read_bytes() == latest
    assert api.post("redo", {"n": 1}, headers={"If-Match": '"3"'}).status_code == 412
    api.post("rollback", {})
    api.post("teach", {"rows": rows(3, 2), "label": "d"})
    assert api.get().json()["redoable"] == 0
    assert api.post("redo", {}).status_code == 422


def test_a_change_with_a_stale_etag_is_rejected(api: Any) -> None:
    api.taught("ab", 4)
    lesson = {"rows": rows(2, 2), "label": "c"}
    seen = api.etag()
    assert api.post("teach", lesson, headers={"If-Match": '"3"'}).status_code == 412
    assert (
        api.post("teach", lesson, headers={"If-Match": f'"9", {seen}'}).status_code
        == 200
    )
    stale = api.post("forget", {"names": ["a"]}, headers={"If-Match": seen})
    assert (stale.status_code, stale.json()["etag"]) == (412, api.etag())
    assert api.post("rollback", {}, headers={"If-Match": seen}).status_code == 412
    assert set(api.counts()) == {"a", "b", "c"}


def test_a_repeated_key_counts_once_also_after_a_restart(serve: Any) -> None:
    api = serve()
    api.create()
    lessons = [
        {"rows": rows(kind, 3), "label": name} for kind, name in enumerate("abc")
    ]
    for number, lesson in enumerate(lessons):
        for _ in range(2):
            done = api.post(
                "teach", lesson, headers={"Idempotency-Key": f"key {number}"}
            )
    assert done.json()["replayed"]
    again = serve()
    for number, lesson in enumerate(lessons):
        told = again.post(
            "teach",
            lesson,
            headers={"Idempotency-Key": f"key {number}", "If-Match": '"1"'},
        ).json()
        assert told["replayed"]
        assert told["revision"] == 4
    assert again.counts() == {"a": 3, "b": 3, "c": 3}


def test_a_repeated_key_does_not_teach_again_after_a_rollback(serve: Any) -> None:
    api = serve()
    api.taught("ab", 4)
    lesson = {"rows": rows(2, 3), "label": "c"}
    api.post("teach", lesson, headers={"Idempotency-Key": "late"})
    assert (
        api.post("rollback", {}, headers={"Idempotency-Key": "undo"}).json()["revision"]
        == 3
    )
    assert api.post("rollback", {}, headers={"Idempotency-Key": "undo"}).json()[
        "replayed"
    ]
    for service in (api, serve()):
        told = service.post("teach", lesson, headers={"Idempotency-Key": "late"}).json()
        assert told["replayed"]
        assert told["change"]["what"] == "rollback"
    assert api.counts() == {"a": 4, "b": 4}


def test_a_key_used_for_another_request_is_rejected(api: Any) -> None:
    api.taught("ab", 4)
    key = {"Idempotency-Key": "k"}
    assert (
        api.post("teach", {"rows": rows(2, 2), "label": "c"}, headers=key).status_code
        == 200
    )
    other = api.post("teach", {"rows": rows(2, 3), "label": "c"}, headers=key)
    assert (other.status_code, other.json()["error"]) == (422, "KeyReused")
    assert api.post("forget", {"names": ["c"]}, headers=key).status_code == 422
    for bad in ("x" * 201, "a\tb"):
        refused = api.post("rollback", {}, headers={"Idempotency-Key": bad})
        assert (refused.status_code, "^" in refused.text) == (422, False)


def test_concurrent_changes_are_all_applied(api: Any, folder: Path) -> None:
    api.taught("ab", 4)
    lessons = [
        (rows(kind, 2, seed=7 + kind), f"class {kind % 5}") for kind in range(16)
    ]
    with ThreadPoolExecutor(8) as threads:
        done = list(
            threads.map(
                lambda lesson: api.post(
                    "teach", {"rows": lesson[0], "label": lesson[1]}
                ),
                lessons,
            )
        )
    assert [answer.status_code for answer in done] == [200] * 16
    assert sorted(answer.json()["revision"] for answer in done) == list(range(4, 20))
    one_by_one = open_model(folder / "m.evg")
    at_once = Learner(None, options={"n_units": 20}, device="cpu")
    at_once.fit((np.asarray(rows(0, 4)), list("aaaa"))).partial_fit(
        (np.asarray(rows(1, 4)), list("bbbb"))
    )
    at_once.partial_fit(
        (
            np.concatenate([X for X, _ in lessons]),
            [label for X, label in lessons for _ in X],
        )
    )
    X = np.asarray(rows(1, 3) + rows(4, 3))
    np.testing.assert_allclose(
        settle(one_by_one).decision_function(X),
        settle(at_once).decision_function(X),
        rtol=0,
        atol=1e-9,
    )


def test_predictions_do_not_wait_for_changes(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught("ab", 4)
    begun = threading.Event()
    go_on = threading.Event()
    commit = modelfile.commit

    def slow(*args: Any, **settings: Any) -> int:
        begun.set()
        assert go_on.wait(20)
        return commit(*args, **settings)

    monkeypatch.setattr(modelfile, "commit", slow)
    with ThreadPoolExecutor(1) as threads:
        teaching = threads.submit(api.post, "teach", {"rows": rows(2, 2), "label": "c"})
        assert begun.wait(20)
        during = api.post("predict", {"rows": rows(0, 1)}).json()
        go_on.set()
        assert teaching.result().json()["revision"] == 4
    assert during["revision"] == 3


def test_a_full_disk_leaves_the_model_unchanged(
    api: Any, folder: Path, monkeypatch: Any
) -> None:
    api.taught("ab", 4)
    before = (folder / "m.evg").read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("evergrow.learner.modelfile.write_archive", full)
        answer = api.post("teach", {"rows": rows(2, 2), "label": "c"})
    assert answer.status_code == 507
    assert str(folder) not in answer.text
    assert (folder / "m.evg").read_bytes() == before
    assert api.post("teach", {"rows": rows(2, 2), "label": "c"}).json()["revision"] == 4


def test_changes_wait_for_another_process_and_then_give_up(
    serve: Any, folder: Path
) -> None:
    api = serve(limits={"lock_seconds": 0.2})
    api.taught("ab", 4)
    with locked(folder / "m.evg.history"):
        for busy in (
            api.post("teach", {"rows": rows(2, 2), "label": "c"}),
            api.client.delete("/api/v1/models/m"),
        ):
            assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert api.post("teach", {"rows": rows(2, 2), "label": "c"}).status_code == 200


def test_responses_contain_library_warnings(api: Any) -> None:
    api.taught("ab", 20)
    done = api.post("teach", {"rows": rows(2, 1), "label": "A"}).json()
    assert any("upper and lower case" in said for said in done["warnings"])


def test_evaluation_lists_wrong_samples(api: Any) -> None:
    api.taught("ab", 4)
    X = rows(0, 2, seed=9) + rows(1, 1, seed=9) + rows(5, 1)
    told = api.post("evaluate", {"rows": X, "labels": ["a", "b", "b", "zebra"]}).json()
    assert told["confusion"] == [[1, 0], [1, 1]]
    assert [entry["sample"] for entry in told["wrong"]] == [1, 3]
    assert told["unknown_classes"] == {"zebra": 1}
    assert told["accuracy"] == pytest.approx(2 / 3)


def test_samples_are_not_written_to_disk(api: Any, folder: Path) -> None:
    api.taught_texts({"x": "a secret sentence", "y": "hidden words here"})
    api.taught_images(2)
    written = b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file()
    )
    assert b"secret" not in written
    assert png(0, 0)[100:140] not in written
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]
