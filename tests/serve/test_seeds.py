"""A model keeps its seed in the service, over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.serve.samples import rows

from evergrow import Learner

SEEDS = (0, 7, 12345)


def taught(api: Any, seed: int) -> None:
    """Teach the model `m` the same rows in every service."""
    for kind in range(3):
        lesson = {"rows": rows(kind, 200, seed), "label": str(kind)}
        assert api.post("teach", lesson).status_code == 200


def begin(api: Any, seed: int, way: str, file: Path) -> None:
    """Create an empty model over HTTP, or upload one created in Python."""
    if way == "created":
        assert (
            api.create(options={"n_units": 30, "random_state": seed}).status_code == 201
        )
        return
    learner = Learner(None, options={"n_units": 30}, random_state=seed, device="cpu")
    learner.begin("features").save(file)
    assert api.upload("m", file.read_bytes()).status_code == 201


@pytest.mark.parametrize("way", ["created", "uploaded"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_restarted_service_learns_the_same_model(
    seed: int, way: str, serve: Any, folder: Path, tmp_path: Path
) -> None:
    asked = np.array(rows(1, 20, seed=9))
    begin(serve(), seed, way, tmp_path / "begun.evg")
    taught(serve(), 1)  # a second service on the same folder has no model in memory
    taught(serve(), 2)
    found = Learner.load(folder / "m.evg", device="cpu")

    options = {"n_units": 30}
    if way == "created":
        options["random_state"] = seed
        expected = Learner(None, options=options, device="cpu")
    else:
        expected = Learner(None, options=options, device="cpu", random_state=seed)
    expected.begin("features")
    for lesson in (1, 2):
        for kind in range(3):
            X = np.array(rows(kind, 200, lesson))
            expected.partial_fit(X, [str(kind)] * len(X))
    assert found.random_state == expected.random_state
    np.testing.assert_allclose(
        found.decision_function(asked),
        expected.decision_function(asked),
        rtol=1e-9,
        atol=1e-9,
    )
    np.testing.assert_allclose(
        found.predict_proba(asked), expected.predict_proba(asked), rtol=1e-9, atol=1e-9
    )
