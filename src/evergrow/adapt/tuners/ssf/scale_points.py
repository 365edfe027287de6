"""Which layers of a backbone are scaled, where their channels lie, and what their weights can absorb."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from evergrow.adapt.tuners.attention import fused_bias, is_known_attention
from evergrow.adapt.tuners.errors import UnsupportedModelError
from evergrow.adapt.tuners.host import classifier_modules

_RMS = ("RMSNorm", "RmsNorm", "RmsNormFp32", "RmsNorm2d", "RmsNorm2dFp32")
_ABSORBING = {
    *("Linear", "Conv1d", "Conv2d", "Conv3d", "Conv2dSame", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"),
    *("LayerNorm", "LayerNormFp32", "LayerNorm2d", "LayerNorm2dFp32", "LayerNormExp2d", "GroupNorm", "GroupNorm1"),
    *("BatchNormAct2d", "GroupNormAct", "GroupNorm1Act", "LayerNormAct", "LayerNormAct2d"),
    *("LayerNormActFp32", "LayerNormAct2dFp32"),
}


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
        The attention that adds the layer's bias itself; its fused projection is changed there.
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
        return inner if isinstance(inner, nn.Module) and hasattr(self.layer, "act") else self.layer

    @property
    def absorbs(self) -> bool:
        """Whether weight and bias can do the scaling; standardised or otherwise derived weights cannot."""
        return self.attention is None and type(self.layer).__name__ in _ABSORBING


def find_scale_points(model: nn.Module, patterns: tuple[str, ...] | None) -> Iterator[ScalePoint]:
    """Yield the layers of a model that are scaled, in the model's order."""
    heads = classifier_modules(model)
    for path, layer in model.named_modules():
        shape = None if layer in heads else _channels(path, layer)
        if shape is None or (patterns and not any(fnmatchcase(path, pattern) for pattern in patterns)):
            continue
        parent_path, _, name = path.rpartition(".")
        parent = model.get_submodule(parent_path)
        elsewhere = name == "qkv" and fused_bias(parent) is not None
        if isinstance(parent, nn.MultiheadAttention) or (elsewhere and not is_known_attention(parent)):
            raise UnsupportedModelError(
                f"{path} must be called by itself to be scaled, got a part that {type(parent).__name__} reads the "
                "weights of; leave it out with the setting layers"
            )
        yield ScalePoint(path, layer, *shape, parent if elsewhere else None)


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
            raise UnsupportedModelError(f"{path} must normalise one dimension to be scaled, got {shape}")
        return int(shape[0]), 1 if "2d" in kind else -1
    return None
