"""Class labels: checks, the table of classes, renaming, and labels in files.

Labels are of one type (integers, strings, ...). Classes come and go and are always
sorted. torch takes a second to import, so functions import it when they need it.
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
"""Types of labels, by the letter of their NumPy type."""

_STORED: dict[str, tuple[Any, tuple[type, ...]]] = {
    "b": (np.bool_, (bool,)),
    "i": (np.int64, (int,)),
    "u": (np.uint64, (int,)),
    "f": (np.float64, (int, float)),
    "U": (np.str_, (str,)),
}
"""Types of labels in a file: the NumPy type and the types of the JSON values."""


@dataclass(frozen=True)
class LabelUpdate:
    """A labelled batch, and the table of classes after it.

    Parameters
    ----------
    classes : ndarray of shape (C,)
        All classes after the batch, sorted.
    groups : list of list of int
        ``groups[c]`` has the old column of class c. It is empty for a new class.
    codes : Tensor of shape (n,)
        Index of every label in ``classes``, on the head's device.
    weights : Tensor of shape (n,) or None
        Weight of each sample. None stands for ones.

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
        """Add new labels to the table of known classes.

        Parameters
        ----------
        known : ndarray of shape (C,) or None
            Known classes, sorted. None for no classes.
        labels : ndarray of shape (n,)
            Labels of the batch.
        device : torch.device or str
            Device of ``codes``.
        weights : Tensor of shape (n,), optional
            Sample weights. By default ones.

        Raises
        ------
        LabelError
            If the labels are not of the type of the known ones.
        """
        import torch

        if known is None or len(known) == 0:
            known = labels[:0]  # no classes, of the type of the labels
        require_same_type(known, labels)
        classes = np.union1d(known, labels)
        codes = np.searchsorted(classes, labels).astype(np.int64)
        groups = old_columns(known, classes)
        return cls(classes, groups, torch.from_numpy(codes).to(device), weights)


def as_label_array(y: Any, n_rows: int) -> NDArray[Any]:
    """Return labels as an array (n_rows,) of one type.

    Parameters
    ----------
    y : array-like or Tensor
        Integers, strings, booleans, bytes or whole numbers.
    n_rows : int
        Number of rows.

    Raises
    ------
    LabelError
        If they are not class labels, of several types, or not one per row.
    """
    if hasattr(y, "detach"):
        y = y.detach().cpu().numpy()
    if type(y) is np.ndarray and y.dtype.kind in "iU" and y.shape == (n_rows,):
        return y  # skip scikit-learn's checks, which are slow for a stream
    if y is None:
        raise LabelError(
            "y must be one label per row, got None "
            "(requires y to be passed, but the target y is None)"
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
        labels = _from_objects(labels)
    if labels.dtype.kind not in _KINDS:
        raise LabelError(
            f"labels must be integers, strings or booleans, got {labels.dtype}"
        )
    return np.asarray(labels)


def _from_objects(objects: NDArray[Any]) -> NDArray[Any]:
    """Return labels of dtype object as an array of their one type."""
    labels = np.array(objects.tolist())
    is_all_strings = all(isinstance(label, str) for label in objects)
    if labels.dtype.kind in "USO" and not is_all_strings:
        # NumPy would silently turn numbers into strings.
        types = sorted({type(label).__name__ for label in objects})
        raise LabelError(
            f"labels must all be of one kind, got a mix of {', '.join(types)}"
        )
    return labels


def require_same_type(known: NDArray[Any], labels: NDArray[Any]) -> None:
    """Raise :class:`LabelError` if labels are not of the type of the known ones."""
    old = _KINDS.get(known.dtype.kind)
    new = _KINDS.get(labels.dtype.kind)
    if old != new:
        raise LabelError(
            f"labels must be {old} as before, got {new} ({labels[:1].tolist()[0]!r})"
        )


def old_columns(known: NDArray[Any], classes: NDArray[Any]) -> list[list[int]]:
    """Return a list with the index of each class in `known`, empty for a new class."""
    indices = {label: [index] for index, label in enumerate(known.tolist())}
    return [indices.get(label, []) for label in classes.tolist()]


def known_codes(known: NDArray[Any], labels: NDArray[Any]) -> Tensor:
    """Return the index of each label in the sorted known classes, on the CPU.

    Raises
    ------
    LabelError
        If a label is not known, or of another type.
    """
    require_same_type(known, labels)
    missing = np.setdiff1d(labels, known)
    if len(missing):
        raise LabelError(
            "labels must be known classes, "
            f"got {missing[:5].tolist()} that were never learned"
        )
    import torch

    return torch.from_numpy(np.searchsorted(known, labels).astype(np.int64))


# -- renaming and merging --------------------------------------------------------------


@dataclass(frozen=True)
class ClassChange:
    """A new table of classes. Each class is one or several of the old ones.

    Parameters
    ----------
    classes : ndarray of shape (C',)
        The new labels, sorted.
    groups : list of list of int
        ``groups[c]`` are the old columns that become class c.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.label_set import ClassChange
    >>> classes = np.array(["crow", "owl", "raven"])
    >>> change = ClassChange.of(classes, {"crow": "corvid", "raven": "corvid"})
    >>> change.classes.tolist(), change.groups
    (['corvid', 'owl'], [[0, 2], [1]])
    """

    classes: NDArray[Any]
    groups: list[list[int]]

    @classmethod
    def of(cls, classes: NDArray[Any], names: Mapping[Any, Any]) -> ClassChange:
        """Rename classes. Classes with the same new label are merged.

        Parameters
        ----------
        classes : ndarray of shape (C,)
            The old labels.
        names : mapping
            New labels by old ones.

        Raises
        ------
        LabelError
            If a class is not known, or a new label has another type than the old ones.
        """
        if names:
            require_same_type(classes, _class_array(list(names)))
            require_same_type(classes, _class_array(list(names.values())))
        known = classes.tolist()
        for label in names:
            if label not in known:
                close = ", ".join(map(repr, known[:3]))
                if isinstance(label, str):
                    close = nearest(label, known)
                raise LabelError(f"There is no class {label!r}; nearest: {close}.")
        renamed = _class_array([names.get(label, label) for label in known])
        table, codes = np.unique(renamed, return_inverse=True)
        groups = [np.flatnonzero(codes == code).tolist() for code in range(len(table))]
        return cls(table, groups)

    @property
    def order(self) -> list[int] | None:
        """Old column of every new class. None if classes were merged."""
        if any(len(group) > 1 for group in self.groups):
            return None
        return [group[0] for group in self.groups]


class NamedClasses:
    """Base of heads and stored heads: classes that can be renamed and merged.

    Subclasses implement ``_require_fitted`` and ``_change_classes``.

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
        """Use another table of classes, atomically. Return self."""

    def rename_classes(self, names: Mapping[Any, Any]) -> Self:
        """Give classes new labels.

        Parameters
        ----------
        names : mapping
            New labels by old ones. All are renamed at once, so two classes may swap
            their labels.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If a class is not known, or two classes would have the same label.

        Examples
        --------
        >>> from evergrow.lab.heads import SimpleCILClassifier
        >>> X = [[1.0, 0.0], [0.0, 1.0]]
        >>> model = SimpleCILClassifier().fit(X, ["east", "north"])
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
                    f"Two classes would be called {label!r}; "
                    "merging classes makes them one."
                )
        return self._change_classes(change)

    def merge_classes(self, labels: Iterable[Any], into: Any) -> Self:
        """Merge classes, as if all their samples had been learned with one label.

        A ridge that was chosen on held-out rows of single batches does not change.

        Parameters
        ----------
        labels : iterable
            Classes to merge, at least two together with ``into``.
        into : object
            Label of the merged class: a new label, or a class, which is merged too.

        Returns
        -------
        self

        Raises
        ------
        LabelError
            If a class is not known, or there is only one.

        Examples
        --------
        >>> from evergrow.lab.heads import SimpleCILClassifier
        >>> X = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
        >>> model = SimpleCILClassifier().fit(X, ["east", "north", "west"])
        >>> model.merge_classes(["east", "west"], "level").classes_.tolist()
        ['level', 'north']
        """
        self._require_fitted()
        names = dict.fromkeys([labels] if isinstance(labels, str) else labels, into)
        merged = set(names)
        if into in self.classes_.tolist():
            merged.add(into)
        if len(merged) < 2:
            raise LabelError(
                f"Name at least two different classes to merge, not {list(names)}."
            )
        return self._change_classes(ClassChange.of(self.classes_, names))


