"""Which samples arrive when: class orders, protocols (B-m Inc-n and its generalisations), and the tasks they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, LabelError, ParameterError
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number, from_mapping

Indices = NDArray[np.int64]

DEFAULT_SEED = 1993
"""The field's convention since iCaRL."""


def class_order(
    n_classes: int, seed: int = DEFAULT_SEED, *, shuffle: bool = True
) -> Indices:
    """Return positions of classes (in sorted label order) in the order in which they arrive.

    The shuffled order is the field's: numpy's legacy generator, equal to
    ``np.random.seed(seed); np.random.permutation(n_classes)``, without touching the
    global state.

    Parameters
    ----------
    n_classes : int
        How many there are.
    seed : int
        Seed of the legacy generator, 1993 by convention.
    shuffle : bool
        False keeps the natural order, as VTAB does.

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
    check_number("n_classes", n_classes, low=1, integer=True)
    check_number("seed", seed, low=0, high=2**32 - 1, integer=True)
    if not shuffle:
        return np.arange(n_classes, dtype=np.int64)
    legacy = np.random.RandomState(
        seed
    )  # published class orders come from this generator
    return np.asarray(legacy.permutation(n_classes), dtype=np.int64)


def disjoint_order(
    n_classes: int, seed: int, earlier_seeds: Sequence[int], n_initial: int
) -> Indices:
    """Return the order of ``seed`` with a first task that shares no class with those of earlier seeds.

    The paper averages over seeds "where the initial-stage categories are
    non-overlapping across seeds" and does not say how they were drawn. Here the first
    ``n_initial`` classes of the plain order that no earlier seed has used come first,
    and all others follow in plain order. With no earlier seed that is the plain order,
    and a later seed in the list never changes an earlier one's order.

    Parameters
    ----------
    n_classes : int
        How many there are.
    seed : int
        Seed whose order is wanted.
    earlier_seeds : sequence of int
        Seeds before it in the list, in order, all different.
    n_initial : int
        Classes of the first task.

    Returns
    -------
    ndarray of int of shape (n_classes,)

    Raises
    ------
    ParameterError
        If there are not enough classes for that many disjoint first tasks, or a seed
        repeats.

    Examples
    --------
    >>> from evergrow.lab.streams import class_order, disjoint_order
    >>> class_order(6, 1993).tolist(), class_order(6, 1994).tolist(), class_order(6, 1995).tolist()
    ([0, 2, 3, 4, 5, 1], [1, 4, 0, 5, 2, 3], [0, 3, 1, 5, 2, 4])
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
            f"{len(seeds)} disjoint first tasks of {n_initial} classes must fit into the data, "
            f"got {n_classes} classes; use fewer seeds, a smaller first task or disjoint = false"
        )
    used: set[int] = set()
    order = class_order(n_classes, seed)
    for each in seeds:
        plain = class_order(n_classes, each)
        first = [int(c) for c in plain if int(c) not in used][:n_initial]
        chosen = set(first)
        order = np.array(
            first + [int(c) for c in plain if int(c) not in chosen], dtype=np.int64
        )
        used |= chosen
    return order


