from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import official

from evergrow.core.seeding import generator
from evergrow.lab.heads import RanPACClassifier
from evergrow.lab.heads.ranpac import RANPAC_ALPHAS, validation_errors
from evergrow.lab.layers import GaussianLayer


def shuffles(stream: Any, seed: int) -> list[Any]:
    """The orders in which the head cuts its tasks."""
    return [
        torch.randperm(
            len(y), generator=generator(seed, "ranpac", "cut", index)
        ).numpy()
        for index, (_, y) in enumerate(stream.tasks)
    ]


# 40 rows to fit on: wider layers take the dual route, narrower ones the primal.
@pytest.mark.parametrize("n_units", [0, 25, 90, 1100])
def test_equals_seventeen_solves_per_task(
    stream: Any, arrays: Any, n_units: int
) -> None:
    head = stream.teach(RanPACClassifier(n_units=n_units, random_state=5, device="cpu"))
    if n_units:
        lift = official.relu_layer(arrays(head.layer_)[0])
    else:

        def lift(Z):
            return Z

    plain = official.RanPAC(lift, n_units or 12, stream.n_classes, dtype=np.float64)
    for (X, y), order in zip(stream.tasks, shuffles(stream, 5)):
        plain.learn(X, y, order)
    assert head.alphas_ == plain.ridges
    np.testing.assert_allclose(
        head.decision_function(stream.X), plain.scores(stream.X), atol=1e-6
    )


def test_dual_and_primal_choice_agree() -> None:
    rng = torch.Generator().manual_seed(0)
    Z = torch.randn(60, 8, generator=rng, dtype=torch.float64)
    Y = torch.nn.functional.one_hot(torch.arange(60) % 3, 3).double()
    # 48 rows to fit on: not fewer than units, and fewer.
    layers = (
        GaussianLayer(n, activation="relu", bias="none").build(Z, Y) for n in (48, 49)
    )
    primal, dual = (validation_errors(layer, Z, Y) for layer in layers)
    assert len(primal) == len(RANPAC_ALPHAS)
    # One unit more hardly changes the errors of well-posed ridges.
    for alpha in RANPAC_ALPHAS[9:]:
        assert primal[alpha] == pytest.approx(dual[alpha], rel=0.1)


def test_a_batch_too_small_to_cut_keeps_the_ridge(stream: Any) -> None:
    head = stream.teach(RanPACClassifier(n_units=30, random_state=0, device="cpu"))
    before = head.alpha_
    head.partial_fit(stream.X[:1], stream.y[:1])
    assert head.alpha_ == before
    assert len(head.alphas_) == 4


def test_a_fixed_ridge_is_joint_ridge_regression(stream: Any) -> None:
    head = stream.teach(
        RanPACClassifier(n_units=30, alpha=2.0, random_state=0, device="cpu")
    )
    X, y = (np.concatenate(parts) for parts in zip(*stream.tasks))
    joint = RanPACClassifier(n_units=30, alpha=2.0, random_state=0, device="cpu").fit(
        X, y
    )
    np.testing.assert_allclose(
        head.decision_function(stream.X), joint.decision_function(stream.X), atol=1e-9
    )


def test_failed_batch_leaves_the_choice_alone(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = stream.teach(RanPACClassifier(n_units=30, random_state=0, device="cpu"))
    before = head.alphas_, head.decision_function(stream.X)

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("evergrow.head.ridge_model.RidgeModel.learn", fail)
    with pytest.raises(MemoryError):
        head.partial_fit(stream.X, stream.y)
    assert head.alphas_ == before[0]
    np.testing.assert_array_equal(head.decision_function(stream.X), before[1])
