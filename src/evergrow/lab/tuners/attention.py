"""The stand-in for the attention layers of vision transformers, and what tuners change there.

:class:`AttentionSite` stands in for the ``forward`` of one attention module as long as
there is something to change. It computes what timm's attention computes, by calling the
same submodules, and hands queries, keys and values to every :class:`AttentionEdit`
right before the dot products. With no edit left it takes itself off, and the module is
what it was.
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
    """Return the width of all heads of a block's attention together."""
    projection = getattr(block.part("attn"), "proj", None)
    if not isinstance(projection, nn.Linear):
        raise UnsupportedModelError(
            f"{block.name}.attn must have a linear map 'proj', got {type(projection).__name__}"
        )
    return projection.in_features


def truncated(
    drawer: Drawer,
    shape: tuple[int, ...],
    like: Tensor,
    std: float,
    *purpose: str | int,
) -> nn.Parameter:
    """Return a parameter from N(0, std), cut off at two standard deviations; zeros for a std of 0."""
    stream = drawer.stream(shape, *purpose)
    drawn = torch.zeros(shape)
    if std:  # by which torch divides
        nn.init.trunc_normal_(drawn, std=std, a=-2 * std, b=2 * std, generator=stream)
    return layer_parameter(drawn.to(like))


KNOWN_ATTENTION = {
    ("timm.layers.attention", "Attention"),
    ("timm.layers.attention", "AttentionRope"),
    ("timm.models.vision_transformer", "Attention"),
    ("timm.models.eva", "EvaAttention"),
    ("timm.models.beit", "Attention"),
}
"""Attention layers whose arithmetic :class:`AttentionSite` knows, by module and class."""

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
}
_KNOWN_PARTS |= {"proj_drop"}
_KNOWN_ARGUMENTS = {"attn_mask", "is_causal", "rope", "shared_rel_pos_bias"}


