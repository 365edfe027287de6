"""Streams: the order in which classes arrive, and their division into tasks.

A protocol named B-m Inc-n has m classes in the first task and n in each later one; with
B-0, all tasks have n classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, LabelError, ParameterError
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_integer, check_number, from_mapping

Indices = NDArray[np.int64]

DEFAULT_SEED = 1993
"""Seed of class orders in this field since iCaRL."""


def class_order(
    n_classes: int, seed: int = DEFAULT_SEED, *, shuffle: bool = True
) -> Indices:
    """Return class indices (into sorted labels) in order of arrival.

    The shuffled order is the usual one in this field: that of numpy's legacy generator,
    equal to ``np.random.seed(seed); np.random.permutation(n_classes)``, without using
    the global state.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    seed : int
        Seed of the legacy generator, 1993 by convention.
    shuffle : bool
        Whether to shuffle. False keeps the natural order, as for VTAB.

    Returns
    -------
    ndarray of int of shape (n_classes,)

    Examples
    --------
    >>> from evergrow.lab.streams import class_order
    >>> class_order(100)[:6].tolist()
    [68, 56, 78, 8, 23, 84]
    >>> class_order(4, shuffle=False).tolist()
    [0, 1, 2, 3]
    """
    check_integer("n_classes", n_classes)
    check_integer("seed", seed, low=0, high=2**32 - 1)
    if not shuffle:
        return np.arange(n_classes, dtype=np.int64)
    # Published class orders come from this generator.
    legacy = np.random.RandomState(seed)
    return np.asarray(legacy.permutation(n_classes), dtype=np.int64)


def disjoint_order(
    n_classes: int, seed: int, earlier_seeds: Sequence[int], n_initial: int
) -> Indices:
    """Return a class order whose first task shares no class with earlier seeds.

    The paper averages over seeds "where the initial-stage categories are
    non-overlapping across seeds" and does not say how they were drawn. Here the first
    task takes the first ``n_initial`` classes of the plain order of ``seed`` that no
    earlier seed used in its first task. All other classes follow in plain order.
    Without earlier seeds the order is the plain one. A later seed in the list never
    changes the order of an earlier one.

    Parameters
    ----------
    n_classes : int
        Number of classes.
    seed : int
        Seed of the order.
    earlier_seeds : sequence of int
        Earlier seeds in the list, in order, all different.
    n_initial : int
        Number of classes of the first task.

    Returns
    -------
    ndarray of int of shape (n_classes,)

    Raises
    ------
    ParameterError
        If there are too few classes for disjoint first tasks, or a seed repeats.

    Examples
    --------
    >>> from evergrow.lab.streams import class_order, disjoint_order
    >>> class_order(6, 1993).tolist(), class_order(6, 1994).tolist()
    ([0, 2, 3, 4, 5, 1], [1, 4, 0, 5, 2, 3])
    >>> class_order(6, 1995).tolist()
    [0, 3, 1, 5, 2, 4]
    >>> disjoint_order(6, 1995, [1993, 1994], 2).tolist()
    [3, 5, 0, 1, 2, 4]
    """
    seeds = [*earlier_seeds, seed]
    if len(set(seeds)) != len(seeds):
        raise ParameterError(
            f"seeds must all be different for disjoint first tasks, got {seeds}"
        )
    if n_initial * len(seeds) > n_classes:
        raise ParameterError(
            f"{len(seeds)} disjoint first tasks of {n_initial} classes must fit into "
            f"the data, got {n_classes} classes. Use fewer seeds, a smaller first task "
            "or disjoint = false"
        )
    used: set[int] = set()
    order = class_order(n_classes, seed)
    for earlier_or_own in seeds:
        plain = class_order(n_classes, earlier_or_own).tolist()
        first = [c for c in plain if c not in used][:n_initial]
        rest = [c for c in plain if c not in set(first)]
        order = np.array(first + rest, dtype=np.int64)
        used.update(first)
    return order


@dataclass(frozen=True)
class Protocol:
    """B-m Inc-n: ``initial`` classes first, then ``increment`` classes per task.

    The last task has the remaining classes.

    Parameters
    ----------
    initial : int
        Number of classes of the first task. 0 means ``increment``.
    increment : int
        Number of classes of every later task.
    shuffle : bool
        Whether the seed shuffles the class order. False keeps the natural order.
    disjoint : bool
        Whether the first tasks of different seeds share no class, as in the paper.
    blur : float
        Generalised class-incremental learning like Si-Blurry: fraction of the training
        samples of blurry classes that move to a random task (0.1 in the G-ACIL paper).
    blurry_classes : float
        Fraction of the classes that are blurry. Used only if ``blur > 0``.
    repeat : float
        Generalised class-incremental learning with repetition: probability that a class
        recurs in each later task. Its samples are divided evenly, each is seen once.
    batch_size : int
        Samples per mini-batch of a single-pass online stream. 0 delivers whole tasks.

    Examples
    --------
    >>> from evergrow.lab.streams import Protocol
    >>> Protocol(increment=10).name
    'B-0 Inc-10'
    >>> Protocol(initial=50, increment=5).task_sizes(62)
    [50, 5, 5, 2]
    """

    initial: int = 0
    increment: int = 10
    shuffle: bool = True
    disjoint: bool = False
    blur: float = 0.0
    blurry_classes: float = 0.5
    repeat: float = 0.0
    batch_size: int = 0

    def __post_init__(self) -> None:
        check_integer("initial", self.initial, low=0)
        check_integer("increment", self.increment)
        check_integer("batch_size", self.batch_size, low=0)
        for name in ("blur", "blurry_classes", "repeat"):
            check_number(name, getattr(self, name), low=0, high=1)
        for name in ("shuffle", "disjoint"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(
                    f"{name} must be true or false, got {getattr(self, name)!r}"
                )
        if self.blur and self.repeat:
            raise ParameterError(
                "blur and repeat must not both be positive. Choose one of them"
            )
        if self.disjoint and not self.shuffle:
            raise ParameterError(
                "disjoint must be false if shuffle is false, because the natural order "
                "is the same for all seeds"
            )

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Create a protocol from plain settings; reject unknown keys.

        Examples
        --------
        >>> from evergrow.lab.streams import Protocol
        >>> Protocol.from_dict({"incrment": 5})
        Traceback (most recent call last):
            ...
        evergrow.core.errors.UnknownNameError: ..., got 'incrment'; nearest: 'increment'
        """
        return from_mapping(cls, settings, "protocol setting")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return asdict(self)

    @property
    def name(self) -> str:
        """Name in the paper's notation, with the deviations from its protocol."""
        parts = [f"B-{self.initial} Inc-{self.increment}"]
        if not self.shuffle:
            parts.append("natural order")
        if self.blur:
            parts.append(f"blurry {self.blurry_classes:g}/{self.blur:g}")
        if self.repeat:
            parts.append(f"repeat {self.repeat:g}")
        if self.batch_size:
            parts.append(f"online {self.batch_size}")
        return ", ".join(parts)

    @property
    def n_initial(self) -> int:
        """Number of classes of the first task."""
        return self.initial or self.increment

    def task_sizes(self, n_classes: int) -> list[int]:
        """Return the number of classes per task. The last task has the remainder."""
        check_integer("n_classes", n_classes)
        if self.n_initial > n_classes:
            raise ParameterError(
                f"the first task must have at most the {n_classes} classes of the "
                f"data, got {self.n_initial}"
            )
        whole, rest = divmod(n_classes - self.n_initial, self.increment)
        sizes = [self.n_initial] + [self.increment] * whole
        if rest:
            sizes.append(rest)
        return sizes


