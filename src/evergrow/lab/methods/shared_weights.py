"""Methods whose tasks share one linear classifier, each training the weights of its classes on features that change."""

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
"""States of the modules that a method trains, by name."""


@dataclass(frozen=True, eq=False)
class ClassWeights:
    """A linear classifier with one row of weights per class; never changed in place.

    Parameters
    ----------
    weight : Tensor of shape (C, d)
        The rows.
    bias : Tensor of shape (C,)
        Their biases; zero and not trained where a method has none.

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
        """Return a classifier of no classes."""
        return cls(torch.zeros(0, width, device=device), torch.zeros(0, device=device))

    def extended(self, classes: int, source: torch.Generator) -> ClassWeights:
        """Return the classifier of more classes; new rows and biases are drawn from U(-b, b), b = 1/sqrt(d).

        Parameters
        ----------
        classes : int
            How many there are from now on; the new ones come last.
        source : torch.Generator
            Where the draws come from.
        """
        known, width = self.weight.shape
        drawn = (
            2 * torch.rand(classes - known, width + 1, generator=source) - 1
        ) / width**0.5
        drawn = drawn.to(self.weight)
        return ClassWeights(
            torch.cat([self.weight, drawn[:, :-1]]),
            torch.cat([self.bias, drawn[:, -1]]),
        )

    def of_classes(self, codes: Tensor) -> ClassWeights:
        """Return the classifier of some classes only, given by their numbers."""
        codes = codes.to(self.weight.device)
        return ClassWeights(self.weight[codes], self.bias[codes])

    def with_classes(self, codes: Tensor, part: ClassWeights) -> ClassWeights:
        """Return the classifier with the weights of some classes replaced."""
        codes = codes.to(self.weight.device)
        weight = self.weight.clone()
        bias = self.bias.clone()
        weight[codes], bias[codes] = part.weight.to(weight), part.bias.to(bias)
        return ClassWeights(weight, bias)

    def to(self, device: torch.device | str) -> ClassWeights:
        """Return the classifier on another device."""
        return ClassWeights(self.weight.to(device), self.bias.to(device))


class TrainableWeights(nn.Module):
    """Class weights in training: a linear map with bias, or the product of rows of length 1 with standard features.

    Standardising is layer normalisation without a learned scale and shift. Logits are
    computed in float32 whatever the features came in.

    Parameters
    ----------
    weights : ClassWeights
        Where to start.
    normalized : bool
        Which of the two; the second has no bias.

    Examples
    --------
    >>> import torch
    >>> from evergrow.lab.methods.shared_weights import ClassWeights, TrainableWeights
    >>> head = TrainableWeights(ClassWeights(torch.tensor([[3.0, 0.0]]), torch.zeros(1)), normalized=True)
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
                return linear(
                    layer_norm(features, features.shape[-1:]),
                    normalize(self.weight, dim=1),
                )
            return linear(features, self.weight, self.bias)

    def learned(self) -> ClassWeights:
        """Return a copy of the weights."""
        weight = self.weight.detach().clone()
        return ClassWeights(
            weight,
            weight.new_zeros(len(weight))
            if self.bias is None
            else self.bias.detach().clone(),
        )


@dataclass(frozen=True, eq=False)
class SharedWeightsState:
    """The state of such a method: class weights, and the modules that change the features.

    Parameters
    ----------
    n_tasks : int
        Tasks so far.
    weights : ClassWeights
        The classifier, in the order of arrival.
    modules : dict
        States of what changes the features.
    """

    n_tasks: int
    weights: ClassWeights
    modules: ModuleStates


class TaskNetwork(nn.Module):
    """A backbone with the module that a task trains beside it.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone, from images to features.
    trained : torch.nn.Module
        The module; those of its parameters that require gradients are trained.
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
    """Trains a network and the weights of a task's classes by cross-entropy over these classes alone.

    That is the same as setting all other logits to minus infinity. The weights of a
    class that comes again are trained on from what they were.

    Subclasses say how the network of a task and the one that answers are made
    (:meth:`_network`), and which states of its modules stay where it is not simply that
    of what was trained (:meth:`_learned`).
    """

    normalized: ClassVar[bool] = False
    """Whether rows have length 1 and features are standardised; see :class:`TrainableWeights`."""

    @abstractmethod
    def _network(
        self, modules: ModuleStates, task: int | None
    ) -> AbstractContextManager[TaskNetwork]:
        """Put the network of a task together, or for None the one that answers."""

    def _learned(self, network: TaskNetwork, modules: ModuleStates) -> ModuleStates:
        """Return the states after a task from those before it."""
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
        current = torch.from_numpy(present)
        with self._network(before.modules, before.n_tasks) as network:
            head = TrainableWeights(
                weights.of_classes(current), normalized=self.normalized
            )
            cost = self._train(
                nn.Sequential(network, head),
                nn.ModuleList([network.trained, head]),
                items,
                codes.astype(np.int64),
                before.n_tasks,
                loss=lambda logits, wanted: self._loss(network, logits, wanted),
            )
            modules = self._learned(network, before.modules)
        return SharedWeightsState(
            before.n_tasks + 1, weights.with_classes(current, head.learned()), modules
        ), cost

    @contextmanager
    def _answering(self, state: SharedWeightsState) -> Iterator[nn.Module]:
        with self._network(state.modules, None) as network:
            head = TrainableWeights(
                state.weights.to(self.device_), normalized=self.normalized
            )
            yield nn.Sequential(network, head)
