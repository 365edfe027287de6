"""Files keep the seed: a saved model learns what the unsaved one learns."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.learner.toys import Data

from evergrow import Learner
from evergrow.core.errors import ParameterError
from evergrow.learner import empty_copy
from evergrow.learner.modelfile import commit, open_model, rollback

SEEDS = (0, 7, 12345)

SEQUENCES = (
    ("begin", "SAVE", "first"),
    ("begin", "SAVE", "first", "SAVE", "later"),
    ("begin", "first", "SAVE", "later"),
    ("begin", "SAVE", "fit"),
    ("begin", "SAVE", "SAVE", "fit", "SAVE", "later"),
    ("fit", "SAVE"),
    ("fit", "SAVE", "later"),
    ("fit", "later", "SAVE", "more"),
    ("fit", "SAVE", "later", "SAVE", "more"),
    ("fit", "SAVE", "fit"),
    ("fit", "SAVE", "later", "fit"),
    ("fit", "SAVE", "forget all", "SAVE", "first"),
    ("fit", "forget all", "SAVE", "fit", "later"),
    ("fit", "SAVE", "copy", "later"),
    ("fit", "SAVE", "merge", "SAVE", "more"),
)


def drawn(classes: range, n: int, seed: int) -> Data:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(6, 10))
    y = np.repeat(np.array(classes), n)
    return 2.0 * centres[y] + rng.normal(size=(len(y), 10)), y


FIRST = drawn(range(3), 40, 1)
LATER = drawn(range(2, 6), 60, 2)
MORE = drawn(range(6), 40, 3)
ASKED = drawn(range(6), 10, 4)[0]


def taken(learner: Learner, step: str, folder: Path) -> Learner:
    """Return the learner after a step."""
    if step == "SAVE":
        learner.save(folder / "model.evg")
        return Learner.load(folder / "model.evg", device="cpu")
    if step == "begin":
        return learner.begin("features")
    if step == "fit":
        return learner.fit(*FIRST)
    if step == "forget all":
        return learner.forget_classes(learner.classes_.tolist())
    if step == "copy":
        return copy.copy(learner)
    if step == "merge":
        return learner.merge(empty_copy(learner).partial_fit(*LATER))
    return learner.partial_fit(*{"first": FIRST, "later": LATER, "more": MORE}[step])


def after(steps: tuple[str, ...], folder: Path, **settings: Any) -> Learner:
    """Return a learner that went through the steps."""
    settings = {"options": {"n_units": 30}, "device": "cpu", **settings}
    learner = Learner(None, **settings)
    for step in steps:
        learner = taken(learner, step, folder)
    return learner


def assert_same_answers(one: Learner, other: Learner) -> None:
    """Compare scores, probabilities and novelty bit for bit."""
    np.testing.assert_array_equal(
        one.head_.class_scores(ASKED), other.head_.class_scores(ASKED)
    )
    for name in ("predict_proba", "novelty_score"):
        mine = getattr(one, name)(ASKED)
        theirs = getattr(other, name)(ASKED)
        np.testing.assert_array_equal(mine, theirs, err_msg=name)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("steps", SEQUENCES, ids="-".join)
def test_saving_changes_no_answer(
    steps: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    unsaved = tuple(step for step in steps if step != "SAVE")
    kept = after(unsaved, tmp_path, random_state=seed)
    saved = after(steps, tmp_path, random_state=seed)
    assert_same_answers(saved, kept)


@pytest.mark.parametrize("steps", [("begin",), ("fit",), ("fit", "forget all")])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_loaded_learner_has_the_seed_as_its_parameter(
    steps: tuple[str, ...], seed: int, tmp_path: Path
) -> None:
    loaded = after((*steps, "SAVE"), tmp_path, random_state=seed)
    assert loaded.random_state == seed
    assert loaded.get_params()["random_state"] == seed


def test_seeds_give_different_models(tmp_path: Path) -> None:
    learners = [
        after(("begin", "SAVE", "first"), tmp_path, random_state=seed) for seed in SEEDS
    ]
    for one, other in itertools.combinations(learners, 2):
        assert not np.array_equal(
            one.head_.class_scores(ASKED), other.head_.class_scores(ASKED)
        )


def test_a_few_samples_after_loading_give_the_same_answers(tmp_path: Path) -> None:
    """An unsaved head follows a few rows; a loaded one solves anew, to rounding."""
    learners = [
        after(steps, tmp_path, random_state=7).partial_fit(*drawn(range(6), 2, 5))
        for steps in (("fit", "later"), ("fit", "later", "SAVE"))
    ]
    proba = [learner.predict_proba(ASKED) for learner in learners]
    np.testing.assert_allclose(*proba, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda: np.random.default_rng(3),
        lambda: np.random.RandomState(3),
    ],
    ids=["None", "Generator", "RandomState"],
)
@pytest.mark.parametrize(
    ("before", "since"), [(("begin",), ("first", "later")), (("fit",), ("later",))]
)
def test_a_drawn_seed_is_drawn_once_and_stored(
    make: Any, before: tuple[str, ...], since: tuple[str, ...], tmp_path: Path
) -> None:
    kept = after(before, tmp_path, random_state=make())
    kept.save(tmp_path / "drawn.evg")
    saved = Learner.load(tmp_path / "drawn.evg", device="cpu")
    for step in since:
        kept = taken(kept, step, tmp_path)
        saved = taken(saved, step, tmp_path)
    assert_same_answers(saved, kept)


def test_parameters_set_after_begin_are_those_of_the_file(tmp_path: Path) -> None:
    begun = after(("begin",), tmp_path, random_state=1)
    begun.set_params(random_state=2, method="scl-mgsm", options={"max_units": 20})
    begun.fit(*FIRST).save(tmp_path / "m.evg")
    loaded = Learner.load(tmp_path / "m.evg", device="cpu")
    assert (loaded.random_state, loaded.method) == (2, "scl-mgsm")
    assert_same_answers(loaded, begun)


def test_a_parameter_set_after_fit_waits_for_the_next_fit(tmp_path: Path) -> None:
    kept = after(("fit",), tmp_path, random_state=7).set_params(random_state=8)
    saved = taken(kept, "SAVE", tmp_path)
    assert saved.random_state == 7
    assert_same_answers(saved.partial_fit(*LATER), kept.partial_fit(*LATER))


@pytest.mark.parametrize("seed", [2**64 + 1, -(2**63) - 1, 10**30, True, 1.5, "7"])
def test_a_seed_that_no_file_holds_is_refused(seed: Any, tmp_path: Path) -> None:
    for step in ("begin", "fit"):
        with pytest.raises(ParameterError, match="random_state"):
            after((step,), tmp_path, random_state=seed)


def test_a_model_that_was_rolled_back_keeps_its_seed(tmp_path: Path) -> None:
    path = tmp_path / "m.evg"
    for step in (("begin",), ("begin", "first"), ("begin", "first", "later")):
        commit(path, after(step, tmp_path, random_state=7))
    rollback(path, 2)
    found = open_model(path, device="cpu").partial_fit(*FIRST).partial_fit(*LATER)
    assert_same_answers(
        found, after(("begin", "first", "later"), tmp_path, random_state=7)
    )
