"""Methods whose tasks share one linear classifier on features that change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, normalize

from evergrow.core.seeding import generator
from evergrow.data.items import Items
from evergrow.lab.methods.cost import Cost
from evergrow.lab.methods.image_classifier import TaskLabels
from evergrow.lab.methods.taskwise import TaskwiseClassifier
from evergrow.lab.methods.tuned_passes import copy_state

ModuleStates = dict[str, dict[str, Tensor]]
"""States of a method's trained modules, by name."""


@dataclass(frozen=True, eq=False)
class ClassWeights:
    """A linear classifier with one row of weights per class; immutable.

    Parameters
    ----------
    weight : Tensor of shape (C, d)
        Weights.
    bias : Tensor of shape (C,)
        Biases. Zero and untrained for methods without bias.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.shared_weights import ClassWeights
    >>> weights = ClassWeights.empty(3).extended(2, torch.Generator().manual_seed(0))
    >>> later = weights.extended(5, torch.Generator().manual_seed(1))
    >>> bool((later.weight[:2] == weights.weight).all())
    True
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def empty(cls, width: int, device: torch.device | str = "cpu") -> ClassWeights:
        """Return a classifier without classes."""
        return cls(torch.zeros(0, width, device=device), torch.zeros(0, device=device))

    def extended(self, classes: int, source: torch.Generator) -> ClassWeights:
        """Add classes with weights and biases from U(-b, b), b = 1/sqrt(d).

        Parameters
        ----------
        classes : int
            Total number of classes from now on. New ones come last.
        source : torch.Generator
            Random generator.
        """
        known, width = self.weight.shape
        uniform = torch.rand(classes - known, width + 1, generator=source)
        drawn = ((2 * uniform - 1) / width**0.5).to(self.weight)
        return ClassWeights(
            torch.cat([self.weight, drawn[:, :-1]]),
            torch.cat([self.bias, drawn[:, -1]]),
        )

    def of_classes(self, codes: Tensor) -> ClassWeights:
        """Return the classifier restricted to classes with these numbers."""
        codes = codes.to(self.weight.device)
        return ClassWeights(self.weight[codes], self.bias[codes])

    def with_classes(self, codes: Tensor, part: ClassWeights) -> ClassWeights:
        """Return the classifier with the weights of some classes replaced."""
        codes = codes.to(self.weight.device)
        weight = self.weight.clone()
        weight[codes] = part.weight.to(weight)
        bias = self.bias.clone()
        bias[codes] = part.bias.to(bias)
        return ClassWeights(weight, bias)

    def to(self, device: torch.device | str) -> ClassWeights:
        """Return the classifier on another device."""
        return ClassWeights(self.weight.to(device), self.bias.to(device))


class TrainableWeights(nn.Module):
    """Class weights in training: a linear map, or a normalised one.

    The normalised map multiplies rows of length 1 with standardised features and has no
    bias. Standardisation is layer normalisation without learned scale and shift. Logits
    are float32 for features of any precision.

    Parameters
    ----------
    weights : ClassWeights
        Initial weights.
    normalized : bool
        Whether to use the normalised map.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.shared_weights import ClassWeights, TrainableWeights
    >>> weights = ClassWeights(torch.tensor([[3.0, 0.0]]), torch.zeros(1))
    >>> head = TrainableWeights(weights, normalized=True)
    >>> round(head(torch.tensor([[5.0, 1.0]])).item(), 3)
    1.0
    """

    def __init__(self, weights: ClassWeights, *, normalized: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weights.weight.clone())
        if normalized:
            self.bias = None
        else:
            self.bias = nn.Parameter(weights.bias.clone())
        self.normalized = normalized

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (n, C) of features (n, d)."""
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.weight.dtype)
            if self.normalized:
                features = layer_norm(features, features.shape[-1:])
                return linear(features, normalize(self.weight, dim=1))
            return linear(features, self.weight, self.bias)

    def learned(self) -> ClassWeights:
        """Return a copy of the weights."""
        weight = self.weight.detach().clone()
        if self.bias is None:
            return ClassWeights(weight, weight.new_zeros(len(weight)))
        return ClassWeights(weight, self.bias.detach().clone())


@dataclass(frozen=True, eq=False)
class SharedWeightsState:
    """Learned state: class weights, and the modules that change the features.

    Parameters
    ----------
    n_tasks : int
        Number of tasks so far.
    weights : ClassWeights
        The classifier, with classes in order of arrival.
    modules : dict
        States of the modules.
    """

    n_tasks: int
    weights: ClassWeights
    modules: ModuleStates


class TaskNetwork(nn.Module):
    """A backbone and the module that a task trains.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone, from images to features.
    trained : torch.nn.Module
        The module. Its parameters that require gradients are trained.
    """

    def __init__(self, model: nn.Module, trained: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.trained = trained

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, d) of images (n, 3, height, width)."""
        features: Tensor = self.model(images)
        return features


class SharedWeightsClassifier(TaskwiseClassifier):
    """Train a network and the weights of a task's classes by cross-entropy.

    The loss covers the classes of the task only, which is the same as setting all other
    logits to minus infinity. A recurring class continues from its earlier weights.

    Subclasses create the networks for training and prediction (:meth:`_network`). They
    may override which states are kept (:meth:`_learned`).
    """

    normalized: ClassVar[bool] = False
    """Whether to use the normalised map of :class:`TrainableWeights`."""

    @abstractmethod
    def _network(
        self, modules: ModuleStates, task: int | None
    ) -> AbstractContextManager[TaskNetwork]:
        """Create the network of a task, or the prediction network if task is None."""

    def _learned(self, network: TaskNetwork, modules: ModuleStates) -> ModuleStates:
        """Return the module states after a task, given those before it."""
        return {"tuner": copy_state(network.trained)}

    def _loss(self, network: TaskNetwork, logits: Tensor, codes: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.cross_entropy(logits, codes)

    def _task(
        self, items: Items, labels: TaskLabels
    ) -> tuple[SharedWeightsState, Cost]:
        empty = SharedWeightsState(0, ClassWeights.empty(self.base_.n_features), {})
        before: SharedWeightsState = vars(self).get("_state", empty)
        source = generator(self.seed_, self.method, "rows", before.n_tasks)
        weights = before.weights.to(self.device_).extended(labels.n_classes, source)
        present, codes = np.unique(labels.codes, return_inverse=True)
        classes = torch.from_numpy(present)
        with self._network(before.modules, before.n_tasks) as network:
            head = TrainableWeights(
                weights.of_classes(classes), normalized=self.normalized
            )
            cost = self._train(
                nn.Sequential(network, head),
                nn.ModuleList([network.trained, head]),
                items,
                codes.astype(np.int64),
                before.n_tasks,
                loss=lambda logits, targets: self._loss(network, logits, targets),
            )
            modules = self._learned(network, before.modules)
        weights = weights.with_classes(classes, head.learned())
        return SharedWeightsState(before.n_tasks + 1, weights, modules), cost

    @contextmanager
    def _answering(self, state: SharedWeightsState) -> Iterator[nn.Module]:
        with self._network(state.modules, None) as network:
            weights = state.weights.to(self.device_)
            head = TrainableWeights(weights, normalized=self.normalized)
            yield nn.Sequential(network, head)
