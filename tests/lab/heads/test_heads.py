"""Heads of other papers equal their official loops, layers and settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import official

from evergrow.core.errors import LabelError, NumericalError, ParameterError
from evergrow.core.seeding import generator
from evergrow.lab.heads import (
    ACILClassifier,
    GACILClassifier,
    JointLinearProbe,
    RIClassifier,
    SCSMClassifier,
    SimpleCILClassifier,
)
from evergrow.lab.layers.scsm import SCN_SCALES

CPU = {"device": "cpu"}


def recursion(kind: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """Return what makes the official recursion on the units of a head."""

    def make(head: Any, arrays: Any, n_classes: int) -> Any:
        weights, bias = arrays(head.layer_)
        if kind is official.sigmoid_layer:
            lift = kind(weights, bias)
        else:
            lift = kind(weights)
        return official.RecursiveRidge(lift, head.n_units, n_classes, **settings)

    return make


@pytest.mark.parametrize(
    ("head", "plain"),
    [
        *(
            (
                ACILClassifier(n_units=40, random_state=1, **CPU),
                recursion(official.relu_layer, gamma=0.1, batch=batch),
            )
            for batch in (1, 7, 64)
        ),
        (
            GACILClassifier(n_units=40, random_state=1, **CPU),
            recursion(official.relu_layer, gamma=100.0, passes=3),
        ),
        (
            RIClassifier(n_units=40, alpha=0.01, random_state=3, **CPU),
            recursion(official.sigmoid_layer, gamma=0.01),
        ),
        (
            RIClassifier(n_units=1500, alpha=0.01, random_state=3, **CPU),
            recursion(official.sigmoid_layer, gamma=0.01, batch=150),
        ),
        (
            SCSMClassifier(n_units=30, alpha=0.01, random_state=6, **CPU),
            recursion(official.sigmoid_layer, gamma=0.01),
        ),
        (
            SimpleCILClassifier(**CPU),
            lambda head, arrays, n_classes: official.SimpleCIL(n_classes, 12),
        ),
    ],
)
def test_a_head_equals_the_official_loop(
    stream: Any, arrays: Any, head: Any, plain: Callable[..., Any]
) -> None:
    stream.teach(head)
    expected = stream.teach(plain(head, arrays, stream.n_classes))
    np.testing.assert_allclose(
        head.decision_function(stream.X), expected.scores(stream.X), atol=1e-6
    )


def test_a_wide_layer_has_the_compact_form(stream: Any) -> None:
    head = stream.teach(RIClassifier(n_units=1500, alpha=0.01, **CPU))
    assert head._model.state.basis is not None


def test_the_buffer_of_acil_is_kaiming_uniform_without_bias(
    stream: Any, arrays: Any
) -> None:
    weights, bias = arrays(
        stream.teach(ACILClassifier(n_units=600, random_state=1, **CPU)).layer_
    )
    bound = 1 / np.sqrt(12)
    assert np.abs(weights).max() <= bound
    assert np.std(weights) == pytest.approx(bound / np.sqrt(3), rel=0.03)
    assert not bias.any()


def test_the_units_of_ri_are_unit_normal(arrays: Any, stream: Any) -> None:
    weights, bias = arrays(
        stream.teach(RIClassifier(n_units=2000, random_state=0, **CPU)).layer_
    )
    assert np.std(weights) == pytest.approx(1.0, abs=0.02)
    assert np.std(bias) == pytest.approx(1.0, abs=0.05)


def test_official_defaults_of_acil() -> None:
    assert (ACILClassifier().n_units, ACILClassifier().alpha) == (8192, 0.1)
    assert (
        GACILClassifier().n_units,
        GACILClassifier().alpha,
        GACILClassifier().n_passes,
    ) == (5000, 100.0, 3)


def test_n_passes_divide_the_ridge_and_must_be_positive(stream: Any) -> None:
    assert stream.teach(GACILClassifier(n_units=4, **CPU)).alpha_ == pytest.approx(
        100 / 3
    )
    with pytest.raises(
        ParameterError, match=r"n_passes must be an integer >= 1 and <= 1000, got 0"
    ):
        stream.teach(GACILClassifier(n_units=4, n_passes=0, **CPU))


# -- SCSM ------------------------------------------------------------------------------


def test_the_layer_of_scsm_equals_refitting_after_every_unit(
    stream: Any, arrays: Any
) -> None:
    head = stream.teach(SCSMClassifier(n_units=30, alpha=0.01, random_state=6, **CPU))
    X, y = stream.tasks[0]

    def draw(width: int, index: int) -> Any:
        return (
            2.0
            * torch.rand(13, 10, generator=generator(6, "scsm", width, index))
            .double()
            .numpy()
            - 1.0
        )

    for ours, theirs in zip(
        arrays(head.layer_),
        official.scsm_layer(X, np.eye(2)[y - y.min()], draw, 30, 0.01, SCN_SCALES),
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert head.status_ == "capped"
    assert head.n_units_ == len(head.construction_log_) == 30


def test_scsm_needs_two_classes_in_the_first_batch() -> None:
    with pytest.raises(LabelError, match="at least 2 classes"):
        SCSMClassifier(n_units=4, **CPU).fit(np.eye(3), [1, 1, 1])


# -- SimpleCIL -------------------------------------------------------------------------


def test_a_class_in_two_parts_has_the_mean_of_all(stream: Any) -> None:
    X, y = stream.tasks[0]
    head = SimpleCILClassifier(**CPU).fit(X[:9], y[:9]).partial_fit(X[9:], y[9:])
    whole = SimpleCILClassifier(**CPU).fit(X, y)
    np.testing.assert_allclose(head.prototypes_, whole.prototypes_, atol=1e-12)


def test_simplecil_has_the_known_accuracy_on_birds(shared: Path) -> None:
    with np.load(shared / "features" / "cub200_efficientnet_lite0.npz") as data:
        head = SimpleCILClassifier(**CPU).fit(
            data["X_train"].astype(float), data["y_train"]
        )
        accuracy = head.score(data["X_test"].astype(float), data["y_test"])
    assert 100 * accuracy == pytest.approx(65.6, abs=0.05)


# -- joint linear probe ----------------------------------------------------------------


def test_the_analytic_probe_is_ridge_on_features_and_a_constant(stream: Any) -> None:
    head = stream.teach(JointLinearProbe("analytic", alpha=3.0, **CPU))
    X, y = (np.concatenate(parts) for parts in zip(*stream.tasks))
    A = np.hstack([X, np.ones((len(X), 1))])
    W = np.linalg.solve(A.T @ A + 3.0 * np.eye(13), A.T @ np.eye(6)[y])
    expected = np.hstack([stream.X, np.ones((len(stream.X), 1))]) @ W
    np.testing.assert_allclose(head.decision_function(stream.X), expected, atol=1e-9)


def test_the_sgd_probe_equals_the_recipe_by_hand(stream: Any) -> None:
    head = stream.teach(
        JointLinearProbe("sgd", n_epochs=5, batch_size=32, random_state=9, **CPU)
    )
    X, y = (np.concatenate(parts) for parts in zip(*stream.tasks))
    drawn = (
        torch.rand(6, 12, generator=generator(9, "joint-lp", "weights"))
        .double()
        .numpy()
    )
    orders = [
        torch.randperm(
            len(y), generator=generator(9, "joint-lp", "order", epoch)
        ).numpy()
        for epoch in range(5)
    ]
    W = official.joint_sgd(X, y, (2 * drawn - 1) / np.sqrt(12), orders, batch=32)
    unit = stream.X / np.linalg.norm(stream.X, axis=1, keepdims=True)
    np.testing.assert_allclose(head.decision_function(stream.X), unit @ W, atol=1e-5)


def test_sums_that_overflow_leave_the_head_unchanged() -> None:
    X = np.random.default_rng(0).normal(size=(120, 10))
    y = np.repeat(range(4), 30)
    model = SimpleCILClassifier().fit(X, y)
    before = model.class_scores(X)
    with pytest.raises(NumericalError, match="sums of features must be finite"):
        model.partial_fit(np.full((3, 10), 1.7e308), [0, 0, 0])
    np.testing.assert_array_equal(model.class_scores(X), before)
