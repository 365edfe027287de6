"""Models over HTTP: create, describe, upload, download and delete."""

from __future__ import annotations

import os
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.samples import rows

from evergrow.core.files import partial_folder
from evergrow.learner.history import Header
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit, history, locked_model, open_model
from evergrow.serve.backbones import limit_torch


def test_a_new_model_predicts_once_it_has_a_class(api: Any) -> None:
    made = api.create()
    assert (made.status_code, made.json()["state"], made.headers["etag"]) == (
        201,
        "starting",
        api.etag(),
    )
    asked = api.post("predict", {"rows": rows(0, 1)})
    assert (asked.status_code, asked.json()["error"]) == (409, "NotFittedError")
    first = api.post("teach", {"rows": rows(0, 4), "label": "a"})
    assert (first.json()["state"], first.headers["etag"]) == ("ready", api.etag())
    assert (
        api.post("predict", {"rows": rows(0, 1)}).json()["answers"][0]["label"] == "a"
    )
    second = api.post("teach", {"rows": rows(1, 4), "label": "b"}).json()
    assert (second["state"], second["revision"], second["new_classes"]) == (
        "ready",
        3,
        ["b"],
    )
    answers = api.post(
        "predict", {"rows": rows(0, 1, seed=1) + rows(1, 1, seed=1), "k": 1}
    ).json()["answers"]
    assert [answer["nearest"]["class"] for answer in answers] == ["a", "b"]
    assert [len(answer["top"]) for answer in answers] == [1, 1]


def test_a_served_model_equals_a_learner_fitted_on_the_same_samples(
    api: Any, folder: Path
) -> None:
    api.create()
    learner = Learner(None, options={"n_units": 20}, device="cpu").begin()
    with ThreadPoolExecutor(
        1, "", limit_torch, (1,)
    ) as one:  # as the service: the last digit depends on the threads
        for X, label in (
            (rows(0, 3), "a"),
            (rows(0, 2, seed=5), "a"),
            (rows(1, 4), "b"),
        ):
            api.post("teach", {"rows": X, "label": label})
            one.submit(learner.partial_fit, (np.asarray(X), [label] * len(X))).result()
    X = np.asarray(rows(0, 3) + rows(1, 3))
    np.testing.assert_array_equal(
        open_model(folder / "m.evg").predict_proba(X), learner.predict_proba(X)
    )


def test_description_has_classes_history_and_revision_as_etag(api: Any) -> None:
    api.create()
    for kind, name in enumerate("abc"):
        api.post(
            "teach", {"rows": rows(kind, 3), "label": name, "note": f"lesson {kind}"}
        )
    about = api.get()
    values = about.json()
    assert about.headers["etag"].startswith('"4-')
    assert values["revision"] == 4
    assert values["classes"] == [{"name": name, "samples": 3} for name in "abc"]
    assert [entry["note"] for entry in values["history"]] == [
        "",
        "lesson 0",
        "lesson 1",
        "lesson 2",
    ]
    assert values["revisions"] == [1, 2, 3]
    assert (
        values["thresholds"]["calibrated_on"] == 6
    )  # the first class was taught alone
    assert api.get(headers={"If-None-Match": about.headers["etag"]}).status_code == 304
    assert "requests" not in about.text


def test_list_contains_damaged_models_with_their_error(api: Any, folder: Path) -> None:
    api.create("good")
    (folder / "bad.evg").write_bytes(b"nonsense")
    (folder / ".hidden.evg").write_bytes(b"nonsense")
    listed = {
        entry["name"]: entry
        for entry in api.client.get("/api/v1/models").json()["models"]
    }
    assert {name: entry["state"] for name, entry in listed.items()} == {
        "bad": "damaged",
        "good": "starting",
    }
    assert listed["bad"]["error"]
    assert str(folder) not in listed["bad"]["error"]


def test_invalid_model_names_are_rejected(api: Any, folder: Path) -> None:
    for name in (
        "",
        " ",
        "../m",
        "a/b",
        "a\\b",
        ".m",
        "m.evg",
        "a\u0000b",
        "x" * 65,
        "a\nb",
        "é" * 150,
        "😀" * 60,
    ):
        answer = api.create(name)
        assert answer.status_code == 422
        assert not set(answer.json()["detail"]) & set("^[]$")  # words, and no pattern
    assert os.listdir(folder) == []


