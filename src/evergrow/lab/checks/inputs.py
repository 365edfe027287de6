"""Checks of input handling: labels, types, sizes, and invalid input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from evergrow.core.errors import EvergrowError, InputError, LabelError, NotFittedError
from evergrow.lab.checks.data import CheckData
from evergrow.lab.checks.properties import (
    TOLERANCE,
    expect,
    expect_same,
    learn_all,
    scores,
)
from evergrow.lab.checks.suite import CHECKS, CheckFailure, CheckSkipped, Factory


def expect_raises(
    error: type[Exception], call: Callable[[], Any], subject: str
) -> None:
    """Raise :class:`CheckFailure` unless the call raises this type of error."""
    expected = f"{subject} must raise {error.__name__}"
    try:
        call()
    except error:
        return
    except Exception as other:
        message = f"{expected}, got {type(other).__name__}: {other}"
        raise CheckFailure(message) from other
    raise CheckFailure(f"{expected}, got no error")


@CHECKS.register("bad_input_changes_nothing")
def bad_input_changes_nothing(make: Factory, data: CheckData) -> None:
    """Require that bad batches raise typed errors and leave the learner unchanged."""
    learner = learn_all(make(), data.tasks[:2])
    before = learner.decision_function(data.X)
    X, y = data.tasks[2]
    nan = X.copy()
    nan[3, 2] = np.nan
    infinite = X.copy()
    infinite[0, 0] = np.inf
    attempts: list[tuple[str, type[Exception], Any, Any]] = [
        ("a batch of another width", InputError, X[:, :-1], y),
        ("a batch with NaN", InputError, nan, y),
        ("a batch with infinity", InputError, infinite, y),
        ("a tensor with NaN", InputError, torch.from_numpy(nan), y),
        ("a batch that is not 2-D", InputError, X[0], y[:1]),
        ("an empty batch", InputError, X[:0], y[:0]),
        ("too few labels", LabelError, X, y[:-1]),
        ("labels of another type", LabelError, X, y.astype(str)),
        ("fractional labels", LabelError, X, y + 0.5),
        ("no labels", LabelError, X, None),
    ]
    for attempt, error, rows, labels in attempts:
        expect_raises(error, partial(learner.partial_fit, rows, labels), attempt)
        expect_same(learner.decision_function(data.X), before, f"after {attempt}")
    expect_raises(
        InputError,
        lambda: learner.predict(data.X[:, :-1]),
        "predicting rows of another width",
    )
    expect_raises(InputError, lambda: learner.predict(nan), "predicting rows with NaN")
    clean = learn_all(make(), data.tasks[:2])
    clean.decision_function(data.X)  # solves, as the first learner did
    for one in (learner, clean):
        learn_all(one, data.tasks[2:])
    expect_same(
        learner.decision_function(data.X),
        clean.decision_function(data.X),
        "learning after failed attempts",
    )


@CHECKS.register("unfitted_says_so")
def unfitted_says_so(make: Factory, data: CheckData) -> None:
    """Require that prediction before learning raises NotFittedError."""
    expect_raises(
        NotFittedError, lambda: make().predict(data.X), "predicting before learning"
    )


@CHECKS.register("bad_settings_are_refused")
def bad_settings_are_refused(make: Factory, data: CheckData) -> None:
    """Require that invalid settings raise in ``fit``, and that messages name them."""
    for name, value in (
        ("n_units", -1),
        ("alpha", -1.0),
        ("n_ensembles", 0),
        ("gamma", 0.0),
    ):
        if name not in make().get_params():
            continue
        learner = make().set_params(**{name: value})
        setting = f"{name}={value}"
        expect_raises(EvergrowError, partial(learner.fit, *data.tasks[0]), setting)
        try:
            learner.fit(*data.tasks[0])
        except EvergrowError as error:
            expect(
                name in str(error),
                f"the message for {setting} must name it, got {error}",
            )


@CHECKS.register("one_sample_updates")
def one_sample_updates(make: Factory, data: CheckData) -> None:
    """Require that batches of one sample of any class work and are learned."""
    learner = make().fit(*data.tasks[0])
    for X, y in data.tasks[1:]:
        for row, label in zip(X, y):
            learner.partial_fit(row[None], [label])
    expect(
        bool(np.isfinite(learner.decision_function(data.X)).all()),
        "scores must stay finite",
    )
    accuracy = float(np.mean(learner.predict(data.X) == data.y))
    expect(
        accuracy > 0.6,
        "one sample at a time must be enough for six separated classes, "
        f"got accuracy {accuracy:.2f}",
    )


@CHECKS.register("first_batch_may_be_one_sample")
def first_batch_may_be_one_sample(make: Factory, data: CheckData) -> None:
    """Require that learning may start with one sample.

    Methods that raise LabelError because they need more classes are skipped.
    """
    X, y = data.tasks[0]
    try:
        learner = make().fit(X[:1], y[:1])
    except LabelError as error:
        raise CheckSkipped(str(error)) from error
    expect(
        learner.predict(data.X[:4]).tolist() == [y[0]] * 4,
        "the only known class must be predicted",
    )
    learn_all(learner, data.tasks)
    expect(
        bool(np.isfinite(learner.decision_function(data.X)).all()),
        "scores must stay finite",
    )


@CHECKS.register("new_and_old_classes_mix")
def new_and_old_classes_mix(make: Factory, data: CheckData) -> None:
    """Require that a batch may mix old and new classes, and that classes are sorted."""
    X, y = data.joint
    learner = make().fit(*data.tasks[0]).partial_fit(X, y)
    expect(
        learner.classes_.tolist() == sorted(set(y.tolist())), "classes must be sorted"
    )
    expect(
        learner.decision_function(data.X).shape == (len(data.X), 6),
        "there must be one column of scores per class",
    )
    accuracy = float(np.mean(learner.predict(data.X) == data.y))
    expect(
        accuracy > 0.7,
        f"a mixed batch must be learned for all classes, got accuracy {accuracy:.2f}",
    )


@CHECKS.register("string_labels")
def string_labels(make: Factory, data: CheckData) -> None:
    """Require that string labels give the same scores as integers in the same order."""
    names = np.array([f"class {index}" for index in range(6)])
    with_strings = learn_all(make(), [(X, names[y]) for X, y in data.tasks])
    with_integers = learn_all(make(), data.tasks)
    expect_same(
        with_strings.decision_function(data.X),
        with_integers.decision_function(data.X),
        "strings against integers",
    )
    expected = names[with_integers.predict(data.X)]
    expect(
        with_strings.predict(data.X).tolist() == expected.tolist(),
        "strings must be predicted",
    )


@CHECKS.register("unknown_labels_in_classes_argument")
def unknown_labels_in_classes_argument(make: Factory, data: CheckData) -> None:
    """Require that ``partial_fit(classes=...)`` rejects labels not in ``classes``."""
    learner = make().fit(*data.tasks[0])
    X, y = data.tasks[1]
    expect_raises(
        LabelError,
        lambda: learner.partial_fit(X, y, classes=[2, 3, 4]),
        "a label outside of classes",
    )
    expect(
        learner.classes_.tolist() == [2, 3],
        "a rejected batch must leave the classes unchanged",
    )


@CHECKS.register("input_types_agree")
def input_types_agree(make: Factory, data: CheckData) -> None:
    """Require that equal numbers in any type or container give the same scores."""
    reference = learn_all(make(), data.tasks)
    expected = scores(reference, data.X)
    kinds: dict[str, Callable[[Any], Any]] = {
        "float16 arrays": lambda X: X.astype(np.float16),
        "float32 arrays": lambda X: X.astype(np.float32),
        "Fortran-ordered arrays": np.asfortranarray,
        "float16 tensors": lambda X: torch.from_numpy(X).to(torch.float16),
        "float32 tensors": lambda X: torch.from_numpy(X).to(torch.float32),
        "float64 tensors": torch.from_numpy,
        "lists": lambda X: X.tolist(),
    }
    for kind, convert in kinds.items():
        learner = learn_all(make(), [(convert(X), y) for X, y in data.tasks])
        expect_same(scores(learner, convert(data.X)), expected, kind, TOLERANCE)


@CHECKS.register("training_input_is_not_changed")
def training_input_is_not_changed(make: Factory, data: CheckData) -> None:
    """Require that learning neither changes nor keeps references to its input."""
    reference = make()
    learner = make()
    for X, y in data.tasks:
        tensor = torch.from_numpy(X.copy())
        learner.partial_fit(tensor, y)
        expect(bool((tensor.numpy() == X).all()), "learning must not change its input")
        tensor.zero_()
        reference.partial_fit(X, y)
    expect_same(
        learner.decision_function(data.X),
        reference.decision_function(data.X),
        "after the caller re-used the memory of batches",
    )
