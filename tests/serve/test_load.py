"""The service under mixed load, and the memory of open models."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.serve.running import Running
from tests.serve.soak import Soak

from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import commit
from evergrow.serve import Limits

SOAK_SECONDS = float(os.environ.get("EVERGROW_SOAK_SECONDS", "30"))


@pytest.mark.slow
def test_mixed_load_with_two_writers_kills_and_hostile_clients(tmp_path: Path) -> None:
    figures = Soak(tmp_path / "models", SOAK_SECONDS).run()
    print(json.dumps(figures.summary(), indent=1, default=float))  # noqa: T201
    assert figures.faults == []
    assert figures.kills > 0
    assert figures.rounds > 0
    assert figures.memory[-1] < 1.2 * figures.memory[0]


BLOCKS = (1280, 320, 192, 112)
CLASSES = 20
EACH = 30
COPIES = 6
TIMES = 3
"""Feature blocks, training data, number of models, and limit on memory / file size."""


@pytest.mark.slow
def test_an_open_model_takes_at_most_three_times_its_file_and_releases_it(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(CLASSES), EACH)
    X = rng.normal(size=(CLASSES, sum(BLOCKS)))[y] + rng.normal(
        size=(len(y), sum(BLOCKS))
    )
    learner = Learner(
        None, options={"n_units": 3000, "blocks": BLOCKS}, device="cpu"
    ).fit((X, y.astype(str)))
    (folder := tmp_path / "models").mkdir()
    commit(folder / "0.evg", learner)
    size = os.path.getsize(folder / "0.evg")
    question = {"rows": X[:5].tolist()}
    assert 10 * 2**20 < size < 40 * 2**20
    limits = Limits(open_models=COPIES + 1, requests_per_second=100_000)
    with Running(folder, limits=limits) as running, running.client() as client:

        def use(copy: int) -> None:
            for work, body in (
                ("predict", question),
                ("teach", {**question, "label": "0"}),
                ("predict", question),
            ):
                answer = client.post(f"/api/v1/models/{copy}/{work}", json=body)
                assert answer.status_code == 200, answer.text

        shutil.copy(folder / "0.evg", tmp_path / "first.evg")
        use(0)  # loads libraries
        memory = [running.memory()]
        for copy in range(1, 2 * COPIES + 1):
            shutil.copy(tmp_path / "first.evg", folder / f"{copy}.evg")
            use(copy)
            memory.append(running.memory())
        taken = (memory[COPIES] - memory[0]) / COPIES
        print(f"a file of {size / 2**20:.1f} MiB takes {taken / 2**20:.1f} MiB")  # noqa: T201
        assert taken <= TIMES * size
        assert (
            memory[-1] - memory[COPIES] < 0.1 * (memory[COPIES] - memory[0]) + size
        )  # the same number was closed
        use(1)  # and it comes back
