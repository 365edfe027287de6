"""Checks of what a learner accepts and refuses: labels, types, sizes, and no harm from bad input."""

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
    require,
    require_same,
    scores,
    teach,
)
from evergrow.lab.checks.suite import CHECKS, CheckFailure, CheckSkipped, Factory


def require_raises(error: type[Exception], call: Callable[[], Any], what: str) -> None:
    """Raise :class:`CheckFailure` unless the call raises that error."""
    try:
        call()
    except error:
        return
    except Exception as other:
        raise CheckFailure(
            f"{what} must raise {error.__name__}, got {type(other).__name__}: {other}"
        ) from other
    raise CheckFailure(f"{what} must raise {error.__name__}, got no error")


@CHECKS.register("bad_input_changes_nothing")
def bad_input_changes_nothing(make: Factory, data: CheckData) -> None:
    """Require that bad batches raise typed errors and leave the learner bit for bit as it was."""
    learner = teach(make(), data.tasks[:2])
    before = learner.decision_function(data.X)
    X, y = data.tasks[2]
    nan = X.copy()
    infinite = X.copy()
    nan[3, 2], infinite[0, 0] = np.nan, np.inf
    attempts: list[tuple[str, type[Exception], Any, Any]] = [
        ("a batch of another width", InputError, X[:, :-1], y),
        ("a batch with NaN", InputError, nan, y),
        ("a batch with infinity", InputError, infinite, y),
        ("a tensor with NaN", InputError, torch.from_numpy(nan), y),
        ("a batch that is not 2-D", InputError, X[0], y[:1]),
        ("an empty batch", InputError, X[:0], y[:0]),
        ("too few labels", LabelError, X, y[:-1]),
        ("labels of another kind", LabelError, X, y.astype(str)),
        ("labels that are no classes", LabelError, X, y + 0.5),
        ("no labels", LabelError, X, None),
    ]
    for what, error, rows, labels in attempts:
        require_raises(
            error,
            partial(learner.partial_fit, rows, labels),
            what,
        )
        require_same(learner.decision_function(data.X), before, f"after {what}")
    require_raises(
        InputError,
        lambda: learner.predict(data.X[:, :-1]),
        "predicting rows of another width",
    )
    require_raises(InputError, lambda: learner.predict(nan), "predicting rows with NaN")
    clean = teach(make(), data.tasks[:2])
    clean.decision_function(data.X)  # a ridge that was chosen for an answer may stay
    for one in (learner, clean):
        teach(one, data.tasks[2:])
    require_same(
        learner.decision_function(data.X),
        clean.decision_function(data.X),
        "learning on after all that",
    )


@CHECKS.register("unfitted_says_so")
def unfitted_says_so(make: Factory, data: CheckData) -> None:
    """Require that a learner which has learned nothing says so."""
    require_raises(
        NotFittedError, lambda: make().predict(data.X), "predicting before learning"
    )


@CHECKS.register("bad_settings_are_refused")
def bad_settings_are_refused(make: Factory, data: CheckData) -> None:
    """Require that settings out of range raise when learning starts, and that the message names them."""
    for name, value in (
        ("n_units", -1),
        ("alpha", -1.0),
        ("n_ensembles", 0),
        ("gamma", 0.0),
    ):
        if name not in make().get_params():
            continue
        learner = make().set_params(**{name: value})
        require_raises(
            EvergrowError,
            partial(learner.fit, *data.tasks[0]),
            f"{name}={value}",
        )
        try:
            learner.fit(*data.tasks[0])
        except EvergrowError as error:
            require(
                name in str(error),
                f"the message for {name}={value} must name it, got {error}",
            )


@CHECKS.register("one_sample_updates")
def one_sample_updates(make: Factory, data: CheckData) -> None:
    """Require that batches of one sample work, from any class, and teach something."""
    learner = make().fit(*data.tasks[0])
    for X, y in data.tasks[1:]:
        for row, label in zip(X, y):
            learner.partial_fit(row[None], [label])
    require(
        bool(np.isfinite(learner.decision_function(data.X)).all()),
        "scores must stay finite",
    )
    accuracy = float(np.mean(learner.predict(data.X) == data.y))
    require(
        accuracy > 0.6,
        f"one sample at a time must teach six separated classes, got accuracy {accuracy:.2f}",
    )


