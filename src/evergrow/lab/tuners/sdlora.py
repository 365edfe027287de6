"""W + sum over tasks i < t of a_i B_i A_i / (|B_i| |A_i|) + a_t B_t A_t, with scalars a that all layers share."""

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
from evergrow.core.validation import check_number
from evergrow.lab.tuners.lora import LowRankTuner, Slot, check_targets


@dataclass(frozen=True)
class SDLoRAConfig(TunerConfig):
    """Settings of the ``sdlora`` tuner.

    Parameters
    ----------
    rank : int
        Rank of the first task's direction, and of later ones unless said otherwise.
    magnitude : float
        What every scalar is set to when a task starts.
    targets : tuple of str
        Which maps are added to, out of ``"q"``, ``"k"``, ``"v"``, ``"proj"``, ``"fc1"``
        and ``"fc2"``.

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
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("rank", self.rank, low=1, integer=True)
        check_number("magnitude", self.magnitude)
        check_targets(self.targets)


class Scalars(nn.Module):
    """The magnitudes of all tasks, one module for all layers.

    ``values`` (T,) has one scalar per task, and ``task`` (R,) says which task every row
    of the stacked A belongs to.
    """

    task: Tensor

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.put(
            like.new_zeros(0), torch.zeros(0, dtype=torch.long, device=like.device)
        )

    def put(self, values: Tensor, task: Tensor) -> None:
        """Replace both."""
        self.values = layer_parameter(values)
        self.register_buffer("task", task)

    def by_row(self) -> Tensor:
        """Return the scalar of every row."""
        return self.values[self.task]


class SDLoRALayer(nn.Module):
    """The directions of one slot.

    ``A`` (r, in) and ``B`` (out, r) belong to the current task. ``past_rows`` (R', in)
    and ``past_columns`` (out, R') stack the frozen A and B of earlier tasks, each
    scaled to norm 1.
    """

    past_rows: Tensor
    past_columns: Tensor

    def __init__(self, slot: Slot, scalars: Scalars) -> None:
        super().__init__()
        self._slot = slot
        self._scalars = (
            scalars,
        )  # in a tuple, or every layer would register them as its own
        self.resize(0, 0)

    def resize(self, past: int, rank: int) -> None:
        """Make room for ``past`` frozen rows and ``rank`` current ones, all zero."""
        outputs, inputs = self._slot.shape
        like = self._slot.layer.weight
        self.register_buffer("past_rows", like.new_zeros(past, inputs))
        self.register_buffer("past_columns", like.new_zeros(outputs, past))
        self.A = layer_parameter(like.new_zeros(rank, inputs))
        self.B = layer_parameter(like.new_zeros(outputs, rank))

    def start(self, rank: int, drawer: Drawer, task: int) -> None:
        """Freeze the current direction, normalised, and begin another: A drawn, B zero."""
        # A direction that was never trained has B = 0; it stays zero instead of 0 / 0.
        tiny = torch.finfo(self.B.dtype).tiny
        kept_A = torch.cat(
            [self.past_rows, self.A.detach() / self.A.detach().norm().clamp_min(tiny)]
        )
        kept_B = torch.cat(
            [
                self.past_columns,
                self.B.detach() / self.B.detach().norm().clamp_min(tiny),
            ],
            dim=1,
        )
        inputs = self.A.shape[1]
        self.A = drawer.kaiming((rank, inputs), kept_A, self._slot.name, "A", task)
        self.B = drawer.zeros((kept_B.shape[0], rank), kept_B)
        self.past_rows = kept_A
        self.past_columns = kept_B

    def change(self, x: Tensor) -> Tensor:
        """Return the sum over all tasks, by one pair of products."""
        rows = torch.cat([self.past_rows, self.A])
        columns = torch.cat([self.past_columns, self.B], dim=1)
        return linear(linear(x, rows) * self._scalars[0].by_row(), columns)


@TUNERS.register("sdlora")
class SDLoRATuner(LowRankTuner):
    """SD-LoRA: frozen unit directions of earlier tasks with learnable magnitudes, and the current task's direction.

    The first task has begun when the tuner is made; :meth:`start_task` begins each
    later one, of any number. See :class:`SDLoRAConfig`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
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
        """One scalar per task, shared by all layers; the last is the current task's."""
        return self.scalars.values

    @property
    def n_tasks(self) -> int:
        """How many tasks have begun."""
        return int(self.magnitudes.shape[0])

    def _build(self, model: nn.Module) -> None:
        self.scalars = Scalars(next(find_blocks(model)[0].module.parameters()))
        super()._build(model)
        self._begin(self.config.rank)

    def _map(self, slot: Slot, drawer: Drawer) -> nn.Module:
        return SDLoRALayer(slot, self.scalars)

    def start_task(self, rank: int | None = None) -> None:
        """Freeze what the current task learned as a direction, set all magnitudes back and begin a new direction.

        Parameters are new objects afterwards: make a new optimizer.

        Parameters
        ----------
        rank : int, optional
            Rank of the new direction; the configuration's by default.
        """
        wanted = self.config.rank if rank is None else rank
        check_number("rank", wanted, low=1, integer=True)
        self._begin(wanted)

    def _begin(self, rank: int) -> None:
        drawer = self._drawer()
        task = self.n_tasks
        for _, layer in self._pairs:
            layer.start(rank, drawer, task)
        tasks = torch.cat(
            [self.scalars.task, self.scalars.task.new_full((rank,), task)]
        )
        self.scalars.put(
            self.magnitudes.detach().new_full((task + 1,), self.config.magnitude), tasks
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copy parameters from a state of any number of tasks; one that does not fit changes nothing."""
        self._adjust(state_dict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def _adjust(self, state: Mapping[str, Tensor]) -> None:
        """Take over the number and the ranks of the state's tasks."""
        task = state.get("scalars.task")
        values = state.get("scalars.values")
        whole = (
            task is not None
            and values is not None
            and (task.ndim, values.ndim, task.dtype) == (1, 1, torch.long)
        )
        if (
            task is None
            or values is None
            or not whole
            or not _numbered(task, len(values))
        ):
            raise InputError(
                "state of tuner 'sdlora' must have 'scalars.values' and the task of every row"
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
                given = None
                if name in state:
                    given = tuple(state[name].shape)
                if given != shape:
                    raise InputError(
                        f"state of tuner 'sdlora' must have {name!r} of shape {shape}, got {given}"
                    )
        if not torch.equal(task.cpu(), self.scalars.task.cpu()):
            for _, layer in self._pairs:
                layer.resize(past, rank)
            here = self.scalars.task.device
            self.scalars.put(
                self.magnitudes.detach().new_zeros(len(values)), task.to(here)
            )


def _numbered(task: Tensor, count: int) -> bool:
    """Return whether rows belong to tasks 0, 1, ..., one after another, each with at least one row."""
    found = torch.unique_consecutive(task).cpu()
    return count > 0 and torch.equal(found, torch.arange(count))