@dataclass(frozen=True, eq=False)
class Task:
    """Classes and samples of one session.

    Parameters
    ----------
    index : int
        Number of the session, from 0.
    classes : ndarray
        Labels of its training samples, in order of arrival for plain streams.
    new_classes : ndarray
        Labels that no earlier task had.
    train : ndarray of int
        Rows of the training set, in shuffled order.
    test : ndarray of int
        Rows of the test set with new classes, sorted. The tasks partition the test
        samples of seen classes, so accuracies per task add up to the overall one.
    """

    index: int
    classes: NDArray[Any]
    new_classes: NDArray[Any]
    train: Indices
    test: Indices


@dataclass(frozen=True, eq=False)
class Stream:
    """A protocol applied to the labels of a dataset.

    Parameters
    ----------
    protocol : Protocol
        Sizes of the tasks and further settings.
    seed : int
        Seed of the class order and all other draws.
    order : ndarray
        Labels in order of arrival.
    tasks : tuple of Task
        The sessions.
    """

    protocol: Protocol
    seed: int
    order: NDArray[Any]
    tasks: tuple[Task, ...]

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def batches(self, task: Task) -> Iterator[Indices]:
        """Yield the training rows of a task, whole or in mini-batches if online."""
        size = self.protocol.batch_size or max(len(task.train), 1)
        for start in range(0, len(task.train), size):
            yield task.train[start : start + size]

    def seen_test(self, upto: int) -> tuple[Indices, Indices]:
        """Return the test rows of tasks 0 to ``upto``, and the task of each row."""
        parts = [task.test for task in self.tasks[: upto + 1]]
        sizes = [len(part) for part in parts]
        return np.concatenate(parts), np.repeat(np.arange(len(parts)), sizes)


