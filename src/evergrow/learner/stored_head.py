"""A head that is still in its file, whose classes can be renamed without torch."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.record import read_fields, require, to_values
from evergrow.head.label_set import ClassChange, NamedClasses, SavedHead, StoredLabels

if TYPE_CHECKING:
    import torch

    from evergrow.head.base import IncrementalClassifier


class StoredHead(NamedClasses):
    """A head in its archive: classes can be renamed and merged before :meth:`load`.

    Parameters
    ----------
    method : str
        Name of the head.
    archive : Archive
        Written by :meth:`~evergrow.head.base.IncrementalClassifier.to_archive`.
    name : str
        Name of the model in messages.

    Examples
    --------
    >>> from evergrow import Classifier
    >>> from evergrow.learner.stored_head import StoredHead
    >>> head = Classifier(n_units=5, random_state=0)
    >>> head = head.fit([[1.0], [2.0], [3.0]], ["east", "north", "west"])
    >>> stored = StoredHead("evergrow", head.to_archive())
    >>> stored = stored.merge_classes(["east", "west"], "level")
    >>> stored.classes_.tolist(), stored.load().classes_.tolist()
    (['level', 'north'], ['level', 'north'])
    """

    def __init__(
        self, method: str, archive: Archive, *, name: str = "the archive"
    ) -> None:
        saved = read_fields(SavedHead, archive, name=name)
        self.method = method
        self.name = name
        self._archive = archive
        self._columns = saved.labels.table()
        self.classes_ = np.unique(self._columns)
        self.n_features_in_ = saved.n_features

    def _require_fitted(self) -> None:
        """Do nothing: a stored head has learned."""

    def _change_classes(self, change: ClassChange) -> Self:
        names = {
            self.classes_[place]: label
            for label, group in zip(change.classes.tolist(), change.groups, strict=True)
            for place in group
        }
        columns = [names[label] for label in self._columns]
        self._columns = np.array(columns, dtype=change.classes.dtype)
        self.classes_ = change.classes
        return self

    def branch(self) -> Self:
        """Return a copy with independent class names."""
        return copy.copy(self)

    def settle(self, *, cheap_only: bool = False) -> Self:
        """Return self; nothing can be computed before the head is loaded."""
        return self

    def to_archive(self) -> Archive:
        """Return the archive with the current class names."""
        labels = to_values(StoredLabels.of(self._columns))
        return replace(self._archive, meta={**self._archive.meta, "labels": labels})

    def load(self, device: str | torch.device | None = None) -> IncrementalClassifier:
        """Load the head and merge classes of equal name.

        Parameters
        ----------
        device : str or torch.device, optional
            Device of the head; by default the one in its settings.
        """
        from evergrow.head.base import HEADS

        require(self.method in HEADS, f"its method {self.method!r} is unknown here")
        return HEADS[self.method].from_archive(
            self.to_archive(), device, name=self.name
        )
