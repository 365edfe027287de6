"""Features of any size give correct predictions or a typed error."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from tests.head.models import SOLVERS, create_state, with_solver
from tests.head.test_heads import OURS, SMALL
from tests.samples import separated_rows

from evergrow import Classifier, SCLClassifier
from evergrow.core.errors import EvergrowError, InputError, NumericalError, UnlearnError
from evergrow.head import HEADS
from evergrow.head.layers.feature_map import normalize

OPTIONS: dict[str, dict[str, Any]] = {
    **SMALL,
    "scl-mgsm": {"n_units": 40, "scales": (0.1, 0.2)},
    "joint-lp": {},
}
RECOMMENDED = {"normalize": "none", "n_units": 40, "random_state": 0}


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    y = np.repeat(range(4), 30)
    return separated_rows(y, 10, seed=seed), y


def accuracy(model: Any, size: float) -> float:
    X, y = data()
    test, truth = data(1)
    first = y < 2
    model.fit(X[first] * size, y[first]).partial_fit(X[~first] * size, y[~first])
    return float((model.predict(test * size) == truth).mean())


@pytest.mark.parametrize(
    "size", [1e-300, 1e-200, 1e-100, 1e-30, 1e-15, 1e30, 1e100, 1e155, 1e200, 1e300]
)
@pytest.mark.parametrize("name", OURS)
def test_heads_predict_well_or_raise_a_typed_error(name: str, size: float) -> None:
    options = dict(OPTIONS[name])
    if name != "simplecil":
        options["random_state"] = 0
    with contextlib.suppress(EvergrowError):
        assert accuracy(HEADS[name](**options), size) > 0.6


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e-30, 1e30, 1e154, 1e200, 1e300])
def test_predictions_do_not_depend_on_the_size_of_normalised_features(
    size: float,
) -> None:
    X, y = data()
    usual = Classifier(n_units=40, random_state=0).fit(X, y)
    scaled = Classifier(n_units=40, random_state=0).fit(X * size, y)
    np.testing.assert_array_equal(scaled.predict(X * size), usual.predict(X))
    np.testing.assert_allclose(
        scaled.novelty_score(X * size), usual.novelty_score(X), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("size", [1e-30, 1e155])
def test_the_error_names_the_size_of_the_features(size: float) -> None:
    X, y = data()
    with pytest.raises(InputError, match=r"size|numbers between|finite"):
        SCLClassifier(n_units=40, scales="auto", random_state=0).fit(X * size, y)


@pytest.mark.parametrize("rule", ["l2", "sqrt-l2"])
@pytest.mark.parametrize(
    "size", [5e-324, 1e-308, 1e-160, 1e-20, 1.0, 1e20, 1e160, 1e308]
)
def test_normalised_rows_of_any_size_have_length_one(rule: str, size: float) -> None:
    Z = size * torch.tensor([[1.0, 0.0, -1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    wanted = normalize(
        torch.tensor([[1.0, 0.0, -1.0], [1.0, 1.0, 1.0]], dtype=torch.float64), rule
    )
    assert torch.allclose(normalize(Z, rule), wanted, rtol=1e-12, atol=0)
    assert not normalize(torch.zeros(1, 3, dtype=torch.float64), rule).any()


# -- predicting ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e100, 1e160, 1e300])
def test_huge_samples_are_novel(size: float) -> None:
    X, y = data()
    model = Classifier(**RECOMMENDED).fit(X, y)
    found = model.novelty_score(X[:3] * size)
    assert np.isfinite(found).all()
    assert found.min() > model.novelty_score(X).max()


def test_scores_that_overflow_are_a_numerical_error() -> None:
    X, y = data()
    model = Classifier(**RECOMMENDED).fit(X, y)
    with pytest.raises(NumericalError, match=r"scores must be finite.* row 1"):
        model.predict(np.stack([X[0], np.full(10, 1.7e308)]))
    assert len(model.predict(X)) == 120


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [1e-160, 1e160])
def test_statistics_reject_rows_whose_squares_overflow_or_underflow(
    solver: str, size: float
) -> None:
    state = create_state(solver, 4, 1, alpha=0.1, floor=0.1)
    with pytest.raises(InputError, match="H must have numbers between"):
        state.update(torch.full((2, 4), size, dtype=torch.float64), torch.ones(2, 1))
    assert state.update(torch.zeros(2, 4), torch.ones(2, 1)).count == 2


# -- unlearning ------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "fixed": {"alpha": 0.01},
    "ridge": {"readout": "ridge"},
    "recursive": {"readout": "ridge", "alpha": 0.01},
    "compact": {},
}


@pytest.mark.parametrize("size", [1e3, 1e7, 1e9, 1e12])
@pytest.mark.parametrize("name", list(VARIANTS))
def test_large_samples_are_unlearned_or_rejected(name: str, size: float) -> None:
    if name == "recursive" and size > 1e7:
        pytest.skip("does not apply: the recursion overflows at this ridge")
    X, y = data()
    solver = name if name in ("recursive", "compact") else "auto"
    model = with_solver(Classifier(**RECOMMENDED, **VARIANTS[name]), solver)
    model.fit(X, y)
    large = size * np.random.default_rng(3).normal(size=(10, 10))
    model.partial_fit(large, np.repeat([0, 1], 5))
    try:
        model.unlearn(large, np.repeat([0, 1], 5))
        assert (model.predict(X) == y).mean() > 0.9
    except UnlearnError:
        assert model.class_counts_.sum() == 130
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(model.novelty_score(X)).all()


def test_a_class_of_large_samples_is_forgotten_or_rejected() -> None:
    X, y = data()
    model = Classifier(**RECOMMENDED).fit(X, y)
    model.partial_fit(
        1e11 * np.random.default_rng(3).normal(size=(10, 10)), np.full(10, 9)
    )
    with contextlib.suppress(UnlearnError):
        model.forget_classes([9])
    assert np.isfinite(model.predict_proba(X)).all()
