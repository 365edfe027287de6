"""Checks of what a learner computes: exactness, purity, reproducibility, size."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone

from evergrow.core.archive import Archive
from evergrow.core.errors import UnsupportedError
from evergrow.head.base import IncrementalClassifier
from evergrow.lab.checks.data import Batch, CheckData
from evergrow.lab.checks.suite import CHECKS, CheckFailure, CheckSkipped, Factory

TOLERANCE = 1e-6
"""How far scores may differ, relative to the largest, where equality holds up to rounding."""


def require(condition: bool, message: str) -> None:
    """Raise :class:`CheckFailure` with the message unless the condition holds."""
    if not condition:
        raise CheckFailure(message)


def require_same(
    actual: NDArray[Any], expected: NDArray[Any], what: str, tolerance: float = 0.0
) -> None:
    """Raise :class:`CheckFailure` unless arrays agree, bit for bit where the tolerance is zero."""
    require(
        actual.shape == expected.shape,
        f"{what}: shapes must agree, got {actual.shape} and {expected.shape}",
    )
    gap = float(np.abs(actual - expected).max()) / max(
        float(np.abs(expected).max()), 1e-300
    )
    require(
        bool(gap <= tolerance),
        f"{what}: scores must agree to {tolerance:g}, got a relative gap of {gap:.3g}",
    )


def teach(
    learner: IncrementalClassifier, batches: Sequence[Batch]
) -> IncrementalClassifier:
    """Let a learner learn batches in order."""
    for X, y in batches:
        learner.partial_fit(X, y)
    return learner


def scores(learner: IncrementalClassifier, X: Any) -> NDArray[Any]:
    """Return class scores less what all classes share, so that only differences count."""
    raw: NDArray[Any] = np.asarray(learner.decision_function(X), dtype=np.float64)
    if raw.ndim == 1:
        return raw
    centered: NDArray[Any] = raw - raw.mean(axis=1, keepdims=True)
    return centered


def every_part(archive: Archive) -> Iterator[Archive]:
    """Yield an archive and everything inside it."""
    yield archive
    for part in archive.parts.values():
        yield from every_part(part)


def state_bytes(learner: IncrementalClassifier) -> int:
    """Return the bytes of everything a learner would save."""
    return sum(
        tensor.nbytes
        for part in every_part(learner.to_archive())
        for tensor in part.tensors.values()
    )


@CHECKS.register("incremental_equals_joint")
def incremental_equals_joint(make: Factory, data: CheckData) -> None:
    """Require that task by task gives what one batch with everything gives."""
    apart = teach(make(), data.tasks)
    joint = teach(make(), [data.joint])
    require_same(
        scores(apart, data.X),
        scores(joint, data.X),
        "task by task against all at once",
        TOLERANCE,
    )


@CHECKS.register("sample_order_is_irrelevant")
def sample_order_is_irrelevant(make: Factory, data: CheckData) -> None:
    """Require that the order of samples within a batch does not matter."""
    turned = [(X[::-1], y[::-1]) for X, y in data.tasks]
    given = teach(make(), data.tasks)
    reverse = teach(make(), turned)
    require_same(
        scores(reverse, data.X),
        scores(given, data.X),
        "samples in reverse order",
        TOLERANCE,
    )


@CHECKS.register("batch_split_is_irrelevant")
def batch_split_is_irrelevant(make: Factory, data: CheckData) -> None:
    """Require that, after the first task, how samples are cut into batches does not matter."""
    pieces = [data.tasks[0]]
    for X, y in data.tasks[1:]:
        pieces += [
            (X[start : start + 5], y[start : start + 5])
            for start in range(0, len(y), 5)
        ]
    whole = teach(make(), data.tasks)
    cut = teach(make(), pieces)
    require_same(
        scores(cut, data.X), scores(whole, data.X), "tasks in batches of 5", TOLERANCE
    )


@CHECKS.register("predict_is_pure")
def predict_is_pure(make: Factory, data: CheckData) -> None:
    """Require that asking changes neither later answers, nor what is learned next, nor the input."""
    asked = make()
    quiet = make()
    for X, y in data.tasks:
        asked.partial_fit(X, y)
        quiet.partial_fit(X, y)
        given = data.X.copy()
        first = asked.decision_function(given)
        asked.predict(given[:3])
        require_same(asked.decision_function(given), first, "asking twice")
        require(bool((given == data.X).all()), "predict must not change its input")
    require_same(
        asked.decision_function(data.X),
        quiet.decision_function(data.X),
        "asking between tasks",
    )


@CHECKS.register("rows_are_answered_one_by_one")
def rows_are_answered_one_by_one(make: Factory, data: CheckData) -> None:
    """Require that the answer to a row does not depend on the rows beside it."""
    learner = teach(make(), data.tasks)
    together = learner.decision_function(data.X)
    alone = np.concatenate([learner.decision_function(row[None]) for row in data.X])
    require_same(alone, together, "row by row", TOLERANCE)


@CHECKS.register("same_seed_same_answer")
def same_seed_same_answer(make: Factory, data: CheckData) -> None:
    """Require that two learners of one seed agree bit for bit."""
    pair = [
        teach(make(random_state=3), data.tasks).decision_function(data.X)
        for _ in range(2)
    ]
    require_same(pair[1], pair[0], "two learners of one seed")


def _numpy_state() -> Any:
    state: Any = np.random.get_state()  # noqa: NPY002 (the global one is the point)
    return state[1].copy()


@CHECKS.register("global_rng_is_left_alone")
def global_rng_is_left_alone(make: Factory, data: CheckData) -> None:
    """Require that other code's use of the global generators changes nothing, and that a learner uses none."""
    saved = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 (the global one is the point)
    try:
        answers = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            before = torch.get_rng_state(), _numpy_state(), random.getstate()
            answers.append(
                teach(make(random_state=3), data.tasks).decision_function(data.X)
            )
            after = torch.get_rng_state(), _numpy_state(), random.getstate()
            require(
                bool((before[0] == after[0]).all()),
                "torch's global generator must not be used",
            )
            require(
                bool((before[1] == after[1]).all()),
                "numpy's global generator must not be used",
            )
            require(before[2] == after[2], "Python's global generator must not be used")
    finally:
        torch.set_rng_state(saved[0])
        np.random.set_state(saved[1])  # noqa: NPY002
        random.setstate(saved[2])
    require_same(answers[1], answers[0], "another global seed")


