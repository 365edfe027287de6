"""Small classifiers for tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from evergrow import Classifier
from evergrow.head.layers.feature_map import normalize
from evergrow.head.linalg.recursive import RecursiveState
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.head.ridge_model import LayerMap
from evergrow.head.solved_cache import Choice, SolvedCache, SolvedChoice

SOLVERS = ("auto", "dense", "compact", "recursive")


def small(solver: str = "auto", **settings: Any) -> Classifier:
    """Return a small classifier with a given form of its statistics."""
    defaults = {"n_units": 60, "random_state": 0, "shape_directions": 6}
    return with_solver(Classifier(**{**defaults, **settings}), solver)


def with_choice(model: Classifier, choice: Choice) -> Classifier:
    """Let a classifier predict with given settings in place of those it would choose."""
    solved = SolvedCache(model.model_, "denoised", None, SolvedChoice(choice))
    model._state = dataclasses.replace(model.state_, solved=solved)
    return model


def with_solver(model: Classifier, solver: str) -> Classifier:
    """Return a classifier with a given form of its statistics."""

    def empty_state(width: int, floor: float, device: torch.device) -> RidgeStatistics:
        return create_state(
            solver,
            width,
            0,
            alpha=model._fixed_alpha() or floor,
            floor=floor,
            device=device,
        )

    model._empty_state = empty_state
    return model


def assert_same(
    one: Classifier, other: Classifier, X: np.ndarray, rtol: float = 1e-7
) -> None:
    """Fail unless both heads predict the same after they settle."""
    one.settle()
    other.settle()
    assert one.classes_.tolist() == other.classes_.tolist()
    assert one.class_counts_.tolist() == other.class_counts_.tolist()
    mine = one.class_scores(X)
    theirs = other.class_scores(X)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=rtol * np.abs(theirs).max())
    assert one.alpha_ == pytest.approx(other.alpha_, rel=max(rtol, 1e-6))
    if one.block_weights_ is not None:
        np.testing.assert_allclose(one.block_weights_, other.block_weights_, rtol=1e-5)


def rows_in_blocks() -> tuple[np.ndarray, np.ndarray]:
    """Return rows of three blocks (8, 12, 5): informative, noise, and in between."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(6), [60, 60, 40, 40, 20, 8]))
    parts = [
        rng.normal(size=(6, 8))[y] + 0.8 * rng.normal(size=(len(y), 8)),
        rng.normal(size=(len(y), 12)),
        0.4 * rng.normal(size=(6, 5))[y] + rng.normal(size=(len(y), 5)),
    ]
    parts = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    return np.concatenate(parts, axis=1) / 3**0.5, y


def create_state(
    solver: str,
    n_features: int,
    n_targets: int,
    *,
    alpha: float,
    floor: float,
    device: torch.device | str = "cpu",
) -> RidgeStatistics:
    """Return empty statistics in a given form."""
    if solver == "recursive":
        return RecursiveState.of(
            RidgeStatistics.create(n_features, n_targets, device=device), alpha
        )
    return RidgeStatistics.create(
        n_features, n_targets, solver, floor=floor, device=device
    )


def map_scores(found: LayerMap, Z: Tensor) -> Tensor:
    """Return the scores (n, C) of features Z (n, d) by the matrices of a head."""
    Z = normalize(Z, found.normalization).to(found.dtype)
    if found.blocks is not None:
        Z = found.blocks.apply(Z)
    total = found.constant.expand(Z.shape[0], -1)
    if found.units is not None and found.readout is not None:
        total = total + found.units.transform(Z) @ found.readout
    if found.linear is not None:
        total = total + Z @ found.linear
    if found.shapes is None:
        return total
    return found.shapes.add(found.shapes.shapes.rows(Z), total)