class AttentionEdit:
    """One change of an attention layer; subclasses override what they need.

    Attributes
    ----------
    tail : int
        How many tokens at the end of the sequence have no place in the image, so that
        rotary embeddings leave them alone.
    """

    tail: int = 0

    def heads(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, heads, N, head_dim), changed.

        ``x`` (B, N, C) is the layer's input. Norms and rotations are done, so what an
        edit gives is what the dot products see. Keys and values may be added at the
        end.
        """
        return q, k, v


class _EditHandle:
    """Takes one edit off its site."""

    def __init__(self, site: AttentionSite, edit: AttentionEdit) -> None:
        self._site = site
        self._edit = edit

    def remove(self) -> None:
        """Take the edit off."""
        self._site.discard(self._edit)


def is_known_attention(attention: object) -> bool:
    """Return whether :class:`AttentionSite` can stand in for a layer."""
    return (type(attention).__module__, type(attention).__qualname__) in KNOWN_ATTENTION


class AttentionSite:
    """A stand-in for the ``forward`` of one timm attention layer.

    Parameters
    ----------
    attention : torch.nn.Module
        One of :data:`KNOWN_ATTENTION`.

    Raises
    ------
    UnsupportedModelError
        If the layer is of another kind, or has parts or arguments that this version
        does not know.
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
        strange = sorted(parts | (set(names) - _KNOWN_ARGUMENTS))
        if strange:
            raise UnsupportedModelError(
                f"attention must have parts that evergrow knows, got {kind} with {strange}"
            )
        self.attention: Any = attention
        self._names = names
        self._edits: list[AttentionEdit] = []

    @classmethod
    def of(cls, attention: nn.Module) -> AttentionSite:
        """Return the site of a layer, a new one if it has none yet."""
        installed = attention.__dict__.get("forward")
        if installed is None:
            return cls(attention)
        site = getattr(installed, "__self__", None)
        if not isinstance(site, AttentionSite):
            raise UnsupportedModelError(
                "attention must have the forward of its class, got one that something else replaced; undo that first"
            )
        return site

    def add(self, edit: AttentionEdit) -> _EditHandle:
        """Add an edit, after those that are there, and return the handle that takes it off."""
        self._edits.append(edit)
        self.attention.forward = self.forward
        return _EditHandle(self, edit)

    def discard(self, edit: AttentionEdit) -> None:
        """Take an edit off; the last one gives the layer its own forward back."""
        self._edits = [other for other in self._edits if other is not edit]
        if not self._edits:
            self.attention.__dict__.pop("forward", None)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute attention as the layer does, with the edits."""
        given = dict(zip(self._names, args)) | kwargs
        layer = self.attention
        if given.get("attn_mask") is not None or given.get("is_causal"):
            raise TunerError(
                "attention must have no mask with a tuner in it, got one; disable the tuner"
            )
        gate = getattr(layer, "gate", None)
        opening = None
        if gate is not None:
            opening = gate(x).sigmoid()
        q, k, v = self._project(x)
        q = _optional(layer, "q_norm", q)
        k = _optional(layer, "k_norm", k)
        q = self._rotate(q, v, given.get("rope"))
        k = self._rotate(k, v, given.get("rope"))
        groups = getattr(layer, "num_kv_groups", 1)
        if groups > 1:
            k = k.repeat_interleave(groups, dim=1)
            v = v.repeat_interleave(groups, dim=1)
        for edit in self._edits:
            q, k, v = edit.heads(x, q, k, v)
        out = self._attend(q, k, v, given)
        out = _optional(layer, "norm", out.transpose(1, 2).reshape(*x.shape[:2], -1))
        if opening is not None:
            out = out * opening
        return layer.proj_drop(layer.proj(out))  # type: ignore[no-any-return]

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each (B, heads, N, head_dim)."""
        layer = self.attention
        (batch, length) = x.shape[:2]
        if getattr(layer, "qkv", None) is None:
            parts = (layer.q_proj(x), layer.k_proj(x), layer.v_proj(x))
            heads = (
                layer.num_heads,
                *[getattr(layer, "num_kv_heads", layer.num_heads)] * 2,
            )
            q, k, v = (
                part.reshape(batch, length, n, -1).transpose(1, 2)
                for part, n in zip(parts, heads)
            )
            return q, k, v
        qkv = layer.qkv(x)
        if (
            getattr(layer, "q_bias", None) is not None
        ):  # added outside of the projection
            qkv = qkv + torch.cat((layer.q_bias, layer.k_bias, layer.v_bias))
        q, k, v = (
            qkv.reshape(batch, length, 3, layer.num_heads, -1)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        return q, k, v

    def _rotate(self, heads: Tensor, v: Tensor, rope: Tensor | None) -> Tensor:
        """Rotate the tokens that have a place in the image, between the layer's own prefix and the edits' tail."""
        if rope is None:
            return heads
        layer = self.attention
        # The layer's own module has the function it rotates with, so timm need not be
        # imported here.
        rotate = getattr(sys.modules[type(layer).__module__], "apply_rot_embed_cat")  # noqa: B009
        if getattr(layer, "rotate_half", False):
            options = {"half": True}
        else:
            options = {}
        first = layer.num_prefix_tokens
        last = heads.shape[2] - sum(edit.tail for edit in self._edits)
        turned = rotate(heads[:, :, first:last], rope, **options)
        return torch.cat(
            [heads[:, :, :first], turned, heads[:, :, last:]], dim=2
        ).type_as(v)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> Tensor:
        """Return the weighted values (B, heads, N, head_dim)."""
        layer = self.attention
        bias = self._position_bias(
            given.get("shared_rel_pos_bias"), k.shape[2] - q.shape[2]
        )
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
        """Return the bias of relative positions, where there is one; ``extra`` keys at the end have none."""
        table = getattr(self.attention, "relative_position_bias_table", None)
        own = None
        if table is not None:
            own = self.attention._get_rel_pos_bias()
        if own is None:
            bias = shared
        elif shared is None:
            bias = own
        else:
            bias = own + shared
        if bias is None or not extra:
            return bias
        return pad(bias, (0, extra))


def _optional(layer: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return what a part makes of x, x itself where the layer has no such part."""
    part = getattr(layer, name, None)
    if part is None:
        return x
    output: Tensor = part(x)
    return output
