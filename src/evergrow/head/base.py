"""The base of all heads: input checks, labels, learning that is all or nothing, answers, other names for classes."""

from __future__ import annotations

import copy
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.errors import (
    EvergrowError,
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
    resolve_device,
)
from evergrow.head.label_set import (
    BUILT_IN,
    ClassChange,
    LabelUpdate,
    NamedClasses,
    SavedHead,
    StoredLabels,
    as_labels,
)
from evergrow.head.ridge_model import RidgeModel

Seed = Annotated[int, Between(-(2**63), 2**64)]
"""A seed in a file."""

Positive = Annotated[float, Between(above=0.0)]
"""A number above zero in a file."""


class Heads(Registry["type[IncrementalClassifier]"]):
    """Heads by name; what they write is an archive of kind ``head/<name>``."""

    def register(self, name: str) -> Callable[[Any], Any]:
        """Return a decorator that files a class under a name, in settings and in files."""
        known = super().register(name)
        written = record(f"head/{name}")
        return lambda cls: written(known(cls))

    def _complete(self) -> dict[str, type[IncrementalClassifier]]:
        for module in BUILT_IN.values():
            importlib.import_module(module)
        return super()._complete()

    def __getitem__(self, name: str) -> type[IncrementalClassifier]:
        if name in BUILT_IN:
            importlib.import_module(BUILT_IN[name])
        return super().__getitem__(name)


HEADS = Heads("method", plugins=True)
"""Every head by the name users know it under; filled by ``@HEADS.register(name)``."""

EASY_ORDER = 1200
"""Systems of up to this order are solved in about a second, which an update can afford."""


class Unsupported:
    """Stands for a method that a head has not: asking for it is an error, so that ``hasattr`` says no.

    Parameters
    ----------
    ability : str
        What the method would do.
    """

    def __init__(self, ability: str) -> None:
        self.ability = ability

    def __get__(self, head: object, kind: type[IncrementalClassifier]) -> Any:
        raise UnsupportedError(f"method {kind.method_name()!r} cannot {self.ability}")


