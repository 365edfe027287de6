"""A large request of one caller does not delay other callers."""

from __future__ import annotations

import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.learner.toys import Letters
from tests.serve.conftest import Api
from tests.serve.running import Running, until
from tests.serve.samples import files, rows

from evergrow import Learner, tools
from evergrow.serve import Limits, open_model, routes, service
from evergrow.serve.backbones import Batcher
from evergrow.serve.config import Tokens
from evergrow.serve.monitoring import Metrics
from evergrow.serve.sharing import CALLER, FairExecutor

KELVIN = "\u212a"  # which is the letter K in its normal form


def table(rows: Any) -> dict[str, Any]:
    file = io.BytesIO()
    np.save(file, np.asarray(rows))
    return {"files": [("rows", ("rows.npy", file.getvalue()))]}


# -- turns -----------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_large_requests_take_turns_with_small_ones(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evergrow.serve.backbones.cores", lambda: 2)

    class Slow(Letters):
        go_on = threading.Semaphore(0)

        def encode(self, batch: Any) -> Any:
            assert self.go_on.acquire(timeout=20)
            return super().encode(batch)

    batcher = Batcher(Slow(), Limits(batch=4), Metrics())
    texts = list("abcdefghijklmnopqrst")
    large, other = (batcher.submit(texts[:n], alone=alone) for n in (20, 12))
    small = batcher.submit(["c"])
    for _ in range(
        9 if alone else 3
    ):  # a piece of each that was there before; of a lesson sample by sample
        Slow.go_on.release()
    assert small.result(20).argmax() == 2
    assert not large.done()
    assert not other.done()
    for _ in range(40):
        Slow.go_on.release()
    for request, n in ((large, 20), (other, 12)):
        assert request.result(20).argmax(axis=1).tolist() == list(range(n))
    batcher.close()
    assert batcher.depth == 0