@CHECKS.register("first_batch_may_be_one_sample")
def first_batch_may_be_one_sample(make: Factory, data: CheckData) -> None:
    """Require that learning may begin with a single sample, unless the method says that it needs more classes."""
    X, y = data.tasks[0]
    try:
        learner = make().fit(X[:1], y[:1])
    except LabelError as error:
        raise CheckSkipped(str(error)) from error
    require(
        learner.predict(data.X[:4]).tolist() == [y[0]] * 4,
        "with one class known it is the answer",
    )
    teach(learner, data.tasks)
    require(
        bool(np.isfinite(learner.decision_function(data.X)).all()),
        "scores must stay finite",
    )


@CHECKS.register("new_and_old_classes_mix")
def new_and_old_classes_mix(make: Factory, data: CheckData) -> None:
    """Require that a batch may hold old and new classes, and that classes are sorted whatever came first."""
    X, y = data.joint
    learner = make().fit(*data.tasks[0]).partial_fit(X, y)
    require(
        learner.classes_.tolist() == sorted(set(y.tolist())), "classes must be sorted"
    )
    require(
        learner.decision_function(data.X).shape == (len(data.X), 6),
        "one column of scores per class",
    )
    accuracy = float(np.mean(learner.predict(data.X) == data.y))
    require(
        accuracy > 0.7,
        f"a mixed batch must teach all classes, got accuracy {accuracy:.2f}",
    )


@CHECKS.register("string_labels")
def string_labels(make: Factory, data: CheckData) -> None:
    """Require that strings do as labels, with the same scores as integers in the same order."""
    names = np.array([f"class {index}" for index in range(6)])
    worded = teach(make(), [(X, names[y]) for X, y in data.tasks])
    plain = teach(make(), data.tasks)
    require_same(
        worded.decision_function(data.X),
        plain.decision_function(data.X),
        "strings against integers",
    )
    require(
        worded.predict(data.X).tolist() == names[plain.predict(data.X)].tolist(),
        "strings must be predicted",
    )


@CHECKS.register("unknown_labels_in_classes_argument")
def unknown_labels_in_classes_argument(make: Factory, data: CheckData) -> None:
    """Require that ``partial_fit(classes=...)`` refuses labels that were not announced."""
    learner = make().fit(*data.tasks[0])
    X, y = data.tasks[1]
    require_raises(
        LabelError,
        lambda: learner.partial_fit(X, y, classes=[2, 3, 4]),
        "a label not announced",
    )
    require(
        learner.classes_.tolist() == [2, 3],
        "a refused batch must leave the classes as they were",
    )


@CHECKS.register("input_types_agree")
def input_types_agree(make: Factory, data: CheckData) -> None:
    """Require that the same numbers teach the same as float16, 32 or 64, as arrays, tensors or lists."""
    reference = teach(make(), data.tasks)
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
        learner = teach(make(), [(convert(X), y) for X, y in data.tasks])
        require_same(scores(learner, convert(data.X)), expected, kind, TOLERANCE)


@CHECKS.register("training_input_is_not_changed")
def training_input_is_not_changed(make: Factory, data: CheckData) -> None:
    """Require that learning leaves the caller's memory alone, and does not follow it when it changes."""
    reference = make()
    learner = make()
    for X, y in data.tasks:
        tensor = torch.from_numpy(X.copy())
        learner.partial_fit(tensor, y)
        require(bool((tensor.numpy() == X).all()), "learning must not change its input")
        tensor.zero_()
        reference.partial_fit(X, y)
    answers = learner.decision_function(data.X), reference.decision_function(data.X)
    require_same(*answers, "after the caller re-used the memory of batches")
