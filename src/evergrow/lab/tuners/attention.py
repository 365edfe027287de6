"""Edits of the attention layers of vision transformers.

:class:`AttentionSite` replaces the ``forward`` of one attention module as long as it
has edits. It computes the same as timm's attention, by calling the same submodules, and
passes queries, keys and values to every :class:`AttentionEdit` right before the dot
products. Removing the last edit restores the module's own ``forward``.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from evergrow.adapt.tuners.tuner import (
    Drawer,
    TransformerBlock,
    TunerError,
    UnsupportedModelError,
    layer_parameter,
)


def attention_width(block: TransformerBlock) -> int:
    """Return the total width of all heads of a block's attention."""
    projection = getattr(block.part("attn"), "proj", None)
    if not isinstance(projection, nn.Linear):
        raise UnsupportedModelError(
            f"{block.name}.attn must have a linear map 'proj', "
            f"got {type(projection).__name__}"
        )
    return projection.in_features


def truncated_normal(
    drawer: Drawer,
    shape: tuple[int, ...],
    like: Tensor,
    std: float,
    *purpose: str | int,
) -> nn.Parameter:
    """Draw a parameter from N(0, std), truncated at two standard deviations."""
    stream = drawer.stream(shape, *purpose)
    drawn = torch.zeros(shape)
    if std:  # trunc_normal_ divides by std
        nn.init.trunc_normal_(drawn, std=std, a=-2 * std, b=2 * std, generator=stream)
    return layer_parameter(drawn.to(like))


KNOWN_ATTENTION = {
    ("timm.layers.attention", "Attention"),
    ("timm.layers.attention", "AttentionRope"),
    ("timm.models.vision_transformer", "Attention"),
    ("timm.models.eva", "EvaAttention"),
    ("timm.models.beit", "Attention"),
}
"""Supported attention layers, as pairs of module and class."""

_KNOWN_PARTS = {
    "qkv",
    "q_proj",
    "k_proj",
    "v_proj",
    "q_norm",
    "k_norm",
    "attn_drop",
    "norm",
    "gate",
    "proj",
    "proj_drop",
}
_KNOWN_ARGUMENTS = {"attn_mask", "is_causal", "rope", "shared_rel_pos_bias"}


