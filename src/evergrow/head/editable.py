"""Exact edits of a ridge regression on a frozen layer: spawn, merge, join, unlearn, forget, rename, regularise.

All of them work on one record, :class:`~evergrow.head.ridge_model.RidgeModel`, so that a head is as it was if one
fails.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import LabelError, MergeError, UnlearnError
from evergrow.core.validation import check_number
from evergrow.core.wording import setting
from evergrow.head.labels import as_labels, check_kind, column_map, known_codes
from evergrow.head.readout import row_energy
from evergrow.head.regrouping import Mergeable, Regrouping
from evergrow.head.ridge_model import RidgeModel


class EditableRidge(Mergeable):
    """A head that is a ridge model, and can be edited exactly.

    A kind of head implements :meth:`_commit`, :meth:`_current`, :meth:`_fixed_alpha` and :meth:`_inherit`.
    """

    alpha: float | str
    _model: RidgeModel

    @abstractmethod
    def _commit(self, model: RidgeModel) -> None:
        """Make a new model the current one."""

    def _commit_without(self, model: RidgeModel, Z: Tensor, codes: Tensor, weights: Tensor | None) -> None:
        """Make a model the current one that lacks rows Z of classes that remain; some kinds follow such a change."""
        self._commit(model)

    def _choose_anew(self) -> None:
        """Forget what was chosen from the statistics with another ridge in mind."""

    @abstractmethod
    def _current(self) -> RidgeModel:
        """Return the model that the next one is made from."""

    @abstractmethod
    def _fixed_alpha(self) -> float | None:
        """Return the ridge where it is settled, None where it is chosen from the statistics."""

    @abstractmethod
    def _inherit(self, parent: Self) -> None:
        """Take over from a parent what belongs to the layer."""

    def _is_started(self) -> bool:
        return hasattr(self, "_model")

    @property
    def model_(self) -> RidgeModel:
        """The layer and the statistics behind it, as a record that nobody changes."""
        self._require_started()
        return self._model

    @property
    def class_counts_(self) -> NDArray[np.int64]:
        """Samples learned of each class."""
        self._require_started()
        return np.asarray(self._model.counts.cpu().numpy())

    def spawn(self) -> Self:
        """Return an empty learner with the same frozen layer, for another site or worker.

        What it learns can be brought back with :meth:`merge`. Calling ``fit`` on it starts from scratch with a
        layer of its own; ``partial_fit`` keeps the shared one.
        """
        self._require_started()
        child = type(self)(**self.get_params(deep=False))
        child.device_, child.n_features_in_ = self.device_, self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            child.feature_names_in_ = self.feature_names_in_
        child._inherit(self)
        child.classes_ = self.classes_[:0]
        child._commit(self._model.empty())
        return child

    def expecting(self, rows: int) -> Self:
        """Say how many samples will be learned in all by learners that are spawned of this one and merged.

        Parameters
        ----------
        rows : int
            So many. It decides in which form each keeps its sums, not what they are.

        Returns
        -------
        self
        """
        model = self._current()
        self._commit(dataclasses.replace(model, state=model.state.expecting(rows)))
        return self

    def numbered(self, place: int) -> Self:
        """Say which part of a whole this learner has learned, so that parts of the same content can be merged.

        Parameters
        ----------
        place : int
            Number of the part. The same content at the same place is still merged only once.

        Returns
        -------
        self
        """
        model = self._current()
        self._commit(dataclasses.replace(model, lineage=frozenset(f"{name}-{place}" for name in model.lineage)))
        return self

    def merge(self, other: EditableRidge) -> Self:
        """Add everything another learner with the same layer has learned; exact, nothing counted twice.

        Parameters
        ----------
        other : EditableRidge
            Made by :meth:`spawn` from this learner or from a common ancestor; not changed.

        Returns
        -------
        self

        Raises
        ------
        MergeError
            If the layers differ, or if both learned the same first batch (one is a copy of the other, or the
            same learner is merged twice), so that samples would be counted twice.
        """
        self._require_started()
        if not isinstance(other, EditableRidge) or not other._is_started():
            raise MergeError(f"other must be a learner that shares this layer, got {type(other).__name__}")
        if len(self.classes_) and len(other.classes_):
            check_kind(self.classes_, other.classes_)
        classes = np.union1d(self.classes_, other.classes_) if len(self.classes_) else other.classes_
        mine, theirs = column_map(self.classes_, classes), column_map(other.classes_, classes)
        self._commit(self._current().merge(other._model, mine, theirs))
        self.classes_ = classes
        return self

    def join(self, other: EditableRidge, base: EditableRidge) -> Self:
        """Return a learner that knows what this one and another know, with what both have from ``base`` counted once.

        Parameters
        ----------
        other : EditableRidge
            A learner that began as a copy of the same base; not changed, as this one is not.
        base : EditableRidge
            What both began as.

        Raises
        ------
        MergeError
            If the layers differ, if the base is not part of both, or if second moments are kept per class.
        """
        self._require_started()
        for name, head in (("other", other), ("base", base)):
            if not isinstance(head, EditableRidge) or not head._is_started():
                raise MergeError(f"{name} must be a learner that shares this layer, got {type(head).__name__}")
        classes = np.union1d(self.classes_, other.classes_)
        missing = np.setdiff1d(base.classes_, np.intersect1d(self.classes_, other.classes_))
        if len(missing):
            raise MergeError(
                f"{setting('base')} must be part of both learners, but they lack its classes {missing[:5].tolist()}"
            )
        mine, theirs, common = (column_map(head.classes_, classes) for head in (self, other, base))
        joined = self.branch()
        joined._commit(self._current().join(other._model, base._model, (mine, theirs, common)))
        joined.classes_ = classes
        return joined

    def unlearn(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Take samples out again that were learned before: the learner then equals one that never saw them.

        A class whose last sample goes is gone.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            The samples, as they were learned.
        y : array-like of shape (n,)
            The labels they were learned with.
        sample_weight : array-like of shape (n,), optional
            The weights they were learned with.

        Raises
        ------
        UnlearnError
            If more samples of a class are given than were learned, or some lie where nothing was learned.
        """
        self._require_fitted()
        Z = self._features(X, self.device_, reset=False)
        Z, labels, found = self._weighed(Z, as_labels(y, Z.shape[0]), sample_weight)
        codes = torch.from_numpy(known_codes(self.classes_, labels)).to(Z.device)
        weights = None if found is None else torch.from_numpy(found).to(Z.device)
        model = self._current().unlearn(Z, codes, self._check_alpha(), weights)
        kept = torch.nonzero(model.counts).ravel().tolist()
        if not kept:
            raise UnlearnError("at least one sample must remain; call fit to start anew")
        if len(kept) < len(self.classes_):
            model = model.keep(kept)
        model.require_sound(self._model, self._fixed_alpha())
        if len(kept) < len(self.classes_):
            self._commit(model)
        else:
            self._commit_without(model, Z, codes, weights)
        self.classes_ = self.classes_[kept]
        return self

    def forget_classes(self, labels: Iterable[Any]) -> Self:
        """Remove whole classes: they are never predicted again.

        With ``class_moments=True`` the learner then equals one that never saw them. Without, label, count and mean
        of each class are gone, but the spread of its samples around that mean stays in the pooled
        second moments (as it does for every class) and keeps a slight influence on the others' scores; pass the
        samples to :meth:`unlearn` to remove that too.

        Parameters
        ----------
        labels : iterable
            Classes to forget.
        """
        self._require_fitted()
        names = [labels] if isinstance(labels, str) else list(labels)
        if not names:
            raise LabelError("labels must name at least one class, got none")
        codes = set(known_codes(self.classes_, as_labels(names, len(names))).tolist())
        kept = [column for column in range(len(self.classes_)) if column not in codes]
        if not kept:
            raise UnlearnError("at least one class must remain; call fit to start anew")
        model = self._current().keep(kept)
        model.require_sound(self._model, self._fixed_alpha())
        self._commit(model)
        self.classes_ = self.classes_[kept]
        return self

    def _regroup(self, change: Regrouping) -> None:
        self._commit_regrouped(self._current().group(change.groups), change)

    def _commit_regrouped(self, model: RidgeModel, change: Regrouping) -> None:
        """Make a model with other classes the current one; some kinds keep what only changes its order."""
        self._commit(model)
        if not change.is_permutation:
            self._choose_anew()

    def regularize(self, alpha: float | str) -> Self:
        """Change the ridge without data.

        Parameters
        ----------
        alpha : float or "gcv"
            The new ridge, or its choice from the statistics from now on.
        """
        self._require_started()
        if alpha == "gcv":
            self.alpha = alpha
        else:
            check_number("alpha", alpha, low=0, low_open=True)
            self.alpha = float(alpha)
        self._commit(self._current())
        self._choose_anew()
        return self

    def _check_alpha(self) -> float:
        """Return a ridge for consistency checks without forcing a choice."""
        fixed = self._fixed_alpha()
        if fixed is not None:
            return fixed
        return 1e-3 * max(row_energy(self._model.state.reduced(), self._model.mass), 1e-12)

    def _require_started(self) -> None:
        if not self._is_started():
            self._require_fitted()
