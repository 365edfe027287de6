"""Many callers for a while: no error, no lost update, and memory that stays."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.serve.running import Running, begin
from tests.serve.samples import rows
from tests.serve.soak import Soak

SECONDS = float(os.environ.get("EVERGROW_LOAD_SECONDS", "60"))
CALLERS = 32
REQUESTS = int(os.environ.get("EVERGROW_LOAD_REQUESTS", "20000"))
SOAK_SECONDS = float(os.environ.get("EVERGROW_SOAK_SECONDS", "30"))


@pytest.mark.slow
def test_callers_that_ask_and_then_teach_too(tmp_path: Path) -> None:
    with Running(tmp_path / "models") as running, running.client() as client, ThreadPoolExecutor(CALLERS) as callers:
        begin(client)

        def ask(n: int) -> None:
            with running.client() as client:
                for _ in range(n):
                    assert client.post("/api/v1/models/m/predict", json={"rows": rows(0, 2)}).status_code == 200

        sizes = []
        for n in (REQUESTS // 10, REQUESTS):
            list(callers.map(ask, [n // 8] * 8))
            sizes.append(running.memory())
        assert sizes[1] - sizes[0] < 20 * 2**20

        taught = [0] * CALLERS
        end = time.monotonic() + SECONDS

        def call(number: int) -> None:
            with running.client() as client:
                while time.monotonic() < end:
                    for _ in range(4):
                        question = {"rows": rows(number % 4, 2)}
                        assert client.post("/api/v1/models/m/predict", json=question).status_code == 200
                    lesson = {"rows": rows(number % 4, 1, seed=taught[number]), "label": str(number % 4)}
                    assert client.post("/api/v1/models/m/teach", json=lesson).status_code == 200
                    taught[number] += 1

        list(callers.map(call, range(CALLERS)))
        about = client.get("/api/v1/models/m").json()
        expected = {str(kind): 4 * (kind < 2) + sum(taught[kind::4]) for kind in range(4)}
        assert {entry["name"]: entry["samples"] for entry in about["classes"]} == expected
        assert about["revision"] == 3 + sum(taught)
        assert running.stop() == 0


@pytest.mark.slow
def test_mixed_load_with_two_writers_kills_and_hostile_clients(tmp_path: Path) -> None:
    """No answer of the service's own failing, nothing lost or learned twice, and memory that stays."""
    figures = Soak(tmp_path / "models", SOAK_SECONDS).run()
    print(json.dumps(figures.summary(), indent=1, default=float))  # noqa: T201
    assert figures.faults == []
    assert figures.kills > 0
    assert figures.rounds > 0
    assert figures.memory[-1] < 1.2 * figures.memory[0]