def _class_array(values: list[Any]) -> NDArray[Any]:
    """Return distinct class names as an array.

    Strings and integers skip the checks of :func:`as_label_array`, in which
    scikit-learn warns if most labels are different.
    """
    if all(isinstance(value, str) for value in values):
        return np.array(values, dtype=np.str_)
    if all(_is_integer(value) for value in values):
        return np.array(values)
    return as_label_array(values, len(values))


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


# -- files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredLabels:
    """Labels of the columns of statistics, as JSON values.

    Classes may have been renamed or merged in the file. Then the labels are not sorted,
    and columns with the same label are added when the head is loaded.

    Parameters
    ----------
    kind : str
        Letter of their NumPy type.
    values : list
        The labels.
    """

    kind: str
    values: list[Any]

    @classmethod
    def of(cls, labels: NDArray[Any]) -> StoredLabels:
        """Return labels (C,) in the form of a file.

        Raises
        ------
        InputError
            If a file cannot hold labels of this type.
        """
        if labels.dtype.kind not in _STORED:
            raise InputError(
                "labels must be integers, numbers, strings or booleans to be saved, "
                f"got {labels.dtype}"
            )
        return cls(labels.dtype.kind, labels.tolist())

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless all labels are of the type `kind`."""
        require(
            self.kind in _STORED,
            f"'kind' should be one of {', '.join(map(repr, _STORED))}",
        )
        dtype, types = _STORED[self.kind]
        for value in self.values:
            is_right = isinstance(value, types)
            if isinstance(value, bool):  # which is an int in Python
                is_right = bool in types
            require(is_right, "labels are not all of their kind")
        try:
            labels = self.table()
        except (OverflowError, ValueError, TypeError) as error:
            require(False, f"a label is out of range: {error}")
        if dtype is np.float64:
            require(bool(np.isfinite(labels).all()), "a label is not finite")

    def table(self) -> NDArray[Any]:
        """Return the labels as an array (C,)."""
        return np.asarray(self.values, dtype=_STORED[self.kind][0])


BUILT_IN = {"evergrow": "evergrow.head.classifier", "scl-mgsm": "evergrow.head.scl"}
"""Modules of the heads in this package, by name. Their classes can be renamed."""


@dataclass(frozen=True)
class SavedHead:
    """The contents of a file that all heads have in common.

    Parameters
    ----------
    params : dict
        Constructor arguments by name, as JSON values.
    labels : StoredLabels
        Class labels.
    n_features : int
        Number of features.
    feature_names : tuple of str or None
        Names of the features.
    """

    params: dict[str, Any]
    labels: StoredLabels
    n_features: Annotated[int, Between(1, 2**53)]
    feature_names: tuple[str, ...] | None = None

    def check(self) -> None:
        """Raise :class:`FileFormatError` if only some features have a name."""
        if self.feature_names is not None:
            require(
                len(self.feature_names) == self.n_features,
                "it has another number of features than names for them",
            )
