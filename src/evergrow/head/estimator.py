"""What all classifiers share: scikit-learn's contract, and files.

scikit-learn's tools (``clone``, pipelines, grid search, the conformance suite) ask for methods, not for a base class.
Importing scikit-learn takes as long as importing torch, so it is imported only when they call.

A classifier is written as one archive of kind ``<family>/<name>``, under the name that users know it by. The base
writes its settings, its labels and its device. What was learned is a dataclass, ``learned_as``, whose types say what a
file may hold (:mod:`evergrow.core.record`); ``_contents`` returns it and ``_restore`` takes it over.
"""

from __future__ import annotations

import functools
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive, write_archive
from evergrow.core.devices import resolve_device
from evergrow.core.errors import EvergrowError, FileFormatError, InputError, NotFittedError, ParameterError
from evergrow.core.record import (
    Between,
    check_kind,
    make_archive,
    read_fields,
    record,
    require,
    to_values,
    written_values,
)
from evergrow.core.registry import Registry, nearest
from evergrow.core.validation import check_keys
from evergrow.head.labels import StoredLabels
from evergrow.head.layers import Layer

Seed = Annotated[int, Between(-(2**63), 2**64)]
"""A seed in a file."""

Positive = Annotated[float, Between(above=0.0)]
"""A number above zero in a file."""

T = TypeVar("T")


