"""Real features and real images, divided in several ways and done by several: one result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.engine.clouds import leftovers

from evergrow import Learner
from evergrow.engine import LocalEngine
from evergrow.engine.runners import LocalRunner
from evergrow.engine.worker_tasks import perform

OPTIONS = {"n_units": 300}
EACH = 500
"""Images of each of ten classes."""


class Backwards(LocalRunner):
    """One process that does everything in the opposite order."""

    def run(self, tasks):
        return super().run(list(tasks)[::-1])


class BackwardsEngine(LocalEngine):
    def runner(self):
        return Backwards(perform)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::evergrow.core.errors.FewSamplesWarning")
@pytest.mark.parametrize("name", ["cub200_efficientnet_lite0", "clinc150_minilm"])
def test_real_features_give_one_model(shared: Path, tmp_path: Path, name: str) -> None:
    data = shared / "features" / f"{name}.npz"
    X = np.load(data)["X_test"][:500]
    plain = Learner(options=OPTIONS).fit(data)
    expected = plain.head_.decision_function(X)
    sevenths = {"shard_rows": -(-sum(plain.n_samples_.values()) // 7)}
    found = []
    for number, engine in enumerate(
        (
            LocalEngine(),
            LocalEngine(workers=2, **sevenths, folder=tmp_path / "two"),
            BackwardsEngine(**sevenths),
        )
    ):
        mine = Learner(options=OPTIONS).fit(data, engine=engine)
        found.append(mine.head_.decision_function(X))
        np.testing.assert_allclose(found[number], expected, rtol=0, atol=1e-9)
        assert mine.threshold() == pytest.approx(plain.threshold(), abs=1e-9)
        assert mine.n_samples_ == plain.n_samples_
        assert mine.history_[0].data == plain.history_[0].data
    assert (found[1] == found[2]).all()  # the same shards, done by others and in another order: not a bit differs
    assert leftovers(tmp_path / "two") == []