class AttentionEdit:
    """One change of an attention layer. Subclasses override :meth:`heads`.

    Attributes
    ----------
    tail : int
        Number of tokens at the end of the sequence without a position in the image.
        Rotary embeddings leave them unchanged.
    """

    tail: int = 0

    def heads(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return changed queries, keys and values, each (B, heads, N, head_dim).

        ``x`` (B, N, C) is the input of the layer. Normalisation and rotation were
        applied before, so the dot products use the returned values unchanged. Keys and
        values may be appended at the end.
        """
        return q, k, v


class _EditHandle:
    """Handle that removes one edit from its site."""

    def __init__(self, site: AttentionSite, edit: AttentionEdit) -> None:
        self._site = site
        self._edit = edit

    def remove(self) -> None:
        """Remove the edit."""
        self._site.discard(self._edit)


def is_known_attention(attention: object) -> bool:
    """Return whether :class:`AttentionSite` supports a layer."""
    return (type(attention).__module__, type(attention).__qualname__) in KNOWN_ATTENTION


class AttentionSite:
    """Replacement of the ``forward`` of one timm attention layer.

    Parameters
    ----------
    attention : torch.nn.Module
        A layer of a type in :data:`KNOWN_ATTENTION`.

    Raises
    ------
    UnsupportedModelError
        If the layer is of another type, or has unknown parts or arguments.
    """

    def __init__(self, attention: nn.Module) -> None:
        kind = f"{type(attention).__module__}.{type(attention).__qualname__}"
        if not is_known_attention(attention):
            listed = ", ".join(sorted(".".join(item) for item in KNOWN_ATTENTION))
            raise UnsupportedModelError(
                f"attention must be one of {listed}, got {kind}"
            )
        parts = {name for name, _ in attention.named_children()} - _KNOWN_PARTS
        names = list(inspect.signature(type(attention).forward).parameters)[2:]
        unknown = sorted(parts | (set(names) - _KNOWN_ARGUMENTS))
        if unknown:
            raise UnsupportedModelError(
                "attention must have parts that evergrow knows, "
                f"got {kind} with {unknown}"
            )
        self.attention: Any = attention
        self._names = names
        self._edits: list[AttentionEdit] = []

    @classmethod
    def of(cls, attention: nn.Module) -> AttentionSite:
        """Return the installed site of a layer, or a new one."""
        installed = attention.__dict__.get("forward")
        if installed is None:
            return cls(attention)
        site = getattr(installed, "__self__", None)
        if not isinstance(site, AttentionSite):
            raise UnsupportedModelError(
                "attention must have the forward of its class, but something else "
                "replaced it. Undo that first."
            )
        return site

    def add(self, edit: AttentionEdit) -> _EditHandle:
        """Install an edit after the existing ones and return its handle."""
        self._edits.append(edit)
        self.attention.forward = self.forward
        return _EditHandle(self, edit)

    def discard(self, edit: AttentionEdit) -> None:
        """Remove an edit. Removing the last one restores the layer's own forward."""
        self._edits = [other for other in self._edits if other is not edit]
        if not self._edits:
            self.attention.__dict__.pop("forward", None)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the layer's attention with the edits."""
        options = dict(zip(self._names, args)) | kwargs
        layer = self.attention
        if options.get("attn_mask") is not None or options.get("is_causal"):
            raise TunerError(
                "attention must have no mask while a tuner is enabled, got one. "
                "Disable the tuner."
            )
        q, k, v = self._project(x)
        q = _optional(layer, "q_norm", q)
        k = _optional(layer, "k_norm", k)
        q = self._rotate(q, v, options.get("rope"))
        k = self._rotate(k, v, options.get("rope"))
        groups = getattr(layer, "num_kv_groups", 1)
        if groups > 1:
            k = k.repeat_interleave(groups, dim=1)
            v = v.repeat_interleave(groups, dim=1)
        for edit in self._edits:
            q, k, v = edit.heads(x, q, k, v)
        out = self._attend(q, k, v, options.get("shared_rel_pos_bias"))
        out = _optional(layer, "norm", out.transpose(1, 2).reshape(*x.shape[:2], -1))
        gate = getattr(layer, "gate", None)
        if gate is not None:
            out = out * gate(x).sigmoid()
        return layer.proj_drop(layer.proj(out))  # type: ignore[no-any-return]

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, heads, N, head_dim)."""
        layer = self.attention
        batch, length = x.shape[:2]
        if getattr(layer, "qkv", None) is None:
            n_kv_heads = getattr(layer, "num_kv_heads", layer.num_heads)

            def split(part: Tensor, n_heads: int) -> Tensor:
                return part.reshape(batch, length, n_heads, -1).transpose(1, 2)

            q = split(layer.q_proj(x), layer.num_heads)
            k = split(layer.k_proj(x), n_kv_heads)
            v = split(layer.v_proj(x), n_kv_heads)
            return q, k, v
        qkv = layer.qkv(x)
        if getattr(layer, "q_bias", None) is not None:
            # EVA and BEiT add the bias outside of the projection.
            qkv = qkv + torch.cat((layer.q_bias, layer.k_bias, layer.v_bias))
        heads = qkv.reshape(batch, length, 3, layer.num_heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def _rotate(self, heads: Tensor, v: Tensor, rope: Tensor | None) -> Tensor:
        """Rotate the tokens between the layer's prefix and the tail of the edits."""
        if rope is None:
            return heads
        layer = self.attention
        # Look up the rotation in the layer's own module, so that timm is not imported.
        rotate = getattr(sys.modules[type(layer).__module__], "apply_rot_embed_cat")  # noqa: B009
        options = {"half": True} if getattr(layer, "rotate_half", False) else {}
        first = layer.num_prefix_tokens
        last = heads.shape[2] - sum(edit.tail for edit in self._edits)
        rotated = rotate(heads[:, :, first:last], rope, **options)
        pieces = [heads[:, :, :first], rotated, heads[:, :, last:]]
        return torch.cat(pieces, dim=2).type_as(v)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, shared_bias: Tensor | None
    ) -> Tensor:
        """Return the weighted values (B, heads, N, head_dim)."""
        layer = self.attention
        bias = self._position_bias(shared_bias, k.shape[2] - q.shape[2])
        if layer.fused_attn:
            dropout = layer.attn_drop.p if layer.training else 0.0
            return scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=dropout
            )
        scores: Tensor = (q * layer.scale) @ k.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        weights: Tensor = layer.attn_drop(scores.softmax(dim=-1))
        return weights @ v

    def _position_bias(self, shared: Tensor | None, extra: int) -> Tensor | None:
        """Return the bias of relative positions, if any, padded for appended keys."""
        table = getattr(self.attention, "relative_position_bias_table", None)
        bias = shared
        if table is not None:
            own = self.attention._get_rel_pos_bias()
            bias = own if shared is None else own + shared
        if bias is None or not extra:
            return bias
        return pad(bias, (0, extra))


def _optional(layer: nn.Module, name: str, x: Tensor) -> Tensor:
    """Apply a part of a layer; return x unchanged if the layer has no such part."""
    part = getattr(layer, name, None)
    if part is None:
        return x
    output: Tensor = part(x)
    return output
