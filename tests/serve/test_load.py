"""The service under mixed load: no error, nothing lost or learned twice, and memory that stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.serve.soak import Soak

SOAK_SECONDS = float(os.environ.get("EVERGROW_SOAK_SECONDS", "30"))


@pytest.mark.slow
def test_mixed_load_with_two_writers_kills_and_hostile_clients(tmp_path: Path) -> None:
    figures = Soak(tmp_path / "models", SOAK_SECONDS).run()
    print(json.dumps(figures.summary(), indent=1, default=float))  # noqa: T201
    assert figures.faults == []
    assert figures.kills > 0
    assert figures.rounds > 0
    assert figures.memory[-1] < 1.2 * figures.memory[0]
