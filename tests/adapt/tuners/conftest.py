"""Small vision transformers with random weights, and images to show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evergrow.adapt.tuners import Tuner

timm = pytest.importorskip("timm")

SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "num_heads": 3,
    "depth": 2,
    "num_classes": 0,
}

MakeModel = Callable[..., nn.Module]


@pytest.fixture
def make_model() -> MakeModel:
    """Return a function that creates a timm model with reproducible weights."""

    def make(
        name: str = "vit_tiny_patch16_224", small: bool = True, **options: Any
    ) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            model = timm.create_model(
                name, **({**SMALL, **options} if small else options)
            )
            for parameter in (
                model.parameters()
            ):  # norms and biases start at 1 and 0, where mistakes hide
                parameter.data += 0.05 * torch.randn_like(parameter)
        return model.eval()

    return make


@pytest.fixture
def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def shaken() -> Callable[[Tuner], Tuner]:
    """Return a function that moves all parameters of a tuner, so that none is zero."""

    def shake(tuner: Tuner) -> Tuner:
        source = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for parameter in tuner.parameters():
                parameter += (0.2 * torch.randn(parameter.shape, generator=source)).to(
                    parameter
                )
        return tuner

    return shake