@dataclass(frozen=True)
class Protocol:
    """B-m Inc-n: ``initial`` classes first, then ``increment`` classes per task, the last takes what is left.

    Parameters
    ----------
    initial : int
        Classes of the first task; 0 means as many as ``increment``.
    increment : int
        Classes of every later task.
    shuffle : bool
        Whether the class order is drawn by seed; False keeps the natural order.
    disjoint : bool
        The paper's protocol: the first tasks of different seeds share no class.
    blur : float
        Generalised CIL in the manner of Si-Blurry: this share of the training samples
        of the blurry classes leaves its task for a random one (0.1 in the G-ACIL
        paper).
    blurry_classes : float
        Share of the classes that are blurry, used only if ``blur > 0``.
    repeat : float
        Generalised CIL with repetition: probability that a class comes again in each
        task after its first; its samples are shared out evenly, each is still seen
        once.
    batch_size : int
        Single-pass online stream: samples per mini-batch; 0 hands over a task as a
        whole.

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
        check_number("initial", self.initial, low=0, integer=True)
        check_number("increment", self.increment, low=1, integer=True)
        check_number("batch_size", self.batch_size, low=0, integer=True)
        for name in ("blur", "blurry_classes", "repeat"):
            check_number(name, getattr(self, name), low=0, high=1)
        for name in ("shuffle", "disjoint"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(
                    f"{name} must be true or false, got {getattr(self, name)!r}"
                )
        if self.blur and self.repeat:
            raise ParameterError(
                "blur and repeat must not both be positive: choose one generalisation"
            )
        if self.disjoint and not self.shuffle:
            raise ParameterError(
                "disjoint must be false where shuffle is false: the natural order is one order"
            )

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Build a protocol from plain settings, rejecting unknown keys.

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
        """The name in the paper's notation, with what departs from plain class-incremental learning."""
        extras = [
            "" if self.shuffle else "natural order",
            f"blurry {self.blurry_classes:g}/{self.blur:g}" if self.blur else "",
            f"repeat {self.repeat:g}" if self.repeat else "",
            f"online {self.batch_size}" if self.batch_size else "",
        ]
        return ", ".join(
            [
                f"B-{self.initial} Inc-{self.increment}",
                *(extra for extra in extras if extra),
            ]
        )

    @property
    def n_initial(self) -> int:
        """Classes of the first task."""
        return self.initial or self.increment

    def task_sizes(self, n_classes: int) -> list[int]:
        """Return the number of classes of every task; the last takes the remainder."""
        check_number("n_classes", n_classes, low=1, integer=True)
        if self.n_initial > n_classes:
            raise ParameterError(
                f"the first task must have at most the {n_classes} classes of the data, got {self.n_initial}"
            )
        whole, rest = divmod(n_classes - self.n_initial, self.increment)
        return [self.n_initial, *[self.increment] * whole, *([rest] if rest else [])]


@dataclass(frozen=True, eq=False)
class Task:
    """The classes and samples that arrive in one session.

    Parameters
    ----------
    index : int
        Number of the session, from 0.
    classes : ndarray
        Labels in its training samples; in plain class-incremental streams, in the order
        of arrival.
    new_classes : ndarray
        Those of them that no earlier task had.
    train : ndarray of int
        Rows of the training set, in the (seeded) order in which they arrive.
    test : ndarray of int
        Rows of the test set whose class is new in this task, sorted; over all tasks
        they partition the test samples of the seen classes, so per-task accuracies add
        up to the overall one.
    """

    index: int
    classes: NDArray[Any]
    new_classes: NDArray[Any]
    train: Indices
    test: Indices


