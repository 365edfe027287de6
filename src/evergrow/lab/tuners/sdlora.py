"""SD-LoRA: low-rank directions of unit norm with learnable magnitudes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from evergrow.adapt.tuners.tuner import (
    TUNERS,
    Drawer,
    TunerConfig,
    find_blocks,
    layer_parameter,
)
from evergrow.core.errors import InputError
from evergrow.core.validation import check_integer, check_number
from evergrow.lab.tuners.lora import LowRankTuner, Slot, check_targets


@dataclass(frozen=True)
class SDLoRAConfig(TunerConfig):
    """Settings of the ``sdlora`` tuner.

    Parameters
    ----------
    rank : int
        Rank of the first task's direction, and the default for later ones.
    magnitude : float
        Initial value of every scalar at the start of a task.
    targets : tuple of str
        Maps to change, from ``"q"``, ``"k"``, ``"v"``, ``"proj"``, ``"fc1"`` and
        ``"fc2"``.

    Examples
    --------
    >>> from evergrow.lab.tuners.sdlora import SDLoRAConfig
    >>> SDLoRAConfig().magnitude
    0.8
    """

    rank: int = 10
    magnitude: float = 0.8
    targets: tuple[str, ...] = ("q", "v")

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if a value is invalid."""
        check_integer("rank", self.rank)
        check_number("magnitude", self.magnitude)
        check_targets(self.targets)


class Scalars(nn.Module):
    """Magnitudes of all tasks, in one module for all layers.

    ``values`` (T,) has one scalar per task. ``task`` (R,) has the task of every row of
    the stacked A.
    """

    task: Tensor

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.put(
            like.new_zeros(0), torch.zeros(0, dtype=torch.long, device=like.device)
        )

    def put(self, values: Tensor, task: Tensor) -> None:
        """Replace both tensors."""
        self.values = layer_parameter(values)
        self.register_buffer("task", task)

    def by_row(self) -> Tensor:
        """Return the scalar of every row."""
        return self.values[self.task]


class SDLoRALayer(nn.Module):
    """Directions of one slot.

    ``A`` (r, in) and ``B`` (out, r) belong to the current task. ``past_rows`` (R', in)
    and ``past_columns`` (out, R') stack the frozen A and B of earlier tasks, each
    scaled to norm 1.
    """

    past_rows: Tensor
    past_columns: Tensor

    def __init__(self, slot: Slot, scalars: Scalars) -> None:
        super().__init__()
        self._slot = slot
        # In a tuple, so that the layer does not register the module as its own.
        self._scalars = (scalars,)
        self.resize(0, 0)

    def resize(self, past: int, rank: int) -> None:
        """Allocate ``past`` frozen rows and ``rank`` current ones, all zero."""
        outputs, inputs = self._slot.shape
        like = self._slot.layer.weight
        self.register_buffer("past_rows", like.new_zeros(past, inputs))
        self.register_buffer("past_columns", like.new_zeros(outputs, past))
        self.A = layer_parameter(like.new_zeros(rank, inputs))
        self.B = layer_parameter(like.new_zeros(outputs, rank))

    def start(self, rank: int, drawer: Drawer, task: int) -> None:
        """Freeze the normalised direction; start one with random A and zero B."""
        # An untrained direction has B = 0. It stays zero instead of 0 / 0.
        tiny = torch.finfo(self.B.dtype).tiny
        unit_A = self.A.detach() / self.A.detach().norm().clamp_min(tiny)
        unit_B = self.B.detach() / self.B.detach().norm().clamp_min(tiny)
        past_rows = torch.cat([self.past_rows, unit_A])
        past_columns = torch.cat([self.past_columns, unit_B], dim=1)
        inputs = self.A.shape[1]
        self.A = drawer.kaiming((rank, inputs), past_rows, self._slot.name, "A", task)
        self.B = drawer.zeros((past_columns.shape[0], rank), past_columns)
        self.past_rows = past_rows
        self.past_columns = past_columns

    def change(self, x: Tensor) -> Tensor:
        """Return the sum over all tasks with one pair of matrix products."""
        rows = torch.cat([self.past_rows, self.A])
        columns = torch.cat([self.past_columns, self.B], dim=1)
        return linear(linear(x, rows) * self._scalars[0].by_row(), columns)


