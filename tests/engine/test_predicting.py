"""Predictions by shards equal plain predictions."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.clouds import OPTIONS, SMALL, learner, points, write_points
from tests.learner.toys import write_folder

from evergrow import Learner
from evergrow.core.errors import EngineError, ParameterError
from evergrow.data import read
from evergrow.data.items import Images
from evergrow.engine import LocalEngine
from evergrow.engine.parquet_out import write_predictions
from evergrow.features import create_backbone
from evergrow.tools.strictness import STRICTNESS

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_points(tmp_path_factory.mktemp("data") / "points.npz")


@pytest.fixture(scope="module")
def model(data: Path) -> Learner:
    return learner().fit(data)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two classes with nine images each, and one that is none."""
    folder = write_folder(
        tmp_path_factory.mktemp("images") / "insects", {"ant": 0, "bee": 1}, n=9
    )
    (folder / "ant" / "none.png").write_bytes(b"no image")
    return folder


def test_evaluate_by_shards_equals_plain_evaluate(
    model: Learner, tmp_path: Path
) -> None:
    strange = write_points(tmp_path / "strange.npz", seed=5, n=160, classes=8)
    plain = model.evaluate(strange)
    found, tally = LocalEngine(**SMALL).evaluate(model, strange)
    assert (found.confusion == plain.confusion).all()
    assert (found.accuracy, found.unknown_classes) == (
        plain.accuracy,
        plain.unknown_classes,
    )
    assert found.unknown == plain.unknown
    assert tally.to_values()["rows"] == 160


def test_evaluate_counts_every_shard_once(
    model: Learner, data: Path, tmp_path: Path
) -> None:
    engine = LocalEngine(**SMALL, folder=tmp_path / "job")
    found, _ = engine.evaluate(model, data)
    one, other = sorted((tmp_path / "job" / "evaluate").iterdir())[2:4]
    other.write_bytes(one.read_bytes())
    assert (engine.evaluate(model, data)[0].confusion == found.confusion).all()


