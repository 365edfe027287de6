"""Base of classifiers that train a network on images."""

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
from evergrow.head.label_set import as_label_array, require_same_type
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
"""Methods that train a network. ``@IMAGE_METHODS.register(name)`` adds one."""


@dataclass(frozen=True)
class TaskLabels:
    """Labels of a task, and their class numbers in the network.

    Classes are numbered in order of arrival: first the classes of the first task,
    sorted, then the new classes of the second, and so on. Numbers never change.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Labels as given.
    codes : ndarray of int64 of shape (n,)
        Class number of every label.
    n_old : int
        Number of classes before the task.
    n_classes : int
        Number of classes including the task.
    """

    values: NDArray[Any]
    codes: NDArray[np.int64]
    n_old: int
    n_classes: int


class ImageClassifier(Estimator, ABC):
    """A classifier that learns from images, task by task, over an open set of classes.

    A method implements :meth:`_check_params`, :meth:`_learn` and :meth:`_scores`;
    ``__init__`` only stores its arguments. If ``_learn`` fails, the earlier state must
    be unchanged. The base class commits the labels after it returns. In the hooks,
    ``self.base_`` is the frozen backbone, ``self.seed_`` the seed and ``self.device_``
    the device. The backbone belongs to the caller: a method that adds tuners or changes
    weights uses a copy (:func:`~evergrow.adapt.adapted.shared_copy`).

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Learned labels, sorted.
    arrival_ : ndarray of shape (C,)
        The same labels in order of arrival, which is the class order of networks.
    base_ : ImageBackbone
        The backbone as given.
    cost_ : Cost
        Total cost of learning, and cost per prediction.
    """

    joint: ClassVar[bool] = False
    """Whether it trains on all tasks jointly. Only its last accuracy is meaningful."""
    backbone: Any
    random_state: Any
    device: str | torch.device
    device_: torch.device
    classes_: NDArray[Any]
    arrival_: NDArray[Any]
    base_: ImageBackbone
    seed_: int
    cost_: Cost

    @abstractmethod
    def _check_params(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if a value is invalid."""

    def check_params(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if a value is invalid.

        Parameters are checked when something is learned; this checks them earlier.
        """
        self._check_params()

    @abstractmethod
    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        """Learn a task and return its cost; on failure, change nothing."""

    @abstractmethod
    def _scores(self, items: Items) -> Tensor:
        """Return scores (n, C), one column per entry of ``arrival_``."""

    def _start(self, backbone: ImageBackbone) -> None:
        """Raise a typed error if the method does not support the backbone."""

    def fit(self, items: Any, y: Any) -> Self:
        """Delete the learned state and learn the first task.

        Parameters
        ----------
        items : Items or ndarray
            Images. An array must be uint8 of shape (n, height, width, 3) or (n, height,
            width).
        y : array-like of shape (n,)
            Labels, either integers or strings.

        Returns
        -------
        self
        """
        self._check_params()
        items = as_items(items)
        labels = self._labels(as_label_array(y, len(items)), np.empty(0))
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
            cost = self._learn(items, labels)
            known = np.empty(0, dtype=labels.values.dtype)
            self._commit(labels, known, cost, Cost())
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def partial_fit(self, items: Any, y: Any) -> Self:
        """Learn one more task, with new classes or, if supported, known ones.

        The first call is the same as :meth:`fit`.

        Parameters
        ----------
        items : Items or ndarray
            Images.
        y : array-like of shape (n,)
            Labels, of the same type as before.

        Returns
        -------
        self
        """
        if not self._is_fitted():
            return self.fit(items, y)
        items = as_items(items)
        labels = self._labels(as_label_array(y, len(items)), self.arrival_)
        cost = self._learn(items, labels)
        self._commit(labels, self.arrival_, cost, self.cost_)
        return self

    @staticmethod
    def _labels(values: NDArray[Any], known: NDArray[Any]) -> TaskLabels:
        """Assign class numbers to the labels of a task."""
        if len(values) == 0:
            raise InputError("items must hold at least one image, got none")
        if len(known):
            require_same_type(known, values)
        order = known.tolist()
        seen = set(order)
        order += [label for label in np.unique(values).tolist() if label not in seen]
        numbers = {label: number for number, label in enumerate(order)}
        codes = np.array([numbers[label] for label in values.tolist()], dtype=np.int64)
        return TaskLabels(values, codes, len(known), len(numbers))

    def _commit(
        self, labels: TaskLabels, known: NDArray[Any], cost: Cost, before: Cost
    ) -> None:
        """Add the labels and the cost of a learned task."""
        new = np.setdiff1d(labels.values, known)
        if len(known):
            self.arrival_ = np.concatenate([known, new])
        else:
            self.arrival_ = new
        self.classes_ = np.sort(self.arrival_)
        self.cost_ = before + cost

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
        scores = self._scores(as_items(items)).to("cpu", torch.float64).numpy()
        return np.asarray(scores)[:, np.argsort(self.arrival_)]

    def predict(self, items: Any) -> NDArray[Any]:
        """Return the most likely class of every image.

        Parameters
        ----------
        items : Items or ndarray
            Images.

        Returns
        -------
        ndarray of shape (n,)
            Labels, in the type that was learned.
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
        """Select the features that the method uses; network training needs the last."""
        return backbone.with_recipe("final")


def as_items(items: Any) -> Items:
    """Return images as items. An array of bytes becomes images in memory.

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
            found = items.kind + "s"
        else:
            found = type(items).__name__
        raise InputError(f"items must be images (Images or a uint8 array), got {found}")
    return items


def resolve_backbone(
    backbone: Any, device: str | torch.device = "auto"
) -> ImageBackbone:
    """Return a backbone whose network can be trained.

    Parameters
    ----------
    backbone : ImageBackbone, str or None
        A backbone or its name. None selects the strongest one with weights on this
        machine.
    device : str or torch.device
        Device of a backbone that is created here.

    Raises
    ------
    ParameterError
        If it is another type of backbone.
    """
    if backbone is None:
        choice = best_backbone("image")
        backbone = create_backbone(choice.name, choice.weights, device=device)
    elif isinstance(backbone, str):
        backbone = create_backbone(backbone, device=device)
    if not isinstance(backbone, ImageBackbone):
        found = repr(backbone)
        if isinstance(backbone, Backbone):
            found = backbone.spec.name
        raise ParameterError(
            f"backbone must be a trainable ImageBackbone (see create_backbone), "
            f"got {found}"
        )
    return backbone
