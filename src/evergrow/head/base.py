"""What all incremental classifiers on feature vectors share: input checks, labels, atomic learning."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive
from evergrow.core.devices import resolve_device
from evergrow.core.errors import InputError, LabelError, NumericalError
from evergrow.core.families import Family
from evergrow.core.fields import Fields
from evergrow.core.validation import as_weights, check_matrix
from evergrow.head.abilities import Abilities
from evergrow.head.classifier import Classifier
from evergrow.head.labels import LabelUpdate, as_labels, update_labels
from evergrow.head.ridge_model import RidgeModel

HEADS: Family[IncrementalClassifier] = Family("method", "head")
"""Every head by the name users know it under; filled by ``@HEADS.register(name)``."""

COMPUTE_DTYPE = torch.float64


class IncrementalClassifier(Abilities, Classifier):
    """A classifier that learns batch by batch over an open set of classes.

    A head implements five hooks: :meth:`_check_params`, :meth:`_reset`, :meth:`_learn`, :meth:`_scores` and the
    pair :meth:`_contents` / :meth:`_restore`. ``_learn`` must either succeed or leave the head unchanged; the
    base commits the labels only after it returns. What a head can do beyond that it names in ``abilities``; see
    :mod:`evergrow.head.abilities`.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels learned so far, sorted.
    n_features_in_ : int
        Width of the features.
    """

    family: ClassVar[Family[Any]] = HEADS
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    # -- hooks ------------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self) -> None:
        """Forget everything learned."""

    @abstractmethod
    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        """Learn float64 features (n, d) on the head's device; all or nothing."""

    @abstractmethod
    def _scores(self, Z: Tensor) -> Tensor:
        """Return scores (n, C), one column per entry of ``classes_``."""

    # -- learning ---------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything and learn the first task.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        y : array-like of shape (n,)
            Labels: integers or strings.

        Returns
        -------
        self
        """
        return self._begin(X, y, None)

    def _begin(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Learn the first task. It may have weights, which ``fit`` has none of: the layer is made without them."""
        self._check_params()
        device = resolve_device(self.device)
        before: dict[str, Any] = {
            name: vars(self)[name] for name in ("n_features_in_", "feature_names_in_") if name in vars(self)
        }
        try:
            Z = self._features(X, device, reset=True)
            Z, labels, weights = self._weighed(Z, as_labels(y, Z.shape[0]), sample_weight)
        except Exception:
            self._restore_width(before)
            raise
        update = replace(update_labels(None, labels), weights=weights)
        least = self.least_first_classes()
        if len(update.classes) < least:
            self._restore_width(before)
            raise LabelError(f"the first task must have at least {least} classes, got {len(update.classes)} class")
        for name in ("classes_", "_unknown_fields"):
            self.__dict__.pop(name, None)
        self._reset()
        self.device_ = device
        self._learn(Z, update)
        self.classes_ = update.classes
        return self

    def least_first_classes(self) -> int:
        """Return how many classes the first batch must have with the settings of this head."""
        return self.min_first_classes

    def _restore_width(self, before: dict[str, Any]) -> None:
        """Put back what a failed ``fit`` has changed of a learner that was fitted before."""
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(before)

    def _weighed(
        self, Z: Tensor, labels: NDArray[Any], sample_weight: Any
    ) -> tuple[Tensor, NDArray[Any], NDArray[np.float64] | None]:
        """Return rows and labels of some weight, and the weights; None where every one is one."""
        weights = as_weights(sample_weight, Z.shape[0])
        if weights is None:
            return Z, labels, None
        self.require_weights()
        rows = np.flatnonzero(weights)
        return Z[torch.from_numpy(rows).to(Z.device)], labels[rows], weights[rows]

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn one more batch: new classes, old classes or both, of any size.

        The first call is the same as :meth:`fit`. If anything is wrong with the batch the learner stays
        exactly as it was.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        y : array-like of shape (n,)
            Labels, of the same kind as before.
        classes : array-like, optional
            Accepted for scikit-learn's sake and not needed; if given, ``y`` must be among them.
        sample_weight : array-like of shape (n,), optional
            How many samples each counts for: 2 is as if it came twice, 0 as if it had not come. The layer of a first
            batch is made without a look at them. Needs the ability ``"weights"``; see :attr:`takes_weights`.

        Returns
        -------
        self

        Raises
        ------
        UnsupportedError
            If the head takes no weights, and they are not all one.
        """
        if classes is not None:
            self._check_announced(y, classes)
        if not self._is_started():
            return self._begin(X, y, sample_weight)
        Z = self._features(X, self.device_, reset=False)
        Z, labels, weights = self._weighed(Z, as_labels(y, Z.shape[0]), sample_weight)
        update = replace(update_labels(self.classes_, labels), weights=weights)
        self._learn(Z, update)
        self.classes_ = update.classes
        return self

    @staticmethod
    def _check_announced(y: Any, classes: Any) -> None:
        unknown = np.setdiff1d(np.unique(np.asarray(y)), np.unique(np.asarray(classes)))
        if len(unknown):
            raise LabelError(f"y must be among the classes {list(classes)!r}, got {unknown[:5].tolist()}")

    # -- answering --------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the score of every class; for two classes, as scikit-learn has it, one signed column.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, C), or (n,) for two classes
            Larger means more likely.
        """
        scores = self.class_scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of every row.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n,)
            Labels of the kind that was learned.
        """
        scores = self.class_scores(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def class_scores(self, X: Any) -> NDArray[np.float64]:
        """Return scores (n, C), one column per entry of ``classes_`` whatever their number.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        """
        self._require_fitted()
        scores = self._scores(self._features(X, self.device_, reset=False))
        if not bool(torch.isfinite(scores).all()):
            row = int((~torch.isfinite(scores)).any(dim=1).nonzero()[0])
            raise NumericalError(
                f"scores must be finite, got some that are not, first for row {row}: are its features of the size that "
                "was learned?"
            )
        return np.asarray(scores.cpu().numpy())

    def _features(self, X: Any, device: torch.device, *, reset: bool) -> Tensor:
        """Return X as a finite float64 tensor on the device, or raise :class:`InputError`."""
        if isinstance(X, torch.Tensor):
            return self._tensor_features(X, device, reset=reset)
        if self._is_plain(X, reset=reset):
            if reset:
                self._set_width(X.shape[1])
            return torch.from_numpy(np.array(X, dtype=np.float64, order="C")).to(device)
        from sklearn.utils.validation import validate_data

        try:
            # Copying happens only where the type changes or the array is read-only.
            array = validate_data(self, X, reset=reset, dtype=np.float64, order="C")
        except ValueError as error:
            raise InputError(f"X must be a finite 2-D array of features: {error}") from error
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array).to(device)

    def _is_plain(self, X: Any, *, reset: bool) -> bool:
        """Whether X is what a stream hands over, so that scikit-learn's milliseconds of checks find nothing.

        A sum that is not finite may come from finite numbers; such an array takes the long way, which tells.
        """
        return (
            type(X) is np.ndarray
            and X.dtype in (np.float32, np.float64)
            and X.ndim == 2
            and min(X.shape) > 0
            and (reset or (X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_")))
            and bool(np.isfinite(X.sum()))
        )

    def _tensor_features(self, X: Tensor, device: torch.device, *, reset: bool) -> Tensor:
        if X.is_complex():
            raise InputError(f"X must be real, got {X.dtype}: Complex data not supported")
        X = X.detach().to(device, COMPUTE_DTYPE)
        check_matrix("X", X, columns=None if reset else self.n_features_in_)
        if min(X.shape) < 1:
            raise InputError(f"X must have at least one row and one column, got shape {tuple(X.shape)}")
        if reset:
            self._set_width(X.shape[1])
        return X

    def _set_width(self, width: int) -> None:
        self.n_features_in_ = int(width)
        self.__dict__.pop("feature_names_in_", None)

    # -- files ------------------------------------------------------------------------------------------

    def to_archive(self) -> Archive:
        """Return what :meth:`save` writes, for those who put a head into a file of their own."""
        archive = super().to_archive()
        archive.meta["n_features"] = self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            archive.meta["feature_names"] = self.feature_names_in_.tolist()
        return archive

    def _read_model(self, fields: Fields, key: str) -> RidgeModel:
        """Return a ridge model inside a file that fits the head's features and classes."""
        model = RidgeModel.from_archive(
            fields.part(key), self.device_, fields.inside(key), n_features=self.n_features_in_
        )
        fields.require(len(model.counts) == len(self.classes_), f"{key!r} has another number of classes")
        return model

    @classmethod
    def _from_settings(cls, fields: Fields, device: str | torch.device | None) -> Self:
        made = super()._from_settings(fields, device)
        made.n_features_in_ = fields.integer("n_features", low=1)
        names = fields.texts("feature_names", default=None)
        if names is not None:
            fields.require(len(names) == made.n_features_in_, "it has another number of features than names for them")
            made.feature_names_in_ = np.asarray(names, dtype=object)
        return made
