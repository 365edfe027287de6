"""From the layout of version 0.1, in which a head was one flat archive, to nested ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from evergrow.core.archive import Archive


def model_part(old: Archive) -> Archive:
    """Migrate from version 1 a head whose tensors are all those of one ridge model."""
    state = dict(old.meta["state"])
    part = Archive("ridge-model", state.pop("model"), old.tensors)
    return nested(old, state, parts={"model": part})


def nested(
    old: Archive,
    state: dict[str, Any],
    tensors: dict[str, Tensor] | None = None,
    parts: dict[str, Archive] | None = None,
) -> Archive:
    """Return a head of version 1 in version 2, in which what it learned lies beside its settings and in parts."""
    meta = {key: value for key, value in old.meta.items() if key != "state"}
    return Archive(old.kind, {**state, **meta}, tensors or {}, parts or {}, version=2)


def split_tensors(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose name has a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
