"""States of the modules that a method trains, by name, and how files hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from evergrow.core.record import Spec, record

ModuleStates = dict[str, dict[str, Tensor]]
"""States of modules by name."""


@record("module-state")
@dataclass(frozen=True, eq=False)
class ModuleState:
    """The state of one module in a file; whoever makes the module checks names and shapes."""

    tensors: dict[str, Annotated[Tensor, Spec(dtype=None)]]