def test_predict_writes_one_table(model: Learner, data: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    engine = LocalEngine(**SMALL, folder=tmp_path / "job")
    tally = engine.predict(model, data, top=2, false_alarm=0.05)
    assert tally.to_values()["rows"] == 300
    table = pq.read_table(tmp_path / "job" / "predict").to_pydict()
    asked = model.predictions(points()[0], false_alarm=0.05)
    labels = asked.classes[asked.ranked(1)[:, 0]]
    assert table["label"] == [
        None if strange else label
        for label, strange in zip(labels, asked.unknown, strict=True)
    ]
    np.testing.assert_array_equal(table["novelty"], asked.novelty)
    assert [len(row) for row in table["top"]] == [2] * 300


def test_predict_marks_unsure_samples(
    model: Learner, data: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    predictions = model.predictions(points()[0], false_alarm=0.05)
    n_unsure = []
    for strangers in ("few", "many"):
        engine = LocalEngine(**SMALL, folder=tmp_path / strangers)
        engine.predict(model, data, false_alarm=0.05, strangers=strangers)
        table = pq.read_table(tmp_path / strangers / "predict").to_pydict()
        limits = STRICTNESS[strangers]
        threshold = model.state_.threshold(limits.false_alarm)
        expected = (predictions.values.max(axis=1) < limits.probability) | (
            predictions.novelty > threshold
        )
        assert table["unsure"] == (expected | predictions.unknown).tolist()
        n_unsure.append(sum(table["unsure"]))
    assert n_unsure[0] < n_unsure[1]


def test_predict_rewrites_damaged_tables(model, data, tmp_path, monkeypatch) -> None:
    engine = LocalEngine(**SMALL, folder=tmp_path / "job")
    engine.predict(model, data)
    files = sorted((tmp_path / "job" / "predict").iterdir())
    bodies = [path.read_bytes() for path in files]
    files[3].write_bytes(bodies[3][:-5] + b"wrong")
    files[5].unlink()
    files[6].write_bytes(bodies[2])  # that of another shard
    written = []

    def write(path, **settings):
        written.append(path.name)
        return write_predictions(path, **settings)

    monkeypatch.setattr("evergrow.engine.worker_tasks.write_predictions", write)
    engine.predict(model, data)
    assert written == [files[place].name for place in (3, 5, 6)]
    assert [
        path.read_bytes() for path in files
    ] == bodies  # a retry overwrites with the same bytes


@pytest.mark.parametrize("name", ["test_resnet", "test_resnet+test_vit"])
def test_features_by_shards_equal_those_of_the_backbone(
    images: Path, tmp_path: Path, name: str
) -> None:
    import pyarrow.parquet as pq

    backbone = create_backbone(name, weights="random", device="cpu")
    engine = LocalEngine(shard_rows=8, folder=tmp_path / "job")
    with pytest.raises(EngineError, match=r"shard 1.* cannot be read: .*none\.png"):
        engine.features(backbone, images)
    shutil.rmtree(tmp_path / "job")
    tally = engine.features(backbone, images, on_error="skip")
    assert [name for name, _ in tally.samples_left_out()] == ["ant/none.png"]
    table = pq.read_table(tmp_path / "job" / "features").to_pydict()
    assert table["label"] == ["ant"] * 9 + ["bee"] * 9
    from evergrow.features import encode

    plain = encode(backbone, Images(tuple(table["name"]), root=images), cache=False).X
    np.testing.assert_allclose(
        np.array(table["feature"]), plain, rtol=0, atol=1e-5
    )  # batches are others
    assert read(tmp_path / "job" / "features").kind == "features"


@pytest.mark.parametrize("backbone", ["test_resnet", "test_resnet+test_vit"])
def test_fit_by_shards_learns_images(
    images: Path, tmp_path: Path, backbone: str
) -> None:
    settings = {
        "backbone": backbone,
        "weights": "random",
        "device": "cpu",
        "options": OPTIONS,
        "cache": False,
    }
    plain = Learner(**settings, extract={"on_error": "skip"})
    with pytest.warns(match="could not be read"):
        plain.fit(images)
    mine = Learner(**settings, extract={"on_error": "skip"})
    tally = LocalEngine(shard_rows=8).fit(mine, images)
    assert [name for name, _ in tally.samples_left_out()] == ["ant/none.png"]
    assert mine.state_.label_counts == plain.state_.label_counts == {"ant": 9, "bee": 9}
    assert mine.state_.spec == plain.state_.spec
    sampled = Learner(
        **settings, extract={"on_error": "skip"}
    )  # some features come from the sample, some do not
    assert (
        len(
            LocalEngine(shard_rows=8, first_rows=10)
            .fit(sampled, images)
            .samples_left_out()
        )
        == 1
    )
    assert sampled.state_.label_counts == plain.state_.label_counts


def test_fit_rejects_classes_without_a_readable_image(
    images: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").write_bytes(b"no image")
    mine = Learner(
        "test_resnet",
        weights="random",
        device="cpu",
        options=OPTIONS,
        extract={"on_error": "skip"},
    )
    with pytest.raises(
        ValueError,
        match="every class must keep a sample that can be read, got none of 'cat'",
    ):
        mine.fit(folder, engine=LocalEngine(shard_rows=30))


def test_engine_rejects_other_data_and_unportable_backbones(
    model: Learner, data: Path, images: Path
) -> None:
    backbone = create_backbone("test_resnet", weights="random", device="cpu")
    with pytest.raises(
        ParameterError, match="data must be images for test_resnet, got features"
    ):
        LocalEngine(folder="job").features(backbone, data)
    with pytest.raises(ParameterError, match="folder must be given"):
        LocalEngine().predict(model, data)
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    with pytest.raises(
        ParameterError, match="must be one that workers can load by its name"
    ):
        Learner(module, features="final").fit(images, engine=LocalEngine())
