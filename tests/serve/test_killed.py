"""Acknowledged changes survive kills and are applied once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from tests.serve.running import Running, begin
from tests.serve.samples import rows

from evergrow.core.seeding import generator
from evergrow.learner import settle
from evergrow.learner.learner import Learner
from evergrow.learner.modelfile import open_model

TEACHES = 100
KILLS = 20
CALLERS = 4


@pytest.mark.slow
def test_every_acknowledged_change_is_applied_once_despite_kills(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "models"
    draws = generator(0, "kills")
    lessons = [
        (rows(number % 7, 2, seed=50 + number), str(number % 7))
        for number in range(TEACHES)
    ]
    running = [Running(folder)]
    acknowledged = [0] * TEACHES
    retried = [0]
    first = [(rows(kind, 5), str(kind)) for kind in range(2)]
    with running[0].client() as client:
        begin(client, 5)

    def teach(number: int) -> None:
        X, label = lessons[number]
        while not acknowledged[number]:
            try:
                answer = httpx.post(
                    f"{running[-1].address}/api/v1/models/m/teach",
                    json={"rows": X, "label": label},
                    headers={"Idempotency-Key": f"lesson {number}"},
                    timeout=30,
                    trust_env=False,
                )
            except httpx.HTTPError:
                retried[0] += 1
                time.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            acknowledged[number] = answer.json()["change"]["revision"]

    callers = ThreadPoolExecutor(CALLERS)
    taught = [callers.submit(teach, number) for number in range(TEACHES)]
    kills = 0
    while kills < KILLS:
        # So that the kills are spread over all lessons: the next one comes once enough
        # are through, at a random moment.
        while sum(map(bool, acknowledged)) < TEACHES * kills // KILLS:
            time.sleep(0.05)
        time.sleep(0.3 * float(torch.rand(1, generator=draws)))
        running[-1].kill()
        kills += 1
        running.append(Running(folder))
    for lesson in taught:
        lesson.result(300)
    callers.shutdown()
    assert running[-1].stop() == 0
    assert kills == KILLS
    assert retried[0] > 0
    served = open_model(folder / "m.evg")
    expected = dict.fromkeys(served.state_.label_counts, 0)
    for X, label in (*first, *lessons):
        expected[label] = expected.get(label, 0) + len(X)
    assert served.state_.label_counts == expected
    keys = [
        entry["key"]
        for change in served.state_.history
        for entry in change.extra.get("requests", [])
    ]
    assert len(keys) == len(set(keys)) == TEACHES
    revisions = {change.revision for change in served.state_.history}
    assert set(acknowledged) <= revisions
    at_once = Learner(None, options={"n_units": 20}, device="cpu")
    for X, label in first:
        at_once.partial_fit((np.asarray(X), [label] * len(X)))
    at_once.partial_fit(
        (
            np.concatenate([X for X, _ in lessons]),
            [label for X, label in lessons for _ in X],
        )
    )
    X = np.concatenate([rows(kind, 3, seed=900) for kind in range(7)])
    np.testing.assert_allclose(
        settle(served).decision_function(X),
        settle(at_once).decision_function(X),
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.slow
def test_a_shutdown_finishes_the_change_in_flight(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    with Running(folder) as running, running.client() as client:
        begin(client)
        lesson = {"rows": rows(2, 1000), "label": "2"}
        callers = ThreadPoolExecutor(1)
        # The client that is connected: to make another takes longer on a busy machine
        # than the pause below.
        taught = callers.submit(
            client.post, "/api/v1/models/m/teach", json=lesson, timeout=60
        )
        time.sleep(0.3)
        assert running.stop() == 0
        assert taught.result(60).status_code == 200
    assert open_model(folder / "m.evg").state_.label_counts["2"] == 1000
