"""Saving and loading of classifiers, on features or on images.

A classifier is written as one archive of kind ``<family>/<name>``, under the name that users know it by. The base
writes its settings, its labels and its device; what was learned goes through two hooks, ``_contents`` and ``_restore``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive, Kind, read_archive, write_archive
from evergrow.core.devices import resolve_device
from evergrow.core.errors import EvergrowError, FileFormatError, InputError
from evergrow.core.families import Family
from evergrow.core.fields import Fields
from evergrow.core.registry import nearest
from evergrow.core.seeding import SEEDS as SEEDS
from evergrow.head.estimator import Estimator, not_fitted
from evergrow.head.labels import read_labels, written_labels
from evergrow.head.layers import Layer


@dataclass(frozen=True)
class Contents:
    """What a classifier has learned, as an archive holds it.

    Parameters
    ----------
    meta : dict
        JSON-serialisable values.
    tensors : dict of str to Tensor
        Tensors by name.
    parts : dict of str to Archive
        What is inside, by name.
    """

    meta: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, Archive] = field(default_factory=dict)


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

    family: ClassVar[Family[Any]]
    """The registry that it is in."""
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
    def _contents(self) -> Contents:
        """Return what was learned; settings and labels are written by the base."""

    @abstractmethod
    def _restore(self, fields: Fields) -> None:
        """Take over what :meth:`_contents` gave, checked; settings, labels and device are there.

        Whatever does not fit raises :class:`~evergrow.core.errors.FileFormatError`.
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

    def _is_started(self) -> bool:
        """Whether there is something to save; a spawned classifier is started before it knows a class."""
        return hasattr(self, "classes_")

    def _require_fitted(self) -> None:
        if not self._is_fitted():
            raise not_fitted(f"this {type(self).__name__} must learn something first: call fit()")

    def __sklearn_is_fitted__(self) -> bool:
        return self._is_fitted()

    # -- files ----------------------------------------------------------------------------------------------

    @classmethod
    def archive_kind(cls) -> Kind:
        """Return the kind of archive that classifiers of this class are written as."""
        return cls.family.kind_of(cls)

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
        if not self._is_started():
            self._require_fitted()
        contents = self._contents()
        params = {name: self._plain_param(name, value) for name, value in self.get_params(deep=False).items()}
        meta = {"params": params, "labels": written_labels(self._label_table()), **contents.meta}
        # What a later version wrote beside that, and this one does not know, goes back where it was.
        meta = {**vars(self).get("_unknown_fields", {}), **meta}
        return self.archive_kind().archive(meta, contents.tensors, contents.parts)

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
        fields = archive.open(cls.archive_kind().name, name=name)
        return cls._from_settings(fields, device)._restored(fields)

    def _restored(self, fields: Fields) -> Self:
        """Take over what was learned, and keep what this version does not know, to be written again."""
        self._restore(fields)
        self._unknown_fields = fields.unknown()
        return self

    @classmethod
    def _from_settings(cls, fields: Fields, device: str | torch.device | None) -> Self:
        """Return a classifier with the settings and labels of a file, on its device, that has learned nothing yet."""
        made = cls._with_params(fields)
        if device is not None:
            made.device = device
            made.device_ = resolve_device(device)
        else:
            made.device_ = _usable_device(fields, made.device)
        made._adopt_labels(read_labels(fields.fields("labels"), in_order=cls.sorted_labels))
        return made

    @classmethod
    def _known_params(cls, params: dict[str, Any]) -> list[str]:
        """Return the names of the settings that a file with these ones may have."""
        return cls._param_names()

    @classmethod
    def _with_params(cls, fields: Fields) -> Self:
        params = fields.mapping("params")
        known = cls._known_params(params)
        strange = [key for key in params if key not in known]
        if strange:
            fields.require(
                False, f"setting {strange[0]!r} is none of this method; nearest: {nearest(strange[0], known)}"
            )
        try:
            made = cls(**{key: cls._param_from_file(key, value) for key, value in params.items()})
            made._check_params()
        except FileFormatError:
            raise
        except (EvergrowError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise FileFormatError(f"{fields.name} must have settings that the method takes: {error}") from error
        return made


def plain_value(name: str, value: Any) -> Any:
    """Return a constructor argument in a form that JSON holds, or raise :class:`InputError`.

    Examples
    --------
    >>> import torch
    >>> from evergrow.head.saving import plain_value
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


def _usable_device(fields: Fields, device: Any) -> torch.device:
    """Return the device that a file asks for, or the CPU where this machine has no such one."""
    try:
        if device == "auto":
            return resolve_device(device)
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError, ArithmeticError) as error:
        raise FileFormatError(f"{fields.name} must name a device, got {device!r}") from error
    usable = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    return wanted if (wanted.index or 0) < usable.get(wanted.type, 0) else torch.device("cpu")