def make_stream(
    y_train: ArrayLike,
    y_test: ArrayLike,
    protocol: Protocol | None = None,
    *,
    seed: int = DEFAULT_SEED,
    earlier_seeds: Sequence[int] = (),
) -> Stream:
    """Split labelled samples into the tasks of a protocol.

    Parameters
    ----------
    y_train, y_test : array-like of shape (n,), (m,)
        Labels. Every test label must occur in training.
    protocol : Protocol, optional
        Settings. The default is B-0 Inc-10.
    seed : int
        Seed of the class order (numpy's legacy permutation) and, through separate
        random streams, of blurring, repetition and the order of samples in a task.
    earlier_seeds : sequence of int
        Seeds whose first tasks must be disjoint, for ``protocol.disjoint``.

    Returns
    -------
    Stream

    Examples
    --------
    >>> from evergrow.lab.streams import Protocol, make_stream
    >>> labels = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    >>> stream = make_stream(labels, labels, Protocol(increment=2, shuffle=False))
    >>> [(task.classes.tolist(), task.test.tolist()) for task in stream]
    [([0, 1], [0, 1, 2, 3]), ([2, 3], [4, 5, 6, 7]), ([4], [8, 9])]
    """
    protocol = protocol or Protocol()
    classes, codes = np.unique(_labels("y_train", y_train), return_inverse=True)
    test_codes = _test_codes(classes, _labels("y_test", y_test))
    if protocol.disjoint:
        order = disjoint_order(len(classes), seed, earlier_seeds, protocol.n_initial)
    else:
        order = class_order(len(classes), seed, shuffle=protocol.shuffle)
    sizes = protocol.task_sizes(len(classes))
    home = np.empty(len(classes), dtype=np.int64)  # first task of each class
    home[order] = np.repeat(np.arange(len(sizes)), sizes)
    task_of_row = _assign_rows(codes, home, len(sizes), protocol, seed)
    tasks = _make_tasks(classes, order, codes, test_codes, task_of_row)
    shuffled = tuple(_shuffle_rows(task, seed) for task in tasks)
    return Stream(protocol, seed, classes[order], shuffled)


def stream_of(
    data: Any,
    protocol: Protocol | None = None,
    *,
    seed: int = DEFAULT_SEED,
    earlier_seeds: Sequence[int] = (),
) -> Stream:
    """Divide a dataset into the tasks of a protocol; see :func:`make_stream`.

    Parameters
    ----------
    data : Dataset
        Data with a training and a test set.
    protocol : Protocol, optional
        Settings. The default is B-0 Inc-10.
    seed, earlier_seeds
        As for :func:`make_stream`.

    Returns
    -------
    Stream

    Raises
    ------
    InputError
        If the dataset has no test set.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data import Dataset
    >>> from evergrow.lab.streams import Protocol, stream_of
    >>> X, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> data = Dataset.of(X, y, X, y)
    >>> stream = stream_of(data, Protocol(increment=2, shuffle=False))
    >>> stream.tasks[1].test.tolist()
    [4, 5]
    """
    if not data.has_test:
        raise InputError(
            "A stream needs a test set, but the data have none. Load them with "
            "split='auto'."
        )
    return make_stream(
        data.y_train, data.y_test, protocol, seed=seed, earlier_seeds=earlier_seeds
    )