NAMES = (
    "My birds!",
    "模型",
    "Goldfinch ♀",
    "what? *: 100 %",
    "e\u0301t\u00e9",
    "👩‍🔬",
    "-rf",
    "[x]*",
    "#1 & <b>",
)


@pytest.mark.parametrize("name", NAMES)
def test_any_printable_name_works_for_models_and_classes(
    api: Any, folder: Path, name: str
) -> None:
    made = api.create(name)
    assert made.status_code == 201
    place = made.headers["location"]
    assert (
        api.client.post(
            f"{place}/teach", json={"rows": rows(0, 2), "label": name}
        ).status_code
        == 200
    )
    told = api.client.get(place).json()
    assert (told["name"], told["classes"][0]["name"]) == (
        unicodedata.normalize("NFC", name),
        name,
    )
    assert [
        model["name"] for model in api.client.get("/api/v1/models").json()["models"]
    ] == [told["name"]]
    (file,) = folder.glob("*.evg")
    assert not set(file.name) & set('\\/:*?"<>|')  # a file that every system can have
    assert api.client.get(f"{place}/download").content == file.read_bytes()
    assert api.client.delete(place).status_code == 204
    assert os.listdir(folder) == []


def test_files_with_invalid_model_names_are_not_listed(api: Any, folder: Path) -> None:
    api.taught(model="A")
    for stem in ("%41", "a%2Fb", "100%", "..%2F..%2Fetc"):
        (folder / f"{stem}.evg").write_bytes((folder / "A.evg").read_bytes())
    assert [
        model["name"] for model in api.client.get("/api/v1/models").json()["models"]
    ] == ["A"]


def test_model_names_that_differ_only_in_case_are_rejected(api: Any) -> None:
    api.taught(model="模型 Vögel")
    assert api.create("模型 vögel").status_code == 409
    assert (
        "%E6%A8%A1" in api.get("模型 Vögel", "/download").headers["content-disposition"]
    )


def test_a_name_in_a_path_is_never_a_path(api: Any, folder: Path) -> None:
    (folder.parent / "secret.evg").write_bytes(b"x")
    (folder / "secret.evg").write_bytes(b"x")
    for name in ("..%2Fsecret", "%2e%2e%2fsecret", "..", "m%00", "secret.evg"):
        assert api.client.get(f"/api/v1/models/{name}/download").status_code == 404


def test_two_names_of_one_file_are_one_model(api: Any, folder: Path) -> None:
    api.taught()
    os.symlink("m.evg", folder / "latest.evg")
    api.post("teach", {"rows": rows(2, 3), "label": "2"}, model="latest")
    assert api.get().json()["revision"] == 4
    assert (folder / "latest.evg").is_symlink()
    assert (
        api.client.delete("/api/v1/models/latest").status_code == 204
    )  # the name is gone, and not its file
    assert api.get("latest").status_code == 404
    assert api.get().json()["n_samples"] == 9


def test_a_change_by_another_process_is_noticed(api: Any, folder: Path) -> None:
    api.taught()
    with locked_model(folder / "m.evg") as learner:
        commit(
            folder / "m.evg", learner.partial_fit((np.asarray(rows(2, 3)), ["2"] * 3))
        )
    assert api.counts() == {"0": 3, "1": 3, "2": 3}
    assert api.post("teach", {"rows": rows(3, 3), "label": "3"}).json()["revision"] == 5


