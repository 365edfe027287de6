"""Unlearning removes samples from the calibration too."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import Data, part
from tests.learners import small_learner
from tests.samples import overlapping_classes

from evergrow import Learner
from evergrow.core.archive import read_archive, write_archive
from evergrow.core.errors import FewSamplesWarning, FileFormatError, UnlearnError
from evergrow.learner import empty_copy, settle
from evergrow.learner.modelfile import commit, locked_model, rollback

pytestmark = pytest.mark.filterwarnings(
    "ignore::evergrow.core.errors.FewSamplesWarning"
)


def clouds(per_class: int = 30, seed: int = 0) -> Data:
    return overlapping_classes(per_class, 8, n_features=12, distance=1.0, seed=seed)


def first_of(*classes: int, **options: Any) -> Learner:
    return small_learner(**options).fit(part(clouds(), *classes))


def require_equal(
    one: Learner, other: Learner, *, settled: bool = False, within: float = 1e-8
) -> None:
    """Everything that both answer agrees, to rounding."""
    X = clouds(20, seed=5)[0]
    if settled:
        settle(one)
        settle(other)
    assert one.state_.label_counts == other.state_.label_counts
    scores = (one.head_.decision_function(X), other.head_.decision_function(X))
    np.testing.assert_allclose(*scores, rtol=1e-8, atol=1e-8)
    answers = (one.predict_proba(X), other.predict_proba(X))
    np.testing.assert_allclose(*answers, rtol=0, atol=1e-8)
    assert one.head_.temperature_ == pytest.approx(other.head_.temperature_, rel=1e-9)
    novelty = (one.novelty_score(X), other.novelty_score(X))
    np.testing.assert_allclose(*novelty, rtol=1e-6, atol=1e-6)
    has_scores = one.state_.calibration.n > 0
    assert has_scores == (other.state_.calibration.n > 0)
    if has_scores:
        for share in (0.01, 0.05, 0.2):
            assert one.state_.threshold(share) == pytest.approx(
                other.state_.threshold(share), abs=within
            )
        assert np.array_equal(one.is_unknown(X), other.is_unknown(X))


def later(name: str) -> Data:
    """Return samples that are taught and unlearned."""
    X, y = clouds(seed=1)
    return {
        "old class": (X[:3], y[:3]),
        "new classes": part((X, y), 5, 6),
        "old and new": (X[25:35], y[25:35]),
        "one sample of a new class": (X[-1:], y[-1:]),
        "one sample of an old class": (X[:1], y[:1]),
        "copies": (np.repeat(X[:1], 6, axis=0), np.repeat(y[:1], 6)),
        "far away": (1e3 + X[:6], np.array([0, 0, 0, 7, 7, 7])),
    }[name]


LATER = (
    "old class",
    "new classes",
    "old and new",
    "one sample of a new class",
    "one sample of an old class",
    "copies",
    "far away",
)


@pytest.mark.parametrize("readout", ["denoised", "ridge"])
@pytest.mark.parametrize("name", LATER)
def test_a_taught_and_unlearned_batch_leaves_nothing(name: str, readout: str) -> None:
    base = first_of(0, 1, 2, 3, readout=readout)
    X, y = later(name)
    learner = copy.copy(base).partial_fit(X, y)
    order = np.random.default_rng(0).permutation(len(y))
    learner.unlearn(X[order], y[order])
    require_equal(learner, base)
    assert learner.state_.history[-1].influenced_scores == 0
    calibration = learner.state_.calibration
    assert calibration.n_rows == base.state_.calibration.n_rows
    assert calibration.measurements == base.state_.calibration.measurements


def test_several_batches_in_any_order_leave_nothing() -> None:
    base = first_of(0, 1, 2, 3)
    batches = [later(name) for name in ("new classes", "old class", "far away")]
    for order in ((2, 1, 0), (0, 1, 2), (1, 0, 2)):
        learner = copy.copy(base)
        for X, y in batches:
            learner.partial_fit(X, y)
        for place in order:
            learner.unlearn(*batches[place])
        require_equal(learner, base)


def test_a_batch_is_unlearned_in_parts_or_all_at_once() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("new classes")
    parts = copy.copy(base).partial_fit(X, y)
    for start in range(0, len(y), 7):
        parts.unlearn(X[start : start + 7], y[start : start + 7])
        remaining = min(start + 7, len(y))
        scored = len(parts.state_.calibration.known)
        assert scored == len(base.state_.calibration.known) + len(y) - remaining
    require_equal(parts, base)


def test_unlearn_counts_influenced_scores() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = clouds(seed=1)
    learner = copy.copy(base).partial_fit(X[:6], y[:6]).partial_fit(*part((X, y), 6))
    learner.unlearn(X[:3], y[:3])
    change = learner.state_.history[-1]
    # Three rows of the same batch, and 30 of class 6, held out and before learning.
    assert change.influenced_scores == 3 + 30 + 30
    assert change.to_dict()["influenced_scores"] == 63
    twin = copy.copy(base).partial_fit(X[3:6], y[3:6]).partial_fit(*part((X, y), 6))
    probe = clouds(20, seed=5)[0]
    gap = np.abs(learner.predict_proba(probe) - twin.predict_proba(probe)).max()
    assert gap < 0.02


def test_forgotten_classes_take_their_rows_along() -> None:
    base = first_of(0, 1, 2, 3)
    learner = copy.copy(base).partial_fit(*later("new classes"))
    learner.forget_classes([5, 6])
    calibration = learner.state_.calibration
    assert calibration.n_rows == base.state_.calibration.n_rows
    assert set(calibration.classes) == set("0123")
    assert learner.state_.threshold() == pytest.approx(
        base.state_.threshold(), abs=1e-8
    )


def test_a_class_that_comes_second_and_goes_leaves_one_class() -> None:
    base = first_of(0)
    X, y = later("new classes")
    learner = copy.copy(base).partial_fit(X, y)
    assert learner.state_.calibration.n == len(y)
    require_equal(learner.unlearn(X, y), base)


def test_unlearn_is_exact_after_saving_and_in_a_model_file(tmp_path: Path) -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("old and new")
    path = tmp_path / "m.evg"
    copy.copy(base).partial_fit(X, y).save(path)
    with locked_model(path) as learner:
        commit(path, learner.unlearn(X, y))
    require_equal(Learner.load(path), base)
    rollback(path)
    taught = Learner.load(path)
    require_equal(taught, copy.copy(base).partial_fit(X, y))
    require_equal(taught.unlearn(X, y), base)


def test_unlearn_is_exact_after_a_merge() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("new classes")
    other = empty_copy(base).partial_fit(*part(clouds(seed=2), 4))
    other.partial_fit(X, y)
    merged = copy.copy(base).merge(other)
    merged.unlearn(X, y).unlearn(*part(clouds(seed=2), 4))
    require_equal(merged, base, settled=True)


def test_relabelling_equals_unlearning_and_learning() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = clouds(seed=1)
    taught = copy.copy(base).partial_fit(X[:4], y[:4])
    moved = copy.copy(taught).relabel(X[:4], 0, 1)
    by_hand = copy.copy(base).partial_fit(X[:4], np.ones(4, dtype=int))
    require_equal(moved, by_hand, within=1e-6)


def test_renamed_and_merged_classes_are_found_again() -> None:
    base = first_of(0, 1, 2, 3).rename_classes({0: "zero", 1: "one"})
    X, y = later("new classes")
    names = y.astype(str)
    learner = copy.copy(base).partial_fit(X, names)
    learner.rename_classes({"5": "five"}).merge_classes(["five", "6"], "more")
    learner.unlearn(X, np.full(len(y), "more"))
    calibration = learner.state_.calibration
    assert calibration.n_rows == base.state_.calibration.n_rows
    assert learner.state_.threshold() == pytest.approx(
        base.state_.threshold(), abs=1e-8
    )
    probe = clouds(20, seed=5)[0]
    gap = np.abs(learner.predict_proba(probe) - base.predict_proba(probe)).max()
    assert gap < 1e-8
    # Another order of class names draws other rows of what the statistics expect.
    gap = np.abs(learner.novelty_score(probe) - base.novelty_score(probe)).max()
    assert gap < 0.1


def test_weights_fading_and_unlabelled_samples() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("old and new")
    weights = np.linspace(0.5, 2.0, len(y))
    learner = copy.copy(base).partial_fit(X, y, sample_weight=weights)
    require_equal(learner.unlearn(X, y, sample_weight=weights), base)
    learner = copy.copy(base).partial_fit(X, y).fade(0.5)
    learner.unlearn(X, y, sample_weight=np.full(len(y), 0.5))
    require_equal(learner, copy.copy(base).fade(0.5), settled=True)
    learner = copy.copy(base).partial_fit(X, y)
    learner.learn_unlabelled(clouds(seed=7)[0][:60])
    learner.unlearn(X, y).unlearn(unlabelled=True)
    require_equal(learner, base)


def test_the_same_batch_twice_is_unlearned_once() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("old class")
    once = copy.copy(base).partial_fit(X, y)
    twice = copy.copy(once).partial_fit(X, y).unlearn(X, y)
    require_equal(twice, once)
    require_equal(twice.unlearn(X, y), base)


def test_features_that_differ_by_rounding_are_found() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("old and new")
    X = X[:6].astype(np.float32)
    y = y[:6]
    learner = copy.copy(base).partial_fit(X, y)
    noise = 1e-6 * np.random.default_rng(0).normal(size=X.shape)
    learner.unlearn((X * (1.0 + noise)).astype(np.float32), y)
    assert learner.state_.calibration.n_rows == base.state_.calibration.n_rows


def test_rejected_samples_leave_the_calibration_unchanged() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("old class")
    learner = copy.copy(base).partial_fit(X, y)
    before = copy.copy(learner)
    with pytest.raises(UnlearnError):
        learner.unlearn(np.repeat(X, 20, axis=0), np.repeat(y, 20))
    require_equal(learner, before)


def test_wrong_labels_are_refused() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = clouds(seed=1)
    learner = copy.copy(base).partial_fit(X[:5], y[:5])
    before = copy.copy(learner)
    with pytest.raises(UnlearnError):
        learner.unlearn(X[:5], np.ones(5, dtype=int))
    require_equal(learner, before)


def test_no_class_keeps_more_rows_than_samples() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = clouds(seed=1)
    # These were never learned, but lie where others of their class were.
    learner = copy.copy(base).unlearn(X[:2], y[:2])
    known = learner.state_.calibration.known
    classes = np.array(learner.state_.calibration.classes)
    assert (classes[known.codes] == "0").sum() <= learner.state_.label_counts[0] == 28
    assert learner.state_.history[-1].influenced_scores > 0


@pytest.mark.parametrize("scale", [1e-30, 1e38, 1e100])
def test_features_of_any_size_are_found(scale: float) -> None:
    base = first_of(0, 1, 2, 3)
    X, y = clouds(seed=1)
    learner = copy.copy(base).partial_fit(scale * X[:5], y[:5])
    require_equal(learner.unlearn(scale * X[:5], y[:5]), base)


def test_many_copies_are_unlearned() -> None:
    base = first_of(0, 1, 2, 3)
    X = np.repeat(clouds(seed=1)[0][:1], 3000, axis=0)
    y = np.zeros(3000, dtype=int)
    learner = copy.copy(base).partial_fit(X, y)
    scored = learner.state_.calibration.n_rows
    learner.unlearn(X[:2900], y[:2900])
    assert len(learner.state_.calibration.known) <= learner.state_.label_counts[0] + 90
    assert learner.state_.calibration.n_rows < scored
    require_equal(learner.unlearn(X[:100], y[:100]), base, settled=True)


def test_the_order_of_samples_plays_no_part() -> None:
    base = first_of(0, 1, 2, 3)
    X, y = later("new classes")
    order = np.random.default_rng(3).permutation(len(y))
    one = copy.copy(base).partial_fit(X, y)
    # Both are measured anew: terms of novelty are rounded to about 1e-7.
    require_equal(one, copy.copy(base).partial_fit(X[order], y[order]), within=1e-6)


def test_the_last_sample_leaves_an_empty_model() -> None:
    X, y = later("old class")
    learner = small_learner().fit(X, y).unlearn(X, y)
    assert learner.state_.calibration.n_rows == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewSamplesWarning)
        learner.partial_fit(X, y)
    assert learner.state_.calibration.n == 3


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("known", "measurement", 99),
        ("known", "codes", -1),
        ("unknown", "codes", 2**40),
        ("known", "terms", np.nan),
        ("known", "terms", 1e200),
        ("known", "losses", np.inf),
    ],
)
def test_a_damaged_calibration_is_a_file_error(
    tmp_path: Path, table: str, column: str, value: float
) -> None:
    learner = first_of(0, 1, 2, 3).partial_fit(*later("new classes"))
    archive = learner.state_.to_archive()
    rows = archive.parts["calibration"].parts[table]
    changed = np.array(rows.tensors[column])
    changed.flat[0] = value
    rows.tensors[column] = changed
    write_archive(tmp_path / "m.evg", archive)
    assert read_archive(tmp_path / "m.evg").kind == "learner"
    with pytest.raises(FileFormatError):
        Learner.load(tmp_path / "m.evg")


def test_a_calibration_with_a_class_name_twice_is_a_file_error(tmp_path: Path) -> None:
    learner = first_of(0, 1, 2, 3).partial_fit(*later("new classes"))
    archive = learner.state_.to_archive()
    classes = archive.parts["calibration"].meta["classes"]
    classes[:] = [classes[0]] * len(classes)
    write_archive(tmp_path / "m.evg", archive)
    with pytest.raises(FileFormatError, match="a name twice"):
        Learner.load(tmp_path / "m.evg")
