"""Checks of computed results: exactness, purity, reproducibility and size."""

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
"""Largest difference of scores, relative to the largest score, that is rounding."""


def expect(condition: bool, message: str) -> None:
    """Raise :class:`CheckFailure` with the message unless the condition is true."""
    if not condition:
        raise CheckFailure(message)


def expect_same(
    actual: NDArray[Any], expected: NDArray[Any], subject: str, tolerance: float = 0.0
) -> None:
    """Raise :class:`CheckFailure` unless arrays agree; tolerance 0 compares bits."""
    expect(
        actual.shape == expected.shape,
        f"{subject}: shapes must agree, got {actual.shape} and {expected.shape}",
    )
    largest = max(float(np.abs(expected).max()), 1e-300)
    gap = float(np.abs(actual - expected).max()) / largest
    expect(
        bool(gap <= tolerance),
        f"{subject}: scores must agree to {tolerance:g}, "
        f"got a relative gap of {gap:.3g}",
    )


def learn_all(
    learner: IncrementalClassifier, batches: Sequence[Batch]
) -> IncrementalClassifier:
    """Call ``partial_fit`` with every batch in order and return the learner."""
    for X, y in batches:
        learner.partial_fit(X, y)
    return learner


def scores(learner: IncrementalClassifier, X: Any) -> NDArray[Any]:
    """Return class scores centred per row, because only differences matter."""
    raw: NDArray[Any] = np.asarray(learner.decision_function(X), dtype=np.float64)
    if raw.ndim == 1:
        return raw
    centered: NDArray[Any] = raw - raw.mean(axis=1, keepdims=True)
    return centered


def every_part(archive: Archive) -> Iterator[Archive]:
    """Yield an archive and all nested archives."""
    yield archive
    for part in archive.parts.values():
        yield from every_part(part)


def state_bytes(learner: IncrementalClassifier) -> int:
    """Return the size in bytes of a saved learner."""
    return sum(
        tensor.nbytes
        for part in every_part(learner.to_archive())
        for tensor in part.tensors.values()
    )


@CHECKS.register("incremental_equals_joint")
def incremental_equals_joint(make: Factory, data: CheckData) -> None:
    """Require that learning task by task equals learning all tasks in one batch."""
    apart = learn_all(make(), data.tasks)
    joint = learn_all(make(), [data.joint])
    expect_same(
        scores(apart, data.X),
        scores(joint, data.X),
        "task by task against all at once",
        TOLERANCE,
    )


@CHECKS.register("sample_order_is_irrelevant")
def sample_order_is_irrelevant(make: Factory, data: CheckData) -> None:
    """Require that the order of samples in a batch does not matter."""
    reversed_tasks = [(X[::-1], y[::-1]) for X, y in data.tasks]
    given = learn_all(make(), data.tasks)
    reverse = learn_all(make(), reversed_tasks)
    expect_same(
        scores(reverse, data.X),
        scores(given, data.X),
        "samples in reverse order",
        TOLERANCE,
    )


@CHECKS.register("batch_split_is_irrelevant")
def batch_split_is_irrelevant(make: Factory, data: CheckData) -> None:
    """Require that the batch size does not matter after the first task."""
    pieces = [data.tasks[0]]
    for X, y in data.tasks[1:]:
        pieces += [
            (X[start : start + 5], y[start : start + 5])
            for start in range(0, len(y), 5)
        ]
    whole = learn_all(make(), data.tasks)
    cut = learn_all(make(), pieces)
    expect_same(
        scores(cut, data.X), scores(whole, data.X), "tasks in batches of 5", TOLERANCE
    )


@CHECKS.register("predict_is_pure")
def predict_is_pure(make: Factory, data: CheckData) -> None:
    """Require that prediction changes neither the learner nor the input."""
    predicting = make()
    silent = make()
    for X, y in data.tasks:
        predicting.partial_fit(X, y)
        silent.partial_fit(X, y)
        given = data.X.copy()
        first = predicting.decision_function(given)
        predicting.predict(given[:3])
        expect_same(predicting.decision_function(given), first, "predicting twice")
        expect(bool((given == data.X).all()), "predict must not change its input")
    expect_same(
        predicting.decision_function(data.X),
        silent.decision_function(data.X),
        "predicting between tasks",
    )


