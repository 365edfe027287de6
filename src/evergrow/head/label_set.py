"""An open set of labels, and what files hold of them.

Labels are of any one kind (integers, strings, ...), grow and shrink, and are always
sorted. What needs the names of classes alone is done without torch, which takes a
second to import.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, LabelError
from evergrow.core.record import Between, require
from evergrow.core.registry import nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_KINDS = {
    "b": "booleans",
    "i": "integers",
    "u": "integers",
    "f": "numbers",
    "U": "strings",
    "S": "bytes",
}


_STORED: dict[str, tuple[Any, tuple[type, ...]]] = {
    "b": (np.bool_, (bool,)),
    "i": (np.int64, (int,)),
    "u": (np.uint64, (int,)),
    "f": (np.float64, (int, float)),
    "U": (np.str_, (str,)),
}
"""Kinds of labels that a file holds: their type here, and that of their values in JSON."""


@dataclass(frozen=True)
class LabelUpdate:
    """What a batch of labels means for the table of classes.

    Parameters
    ----------
    classes : ndarray of shape (C,)
        All classes after the batch, sorted.
    groups : list of list of int
        For each of them its column before the batch, none where it is new.
    codes : Tensor of shape (n,)
        Position of every label in ``classes``, on the head's device.
    weights : Tensor of shape (n,) or None
        What each sample counts for; None where each counts as one.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.label_set import LabelUpdate
    >>> change = LabelUpdate.of(np.array([1, 5]), np.array([3, 5]), "cpu")
    >>> change.classes.tolist(), change.groups, change.codes.tolist()
    ([1, 3, 5], [[0], [], [1]], [1, 2])
    """

    classes: NDArray[Any]
    groups: list[list[int]]
    codes: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(
        cls,
        known: NDArray[Any] | None,
        labels: NDArray[Any],
        device: torch.device | str,
        weights: Tensor | None = None,
    ) -> LabelUpdate:
        """Fit new labels into the table of known classes."""
        import torch

        if known is None or len(known) == 0:
            known = labels[:0]
        else:
            known = known
        check_kind(known, labels)
        classes = np.union1d(known, labels)
        codes = torch.from_numpy(np.searchsorted(classes, labels).astype(np.int64)).to(
            device
        )
        return cls(classes, old_columns(known, classes), codes, weights)


def as_labels(y: Any, n_rows: int) -> NDArray[Any]:
    """Return labels as a 1-D array of one kind, one per row, or raise :class:`LabelError`."""
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    if type(y) is np.ndarray and y.dtype.kind in "iU" and y.shape == (n_rows,):
        return y  # what a stream hands over: scikit-learn's checks would find nothing
    if y is None:
        raise LabelError(
            "y must be one label per row, got None (requires y to be passed, but the target y is None)"
        )
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import column_or_1d

    try:
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
    except (ValueError, TypeError) as error:
        raise LabelError(
            f"y must be a 1-D sequence of class labels: {error}"
        ) from error
    if labels.shape[0] != n_rows:
        raise LabelError(
            f"y must have one label per row of X ({n_rows}), got {labels.shape[0]}"
        )
    if labels.dtype.kind == "O":
        words = all(isinstance(label, str) for label in labels)
        objects = labels
        labels = np.array(labels.tolist())
        if (
            labels.dtype.kind in "USO" and not words
        ):  # numpy would silently turn numbers into strings
            kinds = sorted({type(label).__name__ for label in objects})
            raise LabelError(
                f"labels must all be of one kind, got a mix of {', '.join(kinds)}"
            )
    if labels.dtype.kind not in _KINDS:
        raise LabelError(
            f"labels must be integers, strings or booleans, got {labels.dtype}"
        )
    return np.asarray(labels)


def check_kind(known: NDArray[Any], labels: NDArray[Any]) -> None:
    """Raise :class:`LabelError` if new labels are of another kind than the known ones."""
    old = _KINDS.get(known.dtype.kind)
    new = _KINDS.get(labels.dtype.kind)
    if old != new:
        raise LabelError(
            f"labels must be {old} as before, got {new} ({labels[:1].tolist()[0]!r})"
        )


def old_columns(known: NDArray[Any], classes: NDArray[Any]) -> list[list[int]]:
    """Return for each of ``classes`` its position in ``known``, none where it is new."""
    places = {label: [index] for index, label in enumerate(known.tolist())}
    return [places.get(label, []) for label in classes.tolist()]


def known_codes(known: NDArray[Any], labels: NDArray[Any]) -> Tensor:
    """Return positions of labels that must all be known, or raise :class:`LabelError`."""
    check_kind(known, labels)
    missing = np.setdiff1d(labels, known)
    if len(missing):
        raise LabelError(
            f"labels must be known classes, got {missing[:5].tolist()} that were never learned"
        )
    import torch

    return torch.from_numpy(np.searchsorted(known, labels).astype(np.int64))


# -- other names -----------------------------------------------------------------------


@dataclass(frozen=True)
class ClassChange:
    """Another table of classes, each of which is one or several of the old ones.

    Parameters
    ----------
    classes : ndarray of shape (C',)
        The new labels, sorted.
    groups : list of list of int
        For each of them the positions of the old classes that it is made of.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.label_set import ClassChange
    >>> change = ClassChange.of(np.array(["crow", "owl", "raven"]), {"crow": "corvid", "raven": "corvid"})
    >>> change.classes.tolist(), change.groups
    (['corvid', 'owl'], [[0, 2], [1]])
    """

    classes: NDArray[Any]
    groups: list[list[int]]

    @classmethod
    def of(cls, classes: NDArray[Any], names: Mapping[Any, Any]) -> ClassChange:
        """Return the table after classes got other names; those that share one become one class.

        Raises
        ------
        LabelError
            If a class is not known, or a new label is of another kind than the old
            ones.
        """
        for given in (list(names), list(names.values())) if names else ():
            check_kind(classes, _label_array(given))
        known = classes.tolist()
        for label in names:
            if label not in known:
                if isinstance(label, str):
                    close = nearest(label, known)
                else:
                    close = ", ".join(map(repr, known[:3]))
                raise LabelError(f"There is no class {label!r}; nearest: {close}.")
        table, codes = np.unique(
            _label_array([names.get(label, label) for label in known]),
            return_inverse=True,
        )
        return cls(
            table,
            [np.flatnonzero(codes == code).tolist() for code in range(len(table))],
        )

    @property
    def order(self) -> list[int] | None:
        """For every new class the position of the old one; None where several become one."""
        if any(len(group) > 1 for group in self.groups):
            return None
        return [group[0] for group in self.groups]


class NamedClasses:
    """Classes that can get other names: a head, or what a file holds of one.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels, sorted.
    """

    classes_: NDArray[Any]

    @abstractmethod
    def _require_fitted(self) -> None:
        """Raise :class:`NotFittedError` unless something was learned."""

    @abstractmethod
    def _change_classes(self, change: ClassChange) -> Self:
        """Take over another table of classes; all or nothing."""

    def rename_classes(self, names: Mapping[Any, Any]) -> Self:
        """Give classes other labels; nothing else changes.

        Parameters
        ----------
        names : mapping
            New labels by old ones, all at once: two classes may swap theirs.

        Raises
        ------
        LabelError
            If a class is not known, or two classes would have the same label.

        Examples
        --------
        >>> from evergrow.lab.heads import SimpleCILClassifier
        >>> model = SimpleCILClassifier().fit([[1.0, 0.0], [0.0, 1.0]], ["east", "north"])
        >>> model.rename_classes({"east": "right"}).predict([[5.0, 1.0]]).tolist()
        ['right']
        """
        self._require_fitted()
        if not names:
            raise LabelError("names must rename at least one class, got none")
        change = ClassChange.of(self.classes_, names)
        for label, group in zip(change.classes.tolist(), change.groups, strict=True):
            if len(group) > 1:
                raise LabelError(
                    f"Two classes would be called {label!r}; merging classes makes them one."
                )
        return self._change_classes(change)

    def merge_classes(self, labels: Iterable[Any], into: Any) -> Self:
        """Make several classes one, as if all their samples had been learned under one label.

        What was chosen on single batches (a held-out ridge) stays as it was chosen.

        Parameters
        ----------
        labels : iterable
            Classes to merge, at least two with ``into``.
        into : object
            The label they get: a new one, or that of a class, which then is one of
            those merged.

        Raises
        ------
        LabelError
            If a class is not known, or there is only one.

        Examples
        --------
        >>> from evergrow.lab.heads import SimpleCILClassifier
        >>> model = SimpleCILClassifier().fit([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], ["east", "north", "west"])
        >>> model.merge_classes(["east", "west"], "level").classes_.tolist()
        ['level', 'north']
        """
        self._require_fitted()
        names = dict.fromkeys([labels] if isinstance(labels, str) else labels, into)
        if len({*names, *([into] if into in self.classes_.tolist() else [])}) < 2:
            raise LabelError(
                f"Name at least two different classes to merge, not {list(names)}."
            )
        return self._change_classes(ClassChange.of(self.classes_, names))


def _label_array(values: list[Any]) -> NDArray[Any]:
    """Return labels as an array. scikit-learn's checks, meant for samples, warn about many different labels."""
    if all(isinstance(value, str) for value in values):
        return np.array(values, dtype=np.str_)
    plain = all(
        isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        for value in values
    )
    if plain:
        return np.array(values)
    return as_labels(values, len(values))


# -- files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredLabels:
    """Labels of the columns of statistics, in a form that JSON holds.

    In a file classes may have got other names: then labels are in any order, and
    columns of one label are one class, whose sums are added when the head is read.

    Parameters
    ----------
    kind : str
        Letter of their type in NumPy.
    values : list
        The labels.
    """

    kind: str
    values: list[Any]

    @classmethod
    def of(cls, labels: NDArray[Any]) -> StoredLabels:
        """Return labels as a file holds them, or raise :class:`InputError`."""
        if labels.dtype.kind not in _STORED:
            raise InputError(
                f"labels must be integers, numbers, strings or booleans to be saved, got {labels.dtype}"
            )
        return cls(labels.dtype.kind, labels.tolist())

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless the labels are of one kind."""
        require(
            self.kind in _STORED,
            f"'kind' should be one of {', '.join(map(repr, _STORED))}",
        )
        dtype, types = _STORED[self.kind]
        for value in self.values:
            right = isinstance(value, types) and (
                not isinstance(value, bool) or bool in types
            )
            require(right, "labels are not all of their kind")
        try:
            labels = self.table()
        except (OverflowError, ValueError, TypeError) as error:
            require(False, f"a label is out of range: {error}")
        require(
            dtype is not np.float64 or bool(np.isfinite(labels).all()),
            "a label is not finite",
        )

    def table(self) -> NDArray[Any]:
        """Return the labels as they were."""
        return np.asarray(self.values, dtype=_STORED[self.kind][0])


BUILT_IN = {"evergrow": "evergrow.head.classifier", "scl-mgsm": "evergrow.head.scl"}
"""Modules of the heads that are always there, by their names. Their classes can be renamed and merged."""


@dataclass(frozen=True)
class SavedHead:
    """What files hold of every head beside what it learned: its settings, its labels, its features."""

    params: dict[str, Any]
    labels: StoredLabels
    n_features: Annotated[int, Between(1, 2**53)]
    feature_names: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise :class:`FileFormatError` where the names are not those of the features."""
        named = self.feature_names is None or len(self.feature_names) == self.n_features
        require(named, "it has another number of features than names for them")
