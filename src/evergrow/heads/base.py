"""What all incremental classifiers on feature vectors share: input checks, labels, atomic learning, files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.devices import resolve_device
from evergrow.core.errors import FileFormatError, InputError, LabelError
from evergrow.core.registry import Registry
from evergrow.core.validation import check_matrix
from evergrow.heads.abilities import Abilities
from evergrow.heads.estimator import Estimator, not_fitted
from evergrow.heads.labels import LabelUpdate, as_labels, update_labels

HEADS: Registry[type[IncrementalClassifier]] = Registry("method")
"""Every head by the name users know it under; filled by ``@HEADS.register(name)``."""

COMPUTE_DTYPE = torch.float64


class IncrementalClassifier(Abilities, Estimator, ABC):
    """A classifier that learns batch by batch over an open set of classes.

    A head implements five hooks: :meth:`_check_params`, :meth:`_reset`, :meth:`_learn`, :meth:`_scores` and the
    pair :meth:`_export` / :meth:`_import`. ``_learn`` must either succeed or leave the head unchanged; the
    base commits the labels only after it returns. What a head can do beyond that it names in ``abilities``; see
    :mod:`evergrow.heads.abilities`.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels learned so far, sorted.
    n_features_in_ : int
        Width of the features.
    """

    classes_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    device: str | torch.device
    needs: ClassVar[str] = "features"
    """What it learns from."""
    min_first_classes: ClassVar[int] = 1
    """Classes that the first batch must have at least."""

    # -- hooks ------------------------------------------------------------------------------------------

    @abstractmethod
    def _check_params(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for settings out of range."""

    @abstractmethod
    def _reset(self) -> None:
        """Forget everything learned."""

    @abstractmethod
    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        """Learn float64 features (n, d) on the head's device; all or nothing."""

    @abstractmethod
    def _scores(self, Z: Tensor) -> Tensor:
        """Return scores (n, C), one column per entry of ``classes_``."""

    @abstractmethod
    def _export(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and JSON-serialisable settings that :meth:`_import` rebuilds the head from."""

    @abstractmethod
    def _import(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Rebuild what was learned."""

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
        self._check_params()
        device = resolve_device(self.device)
        before: dict[str, Any] = {
            name: vars(self)[name] for name in ("n_features_in_", "feature_names_in_") if name in vars(self)
        }
        try:
            Z = self._features(X, device, reset=True)
            labels = as_labels(y, Z.shape[0])
        except Exception:
            self._restore_width(before)
            raise
        update = update_labels(None, labels)
        if len(update.classes) < self.min_first_classes:
            self._restore_width(before)
            raise LabelError(
                f"the first task must have at least {self.min_first_classes} classes, got {len(update.classes)} class"
            )
        if hasattr(self, "classes_"):
            del self.classes_
        self._reset()
        self.device_ = device
        self._learn(Z, update)
        self.classes_ = update.classes
        return self

    def _restore_width(self, before: dict[str, Any]) -> None:
        """Put back what a failed ``fit`` has changed of a learner that was fitted before."""
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        self.__dict__.update(before)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
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

        Returns
        -------
        self
        """
        if classes is not None:
            self._check_announced(y, classes)
        if not self._is_started():
            return self.fit(X, y)
        Z = self._features(X, self.device_, reset=False)
        labels = as_labels(y, Z.shape[0])
        update = update_labels(self.classes_, labels)
        self._learn(Z, update)
        self.classes_ = update.classes
        return self

    @staticmethod
    def _check_announced(y: Any, classes: Any) -> None:
        unknown = np.setdiff1d(np.unique(np.asarray(y)), np.unique(np.asarray(classes)))
        if len(unknown):
            raise LabelError(f"y must be among classes={list(classes)!r}, got {unknown[:5].tolist()}")

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
        return np.asarray(self._scores(self._features(X, self.device_, reset=False)).cpu().numpy())

    def _is_started(self) -> bool:
        """Whether a later batch can be learned; a spawned head is started before it knows a class."""
        return hasattr(self, "classes_")

    def _is_fitted(self) -> bool:
        return hasattr(self, "classes_") and len(self.classes_) > 0

    def _require_fitted(self) -> None:
        if not self._is_fitted():
            name = type(self).__name__
            raise not_fitted(f"this {name} must learn something first: call fit or partial_fit")

    def __sklearn_is_fitted__(self) -> bool:
        return self._is_fitted()

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learner to one safetensors file, atomically.

        A crash leaves the old file or the new one. The file holds settings, labels and statistics, never
        code.

        Parameters
        ----------
        path : path-like
            Where to.
        """
        write_archive(path, self.to_archive())

    def to_archive(self) -> Archive:
        """Return what :meth:`save` writes, for those who put a learner into a file of their own."""
        if not self._is_started():
            self._require_fitted()
        tensors, meta = self._export()
        params = {name: _json_param(name, value) for name, value in self.get_params(deep=False).items()}
        if hasattr(self, "feature_names_in_"):
            meta["feature_names"] = self.feature_names_in_.tolist()
        labels = {"kind": self.classes_.dtype.kind, "values": self.classes_.tolist()}
        head = {"params": params, "labels": labels, "n_features": self.n_features_in_, "state": meta}
        return Archive(type(self).__name__, head, tensors)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device | None = None) -> Self:
        """Read a learner that :meth:`save` wrote.

        Parameters
        ----------
        path : path-like
            Where from.
        device : str or torch.device, optional
            Where to put it; by default where its ``device`` setting says, as far as this machine has that.

        Raises
        ------
        FileFormatError
            If the file is no learner of this class, is truncated or was altered.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        return cls.from_archive(read_archive(path, cls.__name__), device, name=os.fspath(path))

    @classmethod
    def from_archive(
        cls, archive: Archive, device: str | torch.device | None = None, *, name: str = "the archive"
    ) -> Self:
        """Rebuild a learner from what :meth:`to_archive` gave.

        Parameters
        ----------
        archive : Archive
            Of this class.
        device : str or torch.device, optional
            As for :meth:`load`.
        name : str
            What to call the source in messages.
        """
        try:
            head = archive.meta
            learner = cls(**{key: _param_value(value) for key, value in head["params"].items()})
            if device is not None:
                learner.device = device
            learner.device_ = _device_or_cpu(learner.device, strict=device is not None)
            learner.n_features_in_ = int(head["n_features"])
            if "feature_names" in head["state"]:
                learner.feature_names_in_ = np.asarray(head["state"]["feature_names"], dtype=object)
            learner.classes_ = np.asarray(head["labels"]["values"], dtype=_label_dtype(head["labels"]["kind"]))
            tensors = {key: tensor.to(learner.device_) for key, tensor in archive.tensors.items()}
            learner._import(tensors, head["state"])
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise FileFormatError(f"{name} must be a whole {cls.__name__}, but it lacks or garbles {error}") from error
        return learner


def _json_param(name: str, value: Any) -> Any:
    """Return a constructor argument in a form that JSON holds."""
    if isinstance(value, (np.random.RandomState, np.random.Generator)):
        return None  # the seed that was drawn from it is part of what was learned
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json_param(name, item) for item in value]
    raise InputError(f"{name} must be a plain value to be saved, got {type(value).__name__}")


def _param_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _label_dtype(kind: str) -> Any:
    return {"b": np.bool_, "i": np.int64, "u": np.uint64, "f": np.float64, "U": np.str_}[kind]


def _device_or_cpu(device: str | torch.device, *, strict: bool) -> torch.device:
    """Return the device, falling back to the CPU for a file that was saved where a GPU was."""
    if strict or device == "auto":
        return resolve_device(device)
    wanted = torch.device(device)
    return resolve_device(wanted) if wanted.type != "cuda" or torch.cuda.is_available() else torch.device("cpu")