@CHECKS.register("rows_are_answered_one_by_one")
def rows_are_answered_one_by_one(make: Factory, data: CheckData) -> None:
    """Require that the prediction of a row does not depend on other rows."""
    learner = learn_all(make(), data.tasks)
    together = learner.decision_function(data.X)
    alone = np.concatenate([learner.decision_function(row[None]) for row in data.X])
    expect_same(alone, together, "row by row", TOLERANCE)


@CHECKS.register("same_seed_same_answer")
def same_seed_same_answer(make: Factory, data: CheckData) -> None:
    """Require that two learners with the same seed agree bit for bit."""
    pair = [
        learn_all(make(random_state=3), data.tasks).decision_function(data.X)
        for _ in range(2)
    ]
    expect_same(pair[1], pair[0], "two learners with the same seed")


def _numpy_state() -> Any:
    state: Any = np.random.get_state()  # noqa: NPY002 (tests the global generator)
    return state[1].copy()


@CHECKS.register("global_rng_is_left_alone")
def global_rng_is_left_alone(make: Factory, data: CheckData) -> None:
    """Require that a learner neither uses nor depends on the global generators."""
    saved_torch = torch.get_rng_state()
    saved_numpy = np.random.get_state()  # noqa: NPY002 (tests the global generator)
    saved_python = random.getstate()
    try:
        answers = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            torch_before = torch.get_rng_state()
            numpy_before = _numpy_state()
            python_before = random.getstate()
            learner = learn_all(make(random_state=3), data.tasks)
            answers.append(learner.decision_function(data.X))
            expect(
                bool((torch.get_rng_state() == torch_before).all()),
                "torch's global generator must not be used",
            )
            expect(
                bool((_numpy_state() == numpy_before).all()),
                "numpy's global generator must not be used",
            )
            expect(
                random.getstate() == python_before,
                "Python's global generator must not be used",
            )
    finally:
        torch.set_rng_state(saved_torch)
        np.random.set_state(saved_numpy)  # noqa: NPY002
        random.setstate(saved_python)
    expect_same(answers[1], answers[0], "another global seed")


@CHECKS.register("save_load_equal")
def save_load_equal(make: Factory, data: CheckData) -> None:
    """Require that a loaded learner predicts and continues like the saved one."""
    import tempfile
    from pathlib import Path

    learner = learn_all(make(), data.tasks[:2])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        learner.save(path)
        loaded = type(learner).load(path)
        learner.save(path)  # overwrites the file
    expect_same(
        loaded.decision_function(data.X),
        learner.decision_function(data.X),
        "after loading",
    )
    expect(
        bool((loaded.classes_ == learner.classes_).all()),
        "classes must be equal after loading",
    )
    learn_all(learner, data.tasks[2:])
    learn_all(loaded, data.tasks[2:])
    expect_same(
        loaded.decision_function(data.X),
        learner.decision_function(data.X),
        "learning after loading",
        TOLERANCE,
    )


@CHECKS.register("clone_is_independent")
def clone_is_independent(make: Factory, data: CheckData) -> None:
    """Require that a clone has the settings only, and shares no state."""
    learner = learn_all(make(), data.tasks[:2])
    before = learner.decision_function(data.X)
    twin = clone(learner)
    expect(not hasattr(twin, "classes_"), "a clone must not be fitted")
    expect(
        repr(twin.get_params()) == repr(learner.get_params()),
        "a clone must have the settings of the original",
    )
    learn_all(twin, data.tasks[::-1])
    expect_same(
        learner.decision_function(data.X), before, "after the clone has learned"
    )


@CHECKS.register("copies_are_independent")
def copies_are_independent(make: Factory, data: CheckData) -> None:
    """Require that a deep copy predicts the same and shares no state."""
    learner = learn_all(make(), data.tasks[:2])
    before = learner.decision_function(data.X)
    twin = copy.deepcopy(learner)
    expect_same(twin.decision_function(data.X), before, "a deep copy")
    learn_all(twin, data.tasks[2:])
    expect_same(learner.decision_function(data.X), before, "after the copy has learned")


