"""Specs of images: features are computed once, on demand, and described in records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from evergrow.core.errors import ParameterError
from evergrow.data import load_data
from evergrow.features import create_backbone, encode
from evergrow.lab.bench import SpecError, expand, load_spec, run_grid
from evergrow.lab.methods import create_method

SPEC = """
seeds = [1993]
device = "cpu"
output = "out"
confusion = true

[[methods]]
name = "simplecil"

[[datasets]]
path = "images.npz"
backbone = "test_resnet"
weights = "random"

[[protocols]]
increment = 2
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 5)
    shades = rng.integers(0, 256, (6, 1, 1, 3))
    X = np.clip(shades[y] + rng.integers(-20, 20, (30, 16, 16, 3)), 0, 255).astype(
        np.uint8
    )
    np.savez(
        tmp_path / "images.npz", X_train=X, y_train=y, X_test=X[::2], y_test=y[::2]
    )
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path / "spec.toml"


@pytest.mark.parametrize(
    ("recipe", "kept"),
    [
        ("final", None),
        (["final", "mean@-2"], {"blocks": ["final", "mean@-2"], "widths": [96, 192]}),
    ],
)
def test_a_run_equals_extraction_and_learning_by_hand(
    spec: Path, recipe: str | list[str], kept: object
) -> None:
    spec.write_text(
        SPEC.replace(
            'weights = "random"', f'weights = "random"\nrecipe = {json.dumps(recipe)}'
        )
    )
    (record,) = run_grid(load_spec(spec)).records
    backbone = create_backbone("test_resnet", "random", device="cpu", recipe=recipe)
    assert record.dataset["backbone"]["weights_hash"] == backbone.spec.weights_hash
    assert record.dataset["backbone"].get("recipe") == kept
    data = load_data(spec.parent / "images.npz")
    head = create_method("simplecil", device="cpu")
    head.fit(encode(backbone, data.train.items, cache=False).X, data.y_train)
    answers = head.predict(encode(backbone, data.test.items, cache=False).X)
    assert record.results["a_last"] == pytest.approx((answers == data.y_test).mean())
    assert np.array_equal(
        record.extra["confusion"]["matrix"], confusion_matrix(data.y_test, answers)
    )


def test_run_id_depends_on_the_backbone_but_not_on_the_folder(
    spec: Path, tmp_path: Path
) -> None:
    (run,) = expand(load_spec(spec))
    other = tmp_path / "other"
    other.mkdir()
    (other / "images.npz").write_bytes((spec.parent / "images.npz").read_bytes())
    (other / "spec.toml").write_text(SPEC)
    assert expand(load_spec(other / "spec.toml"))[0].run_id == run.run_id
    (other / "spec.toml").write_text(SPEC.replace("test_resnet", "test_vit"))
    assert expand(load_spec(other / "spec.toml"))[0].run_id != run.run_id


def test_images_without_a_backbone_raise_before_anything_runs(spec: Path) -> None:
    spec.write_text(SPEC.replace('backbone = "test_resnet"\nweights = "random"\n', ""))
    with pytest.raises(ParameterError, match="must have a backbone"):
        expand(load_spec(spec))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'backbone = "test_resnet"\n',
            "",
            "datasets 1: weights needs a backbone",
        ),
        (
            'weights = "random"',
            "options = { test_sise = 0.2 }",
            "datasets 1.*nearest: 'test_size'",
        ),
        (
            'weights = "random"',
            "options = { test_size = 2 }",
            "datasets 1: test_size must be",
        ),
        (
            'weights = "random"',
            "backbone_options = 3",
            "datasets 1: 'backbone_options' should be",
        ),
        (
            'weights = "random"',
            'recipe = "riche"',
            "datasets 1: recipe must be 'auto', 'fast', 'rich', 'best' or",
        ),
    ],
)
def test_invalid_dataset_settings_name_their_table(
    spec: Path, old: str, new: str, message: str
) -> None:
    spec.write_text(SPEC.replace(old, new))
    with pytest.raises(SpecError, match=message):
        load_spec(spec)