@CHECKS.register("save_load_equal")
def save_load_equal(make: Factory, data: CheckData) -> None:
    """Require that a loaded learner answers bit for bit alike, and learns on alike."""
    import tempfile
    from pathlib import Path

    learner = teach(make(), data.tasks[:2])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        learner.save(path)
        loaded = type(learner).load(path)
        learner.save(path)  # again, over the old file
    require_same(
        loaded.decision_function(data.X),
        learner.decision_function(data.X),
        "after loading",
    )
    require(
        bool((loaded.classes_ == learner.classes_).all()), "classes must survive a file"
    )
    teach(learner, data.tasks[2:])
    teach(loaded, data.tasks[2:])
    require_same(
        loaded.decision_function(data.X),
        learner.decision_function(data.X),
        "learning on",
        TOLERANCE,
    )


@CHECKS.register("clone_is_independent")
def clone_is_independent(make: Factory, data: CheckData) -> None:
    """Require of a clone the settings, nothing learned, and no shared state."""
    learner = teach(make(), data.tasks[:2])
    before = learner.decision_function(data.X)
    twin = clone(learner)
    require(not hasattr(twin, "classes_"), "a clone must have learned nothing")
    require(
        repr(twin.get_params()) == repr(learner.get_params()),
        "a clone must have the settings of the original",
    )
    teach(twin, data.tasks[::-1])
    require_same(
        learner.decision_function(data.X), before, "after its clone has learned"
    )


@CHECKS.register("copies_are_independent")
def copies_are_independent(make: Factory, data: CheckData) -> None:
    """Require that a deep copy answers alike, and that what it learns stays its own."""
    learner = teach(make(), data.tasks[:2])
    before = learner.decision_function(data.X)
    twin = copy.deepcopy(learner)
    require_same(twin.decision_function(data.X), before, "a deep copy")
    teach(twin, data.tasks[2:])
    require_same(
        learner.decision_function(data.X), before, "after its copy has learned"
    )


