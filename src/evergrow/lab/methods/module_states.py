"""States of the modules that a method trains, by name, and their archives."""

from __future__ import annotations

import torch
from torch import Tensor

from evergrow.core.archive import register_kind
from evergrow.core.fields import Fields

ModuleStates = dict[str, dict[str, Tensor]]
"""States of modules by name."""

MODULE = register_kind("module-state")
"""Archives of one module's state."""


def module_state(fields: Fields, name: str, device: torch.device) -> dict[str, Tensor]:
    """Return a module's state out of a file; whoever makes the module checks names and shapes.

    Parameters
    ----------
    fields : Fields
        What the state is inside of.
    name : str
        Its name there.
    device : torch.device
        Where to put it.
    """
    inside = fields.open_part(name, MODULE.name)
    return {key: inside.tensor(key, dtype=None).to(device) for key in inside.tensor_names()}
