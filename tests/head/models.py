"""Small classifiers for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evergrow import Classifier


def small(solver: str = "auto", **settings: Any) -> Classifier:
    """Return a small classifier; ``solver`` is the form of its statistics, which its users do not choose."""
    model = Classifier(**{"n_units": 60, "random_state": 0, "shape_directions": 6, **settings})
    model.solver = solver
    return model


def assert_same(one: Classifier, other: Classifier, X: np.ndarray, rtol: float = 1e-7) -> None:
    """Fail unless both give the same answers once everything is chosen for their statistics."""
    one.settle()
    other.settle()
    assert one.classes_.tolist() == other.classes_.tolist()
    assert one.class_counts_.tolist() == other.class_counts_.tolist()
    mine, theirs = one.class_scores(X), other.class_scores(X)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=rtol * np.abs(theirs).max())
    assert one.alpha_ == pytest.approx(other.alpha_, rel=max(rtol, 1e-6))
    if one.block_weights_ is not None:
        np.testing.assert_allclose(one.block_weights_, other.block_weights_, rtol=1e-5)