@dataclass(frozen=True, eq=False)
class Stream:
    """A protocol applied to the labels of a data set.

    Parameters
    ----------
    protocol : Protocol
        Settings.
    seed : int
        Seed of the class order and of every other draw.
    order : ndarray
        Labels in the order of arrival.
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
        """Yield the training rows of a task: all at once, or mini-batch by mini-batch in an online stream."""
        size = self.protocol.batch_size or max(len(task.train), 1)
        for start in range(0, len(task.train), size):
            yield task.train[start : start + size]

    def seen_test(self, upto: int) -> tuple[Indices, Indices]:
        """Return the test rows of tasks 0..upto and the task that each belongs to."""
        parts = [task.test for task in self.tasks[: upto + 1]]
        return np.concatenate(parts), np.repeat(
            np.arange(len(parts)), [len(part) for part in parts]
        )


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
        Labels; every test label must occur in training.
    protocol : Protocol, optional
        Settings; B-0 Inc-10 by default.
    seed : int
        Decides the class order (numpy's legacy permutation) and, from streams derived
        by name, which samples blur or repeat and the order of the samples within a
        task.
    earlier_seeds : sequence of int
        For ``protocol.disjoint``: the seeds whose first tasks must not be touched.

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
    home = np.empty(len(classes), dtype=np.int64)  # the task that a class belongs to
    home[order] = np.repeat(np.arange(len(sizes)), sizes)
    task_of_row = _assign_rows(codes, home, len(sizes), protocol, seed)
    tasks = _collect(classes, order, codes, test_codes, task_of_row)
    return Stream(protocol, seed, classes[order], _shuffled(tasks, seed))


def stream_of(
    data: Any,
    protocol: Protocol | None = None,
    *,
    seed: int = DEFAULT_SEED,
    earlier_seeds: Sequence[int] = (),
) -> Stream:
    """Return the tasks of a data set, as row numbers; see :func:`make_stream`.

    Without a protocol it is B-0 Inc-10.

    Raises
    ------
    InputError
        If there is no test set to evaluate tasks on.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data import FeatureSet
    >>> from evergrow.lab.streams import Protocol, stream_of
    >>> X, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> stream = stream_of(FeatureSet("toy", X, y, X, y), Protocol(increment=2, shuffle=False))
    >>> stream.tasks[1].test.tolist()
    [4, 5]
    """
    if not data.has_test:
        raise InputError(
            "A stream needs a test set, and these data have none: load them with split='auto'."
        )
    return make_stream(
        data.y_train, data.y_test, protocol, seed=seed, earlier_seeds=earlier_seeds
    )


def _labels(name: str, y: ArrayLike) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) == 0 or labels.dtype.kind not in "biuUS":
        raise LabelError(
            f"{name} must be a non-empty 1-D array of integers or strings, got shape {labels.shape} of {labels.dtype}"
        )
    return labels


def _test_codes(classes: NDArray[Any], y_test: NDArray[Any]) -> Indices:
    unknown = np.setdiff1d(y_test, classes)
    if len(unknown):
        raise LabelError(
            f"y_test must only hold labels of y_train, got {unknown[:5].tolist()} besides"
        )
    return np.searchsorted(classes, y_test).astype(np.int64)


def _assign_rows(
    codes: Indices, home: Indices, n_tasks: int, protocol: Protocol, seed: int
) -> Indices:
    """Return the task of every training row."""
    if protocol.blur:
        return _blurred(codes, home, n_tasks, protocol, seed)
    if protocol.repeat:
        return _repeated(codes, home, n_tasks, protocol.repeat, seed)
    return home[codes]


def _blurred(
    codes: Indices, home: Indices, n_tasks: int, protocol: Protocol, seed: int
) -> Indices:
    """Move a share of the samples of some classes to tasks drawn at random (Si-Blurry's two ratios)."""
    rng = np.random.default_rng(derive_seed(seed, "stream", "blur"))
    n_blurry = round(protocol.blurry_classes * len(home))
    blurry = np.isin(codes, rng.permutation(len(home))[:n_blurry])
    rows = rng.permutation(np.flatnonzero(blurry))
    moved = rows[: round(protocol.blur * len(rows))]
    tasks = home[codes]
    tasks[moved] = rng.integers(n_tasks, size=len(moved))
    # No task may come up empty: one that lost all its samples and gained none gets its
    # own back.
    for task in np.setdiff1d(np.arange(n_tasks), tasks):
        tasks[np.flatnonzero(home[codes] == task)] = task
    return tasks


def _repeated(
    codes: Indices, home: Indices, n_tasks: int, repeat: float, seed: int
) -> Indices:
    """Share the samples of each class out evenly over its own task and the later ones it comes again in."""
    rng = np.random.default_rng(derive_seed(seed, "stream", "repeat"))
    tasks = home[codes]
    for code in range(len(home)):
        later = np.arange(home[code] + 1, n_tasks)
        visits = np.concatenate([[home[code]], later[rng.random(len(later)) < repeat]])
        rows = rng.permutation(np.flatnonzero(codes == code))
        tasks[rows] = visits[np.arange(len(rows)) % len(visits)]
    return tasks


def _collect(
    classes: NDArray[Any],
    order: Indices,
    codes: Indices,
    test_codes: Indices,
    task_of_row: Indices,
) -> list[Task]:
    """Turn the assignment of rows to tasks into task records."""
    tasks: list[Task] = []
    seen = np.zeros(len(classes), dtype=bool)
    for index in range(int(task_of_row.max()) + 1):
        train = np.flatnonzero(task_of_row == index)
        present = np.zeros(len(classes), dtype=bool)
        present[codes[train]] = True
        new = present & ~seen
        test = np.flatnonzero(new[test_codes])
        tasks.append(
            Task(
                index,
                classes[order[present[order]]],
                classes[order[new[order]]],
                train,
                test,
            )
        )
        seen |= present
    return tasks


def _shuffled(tasks: list[Task], seed: int) -> tuple[Task, ...]:
    """Put the rows within each task in seeded order, as every training loader of the field does.

    A method that holds out the last fifth of a task, as RanPAC does, must not get whole
    classes there.
    """
    rngs = [
        np.random.default_rng(derive_seed(seed, "stream", "rows", task.index))
        for task in tasks
    ]
    return tuple(
        replace(task, train=rng.permutation(task.train))
        for task, rng in zip(tasks, rngs)
    )
