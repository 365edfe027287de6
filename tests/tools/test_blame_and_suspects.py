"""Samples that are probably mislabelled, and samples that are to blame for answers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy.stats import spearmanr

from evergrow import Learner, tools
from evergrow.core.errors import (
    FewSamplesWarning,
    InputError,
    LabelError,
    UnlearnError,
    UnsupportedError,
)
from evergrow.tools.mislabelled import LIKELY

N_CLASSES = 6


def small(**options) -> Learner:
    return Learner(None, options={"n_units": 40, **options}, device="cpu")


@pytest.fixture(scope="module")
def drawn():
    means = 1.2 * np.random.default_rng(0).normal(size=(N_CLASSES, 16))
    rng = np.random.default_rng(1)
    y = rng.permutation(np.repeat(np.arange(N_CLASSES), 40))
    X = means[y] + 0.8 * rng.normal(size=(len(y), 16))
    wrong = rng.permutation(len(y))[:12]
    noisy = y.copy()
    noisy[wrong] = (y[wrong] + 1) % N_CLASSES
    return X, np.array([f"c{code}" for code in noisy]), set(wrong.tolist())


@pytest.fixture(scope="module")
def learner(drawn):
    X, y, _ = drawn
    return small().fit(X, y)


def log_odds(learner: Learner, x: np.ndarray, code: int, temperature: float) -> float:
    logits = learner.head_.class_scores(x)[0] / temperature
    others = np.delete(logits, code)
    return float(
        logits[code] - np.log(np.exp(others - others.max()).sum()) - others.max()
    )


# -- suspects --------------------------------------------------------------------------


def test_wrong_labels_come_first_with_their_true_class(drawn, learner):
    X, y, wrong = drawn
    found = tools.suspects(learner, X, y)
    assert {sample.row for sample in found.samples[: len(wrong)]} == wrong
    assert {sample.row for sample in found.likely} <= wrong
    assert len(found.likely) > len(wrong) / 2
    assert all(
        (sample in found.likely) == (sample.score >= LIKELY) for sample in found.samples
    )
    for sample in found.likely:
        assert sample.label == y[sample.row]
        assert int(sample.suggestion[1]) == (int(sample.label[1]) - 1) % N_CLASSES
    assert sorted(sample.row for sample in found.samples) == list(range(len(y)))
    assert found.n_new == 0


def test_a_sample_is_scored_like_by_a_model_that_unlearned_it(drawn, learner):
    X, y, _ = drawn
    found = {sample.row: sample for sample in tools.suspects(learner, X, y).samples}
    scored = []
    unlearned = []
    for row in range(0, len(y), 8):
        rest = copy.copy(learner).unlearn(X[row : row + 1], y[row : row + 1])
        probabilities = rest.predict_proba(X[row : row + 1])[0]
        names = rest.classes_.tolist()
        scored.append(found[row].score)
        unlearned.append(1.0 - probabilities[names.index(y[row])])
    assert spearmanr(scored, unlearned).statistic > 0.99


def test_samples_that_were_never_learned_are_scored_as_they_are(drawn):
    X, y, _ = drawn
    learner = small().fit(X[:200], y[:200])
    found = tools.suspects(learner, X[200:], y[200:], learned=False)
    assert found.n_new == 40
    names = learner.classes_.tolist()
    probabilities = learner.predict_proba(X[200:])
    for sample in found.samples:
        own = probabilities[sample.row, names.index(sample.label)]
        assert sample.score == pytest.approx(1.0 - own)


def test_samples_that_cannot_have_been_learned_are_noticed(drawn):
    X, y, _ = drawn
    learner = small(normalize="none").fit(X[:200], y[:200])
    strange = 30.0 * X[200:203]
    found = tools.suspects(
        learner, np.concatenate([X[:5], strange]), np.concatenate([y[:5], y[200:203]])
    )
    assert found.n_new == 3
    assert len(found.samples) == 8


def test_the_only_sample_of_a_class_has_no_score(drawn):
    X, y, _ = drawn
    labels = y.astype(object)
    labels[5] = "single"
    with pytest.warns(FewSamplesWarning):
        learner = small().fit(X, labels)
    found = tools.suspects(learner, X, labels)
    assert found.alone == ("row 5",)
    assert 5 not in {sample.row for sample in found.samples}


def test_weights_are_those_that_samples_were_learned_with(drawn):
    X, y, _ = drawn
    weights = np.where(np.arange(len(y)) < 10, 2.0, 1.0)
    weighted = small().fit(X, y, sample_weight=weights)
    twice = small().fit(np.concatenate([X, X[:10]]), np.concatenate([y, y[:10]]))
    learner = copy.copy(twice)
    found = {
        sample.row: sample.score
        for sample in tools.suspects(weighted, X, y, sample_weight=weights).samples
    }
    for row in range(3):
        again = X[[row, row]]
        rest = copy.copy(learner).unlearn(again, y[[row, row]])
        probabilities = rest.predict_proba(X[[row]])[0]
        own = probabilities[rest.classes_.tolist().index(y[row])]
        assert found[row] == pytest.approx(1.0 - own, abs=0.05)


# -- blame -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"blocks": (6, 10)}], ids=str)
def test_effects_rank_like_those_of_unlearning(drawn, options):
    X, y, _ = drawn
    learner = small(**options).fit(X, y)
    rng = np.random.default_rng(2)
    question = X[7:8] + 0.3 * rng.normal(size=(1, 16))
    found = tools.blame(learner, question, X, y)
    assert found.answer == learner.predict(question)[0]
    assert found.probability == pytest.approx(learner.predict_proba(question).max())
    code = learner.classes_.tolist().index(found.answer)
    temperature = learner.head_.temperature_
    before = log_odds(learner, question, code, temperature)
    expected = []
    effects = []
    for sample in found.samples[::4]:
        own = slice(sample.row, sample.row + 1)
        rest = copy.copy(learner).unlearn(X[own], y[own])
        expected.append(before - log_odds(rest, question, code, temperature))
        effects.append(sample.effect)
    assert spearmanr(effects, expected).statistic > 0.9


def test_a_wrong_label_is_to_blame_for_a_wrong_answer(drawn, learner):
    X, y, wrong = drawn
    row = min(wrong)
    found = tools.blame(learner, X[row : row + 1], X, y, label=y[row])
    assert found.samples[0].row == row
    assert found.samples[0].label == y[row] == found.answer
    assert found.samples[0].effect > 0.0
    assert found.predicted == learner.predict(X[row : row + 1])[0]
    assert all(
        (sample in found.deciding) == (sample.answer != found.predicted)
        for sample in found.samples
    )


# -- bad input -------------------------------------------------------------------------


def test_bad_input_is_refused_and_changes_nothing(drawn, learner):
    X, y, _ = drawn
    before = learner.state_
    unknown = np.array(["owl"] * 3)
    for call in (
        lambda: tools.suspects(learner, X[:3], unknown),
        lambda: tools.blame(learner, X[:1], X[:3], unknown),
    ):
        with pytest.raises(LabelError, match=r"classes that the model knows.*'owl'"):
            call()
    with pytest.raises(LabelError, match=r"label must be a class.*'owl'"):
        tools.blame(learner, X[:1], X, y, label="owl")
    with pytest.raises(InputError, match="question must be one sample, got 2"):
        tools.blame(learner, X[:2], X, y)
    plain = small(normalize="none").fit(X, y)
    rows = np.concatenate([X[:3], 30.0 * X[3:4]])
    with pytest.raises(UnlearnError, match="1 of 4 were never learned"):
        tools.blame(plain, X[:1], rows, y[:4])
    with pytest.raises(UnlearnError, match=r"it has .* and the model learned"):
        tools.blame(learner, X[:1], np.tile(X, (2, 1)), np.tile(y, 2))
    with pytest.raises(InputError, match="at least one item"):
        tools.suspects(learner, X[:0], y[:0])
    assert learner.state_ is before


def test_one_class_and_other_methods_are_refused(drawn):
    X, y, _ = drawn
    one = small().fit(X[y == "c1"], y[y == "c1"])
    with pytest.raises(LabelError, match="at least two classes"):
        tools.suspects(one, X[y == "c1"], y[y == "c1"])
    with pytest.raises(LabelError, match="at least two classes"):
        tools.blame(one, X[:1], X[y == "c1"], y[y == "c1"])
    ridge = small(readout="ridge").fit(X, y)
    with pytest.raises(UnsupportedError, match="denoised readout"):
        tools.suspects(ridge, X, y)


def test_a_text_model_refuses_images(drawn):
    X, y, _ = drawn
    learner = small().fit(X, y)
    with pytest.raises(InputError):
        tools.blame(learner, np.zeros((1, 8, 8, 3), dtype=np.uint8), X, y)