@CHECKS.register("fit_starts_anew")
def fit_starts_anew(make: Factory, data: CheckData) -> None:
    """Require that ``fit`` deletes everything learned before."""
    used = learn_all(make(), data.tasks[:2]).fit(*data.tasks[2])
    fresh = make().fit(*data.tasks[2])
    expect_same(
        used.decision_function(data.X),
        fresh.decision_function(data.X),
        "fit on a used learner",
    )


@CHECKS.register("renamed_equals_taught_so")
def renamed_equals_taught_so(make: Factory, data: CheckData) -> None:
    """Require that renaming classes equals learning with the new labels.

    The new labels have another order.
    """
    learner = learn_all(make(), data.tasks)
    new_labels = {label: 100 - label for label in learner.classes_.tolist()}
    new_labels[3] = 3
    expected = learn_all(
        make(),
        [
            (X, np.array([new_labels[label] for label in y.tolist()]))
            for X, y in data.tasks
        ],
    )
    learner.predict(data.X[:1])  # solve first, so that the solution must be reordered
    learner.rename_classes(new_labels)
    expect(
        learner.classes_.tolist() == sorted(new_labels.values()),
        "classes must be sorted after renaming",
    )
    expect_same(
        scores(learner, data.X),
        scores(expected, data.X),
        "renamed classes against learning with the new labels",
        TOLERANCE,
    )


@CHECKS.register("merged_classes_equal_one_class")
def merged_classes_equal_one_class(make: Factory, data: CheckData) -> None:
    """Require that merging classes equals learning their samples under one label."""
    learner = learn_all(make(), data.tasks)
    # Classes of the first task stay separate, because some layers are built on it.
    merged = {0: 9, 1: 9, 4: 5}
    tasks = [
        (X, np.array([merged.get(label, label) for label in y.tolist()]))
        for X, y in data.tasks
    ]
    expected = learn_all(make(), tasks)
    try:
        learner.merge_classes([0, 1], 9).merge_classes([4], 5)
    except UnsupportedError as error:
        raise CheckSkipped(str(error)) from error
    expect(
        learner.classes_.tolist() == expected.classes_.tolist(),
        "classes must equal those of a learner with merged labels",
    )
    expect_same(
        scores(learner, data.X),
        scores(expected, data.X),
        "merged classes against learning with merged labels",
        TOLERANCE,
    )


@CHECKS.register("state_is_bounded_in_tasks")
def state_is_bounded_in_tasks(make: Factory, data: CheckData) -> None:
    """Require that without new classes the size of the state stops growing."""
    rng = np.random.default_rng(1)
    learner = learn_all(make(), [data.joint])
    sizes = []
    for _ in range(16):
        X, y = data.joint
        learner.partial_fit(X + rng.normal(size=X.shape), y)
        sizes.append(state_bytes(learner))
    expect(
        sizes[-1] == sizes[7],
        f"bytes must not grow from batch 8 to batch 16, got {sizes[7]} and {sizes[-1]}",
    )


@CHECKS.register("device")
def device(make: Factory, data: CheckData) -> None:
    """Require equal predictions on CPU and GPU, and that files load on both."""
    if not torch.cuda.is_available():
        raise CheckSkipped("needs a CUDA device")
    import tempfile
    from pathlib import Path

    on_cpu = learn_all(make(device="cpu"), data.tasks)
    on_gpu = learn_all(make(device="cuda"), data.tasks)
    expect_same(
        scores(on_gpu, data.X), scores(on_cpu, data.X), "cuda against cpu", 1e-5
    )
    gpu_tensor = torch.from_numpy(data.X).to("cuda")
    expect_same(
        on_gpu.decision_function(gpu_tensor),
        on_gpu.decision_function(data.X),
        "tensors on the device",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        on_gpu.save(path)
        moved = type(on_gpu).load(path, device="cpu")
    expect_same(
        scores(moved, data.X), scores(on_gpu, data.X), "loaded on the cpu", 1e-5
    )