@CHECKS.register("fit_starts_anew")
def fit_starts_anew(make: Factory, data: CheckData) -> None:
    """Require that ``fit`` forgets all that was learned before."""
    used = teach(make(), data.tasks[:2]).fit(*data.tasks[2])
    fresh = make().fit(*data.tasks[2])
    require_same(
        used.decision_function(data.X),
        fresh.decision_function(data.X),
        "fit on a used learner",
    )


@CHECKS.register("renamed_equals_taught_so")
def renamed_equals_taught_so(make: Factory, data: CheckData) -> None:
    """Require that classes that get other labels, in another order, leave the learner taught with those."""
    learner = teach(make(), data.tasks)
    other = {
        label: 100 - label if label != 3 else 3 for label in learner.classes_.tolist()
    }
    taught = teach(
        make(),
        [(X, np.array([other[label] for label in y.tolist()])) for X, y in data.tasks],
    )
    learner.predict(data.X[:1])
    learner.rename_classes(
        other
    )  # after a question, so that what was worked out must change with the order
    require(
        learner.classes_.tolist() == sorted(other.values()),
        "classes must be sorted after they were renamed",
    )
    require_same(
        scores(learner, data.X),
        scores(taught, data.X),
        "renamed against taught so",
        TOLERANCE,
    )


@CHECKS.register("merged_classes_equal_one_class")
def merged_classes_equal_one_class(make: Factory, data: CheckData) -> None:
    """Require that merged classes leave the learner that was taught their samples under one label."""
    learner = teach(make(), data.tasks)
    # Classes of the first task stay apart: layers that are grown on it are then the
    # same.
    one = {0: 9, 1: 9, 4: 5}
    tasks = [
        (X, np.array([one.get(label, label) for label in y.tolist()]))
        for X, y in data.tasks
    ]
    taught = teach(make(), tasks)
    try:
        learner.merge_classes([0, 1], 9).merge_classes([4], 5)
    except UnsupportedError as error:
        raise CheckSkipped(str(error)) from error
    require(
        learner.classes_.tolist() == taught.classes_.tolist(),
        "classes must be those of one taught so",
    )
    require_same(
        scores(learner, data.X),
        scores(taught, data.X),
        "merged against taught as one class",
        TOLERANCE,
    )


@CHECKS.register("state_is_bounded_in_tasks")
def state_is_bounded_in_tasks(make: Factory, data: CheckData) -> None:
    """Require that without new classes the state stops growing, however many batches come."""
    rng = np.random.default_rng(1)
    learner = teach(make(), [data.joint])
    sizes = []
    for _ in range(16):
        X, y = data.joint
        learner.partial_fit(X + rng.normal(size=X.shape), y)
        sizes.append(state_bytes(learner))
    require(
        sizes[-1] == sizes[7],
        f"bytes must not grow from batch 8 to batch 16, got {sizes[7]} and {sizes[-1]}",
    )


@CHECKS.register("device")
def device(make: Factory, data: CheckData) -> None:
    """Require the CPU's answers of the GPU, and that a file from one loads on the other."""
    if not torch.cuda.is_available():
        raise CheckSkipped("needs a CUDA device")
    import tempfile
    from pathlib import Path

    here = teach(make(device="cpu"), data.tasks)
    there = teach(make(device="cuda"), data.tasks)
    require_same(scores(there, data.X), scores(here, data.X), "cuda against cpu", 1e-5)
    on_device = torch.from_numpy(data.X).to("cuda")
    require_same(
        there.decision_function(on_device),
        there.decision_function(data.X),
        "tensors on the device",
    )
    with tempfile.TemporaryDirectory() as folder:
        there.save(Path(folder) / "learner.safetensors")
        moved = type(there).load(Path(folder) / "learner.safetensors", device="cpu")
    require_same(scores(moved, data.X), scores(there, data.X), "moved to the cpu", 1e-5)
