"""Incremental, merged and unlearned heads equal joint training; blocks of features."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.head.models import assert_same, rows_in_blocks, small

from evergrow import Classifier
from evergrow.core.errors import FileFormatError, InputError, MergeError, ParameterError
from evergrow.head.layers import GuidedLayer
from evergrow.head.linalg.class_shapes import ClassShapes

SIZES = (8, 12, 5)
make = partial(small, n_units=40, blocks=SIZES)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    return rows_in_blocks()


SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "dense": {"solver": "dense"},
    "compact": {"solver": "compact"},
    "recursive": {"solver": "recursive"},
    "ridge": {"readout": "ridge"},
    "ridge blocks": {"readout": "ridge", "blocks": SIZES},
    "guided": {"layer": GuidedLayer(scales="auto", direct_link=True)},
    "blocks": {"blocks": SIZES},
    "blocks alone": {"blocks": SIZES, "n_units": 0},
    "dense blocks": {"blocks": SIZES, "solver": "dense"},
}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_incremental_merged_and_unlearned_equal_joint_training(
    data: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    X, y = data
    tolerance = 1e-7
    if "blocks" in name:
        tolerance = 1e-6
    first = np.flatnonzero(y < 3)
    rest = np.flatnonzero(y >= 3)
    start = small(**SETTINGS[name]).fit(X[first], y[first])
    whole = start.branch().partial_fit(X[rest], y[rest])
    parts = start.branch()
    for rows in np.array_split(rest, 30):
        parts.predict(X[:3])  # asked in between, so that solutions are followed
        parts.partial_fit(X[rows], y[rows])
    assert_same(parts, whole, X, tolerance)
    worker = start.spawn().partial_fit(X[rest[:40]], y[rest[:40]])
    merged = start.branch().partial_fit(X[rest[40:]], y[rest[40:]]).merge(worker)
    assert_same(merged, whole, X, tolerance)
    left = whole.branch().unlearn(X[rest[:9]], y[rest[:9]])
    assert_same(
        left, start.branch().partial_fit(X[rest[9:]], y[rest[9:]]), X, tolerance
    )


def test_noise_blocks_get_smaller_weights_without_loss_of_accuracy(data):
    X, y = data
    model = make().fit(X[::2], y[::2])
    plain = make(blocks=None, normalize="none").fit(X[::2], y[::2])
    weights = model.block_weights_
    assert weights[0] > 2 * weights[1]
    assert np.mean(weights**2) == pytest.approx(1.0)
    assert model.score(X[1::2], y[1::2]) >= plain.score(X[1::2], y[1::2])
    assert plain.block_weights_ is None
    assert plain.blocks_ is None
    assert [block["columns"] for block in model.blocks_] == list(SIZES)


def test_merge_rejects_a_base_that_is_not_the_origin_of_both(
    data: tuple[np.ndarray, np.ndarray],
) -> None:
    X, y = data
    base = small().fit(X[:80], y[:80])
    one = base.branch().partial_fit(X[80:120], y[80:120])
    two = base.branch().partial_fit(X[120:160], y[120:160])
    third = base.spawn().partial_fit(X[160:], y[160:])
    larger = base.branch().partial_fit(X[80:160], y[80:160])
    other_class = base.branch().partial_fit(X[:1], [99])
    for wrong, message in (
        (third, "did not learn its first batch"),
        (larger, "more samples of a class"),
        (other_class, r"they lack its classes \[99\]"),
    ):
        with pytest.raises(MergeError, match=message):
            one.branch().merge(two, base=wrong)
    with pytest.raises(MergeError, match="both learners merged the same 1 learners"):
        one.branch().merge(third).merge(two.branch().merge(third), base=base)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": (8, 17)}, "different layers"),
        ({"blocks": None, "normalize": "none"}, "different layers"),
        ({"random_state": 9}, "different layers"),
        ({"shape_directions": 0}, "class shapes in different directions"),
    ],
)
def test_merge_rejects_other_layers_and_shape_directions(data, settings, message):
    X, y = data
    model = make().fit(X, y)
    before = model.decision_function(X)
    with pytest.raises(MergeError, match=message):
        model.merge(make(**settings).fit(X, y))
    assert np.array_equal(before, model.decision_function(X))


def test_fit_rejects_wrong_blocks(data):
    X, y = data
    with pytest.raises(InputError, match=r"X must have 26 columns.*got 25"):
        make(blocks=(8, 12, 6)).fit(X, y)
    for blocks in ((), (0, 25), "ab", (1.5, 23.5), 25):
        with pytest.raises(ParameterError, match="blocks must be"):
            make(blocks=blocks, normalize="none").fit(X, y)
    with pytest.raises(ParameterError, match="normalize must be 'auto' or 'none'"):
        make(normalize="l2").fit(X, y)


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [1.0, float("nan"), 1.0]},
        {"weights": [1.0, -1.0, 1.0]},
        {"weights": [1.0, 0.0, 1.0]},
        {"weights": [1.0, 1e30, 1.0]},
        {"weights": [1.0, 1.0]},
        {"weights": "abc"},
        {"sizes": [8, 12, 6]},
        {"sizes": [-8, 28, 5]},
        {"sizes": []},
        {"sizes": [2**62, 1, 1]},
    ],
)
def test_damaged_blocks_in_a_file_are_refused(data, change):
    X, y = data
    archive = make().fit(X, y).to_archive()
    archive.parts["model"].parts["blocks"].meta.update(change)
    with pytest.raises(FileFormatError):
        Classifier.from_archive(archive)


@pytest.mark.parametrize(
    "weights", [[1.0, float("inf"), 1.0], [1.0, 1e9, 1.0], [1.0, 1.0], [0.0, 1.0, 1.0]]
)
def test_damaged_block_weights_of_a_solution_are_refused(data, weights):
    X, y = data
    model = make().fit(X, y)
    model.predict(X[:2])
    archive = model.to_archive()
    archive.parts["solution"].parts["choice"].meta["weights"] = weights
    with pytest.raises(FileFormatError):
        Classifier.from_archive(archive)


def test_shape_directions_of_many_features_are_principal_components(monkeypatch):
    rows = torch.randn(
        300, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    rows = rows * torch.logspace(0, -2, 200, dtype=torch.float64)
    exact = ClassShapes.first(rows, 6).basis
    monkeypatch.setattr("evergrow.head.linalg.class_shapes._WIDE", 100)
    assert torch.allclose(ClassShapes.first(rows, 6).basis, exact, atol=1e-6)


def test_shape_directions_of_few_rows_span_their_rank():
    rows = torch.randn(
        9, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    rows = torch.cat(
        [rows, rows[:3]]
    )  # of rank 8 once they are centred, whatever their number
    found = ClassShapes.first(rows, 128).basis
    centred = rows - rows.mean(dim=0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    assert found.shape == (40, int((values > 1e-10 * values.max()).sum()))
    expected = vectors.flip(1)[:, : found.shape[1]]
    assert torch.allclose(
        (found.T @ expected).abs(),
        torch.eye(found.shape[1], dtype=torch.float64),
        atol=1e-9,
    )
