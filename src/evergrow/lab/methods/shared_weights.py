"""Methods whose tasks share one linear classifier, each training the weights of its classes on features that change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from evergrow.core.record import Between, Spec, require
from evergrow.core.seeding import generator
from evergrow.data.items import Items
from evergrow.lab.methods.class_weights import ClassWeights, TrainableWeights
from evergrow.lab.methods.cost import Cost
from evergrow.lab.methods.image_classifier import TaskLabels
from evergrow.lab.methods.module_states import ModuleState, ModuleStates
from evergrow.lab.methods.taskwise import TaskwiseClassifier


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


@dataclass(frozen=True, eq=False)
class _Learned:
    n_tasks: Annotated[int, Between(1, 2**53)]
    weight: Annotated[Tensor, Spec(("C", "d"), "float32")]
    bias: Annotated[Tensor, Spec(("C",), "float32")]
    modules: dict[str, ModuleState]


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
        self.model, self.trained = model, trained

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, d) of images (n, 3, height, width)."""
        features: Tensor = self.model(images)
        return features


class SharedWeightsClassifier(TaskwiseClassifier):
    """Trains a network and the weights of a task's classes by cross-entropy over these classes alone.

    That is the same as setting all other logits to minus infinity. The weights of a class that comes again are trained
    on from what they were.

    Subclasses say how a network is made for training (:meth:`_training_network`), which states of its modules stay
    (:meth:`_learned`), and how it is made for answers (:meth:`_answering_network`).
    """

    learned_as: ClassVar[type] = _Learned

    normalized: ClassVar[bool] = False
    """Whether rows have length 1 and features are standardised; see :class:`TrainableWeights`."""
    modules: ClassVar[tuple[str, ...]]
    """Names of the states that :meth:`_learned` gives."""

    @abstractmethod
    def _training_network(self, modules: ModuleStates, task: int) -> AbstractContextManager[TaskNetwork]:
        """Put the network of a task together."""

    @abstractmethod
    def _learned(self, network: TaskNetwork, modules: ModuleStates) -> ModuleStates:
        """Return the states after a task from those before it."""

    @abstractmethod
    def _answering_network(self, modules: ModuleStates) -> AbstractContextManager[TaskNetwork]:
        """Put the network that answers together."""

    def _loss(self, network: TaskNetwork, logits: Tensor, codes: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.cross_entropy(logits, codes)

    def _task(self, items: Items, labels: TaskLabels) -> tuple[SharedWeightsState, Cost]:
        before = self._before()
        source = generator(self.seed_, self.method, "rows", before.n_tasks)
        weights = before.weights.to(self.device_).extended(labels.n_classes, source)
        present, codes = np.unique(labels.codes, return_inverse=True)
        current = torch.from_numpy(present)
        with self._training_network(before.modules, before.n_tasks) as network:
            head = TrainableWeights(weights.of_classes(current), normalized=self.normalized)
            cost = self._train(
                nn.Sequential(network, head),
                nn.ModuleList([network.trained, head]),
                items,
                codes.astype(np.int64),
                before.n_tasks,
                loss=lambda logits, wanted: self._loss(network, logits, wanted),
            )
            modules = self._learned(network, before.modules)
        return SharedWeightsState(before.n_tasks + 1, weights.with_classes(current, head.learned()), modules), cost

    def _before(self) -> SharedWeightsState:
        """Return the state before a task."""
        found: SharedWeightsState | None = vars(self).get("_state")
        return SharedWeightsState(0, ClassWeights.empty(self.base_.n_features), {}) if found is None else found

    @contextmanager
    def _answering(self, state: SharedWeightsState) -> Iterator[nn.Module]:
        with self._answering_network(state.modules) as network:
            head = TrainableWeights(state.weights.to(self.device_), normalized=self.normalized)
            yield nn.Sequential(network, head)

    # -- files ------------------------------------------------------------------------------------------

    def _contents(self) -> _Learned:
        state: SharedWeightsState = self._state
        modules = {name: ModuleState(tensors) for name, tensors in state.modules.items()}
        return _Learned(state.n_tasks, state.weights.weight, state.weights.bias, modules)

    def _read_state(self, learned: _Learned) -> SharedWeightsState:
        require(len(learned.bias) == len(self.arrival_), "it has weights of another number of classes")
        require(learned.weight.shape[1] == self.base_.n_features, "its weights are for features of another width")
        require(set(learned.modules) == set(self.modules), "it lacks a module, or has one too many")
        modules = {name: learned.modules[name].tensors for name in self.modules}
        return SharedWeightsState(learned.n_tasks, ClassWeights(learned.weight, learned.bias), modules)
