"""Setups that tuners are checked in: small backbones of several kinds, images, parameters that change something."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.adapt.tuners import Tuner, create_tuner
from evergrow.core.errors import MissingExtraError
from evergrow.core.seeding import generator

ModelFactory = Callable[[], nn.Module]

SETTINGS: dict[str, dict[str, Any]] = {
    "adapter": {"bottleneck": 8},
    "lora": {"rank": 4},
    "sdlora": {"rank": 4},
    "vpt-deep": {"tokens": 3},
    "vpt-shallow": {"tokens": 3},
}
"""Settings that tuners are checked with, beyond their defaults."""


def _timm(name: str, **options: Any) -> nn.Module:
    try:
        import timm  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError(
            "checking tuners must have timm to make backbones, got none: pip install timm"
        ) from error
    # timm draws initial weights from the global generator; the caller's is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = timm.create_model(name, **options)
    return model.eval()


_SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "num_heads": 3, "num_classes": 5}

BACKBONES: dict[str, ModelFactory] = {
    "vit": lambda: _timm("vit_tiny_patch16_224", depth=3, **_SMALL),
    "dinov2": lambda: _timm("vit_small_patch14_reg4_dinov2", depth=2, init_values=0.5, **_SMALL),
    # The classifier of these models starts near zero and would let next to no gradient through.
    "eva": lambda: _timm("eva02_tiny_patch14_224", depth=2, **{**_SMALL, "num_classes": 0}),
    # Branches that start at nothing, as is usual, would give the tuner's parts in them no gradient.
    "resnet": lambda: _timm("test_resnet", num_classes=5, zero_init_last=False),
}
"""Small backbones with random weights: plain, with layer scale and registers, with rotary positions, without blocks."""


@dataclass(frozen=True)
class Setup:
    """One kind of tuner and one kind of backbone.

    Parameters
    ----------
    tuner : str
        Name of the tuner.
    model : callable
        Makes the backbone, with the same weights every time, in evaluation mode.
    settings : dict
        Settings of the tuner.
    shape : tuple of int
        Shape of a batch of images.
    """

    tuner: str
    model: ModelFactory
    settings: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (4, 3, 32, 32)

    def images(self) -> Tensor:
        """Return the batch that checks look at."""
        return torch.randn(self.shape, generator=generator(0, "tuner checks", "images"))

    def backward(self, answer: Tensor) -> None:
        """Run a loss backwards in which every output has a weight of its own."""
        weights = torch.randn(answer.shape, generator=generator(0, "tuner checks", "loss"))
        torch.autograd.backward((answer * weights.to(answer)).sum())

    def tuned(self, seed: int = 0, shake: bool = True) -> tuple[nn.Module, Tuner]:
        """Return a model with a tuner on it that, if shaken, does something."""
        model = self.model()
        tuner = create_tuner(self.tuner, model, seed=seed, **self.settings)
        if shake:
            shake_parameters(tuner, seed)
        return model, tuner


def shake_parameters(tuner: Tuner, seed: int = 0) -> None:
    """Move all parameters of a tuner a little: many start at zero and would change nothing."""
    source = generator(seed, "tuner checks", "shake")
    with torch.no_grad():
        for parameter in tuner.parameters():
            parameter.add_((0.1 * torch.randn(parameter.shape, generator=source)).to(parameter))


def weights_digest(model: nn.Module) -> str:
    """Return a hash of everything in a model's state."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
