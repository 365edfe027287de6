"""y = x * gamma + beta, by channel, after the layers of a backbone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from evergrow.adapt.tuners.attention import AttentionEdit, AttentionSite
from evergrow.adapt.tuners.base import TUNERS, Tuner, layer_parameter
from evergrow.adapt.tuners.drawing import Drawer
from evergrow.adapt.tuners.errors import UnmergeableError, UnsupportedModelError
from evergrow.adapt.tuners.folding import Fold
from evergrow.adapt.tuners.host import Handle
from evergrow.adapt.tuners.ssf.config import SSFConfig
from evergrow.adapt.tuners.ssf.scale_points import ScalePoint, find_scale_points


class ScaleShift(nn.Module):
    """The scale and shift of one point."""

    def __init__(self, point: ScalePoint, std: float, drawer: Drawer) -> None:
        super().__init__()
        like = next((p for p in point.layer.parameters(recurse=False)), torch.empty(0))
        self.gamma = layer_parameter(drawer.normal((point.width,), like, 1.0, std, point.name, "gamma"))
        self.beta = layer_parameter(drawer.normal((point.width,), like, 0.0, std, point.name, "beta"))
        self.dim = point.dim

    def scaled(self, x: Tensor) -> Tensor:
        """Return x * gamma + beta in the type of x; the arithmetic is in the wider of both types."""
        trailing = 0 if self.dim == -1 else x.ndim - 1 - self.dim
        gamma, beta = (value.reshape(-1, *[1] * trailing) for value in (self.gamma, self.beta))
        return torch.addcmul(beta, x, gamma).to(x.dtype)

    def scale_output(self, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Scale what a layer gives."""
        return self.scaled(output)

    def fold(self, point: ScalePoint, fold: Fold) -> None:
        """Plan gamma * W and gamma * b + beta."""
        if not point.absorbs or "bias" not in point.layer._parameters:
            kind = type(point.layer).__name__
            kind += " whose attention adds the bias" if point.attention is not None else ""
            raise UnmergeableError(
                f"{point.name} must have a weight and a bias to absorb scale and shift, got {kind}; "
                "keep the tuner enabled"
            )
        gamma, beta = self.gamma.detach().double(), self.beta.detach().double()
        weight, bias = fold.current(point.layer, "weight"), fold.current(point.layer, "bias")
        scaled = gamma if weight is None else weight * gamma.reshape(-1, *[1] * (weight.ndim - 1))
        fold.plan(point.layer, "weight", scaled)
        fold.plan(point.layer, "bias", beta if bias is None else bias * gamma + beta)


class _ScaledProjection(AttentionEdit):
    """Scales a fused projection whose bias the attention adds."""

    def __init__(self, layer: ScaleShift) -> None:
        self._layer = layer

    def projected(self, x: Tensor, qkv: Tensor) -> Tensor:
        return self._layer.scaled(qkv)


@TUNERS.register("ssf")
class SSFTuner(Tuner):
    """Scale and shift: y = x * gamma + beta, by channel, after every layer that has weights to mix or normalise.

    That is the output of every linear, convolution and normalisation layer except the classifier's. In a vision
    transformer: patch embedding, ``norm1``, ``qkv``, ``attn.proj``, ``norm2``, ``fc1``, ``fc2`` and the final norm. In
    a ResNet: every convolution and every batch norm, on shortcuts too; of norms with a built-in activation, what goes
    into the activation. Folds into weights; layers without a bias are given one. See :class:`SSFConfig`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1)
    >>> counts = create_tuner("ssf", model).trainable_counts()
    >>> list(counts)  # doctest: +NORMALIZE_WHITESPACE
    ['patch_embed.proj', 'blocks.0.norm1', 'blocks.0.attn.qkv', 'blocks.0.attn.proj', 'blocks.0.norm2',
     'blocks.0.mlp.fc1', 'blocks.0.mlp.fc2', 'norm', 'total']
    """

    name = "ssf"
    config_class = SSFConfig
    adapts = True
    mergeable = True

    def _build(self, model: nn.Module) -> None:
        drawer = self._drawer()
        points = list(find_scale_points(model, self.config.layers))
        if not points:
            wanted = f" that match {self.config.layers}" if self.config.layers else ""
            raise UnsupportedModelError(
                f"model must have linear, convolution or normalisation layers{wanted}, got {type(model).__name__}"
            )
        self._pairs = [(point, ScaleShift(point, self.config.std, drawer)) for point in points]
        for point, layer in self._pairs:
            self._plant(point.name, layer)

    def _attach(self) -> Iterator[Handle]:
        for point, layer in self._pairs:
            if point.attention is None:
                yield point.outlet.register_forward_hook(layer.scale_output)
            else:
                yield AttentionSite.of(point.attention).add(_ScaledProjection(layer))

    def _plan(self, fold: Fold) -> None:
        for point, layer in self._pairs:
            layer.fold(point, fold)

    def _touched(self) -> set[nn.Module]:
        return {point.layer for point, _ in self._pairs}
