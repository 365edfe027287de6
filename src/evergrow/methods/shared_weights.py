"""Methods with one classifier whose rows a task trains only for its own classes, on features that change with tasks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from evergrow.core.errors import FileFormatError
from evergrow.core.items import Items
from evergrow.core.seeding import generator
from evergrow.methods.class_rows import ClassRows, RowHead
from evergrow.methods.image_classifier import TaskLabels
from evergrow.methods.taskwise import TaskwiseClassifier
from evergrow.training.cost import Cost

ModuleStates = dict[str, dict[str, Tensor]]
"""What is learned beside the rows: states of modules by name."""


@dataclass(frozen=True, eq=False)
class RowState:
    """What such a method has learned.

    Parameters
    ----------
    n_tasks : int
        Tasks so far.
    rows : ClassRows
        The classifier, in the order of arrival.
    parts : dict
        States of what changes the features.
    """

    n_tasks: int
    rows: ClassRows
    parts: ModuleStates


class TaskNetwork(nn.Module):
    """A backbone with what a task trains beside it.

    Parameters
    ----------
    model : torch.nn.Module
        The backbone, from images to features.
    trained : torch.nn.Module
        What the task trains; its parameters that require gradients.
    """

    def __init__(self, model: nn.Module, trained: nn.Module) -> None:
        super().__init__()
        self.model, self.trained = model, trained

    def forward(self, images: Tensor) -> Tensor:
        """Return features (n, d) of images (n, 3, height, width)."""
        features: Tensor = self.model(images)
        return features


class RowClassifier(TaskwiseClassifier):
    """Trains a body and the rows of a task's classes by cross-entropy over these classes alone.

    That is the same as setting all other logits to minus infinity. Rows of a class that comes again are trained on from
    what they were.

    Subclasses say how a body is made for training (:meth:`_training_body`), what is kept of it (:meth:`_learned`) and
    how it is made for answers (:meth:`_answering_body`).
    """

    normalized: ClassVar[bool] = False
    """Whether rows have length 1 and features are standardised; see :class:`RowHead`."""

    @abstractmethod
    def _training_body(self, parts: ModuleStates, task: int) -> AbstractContextManager[TaskNetwork]:
        """Put the body of a task on the backbone."""

    @abstractmethod
    def _learned(self, body: TaskNetwork, parts: ModuleStates) -> ModuleStates:
        """Return the parts after a task from those before it."""

    @abstractmethod
    def _answering_body(self, parts: ModuleStates) -> AbstractContextManager[TaskNetwork]:
        """Put the body that answers on the backbone."""

    def _loss(self, body: TaskNetwork, logits: Tensor, codes: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.cross_entropy(logits, codes)

    def _task(self, items: Items, labels: TaskLabels) -> tuple[RowState, Cost]:
        before = self._before()
        source = generator(self.seed_, self.method, "rows", before.n_tasks)
        rows = before.rows.to(self.device_).extended(labels.n_classes, source)
        present, codes = np.unique(labels.codes, return_inverse=True)
        current = torch.from_numpy(present)
        with self._training_body(before.parts, before.n_tasks) as body:
            head = RowHead(rows.of(current), normalized=self.normalized)
            cost = self._train(
                nn.Sequential(body, head),
                nn.ModuleList([body.trained, head]),
                items,
                codes.astype(np.int64),
                before.n_tasks,
                loss=lambda logits, wanted: self._loss(body, logits, wanted),
            )
            parts = self._learned(body, before.parts)
        return RowState(before.n_tasks + 1, rows.replaced(current, head.rows()), parts), cost

    def _before(self) -> RowState:
        """Return what was learned so far."""
        found: RowState | None = vars(self).get("_state")
        return RowState(0, ClassRows.empty(self.base_.n_features), {}) if found is None else found

    @contextmanager
    def _answering(self, state: RowState) -> Iterator[nn.Module]:
        with self._answering_body(state.parts) as body:
            yield nn.Sequential(body, RowHead(state.rows.to(self.device_), normalized=self.normalized))

    # -- files ------------------------------------------------------------------------------------------

    def _export(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        state: RowState = self._state
        tensors = {"rows.weight": state.rows.weight, "rows.bias": state.rows.bias}
        for part, entries in state.parts.items():
            tensors |= {f"{part}/{name}": tensor for name, tensor in entries.items()}
        return tensors, {"n_tasks": state.n_tasks, "parts": sorted(state.parts)}

    def _import(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        parts: ModuleStates = {part: {} for part in meta["parts"]}
        for name, tensor in tensors.items():
            part, _, entry = name.partition("/")
            if entry:
                parts[part][entry] = tensor.to(self.device_)
        rows = ClassRows(tensors["rows.weight"], tensors["rows.bias"]).to(self.device_)
        if rows.weight.shape != (len(self.arrival_), self.base_.n_features):
            raise FileFormatError(
                f"rows of the classifier must be {(len(self.arrival_), self.base_.n_features)}, "
                f"got {tuple(rows.weight.shape)}"
            )
        self._state = RowState(int(meta["n_tasks"]), rows, parts)
