"""Methods that train something in every task and answer by one network: settings, training, cost, answers."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from evergrow.adapt.fsa import shared_copy
from evergrow.adapt.loop import train
from evergrow.adapt.settings import TrainConfig
from evergrow.core.errors import ParameterError
from evergrow.data.items import Items
from evergrow.features.backbones import ImageBackbone
from evergrow.features.weights import hash_weights
from evergrow.lab.methods.cost import Cost, count_parameters, inference_gflops, training_gflops
from evergrow.lab.methods.image_classifier import ImageClassifier, TaskLabels
from evergrow.lab.methods.tuned_passes import run_network, temporary_tuner

_NOT_DECISIVE = {"backbone", "checkpoint", "device", "progress", "workers", "random_state"}


class TaskwiseClassifier(ImageClassifier):
    """A classifier that trains a few parameters beside a frozen backbone in every task.

    Every call of ``fit`` or ``partial_fit`` is a task. It makes a new state, never changed in place: a task that fails
    leaves the one before. Tuners sit on a copy of the backbone that shares its weights, and only while a call lasts.

    Subclasses set ``method`` and ``protocol`` and say what a task trains (:meth:`_task`), how to answer
    (:meth:`_answering`), and what a file holds.
    """

    method: ClassVar[str]
    protocol: ClassVar[dict[str, Any]] = {}
    """Settings of :class:`TrainConfig` that the published method fixes."""

    epochs: int
    lr: float
    batch_size: int
    weight_decay: float
    precision: Any
    workers: Any
    checkpoint: Any
    progress: bool
    _state: Any

    # -- hooks ------------------------------------------------------------------------------------------

    @abstractmethod
    def _check_own(self) -> None:
        """Raise :class:`ParameterError` for a setting out of range that is none of the training."""

    @abstractmethod
    def _tuner(self) -> tuple[str, dict[str, Any]]:
        """Return kind and settings of the tuner that the method works with."""

    @abstractmethod
    def _task(self, items: Items, labels: TaskLabels) -> tuple[Any, Cost]:
        """Train on a task and return the new state and the cost."""

    @abstractmethod
    def _answering(self, state: Any) -> AbstractContextManager[nn.Module]:
        """Put a network on the backbone that gives scores (n, C), for the time of a ``with`` statement."""

    @abstractmethod
    def _read_state(self, learned: Any) -> Any:
        """Return the state that a ``learned_as`` of a file describes, if it fits the classes and the backbone."""

    # -- what the base asks for -------------------------------------------------------------------------

    def _check_params(self) -> None:
        self.config()
        folder = self.checkpoint
        if folder is not None and (not isinstance(folder, (str, os.PathLike)) or Path(folder).is_file()):
            raise ParameterError(f"checkpoint must be None or a folder, got {folder!r}")
        self._check_own()

    def _start(self, backbone: ImageBackbone) -> None:
        name, settings = self._tuner()
        with temporary_tuner(shared_copy(backbone.module), name, settings, None):
            pass  # a backbone that the tuner cannot serve is refused when it is put on

    def _restore(self, learned: Any) -> None:
        state = self._read_state(learned)
        with self._answering(state):
            pass  # what does not fit the backbone or the settings is refused when it is put together
        self._state = state

    def _reset(self) -> None:
        self.__dict__.pop("_state", None)
        self.__dict__.pop("_twin", None)

    def _learn(self, items: Items, labels: TaskLabels) -> Cost:
        state, cost = self._task(items, labels)
        with self._answering(state) as network:
            gflops = inference_gflops(network, self.base_.transform.size, self.device_)
        self._state = state
        return replace(cost, inference_gflops=gflops)

    def _scores(self, items: Items) -> Tensor:
        with self._answering(self._state) as network:
            return torch.from_numpy(run_network(self._backbone(), network, items, len(self.arrival_)))

    # -- for subclasses ---------------------------------------------------------------------------------

    def _backbone(self) -> ImageBackbone:
        """Return a copy of the backbone to put tuners on, on the device of the method; it shares the weights."""
        if "_twin" not in vars(self):
            self._twin = ImageBackbone(shared_copy(self.base_.module), self.base_.spec, self.device_)
        return self._twin

    @property
    def _model(self) -> nn.Module:
        return self._backbone().module

    def config(self) -> TrainConfig:
        """Return the settings of training."""
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
        """Train a module inside a network on the images of a task and return the cost."""
        parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
        size, config = self.base_.transform.size, self.config()
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
            checkpoint=self._checkpoint(task),
            identity=self._identity(trained),
            progress=self.progress,
        )
        step = training_gflops(network, parameters, size, self.device_, loss=loss or cross_entropy)
        return Cost(
            trainable_parameters=count_parameters(parameters),
            train_seconds=log.seconds,
            train_gflops=step * log.samples,
            epochs=len(log.losses),
            samples=log.samples,
            peak_memory_bytes=log.peak_memory_bytes,
        )

    def _checkpoint(self, task: int) -> Path | None:
        if self.checkpoint is None:
            return None
        folder = Path(self.checkpoint)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.method}-task-{task}.evg"

    def _identity(self, trained: nn.Module) -> dict[str, Any]:
        """Return options, backbone and start, which decide a result beside data and settings of training."""
        given = self.get_params(deep=False)
        return {
            "method": self.method,
            "options": {name: repr(value) for name, value in given.items() if name not in _NOT_DECISIVE},
            "backbone": self.base_.spec.weights_hash,
            "start": hash_weights(trained),
        }
