"""Methods that train some parameters in every task and predict with one network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.adapted import shared_copy
from evergrow.adapt.loop import train
from evergrow.adapt.settings import TrainConfig, TrainPrecision
from evergrow.core.seeding import RandomState
from evergrow.data.items import Items
from evergrow.features.image_backbone import ImageBackbone
from evergrow.lab.methods.cost import (
    Cost,
    inference_gflops,
    training_cost,
    training_gflops,
)
from evergrow.lab.methods.image_classifier import ImageClassifier, TaskLabels
from evergrow.lab.methods.tuned_passes import run_network, temporary_tuner


@dataclass(eq=False, repr=False)
class TaskwiseClassifier(ImageClassifier):
    """A classifier that trains a few parameters per task on a frozen backbone.

    Every call of ``fit`` or ``partial_fit`` is a task and creates a new immutable
    state, so a failed task leaves the earlier state. Tuners are attached during a call
    only, to a copy of the backbone that shares its weights.

    Subclasses are dataclasses of their settings. They set ``method`` and ``protocol``
    and implement training (:meth:`_task`) and prediction (:meth:`_answering`).
    """

    method: ClassVar[str]
    protocol: ClassVar[dict[str, Any]] = {}
    """Settings of :class:`TrainConfig` that the published method fixes."""

    backbone: Any = None
    _: KW_ONLY
    epochs: int = 20
    lr: float = 0.001
    batch_size: int = 128
    weight_decay: float = 0.0
    precision: TrainPrecision = "auto"
    workers: int | Literal["auto"] = "auto"
    progress: bool = False
    random_state: RandomState = 0
    device: str | torch.device = "auto"

    @abstractmethod
    def _check_own(self) -> None:
        """Raise :class:`ParameterError` if a setting of the subclass is invalid."""

    @abstractmethod
    def _tuner(self) -> tuple[str, dict[str, Any]]:
        """Return the name and settings of the method's tuner."""

    @abstractmethod
    def _task(self, items: Items, labels: TaskLabels) -> tuple[Any, Cost]:
        """Train on a task; return the new state and the cost."""

    @abstractmethod
    def _answering(self, state: Any) -> AbstractContextManager[nn.Module]:
        """Create the network that returns scores (n, C), for use in ``with``."""

    def _check_params(self) -> None:
        self.config()
        self._check_own()

    def _start(self, backbone: ImageBackbone) -> None:
        name, settings = self._tuner()
        with temporary_tuner(shared_copy(backbone.module), name, settings, None):
            pass  # raises if the tuner does not support the backbone

    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        state, cost = self._task(items, labels)
        with self._answering(state) as network:
            gflops = inference_gflops(network, self.base_.transform.size, self.device_)
        self._state = state
        return replace(cost, inference_gflops=gflops)

    def _scores(self, items: Items) -> Tensor:
        with self._answering(self._state) as network:
            width = len(self.arrival_)
            rows = run_network(self._backbone(), network, items, width)
            return torch.from_numpy(rows)

    def _backbone(self) -> ImageBackbone:
        """Return a copy of the backbone for tuners; it shares the weights."""
        if "_tuned_backbone" not in vars(self):
            module = shared_copy(self.base_.module)
            self._tuned_backbone = ImageBackbone(module, self.base_.spec, self.device_)
        return self._tuned_backbone

    @property
    def _model(self) -> nn.Module:
        return self._backbone().module

    def config(self) -> TrainConfig:
        """Return the training settings."""
        return TrainConfig(
            epochs=self.epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            precision=self.precision,
            workers=self.workers,
            **self.protocol,
        )

    def _train(
        self,
        network: nn.Module,
        trained: nn.Module,
        items: Items,
        codes: NDArray[np.int64],
        task: int,
        loss: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> Cost:
        """Train a module of a network on the images of a task; return the cost."""
        parameters = [item for item in trained.parameters() if item.requires_grad]
        size = self.base_.transform.size
        config = self.config()
        log = train(
            network,
            parameters,
            items,
            codes,
            config,
            preprocessing=self.base_.transform,
            seed=self.seed_,
            purpose=(self.method, task),
            loss=loss,
            progress=self.progress,
        )
        step = training_gflops(
            network, parameters, size, self.device_, loss=loss or cross_entropy
        )
        return training_cost(log, parameters, step)
