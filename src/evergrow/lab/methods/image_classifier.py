"""The base of all classifiers that train a network on images: labels, atomic learning, answers, cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from evergrow.core.errors import InputError, ParameterError
from evergrow.core.estimator import Estimator, not_fitted
from evergrow.core.registry import Registry
from evergrow.core.seeding import resolve_seed
from evergrow.core.validation import resolve_device
from evergrow.data.items import Images, Items
from evergrow.features import ImageBackbone, best_backbone, create_backbone
from evergrow.features.backbone import Backbone
from evergrow.head.label_set import as_labels, check_kind
from evergrow.lab.methods.cost import Cost

__all__ = [
    "IMAGE_METHODS",
    "Cost",
    "ImageClassifier",
    "TaskLabels",
    "as_items",
    "resolve_backbone",
]

IMAGE_METHODS: Registry[type[ImageClassifier]] = Registry("method", plugins=True)
"""Every method that trains a network, by the name users know it under; filled by ``@IMAGE_METHODS.register(name)``."""


@dataclass(frozen=True)
class TaskLabels:
    """The labels of a task, and their numbers in a network whose outputs grow at the end.

    Classes are numbered in the order of their arrival: those of the first task from 0
    on, sorted among themselves, then the new ones of the second, and so on. A number
    never changes.

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


class ImageClassifier(Estimator, ABC):
    """A classifier that learns from images, task by task, over an open set of classes.

    A method implements :meth:`_check_params`, :meth:`_reset`, :meth:`_learn` and
    :meth:`_scores`; ``__init__`` only stores its arguments. ``_learn`` either succeeds
    or leaves what was learned before as it was; the base commits the labels after it
    returns. Inside the hooks ``self.base_`` is the frozen backbone, ``self.seed_`` the
    seed and ``self.device_`` the device. The backbone is the caller's: a method that
    puts tuners on it or changes weights works on a copy
    (:func:`~evergrow.adapt.fsa.shared_copy`).

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels learned so far, sorted.
    arrival_ : ndarray of shape (C,)
        The same labels in the order in which they came; networks number classes like
        that.
    base_ : ImageBackbone
        The backbone, as it was given.
    cost_ : Cost
        What learning has cost so far, and what an answer costs.
    """

    joint: ClassVar[bool] = False
    """Whether it learns everything at once, so that only its answers after the last task mean anything."""
    backbone: Any
    random_state: Any
    device: str | torch.device
    device_: torch.device
    classes_: NDArray[Any]
    arrival_: NDArray[Any]
    base_: ImageBackbone
    seed_: int
    cost_: Cost

    # -- hooks -------------------------------------------------------------------------

    @abstractmethod
    def _check_params(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for settings out of range."""

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

    # -- learning ----------------------------------------------------------------------

    def fit(self, items: Any, y: Any) -> Self:
        """Forget everything and learn the first task.

        Parameters
        ----------
        items : Items or ndarray
            Images; an array is uint8 of shape (n, height, width, 3) or (n, height,
            width).
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
        if self.device == "auto":
            device = backbone.device
        else:
            device = resolve_device(self.device)
        self._start(backbone)
        before = self.__dict__.copy()
        for name in ("classes_", "arrival_", "cost_"):
            self.__dict__.pop(name, None)
        self._reset()
        self.base_ = backbone
        self.device_ = device
        self.seed_ = resolve_seed(self.random_state)
        try:
            self._commit(
                labels,
                np.empty(0, dtype=labels.values.dtype),
                self._learn(items, labels),
                Cost(),
            )
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
        new = [
            label
            for label in np.unique(values).tolist()
            if label not in set(known.tolist())
        ]
        numbers = {
            label: number for number, label in enumerate([*known.tolist(), *new])
        }
        codes = np.array([numbers[label] for label in values.tolist()], dtype=np.int64)
        return TaskLabels(values, codes, len(known), len(numbers))

    def _commit(
        self, labels: TaskLabels, known: NDArray[Any], cost: Cost, before: Cost
    ) -> None:
        """Take over the labels of a task that has been learned."""
        new = np.setdiff1d(labels.values, known)
        if len(known):
            self.arrival_ = np.concatenate([known, new])
        else:
            self.arrival_ = new
        self.classes_ = np.sort(self.arrival_)
        self.cost_ = before + cost

    # -- answering ---------------------------------------------------------------------

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
        scores = np.asarray(
            self._scores(as_items(items)).to("cpu", torch.float64).numpy()
        )
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

    def _is_fitted(self) -> bool:
        return hasattr(self, "classes_")

    def _require_fitted(self) -> None:
        if not self._is_fitted():
            raise not_fitted(
                f"this {type(self).__name__} must learn something first: call fit()"
            )

    def __sklearn_is_fitted__(self) -> bool:
        return self._is_fitted()

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
        if isinstance(items, Items):
            what = items.kind + "s"
        else:
            what = type(items).__name__
        raise InputError(f"items must be images (Images or a uint8 array), got {what}")
    return items


def resolve_backbone(
    backbone: Any, device: str | torch.device = "auto"
) -> ImageBackbone:
    """Return a backbone whose network can be trained.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A backbone, the name of one, or None for the strongest whose weights are on this
        machine.
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
        if isinstance(backbone, Backbone):
            what = backbone.spec.name
        else:
            what = repr(backbone)
        raise ParameterError(
            f"backbone must be an ImageBackbone (see create_backbone) to be trained, got {what}"
        )
    return backbone
