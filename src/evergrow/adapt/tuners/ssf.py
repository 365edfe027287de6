"""Scale and shift: y = x * gamma + beta per channel, after the layers."""

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
    std : float, default=0.02
        Standard deviation of the initial scales around 1 and of the shifts around 0.

    Examples
    --------
    >>> from evergrow.adapt.tuners import SSFConfig
    >>> SSFConfig().std
    0.02
    """

    std: float = 0.02

    def check(self) -> None:
        """Raise :class:`~evergrow.core.errors.ParameterError` if out of range."""
        check_number("std", self.std, low=0)


_RMS_NORMS = ("RMSNorm", "RmsNorm", "RmsNormFp32", "RmsNorm2d", "RmsNorm2dFp32")
"""Names of the classes of RMS norms in torch and timm."""


@dataclass(frozen=True)
class ScalePoint:
    """A layer whose output is scaled.

    Parameters
    ----------
    name : str
        Path of the layer.
    layer : torch.nn.Module
        The layer.
    width : int
        Number of channels.
    dim : int
        Dimension of the channels in the output.
    attention : torch.nn.Module or None
        The attention layer, if it adds the layer's bias after the layer.
    """

    name: str
    layer: nn.Module
    width: int
    dim: int
    attention: nn.Module | None = None

    @property
    def outlet(self) -> nn.Module:
        """Module whose output is scaled: the layer, or a part of it.

        In timm's norms with an activation it is ``drop``, just before the activation.
        """
        inner = getattr(self.layer, "drop", None)
        if isinstance(inner, nn.Module) and hasattr(self.layer, "act"):
            return inner
        return self.layer


def find_scale_points(model: nn.Module) -> Iterator[ScalePoint]:
    """Yield the layers to scale, in the model's order.

    Raises
    ------
    UnsupportedModelError
        If no layer can be scaled, or weights are read without calling their layer.
    """
    heads = classifier_modules(model)
    found = False
    for path, layer in model.named_modules():
        if layer in heads:
            continue
        channels = _channels(path, layer)
        if channels is None:
            continue
        parent_path, _, name = path.rpartition(".")
        parent = model.get_submodule(parent_path)
        if isinstance(parent, nn.MultiheadAttention):
            raise UnsupportedModelError(
                f"{path} must be called by itself to be scaled, "
                f"but {type(parent).__name__} reads its weights"
            )
        found = True
        attention = None
        if name == "qkv" and getattr(parent, "q_bias", None) is not None:
            attention = parent
        yield ScalePoint(path, layer, *channels, attention)
    if not found:
        raise UnsupportedModelError(
            "model must have linear, convolution or normalisation layers, "
            f"got {type(model).__name__}"
        )


def _channels(path: str, layer: nn.Module) -> tuple[int, int] | None:
    """Return number and dimension of the channels in a layer's output.

    None if layers of this kind are not scaled.
    """
    kind = type(layer).__name__
    if isinstance(layer, nn.Linear):
        return layer.out_features, -1
    if isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return layer.out_channels, 1
    if isinstance(layer, _BatchNorm):
        return layer.num_features, 1
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels, 1
    if isinstance(layer, nn.LayerNorm) or kind in _RMS_NORMS:
        shape = tuple(layer.normalized_shape)  # type: ignore[arg-type]
        if len(shape) != 1:
            raise UnsupportedModelError(
                f"{path} must normalise one dimension to be scaled, got {shape}"
            )
        return int(shape[0]), 1 if "2d" in kind else -1
    return None


class ScaleShift(nn.Module):
    """Scale and shift of one layer, and the hook that applies them.

    Parameters
    ----------
    point : ScalePoint
        The layer.
    std : float
        Standard deviation of the initial values; see :class:`SSFConfig`.
    drawer : Drawer
        Draws the initial values.
    """

    def __init__(self, point: ScalePoint, std: float, drawer: Drawer) -> None:
        super().__init__()
        like = next(point.layer.parameters(recurse=False), torch.empty(0))
        self.gamma = drawer.normal((point.width,), like, 1.0, std, point.name, "gamma")
        self.beta = drawer.normal((point.width,), like, 0.0, std, point.name, "beta")
        self.dim = point.dim
        # In a tuple, so that it is not registered as a submodule.
        self._attention = (point.attention,)

    def scaled(self, x: Tensor) -> Tensor:
        """Return x * gamma + beta in the dtype of x, computed in the wider dtype."""
        trailing = 0 if self.dim == -1 else x.ndim - 1 - self.dim
        gamma, beta = (
            value.reshape(-1, *[1] * trailing) for value in (self.gamma, self.beta)
        )
        return torch.addcmul(beta, x, gamma).to(x.dtype)

    def scale_output(self, layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        """Return the scaled output of a layer. A hook of torch.

        A bias that the attention adds afterwards is scaled too.
        """
        attention: Any = self._attention[0]
        if attention is None:
            return self.scaled(output)
        bias = torch.cat((attention.q_bias, attention.k_bias, attention.v_bias)).to(
            output.dtype
        )
        return self.scaled(output + bias) - bias


@TUNERS.register("ssf")
class SSFTuner(Tuner):
    """Scale and shift every channel after the layers of a backbone.

    y = x * gamma + beta applies to the output of every linear, convolution and
    normalisation layer except the classifier's. In a vision transformer: patch
    embedding, ``norm1``, ``qkv``, ``attn.proj``, ``norm2``, ``fc1``, ``fc2`` and the
    final norm. In a ResNet: every convolution and every batch norm, on shortcuts too.
    For norms with a built-in activation, the input of the activation is scaled. See
    :class:`SSFConfig`.

    Examples
    --------
    >>> import timm
    >>> from evergrow.adapt.tuners import create_tuner
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    >>> names = create_tuner("ssf", model).state_dict()
    >>> [name.removeprefix("layers.") for name in names if name.endswith("gamma")]
    ['patch_embed.proj.gamma', 'blocks.0.norm1.gamma', 'blocks.0.attn.qkv.gamma',
     'blocks.0.attn.proj.gamma', 'blocks.0.norm2.gamma', 'blocks.0.mlp.fc1.gamma',
     'blocks.0.mlp.fc2.gamma', 'norm.gamma']

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
