"""Held-out scores equal those of models that never saw the rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tests.head.models import small, with_choice
from tests.samples import separated_rows

from evergrow import Classifier
from evergrow.core.errors import InputError, ParameterError
from evergrow.head import solved_cache
from evergrow.head.linalg.scatter import SolvedScatter
from evergrow.head.novelty.score import term_units, to_units
from evergrow.head.temperature import TEMPERATURES, best_temperature, log_losses

Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(6), [40, 40, 30, 30, 20, 4]))
    return separated_rows(y, 12, distance=2.5), y


def make(X: np.ndarray, y: np.ndarray, **settings: Any) -> Classifier:
    return small(device="cpu", **settings).fit(X, y)


def without(
    model: Classifier, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None
) -> Classifier:
    """Return a model with the same layer and settings that learned only these rows."""
    rest = model.spawn().partial_fit(X, y, sample_weight=weights)
    model.predict(X[:1])
    assert model.state_.solved.choice is not None
    choice = dataclasses.replace(model.state_.solved.choice, rows=rest.model_.n_rows)
    return with_choice(rest, choice)


def losses_by_hand(scores: np.ndarray, codes: np.ndarray) -> np.ndarray:
    found = []
    for temperature in TEMPERATURES:
        scaled = scores / temperature
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        found.append(
            np.mean(
                np.log(np.exp(scaled).sum(axis=1))
                - scaled[np.arange(len(codes)), codes]
            )
        )
    return np.array(found)


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": "dense"},
        {"solver": "compact"},
        {"shape_directions": 0},
        {"alpha": 0.5},
        {"blocks": (5, 4, 3)},
    ],
    ids=str,
)
def test_held_out_scores_equal_a_model_without_the_fold(
    data: Data, settings: dict[str, Any]
) -> None:
    X, y = data
    model = make(X, y, **settings)
    folds = np.where(np.arange(len(y)) % 3 == 0, np.arange(len(y)) % 4, -1)
    chosen = folds >= 0
    found = model.held_out_scores(X[chosen], y[chosen], folds[chosen])
    scores = np.empty((chosen.sum(), 6))
    terms = np.empty((chosen.sum(), 6))
    for fold in np.unique(folds[chosen]):
        rest = without(model, X[folds != fold], y[folds != fold])
        mine = folds[chosen] == fold
        unit = rest.expected_temperature()
        scores[mine] = rest.decision_function(X[folds == fold]) / unit
        terms[mine] = rest.novelty_terms(X[folds == fold])
    np.testing.assert_allclose(
        found.losses.mean(axis=0), losses_by_hand(scores, y[chosen]), rtol=1e-6
    )
    np.testing.assert_allclose(found.terms, terms, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "settings",
    [
        {"solver": "dense"},
        {"solver": "compact"},
        {"blocks": (5, 4, 3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("has_weights", [False, True])
def test_scores_as_new_class_equal_a_model_without_the_classes(
    data: Data, settings: dict[str, Any], has_weights: bool
) -> None:
    X, y = data
    weights = None
    if has_weights:
        weights = np.random.default_rng(1).uniform(0.5, 2.0, size=len(y))
    model = make(X, y, **settings)
    learned = model.spawn().partial_fit(X, y, sample_weight=weights)
    folds = y % 3
    found = learned.scores_as_new_class(X, y, folds, weights)
    for fold in range(3):
        left = folds != fold
        left_weights = None if weights is None else weights[left]
        rest = without(learned, X[left], y[left], left_weights)
        units = term_units(rest.expected_terms())
        expected = to_units(rest.novelty_terms(X[~left]), units)
        np.testing.assert_allclose(found.terms[~left], expected, rtol=1e-5, atol=1e-5)
        scores = torch.from_numpy(rest.class_scores(X[~left]))
        unit = rest.expected_temperature()
        losses = log_losses(scores, scores.argmax(dim=1), unit)
        np.testing.assert_allclose(found.losses[~left], losses, rtol=1e-5, atol=1e-5)


def test_small_batches_are_scored_without_factoring_again(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = data
    model = make(X[5:], y[5:])
    model.novelty_score(X)
    model.partial_fit(X[:5], y[:5])

    def refuse(*_: Any) -> SolvedScatter:
        raise AssertionError("factored")

    monkeypatch.setattr(SolvedScatter, "of", refuse)
    monkeypatch.setattr(solved_cache, "choose_ridge", refuse)
    model.held_out_scores(X[:5], y[:5], np.arange(5))
    model.novelty_score(X)


@pytest.mark.parametrize("solver", ["dense", "compact"])
def test_tiny_training_sets_give_finite_scores(data: Data, solver: str) -> None:
    X, y = data
    whole = make(X, y, solver=solver)
    first = np.array([np.flatnonzero(y == c)[0] for c in range(6)])
    one_each = whole.spawn().partial_fit(X[first], y[first])
    copies = whole.spawn().partial_fit(
        np.repeat(X[first], 4, axis=0), np.repeat(y[first], 4)
    )
    one_class = whole.spawn().partial_fit(X[y == 3], y[y == 3])
    one_row = whole.spawn().partial_fit(X[:1], y[:1])
    for model in (one_each, copies, one_class, one_row):
        assert np.isfinite(
            model.novelty_score(np.concatenate([X, 1e3 * np.eye(12)]))
        ).all()
        assert np.isfinite(model.predict_proba(X)).all()
        assert 0.0 < model.temperature_ < 1e3
    found = copies.held_out_scores(
        np.repeat(X[first], 4, axis=0), np.repeat(y[first], 4), np.arange(24) % 4
    )
    assert np.isfinite(found.terms).all()
    assert np.isfinite(found.losses).all()


def test_calibration_survives_learning_and_saving(data: Data) -> None:
    X, y = data
    model = make(X[y < 5], y[y < 5])
    before = model.novelty_score(X)
    standard = dataclasses.replace(
        model.state_.solved.standard, spread=2.0 * model.state_.solved.standard.spread
    )
    assert model.calibrate(temperature=3.0, novelty=standard).temperature_ == 3.0
    assert not np.allclose(model.novelty_score(X), before)
    back = Classifier.from_archive(model.to_archive())
    assert back.temperature_ == 3.0
    np.testing.assert_array_equal(back.novelty_score(X), model.novelty_score(X))
    assert model.branch().partial_fit(X[y == 5], y[y == 5]).temperature_ == 3.0
    assert model.spawn().partial_fit(X, y).temperature_ != 3.0
    np.testing.assert_array_equal(model.calibrate().novelty_score(X), before)
    with pytest.raises(ParameterError, match="temperature"):
        model.calibrate(temperature=0.0)


def test_ridge_readout_has_the_novelty_of_the_denoised_readout(
    data: Data,
) -> None:
    X, y = data
    model = make(X, y, readout="ridge", shape_directions=0)
    denoised = make(X, y, shape_directions=0)
    np.testing.assert_allclose(model.novelty_terms(X), denoised.novelty_terms(X))
    for alpha in (1e-6, 1e3):  # the ridge of the readout plays no part
        fixed = make(X, y, readout="ridge", shape_directions=0, alpha=alpha)
        np.testing.assert_allclose(fixed.novelty_score(X), denoised.novelty_score(X))
    found = model.held_out_scores(X[:9], y[:9])
    assert found.losses is None
    np.testing.assert_allclose(
        found.terms, denoised.held_out_scores(X[:9], y[:9]).terms
    )


def test_best_temperature_recovers_the_true_temperature() -> None:
    source = torch.Generator().manual_seed(0)
    scores = torch.randn(4000, 5, generator=source, dtype=torch.float64)
    codes = torch.multinomial(torch.softmax(scores, dim=1), 1, generator=source)[:, 0]
    assert best_temperature(
        log_losses(7.0 * scores, codes).mean(axis=0)
    ) == pytest.approx(7.0, rel=0.1)
    falling = [float(-k) for k in range(len(TEMPERATURES))]
    assert best_temperature(falling) == TEMPERATURES[-1]
    assert best_temperature(falling[::-1]) == TEMPERATURES[0]
    with pytest.raises(InputError, match="29"):
        best_temperature([1.0])
