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

from evergrow.core.fields import Fields
from evergrow.core.items import Items
from evergrow.core.seeding import generator
from evergrow.head.saving import Contents
from evergrow.lab.methods.class_weights import ClassWeights, TrainableWeights
from evergrow.lab.methods.cost import Cost
from evergrow.lab.methods.image_classifier import TaskLabels
from evergrow.lab.methods.module_states import MODULE, ModuleStates, module_state
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

    def _contents(self) -> Contents:
        state: SharedWeightsState = self._state
        return Contents(
            {"n_tasks": state.n_tasks},
            {"weight": state.weights.weight, "bias": state.weights.bias},
            {name: MODULE.archive({}, tensors) for name, tensors in state.modules.items()},
        )

    def _read_state(self, fields: Fields) -> SharedWeightsState:
        shape = (len(self.arrival_), self.base_.n_features)
        weights = ClassWeights(
            fields.tensor("weight", shape, dtype=torch.float32), fields.tensor("bias", shape[:1], dtype=torch.float32)
        )
        modules = {name: module_state(fields, name, self.device_) for name in self.modules}
        return SharedWeightsState(fields.integer("n_tasks", low=1), weights, modules)
