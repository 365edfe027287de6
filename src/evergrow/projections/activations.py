"""Elementwise activations of random units."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evergrow.core.registry import Registry

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: Registry[Activation] = Registry("activation")
ACTIVATIONS.register("sigmoid")(torch.sigmoid)
ACTIVATIONS.register("tanh")(torch.tanh)
ACTIVATIONS.register("relu")(torch.relu)
ACTIVATIONS.register("gelu")(torch.nn.functional.gelu)
ACTIVATIONS.register("cos")(torch.cos)
ACTIVATIONS.register("identity")(lambda x: x)
