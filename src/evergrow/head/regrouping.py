"""Classes that get other names or become one, exactly: what heads that keep sums by class share.

Sums over the samples of two classes add up to those of both together. So classes that are merged leave the head that
learning their samples under one name would have given, through the same layer and with what was chosen on single
batches (the ridge of a held-out part or of RanPAC's tasks) as it was chosen.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import LabelError
from evergrow.core.registry import nearest
from evergrow.core.wording import action
from evergrow.head.base import IncrementalClassifier
from evergrow.head.labels import as_labels, check_kind


@dataclass(frozen=True)
class Regrouping:
    """Another table of classes, made of the old ones.

    Parameters
    ----------
    classes : ndarray of shape (C',)
        The new labels, sorted.
    groups : list of list of int
        For each of them the positions of the old classes that it is made of.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.head.regrouping import Regrouping
    >>> change = Regrouping.of(np.array(["crow", "owl", "raven"]), {"crow": "corvid", "raven": "corvid"})
    >>> change.classes.tolist(), change.groups
    (['corvid', 'owl'], [[0, 2], [1]])
    """

    classes: NDArray[Any]
    groups: list[list[int]]

    @classmethod
    def of(cls, classes: NDArray[Any], names: Mapping[Any, Any]) -> Regrouping:
        """Return the table after classes got other names; those that share one become one class.

        Raises
        ------
        LabelError
            If a class is not known, or a new label is of another kind than the old ones.
        """
        old, new = list(names), list(names.values())
        for given in (old, new):
            check_kind(classes, _labels(given))
        known = classes.tolist()
        for label in old:
            if label not in known:
                raise LabelError(
                    f"class must be one that was learned, got {label!r}; nearest: {_nearest(label, known)}"
                )
        renamed = _labels([names.get(label, label) for label in known])
        table, codes = np.unique(renamed, return_inverse=True)
        return cls(table, [np.flatnonzero(codes == code).tolist() for code in range(len(table))])

    @property
    def is_permutation(self) -> bool:
        """Whether every new class is one old one."""
        return all(len(group) == 1 for group in self.groups)

    @property
    def order(self) -> list[int]:
        """For every new class the position of the (first) old one in it."""
        return [group[0] for group in self.groups]


class Renamable(IncrementalClassifier):
    """A head whose classes can get other names; a kind of head implements :meth:`_regroup`."""

    @abstractmethod
    def _regroup(self, change: Regrouping) -> None:
        """Put sums by class in another order and, where the head can merge classes, together; all or nothing."""

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
        change = Regrouping.of(self.classes_, names)
        if not change.is_permutation:
            twice = next(label for label, group in zip(change.classes.tolist(), change.groups) if len(group) > 1)
            raise LabelError(
                f"classes must keep different labels, got {twice!r} for two: {action('merge_classes')} makes them one"
            )
        self._change_classes(change)
        return self

    def _change_classes(self, change: Regrouping) -> None:
        if change.order != list(range(len(self.classes_))) or not change.is_permutation:
            self._regroup(change)
        self.classes_ = change.classes


class Mergeable(Renamable):
    """A head whose classes can become one, exactly."""

    def merge_classes(self, labels: Iterable[Any], into: Any) -> Self:
        """Make several classes one, as if all their samples had been learned under one label.

        Parameters
        ----------
        labels : iterable
            Classes to merge, at least two with ``into``.
        into : object
            The label they get: a new one, or that of a class, which then is one of those merged.

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
            raise LabelError(f"labels must name at least two different classes to merge, got {list(names)}")
        self._change_classes(Regrouping.of(self.classes_, names))
        return self


def _labels(values: list[Any]) -> NDArray[Any]:
    """Return labels as an array; those that are no samples need no look at how many of them differ."""
    if all(isinstance(value, str) for value in values):
        return np.array(values, dtype=np.str_)
    plain = all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in values)
    return np.array(values) if plain else as_labels(values, len(values))


def _nearest(label: Any, known: Sequence[Any]) -> str:
    return nearest(label, known) if isinstance(label, str) else ", ".join(repr(item) for item in known[:3])
