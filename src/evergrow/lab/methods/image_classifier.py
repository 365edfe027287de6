"""The base of all classifiers that train a network on images: labels, atomic learning, answers, cost, files."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.archive import Archive, read_archive
from evergrow.core.devices import resolve_device
from evergrow.core.errors import InputError, ParameterError, WeightsError
from evergrow.core.record import require, to_values
from evergrow.core.seeding import resolve_seed
from evergrow.data.items import Images, Items
from evergrow.features import BackboneSpec, ImageBackbone, backbone_from_spec, best_backbone, create_backbone
from evergrow.features.base import Backbone
from evergrow.head.labels import as_labels, check_kind
from evergrow.head.saving import Methods, Saved, SavedClassifier, Seed
from evergrow.lab.methods.cost import Cost

__all__ = ["IMAGE_METHODS", "Cost", "ImageClassifier", "TaskLabels", "as_items", "resolve_backbone"]

IMAGE_METHODS: Methods[ImageClassifier] = Methods("method")
"""Every method that trains a network, by the name users know it under; filled by ``@IMAGE_METHODS.register(name)``."""


OF_THE_CALL = ("backbone", "cache", "checkpoint", "device", "progress", "workers")
"""Settings that say nothing about what is learned. Files do not hold them: it is for whoever reads a file to say where
to compute and what to write where."""


@dataclass(frozen=True)
class TaskLabels:
    """The labels of a task, and their numbers in a network whose outputs grow at the end.

    Classes are numbered in the order of their arrival: those of the first task from 0 on, sorted among themselves,
    then the new ones of the second, and so on. A number never changes.

    Parameters
    ----------
    values : ndarray of shape (n,)
        The labels as they came.
    codes : ndarray of int64 of shape (n,)
        Number of every label.
    n_old : int
        Classes that were known before the task.
    n_classes : int
        Classes that are known with it.
    """

    values: NDArray[Any]
    codes: NDArray[np.int64]
    n_old: int
    n_classes: int


@dataclass(frozen=True)
class SavedMethod(Saved):
    """What files hold of every method that trains a network; the backbone is described, not contained."""

    backbone: dict[str, Any]
    seed: Seed
    cost: Cost

    def check(self) -> None:
        """Raise :class:`FileFormatError` where there is no class."""
        require(bool(self.labels.values), "it knows no class")


class ImageClassifier(SavedClassifier):
    """A classifier that learns from images, task by task, over an open set of classes.

    A method implements :meth:`_check_params`, :meth:`_reset`, :meth:`_learn`, :meth:`_scores` and the pair
    :meth:`_contents` / :meth:`_restore`; ``__init__`` only stores its arguments. ``_learn`` either succeeds or leaves
    what was learned before as it was; the base commits the labels after it returns. Inside the hooks ``self.base_`` is
    the frozen backbone, ``self.seed_`` the seed and ``self.device_`` the device. The backbone is the caller's: a method
    that puts tuners on it or changes weights works on a copy (:func:`~evergrow.adapt.fsa.shared_copy`).

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels learned so far, sorted.
    arrival_ : ndarray of shape (C,)
        The same labels in the order in which they came; networks number classes like that.
    base_ : ImageBackbone
        The backbone, as it was given.
    cost_ : Cost
        What learning has cost so far, and what an answer costs.
    """

    saved_as: ClassVar[type[Saved]] = SavedMethod
    sorted_labels: ClassVar[bool] = False
    joint: ClassVar[bool] = False
    """Whether it learns everything at once, so that only its answers after the last task mean anything."""
    backbone: Any
    random_state: Any
    arrival_: NDArray[Any]
    base_: ImageBackbone
    seed_: int
    cost_: Cost

    # -- hooks ------------------------------------------------------------------------------------------

    @abstractmethod
    def _reset(self) -> None:
        """Forget everything learned."""

    @abstractmethod
    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        """Learn a task, all or nothing, and return the cost."""

    @abstractmethod
    def _scores(self, items: Items) -> Tensor:
        """Return scores (n, C), one column per entry of ``arrival_``."""

    def _start(self, backbone: ImageBackbone) -> None:
        """Say whether the method can work with a backbone, by a typed error, before anything is trained."""

    # -- learning ---------------------------------------------------------------------------------------

    def fit(self, items: Any, y: Any) -> Self:
        """Forget everything and learn the first task.

        Parameters
        ----------
        items : Items or ndarray
            Images; an array is uint8 of shape (n, height, width, 3) or (n, height, width).
        y : array-like of shape (n,)
            Labels: integers or strings.

        Returns
        -------
        self
        """
        self._check_params()
        items = as_items(items)
        labels = self._labels(as_labels(y, len(items)), np.empty(0))
        backbone = self._with_features(resolve_backbone(self.backbone, self.device))
        device = backbone.device if self.device == "auto" else resolve_device(self.device)
        self._start(backbone)
        before = self.__dict__.copy()
        for name in ("classes_", "arrival_", "cost_", "_unknown_fields"):
            self.__dict__.pop(name, None)
        self._reset()
        self.base_, self.device_, self.seed_ = backbone, device, resolve_seed(self.random_state)
        try:
            self._commit(labels, np.empty(0, dtype=labels.values.dtype), self._learn(items, labels), Cost())
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def partial_fit(self, items: Any, y: Any) -> Self:
        """Learn one more task: new classes, and old ones where the method can.

        The first call is the same as :meth:`fit`.

        Parameters
        ----------
        items : Items or ndarray
            Images.
        y : array-like of shape (n,)
            Labels, of the same kind as before.

        Returns
        -------
        self
        """
        if not self._is_fitted():
            return self.fit(items, y)
        items = as_items(items)
        labels = self._labels(as_labels(y, len(items)), self.arrival_)
        self._commit(labels, self.arrival_, self._learn(items, labels), self.cost_)
        return self

    @staticmethod
    def _labels(values: NDArray[Any], known: NDArray[Any]) -> TaskLabels:
        """Return the labels of a task with their numbers."""
        if len(values) == 0:
            raise InputError("items must hold at least one image, got none")
        if len(known):
            check_kind(known, values)
        new = [label for label in np.unique(values).tolist() if label not in set(known.tolist())]
        numbers = {label: number for number, label in enumerate([*known.tolist(), *new])}
        codes = np.array([numbers[label] for label in values.tolist()], dtype=np.int64)
        return TaskLabels(values, codes, len(known), len(numbers))

    def _commit(self, labels: TaskLabels, known: NDArray[Any], cost: Cost, before: Cost) -> None:
        """Take over the labels of a task that has been learned."""
        new = np.setdiff1d(labels.values, known)
        self.arrival_ = np.concatenate([known, new]) if len(known) else new
        self.classes_ = np.sort(self.arrival_)
        self.cost_ = before + cost

    # -- answering --------------------------------------------------------------------------------------

    def decision_function(self, items: Any) -> NDArray[np.float64]:
        """Return the score of every class.

        Parameters
        ----------
        items : Items or ndarray
            Images.

        Returns
        -------
        ndarray of shape (n, C)
            Larger means more likely; columns as in ``classes_``.
        """
        self._require_fitted()
        scores = np.asarray(self._scores(as_items(items)).to("cpu", torch.float64).numpy())
        return scores[:, np.argsort(self.arrival_)]

    def predict(self, items: Any) -> NDArray[Any]:
        """Return the most likely class of every image.

        Parameters
        ----------
        items : Items or ndarray
            Images.

        Returns
        -------
        ndarray of shape (n,)
            Labels of the kind that was learned.
        """
        best = self.decision_function(items).argmax(axis=1)
        return np.asarray(self.classes_[best])

    # -- files ------------------------------------------------------------------------------------------

    def _label_table(self) -> NDArray[Any]:
        return self.arrival_

    def _adopt_labels(self, labels: NDArray[Any]) -> None:
        self.arrival_, self.classes_ = labels, np.sort(labels)

    def _plain_param(self, name: str, value: Any) -> Any:
        if name in OF_THE_CALL:
            return None
        return super()._plain_param(name, value.to_dict() if hasattr(value, "to_dict") else value)

    @classmethod
    def _known_params(cls, params: dict[str, Any]) -> list[str]:
        return [name for name in super()._known_params(params) if name not in OF_THE_CALL]

    def to_archive(self) -> Archive:
        """Return the archive that :meth:`save` writes; the backbone is described in it, not contained."""
        archive = super().to_archive()
        stored = {name: value for name, value in archive.meta["params"].items() if name not in OF_THE_CALL}
        own = {"backbone": self.base_.spec.to_dict(), "seed": self.seed_, "cost": to_values(self.cost_)}
        archive.meta.update(own, params=stored)
        return archive

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], device: str | torch.device | None = None, *, backbone: Any = None
    ) -> Self:
        """Read a saved classifier and put it on its backbone.

        Parameters
        ----------
        path : path-like
            Where from.
        device : str or torch.device, optional
            Where to compute; by default where the backbone is.
        backbone : ImageBackbone, optional
            The backbone that it was trained on; made anew from its description by default.

        Raises
        ------
        FileFormatError
            If the file is no method of this class, is damaged or contradicts itself.
        WeightsError
            If the backbone has other weights, or its weights are nowhere to be found.
        """
        return cls.from_archive(read_archive(path), device, name=os.fspath(path), backbone=backbone)

    @classmethod
    def from_archive(
        cls,
        archive: Archive,
        device: str | torch.device | None = None,
        *,
        name: str = "the archive",
        backbone: Any = None,
    ) -> Self:
        """Rebuild a classifier from its archive and put it on its backbone.

        Parameters
        ----------
        archive : Archive
            Of this class.
        device, backbone
            As for :meth:`load`.
        name : str
            What messages call the source.
        """
        saved = cls._read_settings(archive, name)
        made = cls._from_settings(saved, device, name)
        made._place(saved, device, backbone)
        return made._restored(archive, name)

    def _place(self, saved: SavedMethod, device: str | torch.device | None, backbone: Any) -> None:
        """Take over backbone, seed, device and cost; :meth:`_restore` comes after it."""
        self.device = "auto" if device is None else device
        self.seed_, self.cost_ = saved.seed, saved.cost
        spec = BackboneSpec.from_dict(saved.backbone)
        required = _required_backbone(spec, backbone, self.device)
        self.backbone = self.base_ = required.with_recipe(spec.recipe or "final")
        self.device_ = self.base_.device if device is None else resolve_device(device)

    def _with_features(self, backbone: ImageBackbone) -> ImageBackbone:
        """Return the backbone with the vectors that the method learns from: what trains a network takes its own."""
        return backbone.with_recipe("final")


def as_items(items: Any) -> Items:
    """Return images as items; arrays of bytes are images in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.lab.methods.image_classifier import as_items
    >>> len(as_items(np.zeros((5, 8, 8, 3), dtype=np.uint8)))
    5
    """
    if isinstance(items, np.ndarray):
        items = Images(items)
    if not isinstance(items, Items) or items.kind != "image":
        what = items.kind + "s" if isinstance(items, Items) else type(items).__name__
        raise InputError(f"items must be images (Images or a uint8 array), got {what}")
    return items


def resolve_backbone(backbone: Any, device: str | torch.device = "auto") -> ImageBackbone:
    """Return a backbone whose network can be trained.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A backbone, the name of one, or None for the strongest whose weights are on this machine.
    device : str or torch.device
        Where a backbone that is made here computes.

    Raises
    ------
    ParameterError
        If it is a backbone of another kind.
    """
    if backbone is None:
        choice = best_backbone("image")
        backbone = create_backbone(choice.name, choice.weights, device=device)
    elif isinstance(backbone, str):
        backbone = create_backbone(backbone, device=device)
    if not isinstance(backbone, ImageBackbone):
        what = backbone.spec.name if isinstance(backbone, Backbone) else repr(backbone)
        raise ParameterError(f"backbone must be an ImageBackbone (see create_backbone) to be trained, got {what}")
    return backbone


def _required_backbone(spec: BackboneSpec, given: Any, device: str | torch.device) -> ImageBackbone:
    """Return the backbone of a saved method, which must have the weights it was trained on."""
    if given is None:
        return resolve_backbone(backbone_from_spec(spec, device=device))
    backbone = resolve_backbone(given, device)
    wanted, found = ((item.weights_hash, item.preprocessing) for item in (spec, backbone.spec))
    if wanted != found:
        raise WeightsError(
            f"backbone must be the one that the method was trained on, {spec.name} with weights {spec.weights_hash} "
            f"and preset {spec.preset!r}, got {backbone.spec.name} with {backbone.spec.weights_hash} "
            f"and {backbone.spec.preset!r}"
        )
    return backbone