class Estimator:
    """Parameters, representation, score and tags of a classifier, as scikit-learn's tools expect them."""

    @classmethod
    def _param_names(cls) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return sorted(item.name for item in parameters if item.kind in kinds)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments by name."""
        values: dict[str, Any] = {}
        for name in self._param_names():
            value = values[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                values.update((f"{name}__{key}", item) for key, item in value.get_params().items())
        return values

    def set_params(self, **params: Any) -> Self:
        """Set constructor arguments by name; unknown ones are refused."""
        check_keys(params, self._param_names(), f"parameter of {type(self).__name__}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on labelled samples."""
        right = np.asarray(self.predict(X)) == np.asarray(y)  # type: ignore[attr-defined]
        return float(np.average(right, weights=sample_weight))

    def __repr__(self) -> str:
        defaults = {item.name: item.default for item in inspect.signature(type(self).__init__).parameters.values()}
        values = self.get_params(deep=False).items()
        # Options that are passed on, as by a method on any head, have no default here.
        known = ((name, value, defaults.get(name, inspect.Parameter.empty)) for name, value in values)
        changed = [f"{name}={value!r}" for name, value, default in known if not _same(value, default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        return Tags("classifier", TargetTags(required=True), classifier_tags=ClassifierTags())


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and repr(value) == repr(default))


def not_fitted(message: str) -> NotFittedError:
    """Return evergrow's error as one that is scikit-learn's too."""
    return _learner_not_fitted_error()(message)


@functools.cache
def _learner_not_fitted_error() -> type[NotFittedError]:
    from sklearn.exceptions import NotFittedError as Theirs

    about = "A learner was asked for an answer before it learned anything: evergrow's error and scikit-learn's."
    return type("LearnerNotFittedError", (NotFittedError, Theirs), {"__module__": __name__, "__doc__": about})


# -- files --------------------------------------------------------------------------------------------------------


class Methods(Registry[type[T]]):
    """Classifiers by name; what they write is an archive of kind ``<prefix>/<name>``.

    Parameters
    ----------
    prefix : str
        What kinds of archives begin with.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__("method", plugins=True)
        self.prefix = prefix

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that files a class under a name, in settings and in files."""
        known, written = super().register(name), record(f"{self.prefix}/{name}")
        return lambda cls: written(known(cls))


@dataclass(frozen=True)
class Saved:
    """What files hold of every classifier: its settings and its labels."""

    params: dict[str, Any]
    labels: StoredLabels


class SavedClassifier(Estimator, ABC):
    """A classifier over an open set of classes that can be written to a file and read again.

    A kind of classifier implements :meth:`_check_params`, :meth:`_contents` and :meth:`_restore`; ``__init__`` only
    stores its arguments.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels learned so far, sorted.
    device_ : torch.device
        Where it computes.
    """

    saved_as: ClassVar[type[Saved]]
    """What files hold of every classifier of its family."""
    learned_as: ClassVar[type]
    """The dataclass of what it learns, as files hold it; its tensors are read onto the classifier's device."""
    sorted_labels: ClassVar[bool] = True
    """Whether files hold the labels sorted; False for classifiers that number classes as they come."""
    classes_: NDArray[Any]
    device: str | torch.device
    device_: torch.device
    _unknown_fields: dict[str, Any]

    # -- hooks ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _check_params(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for settings out of range."""

    @abstractmethod
    def _contents(self) -> Any:
        """Return what was learned, a ``learned_as``; settings and labels are written by the base."""

    @abstractmethod
    def _restore(self, learned: Any) -> None:
        """Take over what :meth:`_contents` gave; settings, labels and device are there.

        What does not fit them is refused by :func:`~evergrow.core.record.require`.
        """

    def _plain_param(self, name: str, value: Any) -> Any:
        """Return a constructor argument in a form that JSON holds."""
        return plain_value(name, value)

    @classmethod
    def _param_from_file(cls, name: str, value: Any) -> Any:
        """Return a constructor argument from the form that JSON holds."""
        return tuple(value) if isinstance(value, list) else value

    def _label_table(self) -> NDArray[Any]:
        """Return the labels as a file holds them."""
        return self.classes_

    def _adopt_labels(self, labels: NDArray[Any]) -> None:
        """Take over the labels of a file."""
        self.classes_ = labels

    # -- state ----------------------------------------------------------------------------------------------

    def _is_fitted(self) -> bool:
        return hasattr(self, "classes_") and len(self.classes_) > 0

    def _require_fitted(self) -> None:
        if not self._is_fitted():
            raise not_fitted(f"this {type(self).__name__} must learn something first: call fit()")

    def _require_started(self) -> None:
        """Raise unless there is something to save; a spawned classifier has begun before it knows a class."""
        if "classes_" not in vars(self):
            self._require_fitted()

    def __sklearn_is_fitted__(self) -> bool:
        return self._is_fitted()

    # -- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to one safetensors file, atomically.

        A crash leaves the old file or the new one. The file holds settings, labels and what was learned, never code.

        Parameters
        ----------
        path : path-like
            Where to.
        """
        write_archive(path, self.to_archive())

    def to_archive(self) -> Archive:
        """Return what :meth:`save` writes, for those who put a classifier into a file of their own."""
        self._require_started()
        archive = make_archive(type(self), written_values(self._contents()))
        params = {name: self._plain_param(name, value) for name, value in self.get_params(deep=False).items()}
        # What a later version wrote beside that, and this one does not know, goes back where it was.
        for name, value in vars(self).get("_unknown_fields", {}).items():
            archive.meta.setdefault(name, value)
        archive.meta.update(params=params, labels=to_values(StoredLabels.of(self._label_table())))
        return archive

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device | None = None) -> Self:
        """Read a classifier that :meth:`save` wrote.

        Parameters
        ----------
        path : path-like
            Where from.
        device : str or torch.device, optional
            Where to put it; by default where its ``device`` setting says, as far as this machine has that.

        Raises
        ------
        FileFormatError
            If the file is no classifier of this class, is damaged or contradicts itself.
        NewerSchemaError
            If a newer evergrow wrote it.
        """
        return cls.from_archive(read_archive(path), device, name=os.fspath(path))

    @classmethod
    def from_archive(
        cls, archive: Archive, device: str | torch.device | None = None, *, name: str = "the archive"
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
        saved = cls._read_settings(archive, name)
        return cls._from_settings(saved, device, name)._restored(archive, name)

    @classmethod
    def _read_settings(cls, archive: Archive, name: str) -> Any:
        check_kind(cls, archive, name)
        return read_fields(cls.saved_as, archive, name=name)

    def _restored(self, archive: Archive, name: str) -> Self:
        """Take over what was learned, and keep what this version does not know, to be written again."""
        learned: Any = read_fields(self.learned_as, archive, device=self.device_, name=name)
        with _consistent(name):
            self._restore(learned)
        known = {field.name for part in (self.saved_as, self.learned_as) for field in fields(part)}
        self._unknown_fields = {key: value for key, value in archive.meta.items() if key not in known}
        return self

    @classmethod
    def _from_settings(cls, saved: Any, device: str | torch.device | None, name: str) -> Self:
        """Return a classifier with the settings and labels of a file, on its device, that has learned nothing yet."""
        made = cls._with_params(saved.params, name)
        if device is not None:
            made.device = device
            made.device_ = resolve_device(device)
        else:
            made.device_ = _usable_device(name, made.device)
        labels = saved.labels.table()
        with _consistent(name):
            require(not cls.sorted_labels or bool((labels[:-1] < labels[1:]).all()), "labels are not sorted")
        made._adopt_labels(labels)
        return made

    @classmethod
    def _known_params(cls, params: dict[str, Any]) -> list[str]:
        """Return the names of the settings that a file with these ones may have."""
        return cls._param_names()

    @classmethod
    def _with_params(cls, params: dict[str, Any], name: str) -> Self:
        known = cls._known_params(params)
        strange = next((key for key in params if key not in known), None)
        if strange is not None:
            close = nearest(strange, known)
            raise FileFormatError(f"{name}: setting {strange!r} is none of this method; nearest: {close}")
        try:
            made = cls(**{key: cls._param_from_file(key, value) for key, value in params.items()})
            made._check_params()
        except FileFormatError:
            raise
        except (EvergrowError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise FileFormatError(f"{name} must have settings that the method takes: {error}") from error
        return made


@contextmanager
def _consistent(name: str) -> Iterator[None]:
    """Say which file it is that contradicts itself."""
    try:
        yield
    except (FileFormatError, InputError, ParameterError) as error:
        raise FileFormatError(f"{name} is damaged or contradicts itself: {error}") from error


def plain_value(name: str, value: Any) -> Any:
    """Return a constructor argument in a form that JSON holds, or raise :class:`InputError`.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.estimator import plain_value
    >>> plain_value("scales", (0.5, 1.0)), plain_value("device", torch.device("cpu"))
    ([0.5, 1.0], 'cpu')
    """
    if isinstance(value, (np.random.RandomState, np.random.Generator)):
        return None  # the seed that was drawn from it is part of what was learned
    if isinstance(value, (torch.device, os.PathLike)):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain_value(name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_value(name, item) for key, item in value.items()}
    if isinstance(value, Layer):
        return value.to_plain()
    raise InputError(f"{name} must be a plain value to be saved, got {type(value).__name__}")


def _usable_device(name: str, device: Any) -> torch.device:
    """Return the device that a file asks for, or the CPU where this machine has no such one."""
    try:
        if device == "auto":
            return resolve_device(device)
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise FileFormatError(f"{name} must name a device, got {device!r}") from error
    usable = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    return wanted if (wanted.index or 0) < usable.get(wanted.type, 0) else torch.device("cpu")