def _labels(name: str, y: ArrayLike) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) == 0 or labels.dtype.kind not in "biuUS":
        raise LabelError(
            f"{name} must be a non-empty 1-D array of integers or strings, "
            f"got shape {labels.shape} of {labels.dtype}"
        )
    return labels


def _test_codes(classes: NDArray[Any], y_test: NDArray[Any]) -> Indices:
    unknown = np.setdiff1d(y_test, classes)
    if len(unknown):
        raise LabelError(
            f"y_test must only hold labels of y_train, got also {unknown[:5].tolist()}"
        )
    return np.searchsorted(classes, y_test).astype(np.int64)


def _assign_rows(
    codes: Indices, home: Indices, n_tasks: int, protocol: Protocol, seed: int
) -> Indices:
    """Return the task of every training row."""
    if protocol.blur:
        return _blur(codes, home, n_tasks, protocol, seed)
    if protocol.repeat:
        return _repeat(codes, home, n_tasks, protocol.repeat, seed)
    return home[codes]


def _blur(
    codes: Indices, home: Indices, n_tasks: int, protocol: Protocol, seed: int
) -> Indices:
    """Move a fraction of the samples of some classes to random tasks (Si-Blurry)."""
    rng = np.random.default_rng(derive_seed(seed, "stream", "blur"))
    n_blurry = round(protocol.blurry_classes * len(home))
    blurry = np.isin(codes, rng.permutation(len(home))[:n_blurry])
    rows = rng.permutation(np.flatnonzero(blurry))
    moved = rows[: round(protocol.blur * len(rows))]
    tasks = home[codes]
    tasks[moved] = rng.integers(n_tasks, size=len(moved))
    # No task may be empty. A task without samples gets its own ones back.
    for task in np.setdiff1d(np.arange(n_tasks), tasks):
        tasks[np.flatnonzero(home[codes] == task)] = task
    return tasks


def _repeat(
    codes: Indices, home: Indices, n_tasks: int, repeat: float, seed: int
) -> Indices:
    """Divide the samples of each class evenly over its first and later tasks."""
    rng = np.random.default_rng(derive_seed(seed, "stream", "repeat"))
    tasks = home[codes]
    for code in range(len(home)):
        later = np.arange(home[code] + 1, n_tasks)
        visits = np.concatenate([[home[code]], later[rng.random(len(later)) < repeat]])
        rows = rng.permutation(np.flatnonzero(codes == code))
        tasks[rows] = visits[np.arange(len(rows)) % len(visits)]
    return tasks


def _make_tasks(
    classes: NDArray[Any],
    order: Indices,
    codes: Indices,
    test_codes: Indices,
    task_of_row: Indices,
) -> list[Task]:
    """Create task records from the task of every row."""
    tasks: list[Task] = []
    seen = np.zeros(len(classes), dtype=bool)
    for index in range(int(task_of_row.max()) + 1):
        train = np.flatnonzero(task_of_row == index)
        present = np.zeros(len(classes), dtype=bool)
        present[codes[train]] = True
        new = present & ~seen
        test = np.flatnonzero(new[test_codes])
        arrived = order[present[order]]
        arrived_new = order[new[order]]
        tasks.append(Task(index, classes[arrived], classes[arrived_new], train, test))
        seen |= present
    return tasks


def _shuffle_rows(task: Task, seed: int) -> Task:
    """Shuffle the training rows of a task.

    Otherwise a method that validates on the last fifth of a task, as RanPAC does, would
    validate on whole classes.
    """
    rng = np.random.default_rng(derive_seed(seed, "stream", "rows", task.index))
    return replace(task, train=rng.permutation(task.train))
