"""Renaming, merging and relabelling equal training with the new labels."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from tests.learner import toys
from tests.learner.toys import refused

from evergrow.core.archive import Archive
from evergrow.core.errors import (
    KnownSamplesError,
    LabelError,
    UnlearnError,
    UnsupportedError,
)
from evergrow.learner import empty_copy, settle
from evergrow.learner.learner import Learner
from evergrow.learner.snapshot import learned_data

NAMES = ("crow", "jay", "owl", "raven", "rook")
READOUTS: dict[str, dict[str, Any]] = {
    "denoised": {"n_units": 40},
    "ridge": {"n_units": 40, "readout": "ridge"},
    "ridge, fixed": {"n_units": 40, "readout": "ridge", "alpha": 0.5},
    "blocks": {"n_units": 40, "blocks": (5, 7)},
}


def birds(names: tuple[str, ...] = NAMES, n: int = 30, seed: int = 0) -> toys.Data:
    return toys.birds(dict.fromkeys(names, n), seed)


@functools.cache
def _fitted() -> Archive:
    return Learner(options={"n_units": 40}).fit(birds()).state_.to_archive()


def fitted() -> Learner:
    """Return a learner of all birds, as a file gives it: fitting takes longer."""
    return Learner.load(_fitted())


def taught_so(
    learner: Learner, batches: list[tuple[np.ndarray, np.ndarray]]
) -> Learner:
    """Return a learner with the same layer that learned all batches at once."""
    child = empty_copy(learner)
    X, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return settle(child.partial_fit((X, y)))


def require_same(mine: Learner, theirs: Learner) -> None:
    """Everything that follows from the statistics agrees."""
    X, _ = birds(seed=9)
    assert mine.state_.label_counts == theirs.state_.label_counts
    assert (
        mine.classes_.tolist()
        == theirs.classes_.tolist()
        == sorted(mine.state_.label_counts)
    )
    settle(mine)
    ours = mine.decision_function(X)
    others = theirs.decision_function(X)
    np.testing.assert_allclose(ours, others, atol=1e-9 * np.abs(others).max(), rtol=0)
    assert mine.predict(X).tolist() == theirs.predict(X).tolist()
    head = mine.head_.branch()
    other = theirs.head_.branch()
    if hasattr(head, "novelty_terms"):
        terms = head.novelty_terms(X)
        expected = other.novelty_terms(X)
        np.testing.assert_allclose(
            terms, expected, atol=1e-8 * np.abs(expected).max(), rtol=0
        )
        head.calibrate(), other.calibrate()
    assert head.temperature_ == pytest.approx(other.temperature_, rel=1e-8)
    np.testing.assert_allclose(head.predict_proba(X), other.predict_proba(X), atol=1e-8)


@pytest.mark.parametrize("options", READOUTS.values(), ids=READOUTS.keys())
def test_merged_classes_are_those_taught_under_one_name(
    options: dict[str, Any],
) -> None:
    first = birds()
    second = birds(NAMES[1:4], 12, seed=1)
    learner = Learner(options=options).fit(first).partial_fit(second)
    one = {"crow": "corvid", "raven": "corvid", "rook": "corvid"}
    batches = [
        (X, np.array([one.get(name, name) for name in y])) for X, y in (first, second)
    ]
    expected = taught_so(learner, batches)
    learner.merge_classes(["crow", "raven", "rook"], "corvid")
    require_same(learner, expected)
    more = birds(("jay", "owl"), 5, seed=2)
    require_same(learner.partial_fit(more), settle(expected.partial_fit(more)))
    assert learner.state_.history[-2].names == one
    assert learner.state_.history[-2].samples == 102
    assert learner.state_.history[-2].classes == ("corvid",)


def test_merged_into_one_of_them() -> None:
    data = birds()
    learner = fitted()
    expected = taught_so(
        learner, [(data[0], np.where(data[1] == "rook", "crow", data[1]))]
    )
    require_same(learner.merge_classes(["rook"], into="crow"), expected)
    assert learner.state_.history[-1].names == {"rook": "crow"}


@pytest.mark.parametrize("options", [READOUTS["denoised"], READOUTS["ridge"]])
def test_renamed_classes_are_those_taught_with_the_new_names(
    options: dict[str, Any],
) -> None:
    X, y = birds()
    learner = Learner(options=options).fit((X, y))
    names = {"crow": "zebra finch", "owl": "barn owl"}
    expected = taught_so(
        learner, [(X, np.array([names.get(name, name) for name in y]))]
    )
    asked = birds(seed=9)[0]
    before = learner.decision_function(asked)
    novelty = learner.novelty_score(asked)
    columns = [
        learner.classes_.tolist().index(name)
        for name in ("owl", "jay", "raven", "rook", "crow")
    ]
    learner.rename_classes(names)
    assert learner.classes_.tolist() == [
        "barn owl",
        "jay",
        "raven",
        "rook",
        "zebra finch",
    ]
    assert "solution" in learner.head_.to_archive().parts  # a settled model stays so
    np.testing.assert_allclose(
        learner.decision_function(asked), before[:, columns], rtol=1e-11
    )
    np.testing.assert_allclose(learner.novelty_score(asked), novelty, rtol=1e-9)
    require_same(learner, expected)


@pytest.mark.parametrize("options", READOUTS.values(), ids=READOUTS.keys())
def test_a_head_that_is_still_in_its_file_is_edited_as_one_that_was_read(
    options: dict[str, Any],
) -> None:
    read = (
        Learner(options=options).fit(birds()).partial_fit(birds(NAMES[1:4], 12, seed=1))
    )
    stored = Learner.load(read.state_.to_archive(), lazy=True)
    told = read.state_.describe()
    assert {
        **stored.state_.describe(),
        "options": told["options"],
    } == told  # JSON has lists where Python has tuples
    names = {"crow": "zebra finch", "owl": "barn owl"}
    for edit, given in (
        ("rename_classes", [names]),
        ("merge_classes", [["raven", "zebra finch"], "corvid"]),
    ):
        getattr(read, edit)(*given)
        getattr(stored, edit)(*given)
        assert stored.classes_.tolist() == read.classes_.tolist()
        assert stored.state_.label_counts == read.state_.label_counts
        assert stored.state_.history[-1].names == read.state_.history[-1].names
        require_same(settle(Learner.load(stored.state_.to_archive())), settle(read))
    again = Learner.load(stored.state_.to_archive(), lazy=True)
    more = birds(("jay",), 5, seed=2)
    require_same(
        again.partial_fit(more), settle(read.partial_fit(more))
    )  # it is read once it has to learn


@pytest.mark.parametrize(
    ("edit", "given", "said"),
    [
        ("rename_classes", [{"crwo": "corvid"}], "no class 'crwo'; nearest: 'crow'"),
        (
            "rename_classes",
            [{"crow": "owl"}],
            "Two classes would be called 'owl'; merging classes makes them one",
        ),
        (
            "rename_classes",
            [{"crow": "x", "owl": "x"}],
            "Two classes would be called 'x'",
        ),
        (
            "rename_classes",
            [{"crow": "crow"}],
            "another than the old one, got 'crow' for both",
        ),
        ("rename_classes", [{"crow": " "}], "visible names"),
        ("rename_classes", [{}], "at least one class, got none"),
        (
            "merge_classes",
            [["crow", "rok"], "corvid"],
            "no class 'rok'; nearest: 'rook'",
        ),
        ("merge_classes", [["crow"], "corvid"], "at least two different classes"),
        ("merge_classes", [["crow", "crow"], "crow"], "at least two different classes"),
        ("merge_classes", [[], "corvid"], "at least two"),
        ("merge_classes", [["crow", "rook"], ""], "visible names"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True], ids=["read", "still in its file"])
def test_names_that_do_not_do(
    edit: str, given: list[Any], said: str, lazy: bool
) -> None:
    learner = Learner.load(_fitted(), lazy=lazy)
    with refused(learner, LabelError, said):
        getattr(learner, edit)(*given)


def test_all_classes_may_become_one() -> None:
    learner = fitted()
    assert set(learner.merge_classes(NAMES, "bird").predict(birds()[0])) == {"bird"}


@pytest.mark.parametrize("options", [READOUTS["denoised"], READOUTS["ridge"]])
def test_relabelled_samples_are_those_taught_as_the_other_class(
    options: dict[str, Any],
) -> None:
    X, y = birds()
    learner = Learner(options=options).fit((X, y))
    wrong = np.flatnonzero(y == "crow")[:7]
    right = y.copy()
    right[wrong] = "raven"
    learner.relabel((X[wrong], y[wrong]), "crow", "raven")
    require_same(learner, taught_so(learner, [(X, right)]))
    assert learner.state_.history[-1].names == {"crow": "raven"}


def test_data_without_labels_are_moved_whole_and_of_others_the_class() -> None:
    X, y = birds()
    learner = fitted()
    expected = taught_so(learner, [(X, np.where(y == "crow", "hooded crow", y))])
    require_same(learner.relabel(X[y == "crow"], "crow", "hooded crow"), expected)
    assert "crow" not in learner.state_.label_counts
    learner.relabel(
        (X, np.where(y == "crow", "hooded crow", y)), "jay", "raven"
    )  # of labelled data only the class
    assert learner.state_.label_counts == {
        "hooded crow": 30,
        "owl": 30,
        "raven": 60,
        "rook": 30,
    }


def test_samples_that_cannot_be_moved() -> None:
    X, y = birds()
    learner = fitted()
    for data, source, target, error, said in (
        (X, "crwo", "raven", LabelError, "nearest: 'crow'"),
        (X, "crow", "crow", LabelError, "'crow' cannot move to the same class"),
        (
            (X[y == "jay"], y[y == "jay"]),
            "crow",
            "raven",
            LabelError,
            "labelled 'crow'; labels there are 'jay'",
        ),
        (
            X[:60],
            "crow",
            "raven",
            UnlearnError,
            "30 learned samples, so 60 cannot be unlearned",
        ),
        (X[:5] + 50.0, "crow", "raven", UnlearnError, "was not learned before"),
    ):
        with refused(learner, error, said):
            learner.relabel(data, source, target)


def test_other_methods_rename_and_merge_and_say_what_they_cannot() -> None:
    X, y = birds()
    learner = (
        Learner(method="simplecil")
        .fit((X, y))
        .rename_classes({"owl": "aa"})
        .merge_classes(["crow", "rook"], "x")
    )
    assert learner.classes_.tolist() == ["aa", "jay", "raven", "x"]
    with pytest.raises(UnsupportedError, match="cannot unlearn samples"):
        learner.relabel(X[:2], "x", "jay")
    anacp = Learner(
        method="anacp", options={"n_units": 20, "samples_per_class": 5}
    ).fit((X, y))
    assert "aa" in anacp.rename_classes({"owl": "aa"}).classes_
    for one in (anacp, Learner.load(anacp.state_.to_archive(), lazy=True)):
        with pytest.raises(UnsupportedError, match="make several classes one"):
            one.merge_classes(["crow", "rook"], "x")


def test_batches_learned_under_a_former_class_name_are_recognised() -> None:
    first = birds(NAMES[:3])
    second = birds(NAMES[3:], seed=1)
    learner = Learner(options={"n_units": 40}).fit(first).partial_fit(second)
    learner.rename_classes({"rook": "tower"}).rename_classes({"tower": "castle"})
    again = second[0], np.where(second[1] == "rook", "castle", second[1])
    before = learned_data(learner.state_.history)
    learner.partial_fit(again)
    assert before & set(learner.state_.history[-1].data)
    learner.unlearn(again)
    assert not learned_data(learner.state_.history) & set(
        learner.state_.history[-1].data
    )


def test_relabelling_follows_fingerprints() -> None:
    X, y = birds(("crow", "jay"))
    learner = Learner(options={"n_units": 40}).fit(birds(("owl", "rook")))
    crows = X[y == "crow"], y[y == "crow"]
    learner.partial_fit(crows).relabel(crows, "crow", "jay")
    with pytest.raises(KnownSamplesError, match="count twice"):
        learner.partial_fit((crows[0], np.repeat("jay", 30)), again=False)
