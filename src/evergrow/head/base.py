"""The base class of all heads: input checks, labels, atomic learning, files."""

from __future__ import annotations

import copy
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import (
    FileFormatError,
    InputError,
    LabelError,
    NumericalError,
    ParameterError,
    UnsupportedError,
)
from evergrow.core.estimator import Estimator, not_fitted, plain_value
from evergrow.core.record import (
    Between,
    check_kind,
    make_archive,
    read_fields,
    record,
    require,
    written_values,
)
from evergrow.core.registry import Registry
from evergrow.core.validation import (
    as_weights,
    check_keys,
    check_matrix,
    field_names,
    resolve_device,
)
from evergrow.head.label_set import (
    BUILT_IN,
    ClassChange,
    LabelUpdate,
    NamedClasses,
    SavedHead,
    StoredLabels,
    as_label_array,
)
from evergrow.head.ridge_model import RidgeModel

Seed = Annotated[int, Between(-(2**63), 2**64)]
"""Type of a seed in a file."""

Positive = Annotated[float, Between(above=0.0)]
"""Type of a positive number in a file."""


class Heads(Registry["type[IncrementalClassifier]"]):
    """Heads by name. Heads of this package are imported when they are needed."""

    def register(self, name: str) -> Callable[[Any], Any]:
        """Return a decorator that registers a head, with files of kind ``head/<name>``.

        Parameters
        ----------
        name : str
            Name of the head.
        """
        register = super().register(name)
        as_record = record(f"head/{name}")
        return lambda cls: as_record(register(cls))

    def _complete(self) -> dict[str, type[IncrementalClassifier]]:
        for module in BUILT_IN.values():
            importlib.import_module(module)
        return super()._complete()

    def __getitem__(self, name: str) -> type[IncrementalClassifier]:
        if name in BUILT_IN:
            importlib.import_module(BUILT_IN[name])
        return super().__getitem__(name)


HEADS = Heads("method", plugins=True)
"""All heads by name, registered with ``@HEADS.register(name)``."""

CHEAP_ORDER = 1200
"""Largest order k of a k x k system that is solved in about a second."""


class Unsupported:
    """Placeholder of a method that a head does not have.

    Access raises :class:`UnsupportedError`, so ``hasattr`` returns False.

    Parameters
    ----------
    ability : str
        Action of the method, which follows "cannot" in the message.
    """

    def __init__(self, ability: str) -> None:
        self.ability = ability

    def __get__(self, head: object, kind: type[IncrementalClassifier]) -> Any:
        raise UnsupportedError(f"method {kind.method_name()!r} cannot {self.ability}")