def test_concurrent_readers_see_a_change_by_another_process(
    api: Any, folder: Path, monkeypatch: Any
) -> None:
    api.taught()
    with locked_model(folder / "m.evg") as learner:
        commit(
            folder / "m.evg", learner.partial_fit((np.asarray(rows(2, 3)), ["2"] * 3))
        )
    begun = threading.Event()
    go_on = threading.Event()

    def slow(*args: Any, **settings: Any) -> Learner:
        begun.set()
        assert go_on.wait(20)
        return open_model(*args, **settings)

    monkeypatch.setattr("evergrow.learner.modelfile.open_model", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(api.get)
        assert begun.wait(20)
        second = threads.submit(api.get)
        wait([second], timeout=1)
        go_on.set()
        assert [asked.result().json()["revision"] for asked in (first, second)] == [
            4,
            4,
        ]


def test_describing_a_model_that_is_deleted_meanwhile_gives_404(
    api: Any, monkeypatch: Any
) -> None:
    api.taught()

    def late(path: Path) -> Any:
        path.unlink()
        return history(path)

    monkeypatch.setattr("evergrow.serve.routes.history", late)
    assert api.get().status_code == 404


def test_an_uploaded_download_is_the_same_model(api: Any) -> None:
    api.create()
    assert api.get(path="/download").status_code == 409
    for kind in range(2):
        api.post("teach", {"rows": rows(kind, 3), "label": str(kind)})
    data = api.get(path="/download").content
    assert api.upload("twin", data).status_code == 201
    assert api.get("twin", "/download").content == data
    assert api.upload("twin", data).status_code == 409


def test_a_download_is_one_complete_revision_during_changes(
    api: Any, tmp_path: Path
) -> None:
    api.taught()
    with ThreadPoolExecutor(1) as threads:
        teaching = threads.submit(
            lambda: [
                api.post("teach", {"rows": rows(i % 3, 2, i), "label": str(i % 3)})
                for i in range(12)
            ]
        )
        while not teaching.done():
            answer = api.get(path="/download")
            assert int(answer.headers["content-length"]) == len(answer.content)
            (tmp_path / "got.evg").write_bytes(answer.content)
            header = Header.read(tmp_path / "got.evg")
            assert answer.headers["etag"] == f'"{header.revision}-{header.digest[:12]}"'


def test_an_uploaded_file_is_checked(api: Any, folder: Path) -> None:
    api.taught()
    data = bytearray(api.get(path="/download").content)
    data[-3] ^= 1
    for content in (bytes(data), b"", b"PK\x03\x04"):
        answer = api.upload("x", content)
        assert answer.status_code == 422
        assert str(folder) not in answer.text
    assert sorted(os.listdir(folder)) == ["m.evg", "m.evg.history"]


def test_an_uploaded_model_with_another_backbone_is_rejected(
    api: Any, serve: Any
) -> None:
    api.taught_images()
    data = api.get("pics", "/download").content
    answer = serve(backbones={}).upload("x", data)
    assert answer.status_code == 422
    assert "offered" in answer.json()["detail"]


def test_backbones_are_never_loaded_from_a_path(api: Any, folder: Path) -> None:
    for backbone in ("/etc/passwd", "sentence:/etc", "resnet18", "../x"):
        assert api.create(kind="texts", backbone=backbone).status_code == 422
    assert "n_units must be" in api.create(options={"n_units": -3}).json()["detail"]
    assert os.listdir(folder) == []


def test_export_returns_an_onnx_graph_of_the_model(api: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    api.taught(n=4)
    graph = api.get(path="/export.onnx").content
    session = onnxruntime.InferenceSession(graph)
    X = np.asarray(rows(0, 2, seed=3) + rows(1, 2, seed=3), dtype=np.float32)
    outputs = dict(
        zip(
            [o.name for o in session.get_outputs()],
            session.run(None, {"features": X}),
            strict=True,
        )
    )
    said = [
        answer["nearest"]["class"]
        for answer in api.post("predict", {"rows": X.tolist()}).json()["answers"]
    ]
    assert [str(int(index)) for index in outputs["label_index"]] == said


def test_a_read_only_service_predicts_and_rejects_changes(
    api: Any, serve: Any, folder: Path
) -> None:
    api.taught()
    replica = serve(read_only=True)
    before = sorted(path.name for path in folder.rglob("*"))
    assert replica.post("predict", {"rows": rows(0, 1)}).status_code == 200
    teach = {"rows": rows(0, 1), "label": "0"}
    forget = {"names": ["0"]}
    changes = [
        replica.post(*asked)
        for asked in (("teach", teach), ("forget", forget), ("rollback", {}))
    ]
    changes += [replica.create("other"), replica.client.delete("/api/v1/models/m")]
    assert [answer.status_code for answer in changes] == [403] * 5
    assert sorted(path.name for path in folder.rglob("*")) == before
    api.post("teach", {"rows": rows(2, 3), "label": "2"})
    assert replica.counts() == {"0": 3, "1": 3, "2": 3}


def test_least_recently_used_models_are_closed_and_reopened(serve: Any) -> None:
    api = serve(limits={"open_models": 2})
    names = [f"model {i}" for i in range(5)]
    for name in names:
        api.taught(model=name)
    asked = {"rows": rows(0, 2, seed=3)}
    before = [
        api.post("predict", asked, model=name).json()["answers"] for name in names
    ]
    models = api.client.app.state.service.store._models

    def in_memory() -> list[str]:
        return [path.stem for path, model in models.items() if model.is_open]

    assert in_memory() == names[3:]
    assert [
        entry["n_samples"]
        for entry in api.client.get("/api/v1/models").json()["models"]
    ] == [6] * 5
    assert in_memory() == names[3:]  # a list of models reads none of them again
    assert [
        api.post("predict", asked, model=name).json()["answers"] for name in names
    ] == before
    assert (
        api.post("teach", {"rows": rows(2, 2), "label": "2"}, model=names[0]).json()[
            "revision"
        ]
        == 4
    )
    assert api.counts(names[0]) == {"0": 3, "1": 3, "2": 2}


# -- deleting --------------------------------------------------------------------------


def test_deleting_a_model_removes_its_history(api: Any, folder: Path) -> None:
    api.taught()
    api.taught(model="other")
    seen = api.etag()
    gone = api.client.delete("/api/v1/models/m", headers={"If-Match": seen})
    assert (gone.status_code, gone.content) == (204, b"")
    assert sorted(path.name for path in folder.iterdir()) == [
        "other.evg",
        "other.evg.history",
    ]
    assert api.get().status_code == 404
    assert api.post("predict", {"rows": rows(0, 1)}).status_code == 404
    assert api.client.delete("/api/v1/models/m").status_code == 404
    api.taught()  # the name is free, and the new model is empty
    assert (
        api.client.delete("/api/v1/models/m", headers={"If-Match": seen}).status_code
        == 412
    )
    assert api.get().json()["revision"] == 3
    assert [entry["what"] for entry in api.get().json()["history"]] == [
        "begin",
        "fit",
        "update",
    ]


def test_empty_and_damaged_models_can_be_deleted(api: Any, folder: Path) -> None:
    api.create("begun")
    (folder / "torn.evg").write_bytes(b"no model")
    for name in ("begun", "torn"):
        assert api.client.delete(f"/api/v1/models/{name}").status_code == 204
    assert api.client.get("/api/v1/models").json()["models"] == []
    assert list(folder.iterdir()) == []


def test_an_interrupted_deletion_is_finished_at_the_next_start(
    serve: Any, folder: Path, monkeypatch: Any
) -> None:
    api = serve()
    api.taught()
    monkeypatch.setattr(
        "evergrow.serve.model_store._remove_renamed", lambda away: None
    )  # killed just after the one step
    api.client.delete("/api/v1/models/m")
    assert (folder / "m.evg.history").is_dir()
    assert api.get().status_code == 404
    monkeypatch.undo()
    serve()
    assert list(folder.iterdir()) == []


def test_uploads_of_a_killed_service_are_removed_at_the_next_start(
    serve: Any, folder: Path
) -> None:
    folder.mkdir()
    (folder / ".upload.killed.part").mkdir()
    (folder / ".upload.killed.part" / "file").write_bytes(b"half")
    (folder / ".m.evg.x.part").write_bytes(b"a model that was being saved")
    with partial_folder(
        folder, "upload"
    ) as living:  # of another process, which goes on
        serve()
        assert list(folder.glob(".*")) == [living]
    assert list(folder.glob(".*")) == []
