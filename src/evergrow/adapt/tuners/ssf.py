"""Scale and shift: y = x * gamma + beta, by channel, after the layers of a backbone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from evergrow.adapt.tuners.tuner import (
    TUNERS,
    Drawer,
    Handle,
    Tuner,
    TunerConfig,
    UnsupportedModelError,
    classifier_modules,
)
from evergrow.core.validation import check_number


@dataclass(frozen=True)
class SSFConfig(TunerConfig):
    """Settings of the ``ssf`` tuner.

    Parameters
    ----------
    std : float
        Standard deviation of the initial scales around 1 and shifts around 0.

    Examples
    --------
    >>> from evergrow.adapt.tuners import SSFConfig
    >>> SSFConfig().std
    0.02
    """

    std: float = 0.02

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` for a value out of range."""
        check_number("std", self.std, low=0)


_RMS = ("RMSNorm", "RmsNorm", "RmsNormFp32", "RmsNorm2d", "RmsNorm2dFp32")


@dataclass(frozen=True)
class ScalePoint:
    """The output of one layer.

    Parameters
    ----------
    name : str
        Path of the layer.
    layer : torch.nn.Module
        The layer.
    width : int
        Its channels.
    dim : int
        Where they lie in its output.
    attention : torch.nn.Module or None
        The attention that adds the layer's bias itself, after the layer.
    """

    name: str
    layer: nn.Module
    width: int
    dim: int
    attention: nn.Module | None = None

    @property
    def outlet(self) -> nn.Module:
        """The module whose output is scaled: timm's norms with an activation have an empty one before that."""
        inner = getattr(self.layer, "drop", None)
        if isinstance(inner, nn.Module) and hasattr(self.layer, "act"):
            return inner
        return self.layer


def find_scale_points(model: nn.Module) -> Iterator[ScalePoint]:
    """Yield the layers of a model that are scaled, in the model's order, or raise :class:`UnsupportedModelError`."""
    heads = classifier_modules(model)
    found = False
    for path, layer in model.named_modules():
        shape = None
        if layer not in heads:
            shape = _channels(path, layer)
        if shape is None:
            continue
        parent_path, _, name = path.rpartition(".")
        parent = model.get_submodule(parent_path)
        if isinstance(parent, nn.MultiheadAttention):
            raise UnsupportedModelError(
                f"{path} must be called by itself to be scaled, but {type(parent).__name__} reads its weights"
            )
        found = True
        outside = name == "qkv" and getattr(parent, "q_bias", None) is not None
        yield ScalePoint(path, layer, *shape, parent if outside else None)
    if not found:
        raise UnsupportedModelError(
            f"model must have linear, convolution or normalisation layers, got {type(model).__name__}"
        )


def _channels(path: str, layer: nn.Module) -> tuple[int, int] | None:
    """Return how many channels a layer gives and in which dimension, None for layers that are not scaled."""
    kind = type(layer).__name__
    if isinstance(layer, nn.Linear):
        return layer.out_features, -1
    if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return layer.out_channels, 1
    if isinstance(layer, _BatchNorm):
        return layer.num_features, 1
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels, 1
    if isinstance(layer, nn.LayerNorm) or kind in _RMS:
        shape = tuple(layer.normalized_shape)  # type: ignore[arg-type]
        if len(shape) != 1:
            raise UnsupportedModelError(
                f"{path} must normalise one dimension to be scaled, got {shape}"
            )
        return int(shape[0]), 1 if "2d" in kind else -1
    return None


class ScaleShift(nn.Module):
    """The scale and shift of one point, also of a fused projection whose bias the attention adds."""

    def __init__(self, point: ScalePoint, std: float, drawer: Drawer) -> None:
        super().__init__()
        like = next((p for p in point.layer.parameters(recurse=False)), torch.empty(0))
        self.gamma = drawer.normal((point.width,), like, 1.0, std, point.name, "gamma")
        self.beta = drawer.normal((point.width,), like, 0.0, std, point.name, "beta")
        self.dim = point.dim  # in a tuple, or it would be a part of the tuner
        self._attention = (point.attention,)

    def scaled(self, x: Tensor) -> Tensor:
        """Return x * gamma + beta in the type of x; the arithmetic is in the wider of both types."""
        trailing = 0 if self.dim == -1 else x.ndim - 1 - self.dim
        gamma, beta = (
            value.reshape(-1, *[1] * trailing) for value in (self.gamma, self.beta)
        )
        return torch.addcmul(beta, x, gamma).to(x.dtype)

    def scale_output(self, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Scale what a layer gives; a bias that its attention adds after it is scaled too."""
        attention: Any = self._attention[0]
        if attention is None:
            return self.scaled(output)
        bias = torch.cat((attention.q_bias, attention.k_bias, attention.v_bias)).to(
            output.dtype
        )
        return self.scaled(output + bias) - bias


@TUNERS.register("ssf")
class SSFTuner(Tuner):
    """Scale and shift: y = x * gamma + beta, by channel, after every layer that has weights to mix or normalise.

    That is the output of every linear, convolution and normalisation layer except the
    classifier's. In a vision transformer: patch embedding, ``norm1``, ``qkv``,
    ``attn.proj``, ``norm2``, ``fc1``, ``fc2`` and the final norm. In a ResNet: every
    convolution and every batch norm, on shortcuts too; of norms with a built-in
    activation, what goes into the activation. See :class:`SSFConfig`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1)
    >>> names = create_tuner("ssf", model).state_dict()
    >>> [name.removeprefix("layers.") for name in names if name.endswith("gamma")]  # doctest: +NORMALIZE_WHITESPACE
    ['patch_embed.proj.gamma', 'blocks.0.norm1.gamma', 'blocks.0.attn.qkv.gamma', 'blocks.0.attn.proj.gamma',
     'blocks.0.norm2.gamma', 'blocks.0.mlp.fc1.gamma', 'blocks.0.mlp.fc2.gamma', 'norm.gamma']
    """

    name = "ssf"
    config_class = SSFConfig
    adapts = True

    def _layers(
        self, model: nn.Module, drawer: Drawer
    ) -> Iterator[tuple[ScalePoint, ScaleShift]]:
        for point in find_scale_points(model):
            yield point, ScaleShift(point, self.config.std, drawer)

    def _attach(self) -> Iterator[Handle]:
        for point, layer in self._pairs:
            yield point.outlet.register_forward_hook(layer.scale_output)
