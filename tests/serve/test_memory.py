"""Memory of requests and jobs that unpack to much more than they send."""

from __future__ import annotations

import asyncio
import io
import struct
import threading
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.running import Running, until
from tests.serve.samples import png, zipped

from evergrow.serve.problems import Problem
from evergrow.serve.sharing import MemoryBudget

MIB = 2**20
ZIP = {"Content-Type": "application/zip"}


def zip_of_zeros(n_files: int, size: int, padding: int) -> bytes:
    """Return a zip of files of zeros, which are compressed once, and of padding."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(bytes(size)) + packer.flush()
    checksum = zlib.crc32(bytes(size))
    buffer = io.BytesIO()
    directory = b""
    for index in range(n_files):
        name = f"zeros/{index}.png".encode()
        sizes = struct.pack("<3I2H", checksum, len(packed), size, len(name), 0)
        common = struct.pack("<5H", 20, 0, zipfile.ZIP_DEFLATED, 0, 0x21) + sizes
        tail = struct.pack("<3H2I", 0, 0, 0, 0, buffer.tell())
        directory += b"PK\1\2" + struct.pack("<H", 20) + common + tail + name
        buffer.write(b"PK\3\4" + common + name + packed)
    # Padding, so that the compression ratio is allowed.
    name = b"padding.txt"
    sizes = struct.pack("<3I2H", zlib.crc32(bytes(padding)), *[padding] * 2, 11, 0)
    common = struct.pack("<5H", 20, 0, zipfile.ZIP_STORED, 0, 0x21) + sizes
    tail = struct.pack("<3H2I", 0, 0, 0, 0, buffer.tell())
    directory += b"PK\1\2" + struct.pack("<H", 20) + common + tail + name
    buffer.write(b"PK\3\4" + common + name + bytes(padding))
    start = buffer.tell()
    n = n_files + 1
    end = struct.pack("<4H2IH", 0, 0, n, n, len(directory), start, 0)
    buffer.write(directory + b"PK\5\6" + end)
    return buffer.getvalue()


def peak_memory(service: Running) -> int:
    """Return the most memory that a service ever held, in bytes."""
    status = Path(f"/proc/{service.process.pid}/status")
    if not status.exists():
        pytest.skip("needs Linux: /proc")
    line = next(
        line for line in status.read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_files", "size"), [(4, 500 * MIB), (33, 60 * MIB)], ids=["huge", "many"]
)
def test_three_zips_of_zeros_stay_within_the_memory_budget(
    tmp_path: Path, n_files: int, size: int
) -> None:
    bomb = zip_of_zeros(n_files, size, 20 * MIB)
    assert zipfile.ZipFile(io.BytesIO(bomb)).testzip() is None
    with Running(tmp_path) as service, service.client() as client:
        made = {"name": "pics", "kind": "images", "backbone": "auto"}
        assert client.post("/api/v1/models", json=made).status_code == 201
        before = peak_memory(service)
        places = []
        for _ in range(3):
            sent = client.post(
                "/api/v1/models/pics/jobs", content=bomb, headers=ZIP, timeout=120
            )
            assert sent.status_code == 202, sent.text
            places.append(sent.headers["location"])
        longest = 0.0

        def all_ended() -> bool:
            nonlocal longest
            start = time.perf_counter()
            states = [client.get(place).json()["state"] for place in places]
            longest = max(longest, time.perf_counter() - start)
            return all(state == "failed" for state in states)

        until(all_ended, 180)
        grown = peak_memory(service) - before
        assert grown < 1200 * MIB
        assert longest < 5


def test_images_larger_than_a_request_are_skipped_unread(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = serve({"body_bytes": 20_000})
    api.create("pics", "images", backbone="colours")
    large = {"a/large.png": bytes(20_001)}
    sent = api.post(
        "jobs",
        model="pics",
        content=zipped({"a/1.png": png(0, 1), "b/1.png": png(1, 1), **large}),
        headers=ZIP,
    )
    place = sent.headers["location"]
    until(lambda: api.client.get(place).json()["state"] == "done")
    record = api.client.get(place).json()
    assert record["failures"] == [
        {
            "name": "a/large.png",
            "reason": "a/large.png must have at most 20,000 bytes, got 20,001",
        }
    ]
    assert api.counts("pics") == {"a": 1, "b": 1}


def test_jobs_share_one_memory_budget_and_release_it(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {f"{hue}/{i}.png": png(hue, i) for hue in range(2) for i in range(20)}
    size = max(map(len, entries.values()))
    api = serve({"unpacked_bytes": 2 * size})
    service = api.client.app.state.service
    api.create("pics", "images", backbone="colours")
    held = []
    slow = threading.Event()
    prepared = service.prepare_images

    async def watched(*args: Any) -> Any:
        held.append(service.memory.held)
        while not slow.is_set():
            await asyncio.sleep(0.01)
        return await prepared(*args)

    monkeypatch.setattr(service, "prepare_images", watched)
    places = [
        api.post("jobs", model="pics", content=zipped(entries), headers=ZIP).headers[
            "location"
        ]
        for _ in range(4)
    ]
    until(lambda: held)
    assert api.client.delete(places[0]).json()["state"] == "cancelled"
    slow.set()
    for place in places[1:]:
        until(lambda place=place: api.client.get(place).json()["state"] == "done")
    assert 0 < max(held) <= 2 * size
    assert service.memory.held == 0
    assert api.counts("pics") == {"0": 60, "1": 60}


def test_the_memory_budget_is_released_in_any_order() -> None:
    async def trial() -> None:
        budget = MemoryBudget(100)
        turns: list[int] = []

        async def holder(number: int, n: int) -> None:
            async with budget.hold(n):
                turns.append(number)
                assert budget.held <= 100
                await asyncio.sleep(0.001 * (number % 3))

        rng = np.random.default_rng(0)
        tasks = [
            asyncio.create_task(holder(number, int(n)))
            for number, n in enumerate(rng.integers(1, 300, size=200))
        ]
        for number in rng.integers(200, size=60).tolist():
            await asyncio.sleep(0)
            tasks[number].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget.held == 0
        assert turns == sorted(turns)
        budget.take(100)
        with pytest.raises(Problem, match="other requests hold all memory"):
            budget.take(1)
        budget.release(100)

    asyncio.run(asyncio.wait_for(trial(), 30))


def npy(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return {"rows": ("rows.npy", buffer.getvalue(), "application/octet-stream")}


def test_rows_count_with_their_memory_as_float64(serve: Any) -> None:
    api = serve({"unpacked_bytes": 8 * 6000})
    api.taught()
    service = api.client.app.state.service
    fits = api.post("predict", files=npy(np.zeros((1000, 6), np.uint8)))
    assert fits.status_code == 200
    assert service.memory.held == 0
    large = api.post("predict", files=npy(np.zeros((1001, 6), np.uint8)))
    assert (large.status_code, large.json()["error"]) == (413, "TooLarge")
    service.memory.take(1000)
    busy = api.post("predict", files=npy(np.zeros((1000, 6), np.uint8)))
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "2")
    service.memory.release(1000)
    assert service.memory.held == 0


def test_evaluated_stored_images_count_towards_the_memory_budget(serve: Any) -> None:
    api = serve()
    api.taught_images()
    assert api.client.put("/api/v1/models/pics/kept", json={"on": True}).is_success
    test = [("images", ("1.png", png(0, 7), "image/png"))]
    kept = api.post(
        "kept", model="pics", data={"set": "test", "label": "0"}, files=test
    )
    assert kept.status_code == 201
    budget = api.client.app.state.service.memory
    budget.take(budget.total)
    assert api.get("pics", "/kept/evaluation").status_code == 503
    budget.release(budget.total)
    assert api.get("pics", "/kept/evaluation").status_code == 200
    assert budget.held == 0


def test_images_being_decoded_count_towards_the_queue(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = serve({"queue": 4})
    api.taught_images()
    service = api.client.app.state.service
    go_on = threading.Event()
    prepared = service.prepare_images

    async def slow(*args: Any) -> Any:
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return await prepared(*args)

    monkeypatch.setattr(service, "prepare_images", slow)
    three = [("images", (f"{i}.png", png(0, i), "image/png")) for i in range(3)]
    found: list[int] = []

    def ask() -> None:
        found.append(api.post("predict", model="pics", files=three).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(found) == 3)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [200, 503, 503, 503]
    assert api.post("predict", model="pics", files=three).status_code == 200


def test_uploaded_models_are_checked_one_at_a_time(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.taught()
    model = api.get("m", "/download").content
    store = api.client.app.state.service.store
    adopt = store.adopt
    inside: list[int] = []
    most: list[int] = []

    def watched(*args: Any) -> Any:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return adopt(*args)

    monkeypatch.setattr(store, "adopt", watched)
    threads = [
        threading.Thread(target=api.upload, args=(f"copy {n}", model)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1, 1, 1, 1]
