"""Many callers for a while: no error, no lost update, and memory that stays."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.serve.running import Running, begin
from tests.serve.samples import rows

SECONDS = float(os.environ.get("EVERGROW_LOAD_SECONDS", "60"))
CALLERS = 32
REQUESTS = int(os.environ.get("EVERGROW_LOAD_REQUESTS", "20000"))


@pytest.mark.slow
def test_32_callers_that_ask_and_teach(tmp_path: Path) -> None:
    with Running(tmp_path / "models", "--rate", "100000") as running:
        with running.client() as client:
            begin(client)
        end = time.monotonic() + SECONDS
        wrong: list[Any] = []
        asked, taught = [0] * CALLERS, [0] * CALLERS

        def call(number: int) -> None:
            with running.client() as client:
                while time.monotonic() < end:
                    for turn in range(5):
                        if turn < 4:
                            answer = client.post("/api/v1/models/m/predict", json={"rows": rows(number % 4, 2)})
                            asked[number] += 1
                        else:
                            lesson = {"rows": rows(number % 4, 1, seed=taught[number]), "label": str(number % 4)}
                            answer = client.post("/api/v1/models/m/teach", json=lesson)
                            taught[number] += answer.status_code == 200
                        if answer.status_code != 200:
                            wrong.append((answer.status_code, answer.text[:200]))

        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(call, range(CALLERS)))
        assert wrong == []
        with running.client() as client:
            about = client.get("/api/v1/models/m").json()
        expected = {str(kind): 4 * (kind < 2) + sum(taught[kind::4]) for kind in range(4)}
        assert {entry["name"]: entry["samples"] for entry in about["classes"]} == expected
        assert about["revision"] == 3 + sum(taught)
        assert running.stop()[0] == 0
    print(f"{CALLERS} callers, {SECONDS:g} s: {sum(asked)} questions, {sum(taught)} lessons")  # noqa: T201


@pytest.mark.slow
def test_memory_is_flat_over_many_requests(tmp_path: Path) -> None:
    with Running(tmp_path / "models", "--rate", "100000") as running:
        with running.client() as client:
            begin(client)

        def ask(n: int) -> None:
            with running.client() as client:
                for _ in range(n):
                    assert client.post("/api/v1/models/m/predict", json={"rows": rows(0, 2)}).status_code == 200

        def many(n: int) -> int:
            with ThreadPoolExecutor(8) as callers:
                list(callers.map(ask, [n // 8] * 8))
            return running.memory()

        first, last = many(REQUESTS // 10), many(REQUESTS)
    print(f"{first / 2**20:.0f} MiB after {REQUESTS // 10} requests, {last / 2**20:.0f} after {REQUESTS} more")  # noqa: T201
    assert last - first < 20 * 2**20
