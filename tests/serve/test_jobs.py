"""Jobs learn a zip as one change."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.running import until
from tests.serve.samples import png, zipped

from evergrow.learner.modelfile import open_model

ENTRIES = {
    f"birds/class {hue}/{i}.png": png(hue, i) for hue in range(3) for i in range(4)
} | {
    "birds/readme.txt": b"x",
    "__MACOSX/birds/._0.png": b"x",
}


def send(api: Any, content: bytes, **headers: str) -> Any:
    return api.post(
        "jobs",
        model="pics",
        content=content,
        headers={"Content-Type": "application/zip", **headers},
    )


def start(api: Any, entries: dict[str, bytes]) -> Any:
    api.create("pics", "images", backbone="colours")
    return send(api, zipped(entries))


def ended(api: Any, answer: Any) -> dict[str, Any]:
    place = answer.headers["location"]
    until(
        lambda: api.client.get(place).json()["state"] in ("done", "failed", "cancelled")
    )
    record: dict[str, Any] = api.client.get(place).json()
    return record


def test_a_zip_is_learned_as_one_change_and_its_images_can_be_unlearned(
    api: Any, folder: Path
) -> None:
    answer = start(api, ENTRIES)
    assert answer.status_code == 202
    record = ended(api, answer)
    assert (record["state"], record["done"], record["total"]) == ("done", 12, 12)
    assert record["change"]["classes"] == [
        {"name": f"class {hue}", "samples": 4} for hue in range(3)
    ]
    assert [entry["what"] for entry in api.get("pics").json()["history"]] == [
        "begin",
        "fit",
    ]
    single = [("images", ("x.png", png(1, 2), "image/png"))]
    assert (
        api.post(
            "unlearn", model="pics", data={"label": "class 1"}, files=single
        ).json()["n_samples"]
        == 11
    )
    assert ended(api, send(api, zipped(ENTRIES)))["change"]["n_samples"] == 23
    assert list(folder.glob(".upload.*")) == []


def test_unreadable_images_are_listed_and_left_out(api: Any) -> None:
    bad = {"birds/class 1/broken.png": b"no image", "birds/class 2/torn.png": b"t" * 99}
    damaged = zipped({**ENTRIES, **bad}).replace(
        b"t" * 99, b"T" * 99
    )  # its checksum in the zip is another now
    api.create("pics", "images", backbone="colours")
    record = ended(api, send(api, damaged))
    assert (record["state"], record["done"], record["total"], record["skipped"]) == (
        "done",
        14,
        14,
        2,
    )
    assert [entry["name"] for entry in record["failures"]] == list(bad)
    assert "image" in record["failures"][0]["reason"]
    many = ended(
        api,
        start(api, ENTRIES | {f"birds/class 1/{i} bad.png": b"no" for i in range(130)}),
    )
    assert (many["state"], many["skipped"], len(many["failures"])) == ("done", 130, 100)
    assert api.counts("pics") == {f"class {hue}": 8 for hue in range(3)}


def test_a_zip_without_readable_images_changes_nothing(api: Any) -> None:
    record = ended(api, start(api, {"a/1.png": b"x", "b/1.png": b"y"}))
    assert (record["state"], record["skipped"]) == ("failed", 2)
    assert "can be read" in record["error"]
    assert api.counts("pics") == {}


def test_a_repeated_job_counts_once_also_after_a_restart(serve: Any) -> None:
    data = zipped(ENTRIES)
    for number in range(3):
        api = serve()
        if number == 0:
            api.create("pics", "images", backbone="colours")
        sent = send(api, data, **{"Idempotency-Key": "zip 1"})
        assert ended(api, sent)["change"]["replayed"] == (number > 0)
    assert sum(api.counts("pics").values()) == 12


def test_a_shutdown_during_a_job_leaves_the_model_unchanged(
    serve: Any, folder: Path, monkeypatch: Any
) -> None:
    api = serve()

    async def forever(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(api.client.app.state.service, "prepare_images", forever)
    assert start(api, ENTRIES).status_code == 202
    api.client.__exit__(None, None, None)
    assert sorted(
        path.name for path in folder.iterdir() if not path.name.endswith(".history")
    ) == ["pics.evg"]
    assert serve().counts("pics") == {}


@pytest.fixture
def held(api: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Block the decoding of images until the event is set."""
    go_on = threading.Event()
    service = api.client.app.state.service
    prepared = service.prepare_images

    async def slow(*args: Any) -> Any:
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return await prepared(*args)

    monkeypatch.setattr(service, "prepare_images", slow)
    return go_on


def test_a_cancelled_job_leaves_the_model_unchanged(
    api: Any, held: Any, folder: Path
) -> None:
    held.set()
    api.taught_images(2)
    before = (folder / "pics.evg").read_bytes()
    held.clear()
    place = send(api, zipped(ENTRIES)).headers["location"]
    assert api.client.get(place).json()["state"] == "running"
    assert api.client.delete(place).json()["state"] == "cancelled"
    held.set()
    assert api.client.delete(place).status_code == 409
    assert (folder / "pics.evg").read_bytes() == before
    np.testing.assert_equal(
        open_model(folder / "pics.evg").state_.label_counts, {"0": 2, "1": 2}
    )
    assert api.client.app.state.service.pool.depth() == 0


def test_a_job_belongs_to_the_model_it_was_started_for(api: Any, held: Any) -> None:
    job = start(api, ENTRIES)
    assert api.client.delete("/api/v1/models/pics").status_code == 204
    api.create("pics", "images", backbone="colours")
    held.set()
    assert ended(api, job)["state"] == "failed"
    assert api.counts("pics") == {}


def test_a_job_fails_if_another_process_replaces_its_model(
    api: Any, held: Any, serve: Any
) -> None:
    job = start(api, ENTRIES)
    other = serve()
    assert other.client.delete("/api/v1/models/pics").status_code == 204
    other.create("pics", "images", backbone="colours")
    held.set()
    told = ended(api, job)
    assert (told["state"], told["error"]) == (
        "failed",
        "the model 'pics' was deleted, and another model has its name now",
    )
    assert other.counts("pics") == {}


def test_too_many_open_jobs_are_rejected(serve: Any, api: Any, held: Any) -> None:
    places = [
        start(api, ENTRIES).headers["location"]
        for _ in range(api.client.app.state.service.limits.jobs)
    ]
    refused = send(api, zipped(ENTRIES))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    api.client.delete(places[0])
    assert send(api, zipped(ENTRIES)).status_code == 202
    held.set()


def test_jobs_require_a_model_of_images(api: Any) -> None:
    api.create("pics")
    assert send(api, zipped(ENTRIES)).status_code == 422
    assert api.client.get("/api/v1/jobs/none").status_code == 404
    assert api.client.delete("/api/v1/jobs/none").status_code == 404