class IncrementalClassifier(NamedClasses, Estimator, ABC):
    """A classifier that learns batch by batch over an open set of classes.

    A head implements :meth:`_check_params`, :meth:`_reset`, :meth:`_learn`,
    :meth:`_scores` and the pair :meth:`_contents` / :meth:`_restore`, and
    :meth:`_regroup` where classes can get other names. ``_learn`` must either succeed
    or leave the head unchanged, and replace what was learned rather than change it in
    place; the base commits the labels only after it returns. Further methods are
    optional: a head that lacks one raises
    :class:`~evergrow.core.errors.UnsupportedError` when it is asked for.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels learned so far, sorted.
    n_features_in_ : int
        Width of the features.

    Examples
    --------
    >>> from evergrow.lab.heads import SimpleCILClassifier
    >>> hasattr(SimpleCILClassifier(), "merge")
    False
    >>> SimpleCILClassifier().spawn()
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnsupportedError: method 'simplecil' cannot start an empty learner with the same layer
    """

    learned_as: ClassVar[type]
    """The dataclass of what it learns, as files hold it; its tensors are read onto the head's device."""
    takes_weights: ClassVar[bool] = False
    """Whether samples may count for more or less than one."""
    classes_: NDArray[Any]
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    device: str | torch.device
    device_: torch.device
    _unknown_fields: Mapping[str, Any] = MappingProxyType({})

    # -- hooks -------------------------------------------------------------------------

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
    def _contents(self) -> Any:
        """Return what was learned, a ``learned_as``; settings and labels are written by the base."""

    @abstractmethod
    def _restore(self, learned: Any) -> None:
        """Take over what :meth:`_contents` gave; settings, labels and device are there.

        What does not fit them is refused by :func:`~evergrow.core.record.require`.
        """

    def _regroup(self, change: ClassChange) -> None:
        """Reorder sums by class, and add up those of classes that become one; all or nothing."""
        raise UnsupportedError(
            f"method {self.method_name()!r} cannot give classes other names"
        )

    def _solve_order(self) -> float:
        """Return the order of the largest system that answers need; infinite for what takes longer than a solve."""
        return 0.0

    def _settle(self) -> None:
        """Work out what answers need, as far as it is not there yet."""

    # -- what not every head can do ----------------------------------------------------

    spawn: Any = Unsupported("start an empty learner with the same layer")
    with_expected_rows: Any = Unsupported("be learned in parts")
    with_shard_id: Any = Unsupported("be learned in parts")
    merge: Any = Unsupported("add what another learner knows")
    unlearn: Any = Unsupported("take samples out again")
    forget_classes: Any = Unsupported("remove whole classes")
    learn_unlabelled: Any = Unsupported("learn rows without labels")
    forget_unlabelled: Any = Unsupported("learn rows without labels")
    fade: Any = Unsupported("let what it knows count for less")
    predict_proba: Any = Unsupported("give class probabilities")
    novelty_score: Any = Unsupported("say how unlike anything learned something is")
    novelty_terms: Any = Unsupported("say how unlike anything learned something is")
    expected_terms: Any = Unsupported("say how unlike anything learned something is")
    held_out_scores: Any = Unsupported(
        "score learned rows as if they had not been learned"
    )
    calibrate: Any = Unsupported("be calibrated")
    linear_map: Any = Unsupported("be written as plain matrices")

    def require_weights(self) -> None:
        """Raise :class:`UnsupportedError` unless samples may count for more or less than one."""
        if not self.takes_weights:
            raise UnsupportedError(
                f"method {self.method_name()!r} cannot let samples count for more or less than one"
            )

    @classmethod
    def method_name(cls) -> str:
        """Return the name that the head is registered under, or that of its class."""
        return next(
            (name for name in HEADS.names() if HEADS[name] is cls), cls.__name__
        )

    def _is_fitted(self) -> bool:
        return hasattr(self, "classes_") and len(self.classes_) > 0

    def _require_fitted(self) -> None:
        if not self._is_fitted():
            raise not_fitted(
                f"this {type(self).__name__} must learn something first: call fit()"
            )

    def _require_started(self) -> None:
        """Raise unless there is something to save; a spawned classifier has begun before it knows a class."""
        if "classes_" not in vars(self):
            self._require_fitted()

    __sklearn_is_fitted__ = _is_fitted

    # -- learning ----------------------------------------------------------------------

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
        before = vars(self).copy()
        try:
            Z, labels, weights = self._labelled(X, y, sample_weight, device, reset=True)
            update = LabelUpdate.of(None, labels, device, weights)
            for name in ("classes_", "_unknown_fields"):
                self.__dict__.pop(name, None)
            self._reset()
            self.device_ = device
            self._learn(Z, update)
        except BaseException:  # a learner that was fitted before stays as it was
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
        """Return rows and labels of some weight, and the weights; None where every one is one."""
        Z = self._features(X, device, reset=reset)
        labels = as_labels(y, len(Z))
        weights = as_weights(sample_weight, len(Z))
        if weights is None:
            return Z, labels, None
        self.require_weights()
        rows = np.flatnonzero(weights)
        return (
            Z[torch.from_numpy(rows).to(device)],
            labels[rows],
            torch.from_numpy(weights[rows]).to(device),
        )

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Learn one more batch: new classes, old classes or both, of any size.

        The first call is the same as :meth:`fit`. If anything is wrong with the batch
        the learner stays exactly as it was.

        Parameters
        ----------
        X : array-like or Tensor of shape (n, d)
            Features.
        y : array-like of shape (n,)
            Labels, of the same kind as before.
        classes : array-like, optional
            Accepted for scikit-learn's sake and not needed; if given, ``y`` must be
            among them.
        sample_weight : array-like of shape (n,), optional
            How many samples each counts for: 2 is as if it came twice, 0 as if it had
            not come. The layer of a first batch is made without a look at them. Not
            every head takes them; see :attr:`takes_weights`.

        Returns
        -------
        self

        Raises
        ------
        UnsupportedError
            If the head takes no weights, and they are not all one.
        """
        if classes is not None:
            unknown = np.setdiff1d(np.asarray(y), np.asarray(classes))
            if len(unknown):
                raise LabelError(
                    f"y must be among the classes {list(classes)!r}, got {unknown[:5].tolist()}"
                )
        if "classes_" not in vars(self):
            return self._begin(X, y, sample_weight)
        Z, labels, weights = self._labelled(X, y, sample_weight, self.device_)
        update = LabelUpdate.of(self.classes_, labels, self.device_, weights)
        self._learn(Z, update)
        self.classes_ = update.classes
        return self

    # -- answering ---------------------------------------------------------------------

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
        if scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores

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
        scores = self._scores(self._features(X, self.device_))
        if not bool(torch.isfinite(scores).all()):
            row = int((~torch.isfinite(scores)).any(dim=1).nonzero()[0])
            raise NumericalError(
                f"scores must be finite, got some that are not, first for row {row}: are its features of the size that "
                "was learned?"
            )
        return np.asarray(scores.cpu().numpy())

    def _features(self, X: Any, device: torch.device, *, reset: bool = False) -> Tensor:
        """Return X as a finite float64 tensor on the device, or raise :class:`InputError`."""
        if isinstance(X, torch.Tensor):
            if X.is_complex():
                raise InputError(
                    f"X must be real, got {X.dtype}: Complex data not supported"
                )
            Z = X.detach().to(device, torch.float64)
            check_matrix("X", Z, columns=None if reset else self.n_features_in_)
            if min(Z.shape) < 1:
                raise InputError(
                    f"X must have at least one row and one column, got shape {tuple(Z.shape)}"
                )
        elif (
            # What a stream hands over, so that scikit-learn's milliseconds of checks
            # would find nothing. A sum that is not finite may come from finite numbers;
            # such an array takes the long way, which tells.
            type(X) is np.ndarray
            and X.dtype in (np.float32, np.float64)
            and X.ndim == 2
            and min(X.shape) > 0
            and (
                reset
                or (
                    X.shape[1] == self.n_features_in_
                    and not hasattr(self, "feature_names_in_")
                )
            )
            and bool(np.isfinite(X.sum()))
        ):
            Z = torch.from_numpy(np.array(X, dtype=np.float64, order="C")).to(device)
        else:
            from sklearn.utils.validation import validate_data

            try:
                # Copying happens only where the type changes or the array is read-only.
                array = validate_data(self, X, reset=reset, dtype=np.float64, order="C")
            except ValueError as error:
                raise InputError(
                    f"X must be a finite 2-D array of features: {error}"
                ) from error
            return torch.from_numpy(
                array if array.flags.writeable else array.copy()
            ).to(device)
        if reset:
            self.n_features_in_ = int(Z.shape[1])
            self.__dict__.pop("feature_names_in_", None)
        return Z

    # -- copies, solving, names --------------------------------------------------------

    def branch(self) -> Self:
        """Return a copy that learns on its own; it costs nothing, since learning replaces what was learned."""
        return copy.copy(self)

    def settle(self, *, cheap_only: bool = False) -> Self:
        """Work out now what answers need, rather than at the first question.

        Parameters
        ----------
        cheap_only : bool
            Whether to leave it where it would take more than about a second.

        Returns
        -------
        self
        """
        if self._is_fitted() and (not cheap_only or self._solve_order() <= EASY_ORDER):
            self._settle()
        return self

    def _change_classes(self, change: ClassChange) -> Self:
        if change.groups != [[place] for place in range(len(self.classes_))]:
            self._regroup(change)
        self.classes_ = change.classes
        return self

    # -- files -------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to one safetensors file, atomically.

        A crash leaves the old file or the new one. The file holds settings, labels and
        what was learned, never code.

        Parameters
        ----------
        path : path-like
            Where to.
        """
        write_archive(path, self.to_archive())

    def to_archive(self) -> Archive:
        """Return what :meth:`save` writes, for those who put a head into a file of their own."""
        self._require_started()
        archive = make_archive(type(self), written_values(self._contents()))
        params = {
            name: plain_value(name, value)
            for name, value in self.get_params(deep=False).items()
        }
        # What a later version wrote beside that, and this one does not know, goes back
        # where it was.
        for name, value in self._unknown_fields.items():
            archive.meta.setdefault(name, value)
        labels = asdict(StoredLabels.of(self.classes_))
        archive.meta.update(
            params=params, labels=labels, n_features=self.n_features_in_
        )
        if hasattr(self, "feature_names_in_"):
            archive.meta["feature_names"] = self.feature_names_in_.tolist()
        return archive

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], device: str | torch.device | None = None
    ) -> Self:
        """Read a classifier that :meth:`save` wrote.

        Parameters
        ----------
        path : path-like
            Where from.
        device : str or torch.device, optional
            Where to put it; by default where its ``device`` setting says, as far as
            this machine has that.

        Raises
        ------
        FileFormatError
            If the file is no classifier of this class, is damaged or contradicts
            itself.
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
        """Rebuild a classifier from what :meth:`to_archive` gave.

        Parameters
        ----------
        archive : Archive
            Of this class.
        device : str or torch.device, optional
            As for :meth:`load`.
        name : str
            What messages call the source.

        Raises
        ------
        FileFormatError
            If it is of another kind, or its contents do not fit each other.
        """
        check_kind(cls, archive, name)
        saved = read_fields(SavedHead, archive, name=name)
        try:
            check_keys(saved.params, cls._param_names(), "setting")
            made = cls(
                **{
                    key: tuple(item) if isinstance(item, list) else item
                    for key, item in saved.params.items()
                }
            )
            made._check_params()
        except (
            EvergrowError,
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            ArithmeticError,
        ) as error:
            raise FileFormatError(
                f"{name} must have settings that the method takes: {error}"
            ) from error
        if device is None:
            made.device_ = _usable_device(name, made.device)
        else:
            made.device_ = resolve_device(device)
        if device is not None:
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
            if not bool(
                (made.classes_[:-1] < made.classes_[1:]).all()
            ):  # they got other names in the file
                made._change_classes(ClassChange.of(made.classes_, {}))
        except (FileFormatError, InputError, ParameterError) as error:
            raise FileFormatError(
                f"{name} is damaged or contradicts itself: {error}"
            ) from error
        known = {
            field.name
            for part in (SavedHead, made.learned_as)
            for field in fields(part)
        }
        made._unknown_fields = {
            key: value for key, value in archive.meta.items() if key not in known
        }
        return made

    def _check_model(self, model: RidgeModel) -> RidgeModel:
        """Return a ridge model of a file that fits the head's features and classes."""
        require(
            model.layer.n_features_in == self.n_features_in_,
            "its layer is for features of another width",
        )
        require(
            len(model.counts) == len(self.classes_),
            "its statistics are of another number of classes",
        )
        return model


def _usable_device(name: str, device: Any) -> torch.device:
    """Return the device that a file asks for, or the CPU where this machine has no such one."""
    try:
        if device == "auto":
            return resolve_device(device)
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise FileFormatError(f"{name} must name a device, got {device!r}") from error
    usable = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }
    if (wanted.index or 0) < usable.get(wanted.type, 0):
        return wanted
    return torch.device("cpu")