class IncrementalClassifier(NamedClasses, Estimator, ABC):
    """A classifier that learns batch by batch over an open set of classes.

    A head implements :meth:`_check_params`, :meth:`_learn`, :meth:`_scores`, the
    pair :meth:`_contents` and :meth:`_restore`, and, if its classes can be renamed,
    :meth:`_regroup`. A head with an initial state overrides ``_reset``, which deletes
    all attributes except the parameters. ``_learn`` must either succeed or leave
    the head unchanged. It must replace the learned state, not change it in place. The
    base class sets the labels only after it returns. All other methods are optional: a
    head without one raises :class:`~evergrow.core.errors.UnsupportedError` on access.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Learned labels, sorted.
    n_features_in_ : int
        Number of features.

    Examples
    --------
    >>> from evergrow.lab.heads import SimpleCILClassifier
    >>> hasattr(SimpleCILClassifier(), "merge")
    False
    >>> SimpleCILClassifier().spawn()
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnsupportedError: method 'simplecil' cannot spawn an empty
    classifier with the same layer
    """

    learned_as: ClassVar[type]
    """Dataclass of the learned contents of a file."""
    takes_weights: ClassVar[bool] = False
    """Whether the head supports sample weights."""
    classes_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    device: str | torch.device
    device_: torch.device
    _unknown_fields: Mapping[str, Any] = MappingProxyType({})

    # -- hooks -------------------------------------------------------------------------

    @abstractmethod
    def _check_params(self) -> None:
        """Raise :class:`ParameterError` if a parameter is out of range."""

    @abstractmethod
    def _learn(self, Z: Tensor, labels: LabelUpdate) -> None:
        """Learn float64 features Z (n, d) on the head's device, atomically.

        ``classes_`` still has the classes before the batch. Z can share its memory with
        the caller's array, so keep copies of its rows.
        """

    @abstractmethod
    def _scores(self, Z: Tensor) -> Tensor:
        """Return scores (n, C) of features Z (n, d), one column per class."""

    @abstractmethod
    def _contents(self) -> Any:
        """Return the learned state as an instance of ``learned_as``.

        The base class writes parameters and labels.
        """

    @abstractmethod
    def _restore(self, learned: Any) -> None:
        """Set the learned state from an instance of ``learned_as``.

        Parameters, labels and device are already set. Check with
        :func:`~evergrow.core.record.require` that the contents fit them.
        """

    def _regroup(self, change: ClassChange) -> None:
        """Reorder the columns of classes and add up merged ones, atomically."""
        raise UnsupportedError(
            f"method {self.method_name()!r} cannot rename or merge classes"
        )

    def _solve_order(self) -> float:
        """Return the order k of the largest system to solve before a prediction.

        Infinity means that predictions need more than solving a system.
        """
        return 0.0

    def _settle(self) -> None:
        """Solve now what predictions need. Called by :meth:`settle` if fitted."""

    def drop_unused_directions(self) -> Self:
        """Remove directions that only unlearned rows occupied, in place.

        Heads that store no directions of rows need no method of their own.

        Returns
        -------
        self
        """
        return self

    # -- optional methods --------------------------------------------------------------

    spawn: Any = Unsupported("spawn an empty classifier with the same layer")
    expect_rows: Any = Unsupported("learn in shards")
    tag_shard: Any = Unsupported("learn in shards")
    merge: Any = Unsupported("merge with another classifier")
    unlearn: Any = Unsupported("unlearn samples")
    forget_classes: Any = Unsupported("remove classes")
    learn_unlabelled: Any = Unsupported("learn unlabelled rows")
    forget_unlabelled: Any = Unsupported("learn unlabelled rows")
    fade: Any = Unsupported("reduce the weight of what it learned")
    predict_proba: Any = Unsupported("predict probabilities")
    novelty_score: Any = Unsupported("score novelty")
    novelty_terms: Any = Unsupported("score novelty")
    expected_terms: Any = Unsupported("score novelty")
    scores_as_new_class: Any = Unsupported("score novelty")
    held_out_scores: Any = Unsupported("score learned rows as held-out rows")
    scores_without_one: Any = Unsupported("score without one of its samples")
    calibrate: Any = Unsupported("be calibrated")
    expected_temperature: Any = Unsupported("be calibrated")
    linear_map: Any = Unsupported("be written as plain matrices")

    def require_weights(self) -> None:
        """Raise :class:`UnsupportedError` if the head has no sample weights."""
        if not self.takes_weights:
            raise UnsupportedError(
                f"method {self.method_name()!r} does not support sample weights"
            )

    @classmethod
    def method_name(cls) -> str:
        """Return the registered name of the head, or the name of its class."""
        for name in HEADS.names():
            if HEADS[name] is cls:
                return name
        return cls.__name__

    @classmethod
    def param_names(cls) -> list[str]:
        """Return the names of the constructor's parameters."""
        return cls._param_names()

    def check_params(self) -> None:
        """Raise :class:`ParameterError` if a parameter is out of range.

        Parameters are checked when something is learned; this checks them earlier.
        """
        self._check_params()

    def _is_fitted(self) -> bool:
        return hasattr(self, "classes_") and len(self.classes_) > 0

    def _require_fitted(self) -> None:
        if not self._is_fitted():
            raise not_fitted(
                f"this {type(self).__name__} must learn something first: call fit()"
            )

    def _require_started(self) -> None:
        """Raise :class:`NotFittedError` unless fitted or spawned, even if empty."""
        if "classes_" not in vars(self):
            self._require_fitted()

    __sklearn_is_fitted__ = _is_fitted

    # -- learning ----------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything and learn a first batch.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        y : array-like of shape (n,)
            Labels: integers or strings.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If a parameter is out of range.
        InputError
            If X is not a finite matrix.
        LabelError
            If there is not one label per row, or labels are of several types.
        """
        return self._begin(X, y, None)

    def _begin(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Forget everything and learn a first batch. An error restores the old state.

        The layer is built without looking at the weights. See :meth:`partial_fit` for
        the parameters.
        """
        self._check_params()
        device = resolve_device(self.device)
        before = vars(self).copy()
        try:
            for name in ("classes_", "_unknown_fields"):
                self.__dict__.pop(name, None)
            self._reset()
            Z, labels, weights = self._labelled(X, y, sample_weight, device, reset=True)
            update = LabelUpdate.of(None, labels, device, weights)
            self.device_ = device
            self._learn(Z, update)
        except BaseException:  # also an interrupt leaves the old state
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        self.classes_ = update.classes
        return self

    def _labelled(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        device: torch.device,
        *,
        reset: bool = False,
    ) -> tuple[Tensor, NDArray[Any], Tensor | None]:
        """Check a labelled batch and leave out rows with weight zero.

        Parameters
        ----------
        X, y, sample_weight : array-like
            The batch, as for :meth:`partial_fit`.
        device : torch.device
            Device of the features and weights.
        reset : bool
            Whether to set ``n_features_in_`` instead of checking it.

        Returns
        -------
        Z : Tensor of shape (n, d)
            Features, finite float64.
        labels : ndarray of shape (n,)
            Labels.
        weights : Tensor of shape (n,) or None
            Weights above 0. None stands for ones.

        Raises
        ------
        InputError, LabelError
            If features, weights or labels are invalid.
        UnsupportedError
            If there are weights and the head does not support them.
        """
        Z = self._features(X, device, reset=reset)
        labels = as_label_array(y, len(Z))
        weights = as_weights(sample_weight, len(Z))
        if weights is None:
            return Z, labels, None
        self.require_weights()
        rows = np.flatnonzero(weights)
        positive = torch.from_numpy(weights[rows]).to(device)
        return Z[torch.from_numpy(rows).to(device)], labels[rows], positive

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Learn one more batch of any size, with new classes, old classes or both.

        The first call is the same as :meth:`fit`. If the batch is refused, the
        classifier does not change.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        y : array-like of shape (n,)
            Labels, of the same type as before.
        classes : array-like, optional
            Not needed, accepted for compatibility with scikit-learn. If given, it must
            contain all labels of ``y``.
        sample_weight : array-like of shape (n,), optional
            Weight of each sample: 2 counts as two copies, 0 as none. By default 1. The
            layer does not depend on weights. Not every head supports them; see
            :attr:`takes_weights`.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If X is not a finite matrix of the right width, or a weight is negative.
        LabelError
            If there is not one label per row, or a label is of another type than before
            or not in `classes`.
        UnsupportedError
            If the head does not support weights, and they are not all one.
        """
        if classes is not None:
            unknown = np.setdiff1d(y, classes)
            if len(unknown):
                raise LabelError(
                    f"y must be among the classes {list(classes)!r}, "
                    f"got {unknown[:5].tolist()}"
                )
        if "classes_" not in vars(self):
            return self._begin(X, y, sample_weight)
        Z, labels, weights = self._labelled(X, y, sample_weight, self.device_)
        update = LabelUpdate.of(self.classes_, labels, self.device_, weights)
        self._learn(Z, update)
        self.classes_ = update.classes
        return self

    # -- predicting --------------------------------------------------------------------

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the score of every class, or their difference for two classes.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, C), or (n,) for two classes
            Larger means more likely. With two classes, positive means the second one.
        """
        scores = self.class_scores(X)
        if scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most likely class of every row.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n,)
            Labels, of the type that was learned.
        """
        scores = self.class_scores(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def class_scores(self, X: Any) -> NDArray[np.float64]:
        """Return the score of every class, with one column per entry of ``classes_``.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.

        Returns
        -------
        ndarray of shape (n, C)
            Larger means more likely.

        Raises
        ------
        NotFittedError
            If nothing was learned.
        InputError
            If X is not a finite matrix of the right width.
        NumericalError
            If a score is not finite.
        """
        self._require_fitted()
        scores = finite_scores(self._scores(self._features(X, self.device_)))
        return np.asarray(scores.cpu().numpy())

    def differentiable_scores(self, Z: Tensor) -> Tensor:
        """Return class scores that have a gradient with respect to the features.

        Parameters
        ----------
        Z : Tensor of shape (n, d)
            Features that require a gradient.

        Returns
        -------
        Tensor of shape (n, C)
            As :meth:`class_scores`, with a graph to `Z`.

        Raises
        ------
        NotFittedError
            If nothing was learned.
        UnsupportedError
            If the scores of the method have no gradient.
        """
        self._require_fitted()
        with torch.inference_mode(False), torch.enable_grad():
            scores = self._scores(Z.to(self.device_, torch.float64))
        if not scores.requires_grad:
            raise UnsupportedError(
                f"method must compute scores with a gradient, got "
                f"{self.method_name()!r}"
            )
        return finite_scores(scores)

    def _features(self, X: Any, device: torch.device, *, reset: bool = False) -> Tensor:
        """Return X as a finite float64 tensor on the device.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        device : torch.device
            The device.
        reset : bool
            Whether to set ``n_features_in_`` (and ``feature_names_in_``) instead of
            checking them.

        Raises
        ------
        InputError
            If X is not a finite matrix of the right width.
        """
        if isinstance(X, torch.Tensor):
            Z = self._tensor_features(X, device, reset=reset)
        elif self._is_plain_array(X, reset=reset):
            Z = torch.from_numpy(np.array(X, dtype=np.float64, order="C")).to(device)
        else:
            return self._validated_features(X, device, reset=reset)
        if reset:
            self.n_features_in_ = int(Z.shape[1])
            self.__dict__.pop("feature_names_in_", None)
        return Z

    def _tensor_features(
        self, X: Tensor, device: torch.device, *, reset: bool
    ) -> Tensor:
        """Return a tensor X as float64 on the device, after the checks of it."""
        if X.is_complex():
            raise InputError(
                f"X must be real, got {X.dtype}: Complex data not supported"
            )
        Z = X.detach().to(device, torch.float64)
        check_matrix("X", Z, columns=None if reset else self.n_features_in_)
        if min(Z.shape) < 1:
            raise InputError(
                "X must have at least one row and one column, "
                f"got shape {tuple(Z.shape)}"
            )
        return Z

    def _is_plain_array(self, X: Any, *, reset: bool) -> bool:
        """Return whether X is certain to pass scikit-learn's checks unchanged.

        Those checks take milliseconds, too long for a stream. An array whose sum is not
        finite may still have finite numbers, so scikit-learn checks it.
        """
        if type(X) is not np.ndarray or X.dtype not in (np.float32, np.float64):
            return False
        if X.ndim != 2 or min(X.shape) == 0:
            return False
        has_names = hasattr(self, "feature_names_in_")
        if not reset and (X.shape[1] != self.n_features_in_ or has_names):
            return False
        return bool(np.isfinite(X.sum()))

    def _validated_features(
        self, X: Any, device: torch.device, *, reset: bool
    ) -> Tensor:
        """Return X as a tensor on the device, after scikit-learn's checks.

        They set or check ``n_features_in_`` and ``feature_names_in_``.
        """
        from sklearn.utils.validation import validate_data

        try:
            array = validate_data(self, X, reset=reset, dtype=np.float64, order="C")
        except ValueError as error:
            raise InputError(
                f"X must be a finite 2-D array of features: {error}"
            ) from error
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array).to(device)

    # -- copies and solving ------------------------------------------------------------

    def branch(self) -> Self:
        """Return a copy that can be changed on its own, without copying tensors.

        Both share the learned state. A change replaces the state of one of them.
        """
        return copy.copy(self)

    def settle(self, *, cheap_only: bool = False) -> Self:
        """Solve now what predictions need, instead of at the first prediction.

        Parameters
        ----------
        cheap_only : bool, default=False
            Do nothing if it would take more than about a second.

        Returns
        -------
        self
            Unchanged if nothing was learned.
        """
        if self._is_fitted() and (not cheap_only or self._solve_order() <= CHEAP_ORDER):
            self._settle()
        return self

    def _change_classes(self, change: ClassChange) -> Self:
        if change.groups != [[column] for column in range(len(self.classes_))]:
            self._regroup(change)
        self.classes_ = change.classes
        return self

    # -- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to one safetensors file, atomically.

        A crash leaves the old file or the new one. The file contains parameters, labels
        and the learned state, but no code.

        Parameters
        ----------
        path : path-like
            The file.

        Raises
        ------
        InputError
            If a file cannot hold a parameter or a label.
        """
        write_archive(path, self.to_archive())

    def to_archive(self) -> Archive:
        """Return the contents that :meth:`save` writes.

        They may be a part of another file.

        Raises
        ------
        NotFittedError
            If it was neither fitted nor spawned.
        InputError
            If a file cannot hold a parameter or a label.
        """
        self._require_started()
        archive = make_archive(type(self), written_values(self._contents()))
        # Fields that a later version wrote are kept.
        for name, value in self._unknown_fields.items():
            archive.meta.setdefault(name, value)
        params = self.get_params(deep=False).items()
        archive.meta.update(
            params={name: plain_value(name, value) for name, value in params},
            labels=asdict(StoredLabels.of(self.classes_)),
            n_features=self.n_features_in_,
        )
        if hasattr(self, "feature_names_in_"):
            archive.meta["feature_names"] = self.feature_names_in_.tolist()
        return archive

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], device: str | torch.device | None = None
    ) -> Self:
        """Load a classifier that :meth:`save` wrote.

        Parameters
        ----------
        path : path-like
            The file.
        device : str or torch.device, optional
            The device. By default the ``device`` parameter in the file, or the CPU if
            this machine does not have that device.

        Raises
        ------
        FileFormatError
            If the file is damaged or is not a classifier of this class.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        return cls.from_archive(read_archive(path), device, name=os.fspath(path))

    @classmethod
    def from_archive(
        cls,
        archive: Archive,
        device: str | torch.device | None = None,
        *,
        name: str = "the archive",
    ) -> Self:
        """Restore a classifier from the result of :meth:`to_archive`.

        Parameters
        ----------
        archive : Archive
            Contents of a classifier of this class.
        device : str or torch.device, optional
            The device, as for :meth:`load`.
        name : str, default="the archive"
            Name of the source in error messages.

        Raises
        ------
        FileFormatError
            If the archive is of another class, or its contents do not fit each other.
        """
        check_kind(cls, archive, name)
        saved = read_fields(SavedHead, archive, name=name)
        made = cls._from_saved_params(saved.params, name)
        if device is None:
            made.device_ = _usable_device(name, made.device)
        else:
            made.device_ = resolve_device(device)
            made.device = device
        made.classes_ = saved.labels.table()
        made.n_features_in_ = saved.n_features
        if saved.feature_names is not None:
            made.feature_names_in_ = np.asarray(saved.feature_names, dtype=object)
        learned: Any = read_fields(
            made.learned_as, archive, device=made.device_, name=name
        )
        try:
            made._restore(learned)
            # Classes that were renamed or merged in the file are not sorted.
            is_sorted = bool((made.classes_[:-1] < made.classes_[1:]).all())
            if not is_sorted:
                made._change_classes(ClassChange.of(made.classes_, {}))
        except (FileFormatError, InputError, ParameterError) as error:
            raise FileFormatError(
                f"{name} is damaged or contradicts itself: {error}"
            ) from error
        known = {*field_names(SavedHead), *field_names(made.learned_as)}
        made._unknown_fields = {
            key: value for key, value in archive.meta.items() if key not in known
        }
        return made

    @classmethod
    def _from_saved_params(cls, params: Mapping[str, Any], name: str) -> Self:
        """Return an unfitted classifier with the parameters of a file.

        Raises
        ------
        FileFormatError
            If the constructor or :meth:`check_params` refuses them.
        """
        try:
            check_keys(params, cls._param_names(), "setting")
            values = {  # JSON has no tuples
                key: tuple(item) if isinstance(item, list) else item
                for key, item in params.items()
            }
            made = cls(**values)
            made._check_params()
        except Exception as error:  # a file may hold any values
            raise FileFormatError(
                f"{name} must have settings that the method takes: {error}"
            ) from error
        return made

    def _check_model(self, model: RidgeModel) -> RidgeModel:
        """Return a ridge model of a file after checking that it fits the head.

        Raises
        ------
        FileFormatError
            If it is for another number of features or classes.
        """
        require(
            model.layer.n_features_in == self.n_features_in_,
            "its layer is for features of another width",
        )
        require(
            len(model.counts) == len(self.classes_),
            "its statistics are of another number of classes",
        )
        return model


def finite_scores(scores: Tensor) -> Tensor:
    """Return class scores (n, C), or raise :class:`NumericalError` if not finite."""
    is_finite = torch.isfinite(scores)
    if not bool(is_finite.all()):
        row = int((~is_finite).any(dim=1).nonzero()[0])
        raise NumericalError(
            f"scores must be finite, but those of row {row} are not: check that its "
            "features are as large as the learned ones"
        )
    return scores


def _usable_device(name: str, device: Any) -> torch.device:
    """Return the device named in a file, or the CPU if this machine does not have it.

    Raises
    ------
    FileFormatError
        If the name is not a device.
    """
    try:
        if device == "auto":
            return resolve_device(device)
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise FileFormatError(f"{name} must name a device, got {device!r}") from error
    n_devices = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if (wanted.index or 0) < n_devices.get(wanted.type, 0):
        return wanted
    return torch.device("cpu")