@TUNERS.register("sdlora")
class SDLoRATuner(LowRankTuner):
    """SD-LoRA: frozen unit directions with learnable magnitudes.

    W + sum over tasks i < t of a_i B_i A_i / (|B_i| |A_i|) + a_t B_t A_t, with scalars
    a shared by all layers. A new tuner is in its first task; :meth:`start_task` starts
    each later one. See :class:`SDLoRAConfig`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> tiny = dict(img_size=32, patch_size=8, depth=2)
    >>> model = timm.create_model("vit_tiny_patch16_224", **tiny)
    >>> tuner = create_tuner("sdlora", model, rank=2)
    >>> tuner.start_task()
    >>> tuner.n_tasks, [round(value, 1) for value in tuner.magnitudes.tolist()]
    (2, [0.8, 0.8])
    >>> tuner.n_trainable
    3074
    """

    name = "sdlora"
    config_class = SDLoRAConfig

    @property
    def magnitudes(self) -> Tensor:
        """One scalar per task, shared by all layers. The last is the current task's."""
        return self.scalars.values

    @property
    def n_tasks(self) -> int:
        """Number of tasks started."""
        return int(self.magnitudes.shape[0])

    def _build(self, model: nn.Module) -> None:
        self.scalars = Scalars(next(find_blocks(model)[0].module.parameters()))
        super()._build(model)
        self._begin(self.config.rank)

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        return SDLoRALayer(slot, self.scalars)

    def start_task(self, rank: int | None = None) -> None:
        """Freeze the current direction, reset all magnitudes and start a new direction.

        Parameters are new objects afterwards, so create a new optimizer.

        Parameters
        ----------
        rank : int, optional
            Rank of the new direction. The default is the rank of the settings.
        """
        new_rank = self.config.rank if rank is None else rank
        check_integer("rank", new_rank)
        self._begin(new_rank)

    def _begin(self, rank: int) -> None:
        drawer = self._drawer()
        task = self.n_tasks
        for _, layer in self._pairs:
            layer.start(rank, drawer, task)
        rows = self.scalars.task.new_full((rank,), task)
        values = self.magnitudes.detach().new_full((task + 1,), self.config.magnitude)
        self.scalars.put(values, torch.cat([self.scalars.task, rows]))

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state with any number of tasks. An invalid state changes nothing."""
        self._adjust(state_dict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def _adjust(self, state: Mapping[str, Tensor]) -> None:
        """Adopt the number of tasks and their ranks from a state."""
        task = state.get("scalars.task")
        values = state.get("scalars.values")
        if task is None or values is None or not _are_consistent(task, values):
            raise InputError(
                "state of tuner 'sdlora' must have 'scalars.values' and the task of "
                "every row"
            )
        rank = int((task == task.max()).sum())
        past = len(task) - rank
        for slot, _ in self._pairs:
            outputs, inputs = slot.shape
            shapes = {
                "A": (rank, inputs),
                "B": (outputs, rank),
                "past_rows": (past, inputs),
                "past_columns": (outputs, past),
            }
            for key, shape in shapes.items():
                name = f"layers.{slot.name}.{key}"
                found = tuple(state[name].shape) if name in state else None
                if found != shape:
                    raise InputError(
                        f"state of tuner 'sdlora' must have {name!r} of shape {shape}, "
                        f"got {found}"
                    )
        if not torch.equal(task.cpu(), self.scalars.task.cpu()):
            for _, layer in self._pairs:
                layer.resize(past, rank)
            device = self.scalars.task.device
            zeros = self.magnitudes.detach().new_zeros(len(values))
            self.scalars.put(zeros, task.to(device))


def _are_consistent(task: Tensor, values: Tensor) -> bool:
    """Return whether rows belong to tasks 0, 1, ... in order, each with a value."""
    if task.dtype != torch.long or task.ndim != 1 or values.ndim != 1:
        return False
    found = torch.unique_consecutive(task).cpu()
    return len(values) > 0 and torch.equal(found, torch.arange(len(values)))