def test_a_form_with_many_images_leaves_a_decoder_to_other_requests(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught_images()
    decode = service.decode_image
    order = []
    begun = threading.Event()
    go_on = threading.Event()

    def slow(data: bytes, *, name: str, max_pixels: int) -> Any:
        order.append(len(data))
        begun.set()
        assert go_on.wait(20)
        return decode(data, name=name, max_pixels=max_pixels)

    monkeypatch.setattr(service, "decode_image", slow)
    with ThreadPoolExecutor(2) as callers:
        large = callers.submit(api.post, "predict", model="pics", files=files(0, 12))
        assert begun.wait(20)
        waiting = api.client.app.state.service._decoders._work_queue
        before = waiting.qsize()
        (image,) = files(1, 1)
        sent = [("image", ("x", image[1][1] + b"x"))]
        small = callers.submit(api.client.post, "/api/v1/preview", files=sent)
        until(lambda: waiting.qsize() > before or small.done() or len(order) > 1)
        go_on.set()
        assert (small.result(20).status_code, large.result(20).status_code) == (
            200,
            200,
        )
    sizes = {len(file[1][1]) for file in files(0, 12)}
    assert next(i for i, size in enumerate(order) if size not in sizes) < 6


def progressive(side: int, scans: int) -> bytes:
    """Return a JPEG of one colour whose last scan is repeated."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 90).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    scan = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + scan * scans + data[-2:]


def sent(data: bytes) -> dict[str, Any]:
    return {"files": [("image", ("x.jpg", data))]}


def test_slow_images_leave_threads_to_other_requests(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = progressive(4000, 5)
    decode = service.decode_image
    begun = threading.Event()
    go_on = threading.Event()

    def slow(data: bytes, *, name: str, max_pixels: int) -> Any:
        if data == large:
            begun.set()
            assert go_on.wait(60)
        return decode(data, name=name, max_pixels=max_pixels)

    monkeypatch.setattr(service, "decode_image", slow)
    (image,) = files(0, 1)
    with ThreadPoolExecutor(8) as callers:
        long = [
            callers.submit(api.client.post, "/api/v1/preview", **sent(large))
            for _ in range(6)
        ]
        assert begun.wait(60)
        small = callers.submit(api.client.post, "/api/v1/preview", **sent(image[1][1]))
        try:
            assert small.result(30).status_code == 200
            assert not any(answer.done() for answer in long)
        finally:
            go_on.set()
        assert {answer.result(60).status_code for answer in long} == {200}


def test_callers_take_turns_in_the_executor() -> None:
    order: list[str] = []
    go_on = threading.Event()

    def submit(pool: FairExecutor, caller: str, n: int) -> list[Any]:
        CALLER.set(caller)
        return [pool.submit(order.append, caller) for _ in range(n)]

    with FairExecutor(1) as pool:
        pool.submit(go_on.wait, 20)
        calls = [
            call
            for caller, n in (("a", 5), ("b", 1), ("c", 2))
            for call in copy_context().run(submit, pool, caller, n)
        ]
        assert calls[4].cancel()
        go_on.set()
    assert "".join(order) == "abcacaa"
    assert calls[4].cancelled()


def test_an_exception_in_the_executor_reaches_its_caller() -> None:
    def fail() -> None:
        raise ValueError("this one")

    with FairExecutor(1) as pool:
        failing = pool.submit(fail)
        assert pool.submit(int, "5").result(20) == 5
    with pytest.raises(ValueError, match="this one"):
        failing.result(20)


def test_callers_are_identified_by_token(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Noting(FairExecutor):
        def submit(self, work: Any, /, *args: Any, **kwargs: Any) -> Any:
            seen.append(CALLER.get())
            return super().submit(work, *args, **kwargs)

    monkeypatch.setattr(service, "FairExecutor", Noting)
    names = {"anna": "a" * 40, "bert": "b" * 40}
    lines = "".join(f"read {token} {name}\n" for name, token in names.items())
    api = serve(tokens=Tokens.parse(lines, "tokens"))
    (image,) = files(0, 1)
    for token in names.values():
        headers = {"Authorization": f"Bearer {token}"}
        answer = api.client.post(
            "/api/v1/preview", headers=headers, **sent(image[1][1])
        )
        assert answer.status_code == 200
    assert seen == list(names)


@pytest.mark.slow
@pytest.mark.parametrize(("scans", "status"), [(1000, 422), (9, 200)])
def test_predictions_do_not_wait_for_progressive_images_of_other_callers(
    tmp_path: Path, scans: int, status: int
) -> None:
    large = progressive(7000, scans)
    (image,) = files(0, 1)
    waits = []
    with Running(tmp_path / "models") as running, running.client() as client:
        post = partial(client.post, "/api/v1/preview")
        assert post(**sent(image[1][1])).status_code == 200
        with ThreadPoolExecutor(4) as callers:
            long = [callers.submit(post, **sent(large)) for _ in range(4)]
            while not all(answer.done() for answer in long) or len(waits) < 3:
                begun = time.perf_counter()
                assert post(**sent(image[1][1])).status_code == 200
                waits.append(time.perf_counter() - begun)
        assert {answer.result().status_code for answer in long} == {status}
    assert max(waits) < 10


@pytest.mark.parametrize(
    ("owner", "work"), [(tools, "learning_curve"), (Learner, "evaluate")]
)
def test_predictions_and_changes_do_not_wait_for_an_analysis_of_the_same_model(
    api: Api, monkeypatch: pytest.MonkeyPatch, owner: Any, work: str
) -> None:
    api.taught("ab", 8)
    does = getattr(owner, work)
    begun = threading.Event()
    go_on = threading.Event()

    def slow(*args: Any, **settings: Any) -> Any:
        begun.set()
        assert go_on.wait(20)
        return does(*args, **settings)

    monkeypatch.setattr(owner, work, slow, raising=False)
    with ThreadPoolExecutor(12) as callers:
        body = {"rows": rows(0, 8) + rows(1, 8), "labels": ["a"] * 8 + ["b"] * 8}
        long = [
            callers.submit(api.post, work.replace("_", "-"), body) for _ in range(10)
        ]
        assert begun.wait(20)
        assert (
            callers.submit(api.post, "predict", {"rows": rows(0, 1)})
            .result(20)
            .status_code
            == 200
        )
        assert api.post("teach", {"rows": rows(0, 1), "label": "a"}).status_code == 200
        go_on.set()
        assert {answer.result(60).status_code for answer in long} == {200}


def test_uploads_are_synced_to_disk_off_the_event_loop(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught()
    sync = os.fsync
    threads = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda file: threads.append(threading.current_thread().name) or sync(file),
    )
    assert api.upload("copy", api.get(path="/download").content).status_code == 201
    assert threads[0].startswith("answers")


# -- sizes -----------------------------------------------------------------------------


def test_a_response_that_would_list_too_many_classes_is_rejected(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught("abc")
    monkeypatch.setattr(routes, "_MAX_LISTED_CLASSES", 6)
    assert api.post("predict", {"rows": rows(0, 2), "k": 1000}).status_code == 200
    refused = api.post("predict", {"rows": rows(0, 3), "k": 1000})
    assert (refused.status_code, refused.json()["error"]) == (413, "TooMany")
    assert api.post("predict", {"rows": rows(0, 3), "k": 2}).status_code == 200


def test_the_confusion_matrix_is_left_out_for_many_classes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught("abc")
    monkeypatch.setattr(open_model, "MAX_CONFUSION_CLASSES", 2)
    told = api.post("evaluate", {"rows": rows(0, 2), "label": "b"}).json()
    assert (told["confusion"], told["classes"]) == ([], ["a", "b", "c"])
    assert told["confused"][0]["n"] == 2


def test_an_npy_file_with_too_many_columns_is_rejected(api: Api) -> None:
    api.create()
    answer = api.post(
        "teach", data={"label": "a"}, **table(np.zeros((2, 65_537), dtype=np.float32))
    )
    assert (answer.status_code, answer.json()["error"]) == (422, "InputError")
    assert "65,536 columns" in answer.json()["detail"]


# -- names -----------------------------------------------------------------------------


def test_unicode_forms_of_a_model_name_share_their_metrics(api: Api) -> None:
    api.taught("ab", 20, model="KKK")
    sent = table(np.tile(rows(0, 20) + rows(1, 20), (25, 1)))
    for name in product(f"K{KELVIN}", repeat=3):
        assert api.post("predict", model="".join(name), **sent).status_code == 200
    metrics = api.client.app.state.service.metrics
    assert (
        api.client.get("/metrics").text.count("evergrow_drift_fraction{")
        == len(metrics._recent)
        == 1
    )
    assert api.client.delete(f"/api/v1/models/K{KELVIN}K").status_code == 204
    assert (
        api.client.get("/metrics").text.count("evergrow_drift_fraction{")
        == len(metrics._recent)
        == 0
    )


def test_deleting_a_link_keeps_its_target_for_all_unicode_forms_of_its_name(
    api: Api, folder: Path
) -> None:
    api.taught()
    (folder / "K.evg").symlink_to("m.evg")
    assert api.client.delete(f"/api/v1/models/{KELVIN}").status_code == 204
    assert [
        entry["name"] for entry in api.client.get("/api/v1/models").json()["models"]
    ] == ["m"]
    assert api.get().status_code == 200
