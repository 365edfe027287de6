"""Damaged copies of archives, each with one contradictory value."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from evergrow.core.archive import Archive

WRONG: tuple[Any, ...] = (
    None,
    "",
    "x",
    -1,
    0,
    3,
    2.5,
    10**9,
    10**400,
    True,
    [],
    {},
    [[1]],
    {"x": 1},
    ["x"],
)
"""Values that are of the wrong form in most places."""


def altered(archive: Archive) -> Iterator[tuple[str, Archive]]:
    """Yield copies of an archive, each with one value changed, removed or added."""
    for path in _places(archive.meta):
        for value in WRONG:
            meta = copy.deepcopy(archive.meta)
            _put(meta, path, value)
            if json.dumps(meta) == json.dumps(archive.meta):
                continue
            yield f"{path} = {value!r:.30}", replace(archive, meta=meta)
        meta = copy.deepcopy(archive.meta)
        _remove(meta, path)
        yield f"without {path}", replace(archive, meta=meta)
    for name, tensor in archive.tensors.items():
        for what, other in _tensors(tensor):
            yield (
                f"{name} {what}",
                replace(archive, tensors={**archive.tensors, name: other}),
            )
        rest = {key: value for key, value in archive.tensors.items() if key != name}
        yield f"without {name}", replace(archive, tensors=rest)
        yield (
            f"{name} twice",
            replace(archive, tensors={**archive.tensors, f"{name}.more": tensor}),
        )
    for name, part in archive.parts.items():
        for what, other in altered(part):
            yield (
                f"{name}: {what}",
                replace(archive, parts={**archive.parts, name: other}),
            )
        rest = {key: value for key, value in archive.parts.items() if key != name}
        yield f"without part {name}", replace(archive, parts=rest)
    yield "newer", replace(archive, version=archive.version + 1)
    yield "of another kind", replace(archive, kind="no-such-kind")


def _tensors(stored: Any) -> Iterator[tuple[str, torch.Tensor]]:
    tensor = torch.as_tensor(stored)
    yield "scalar", torch.tensor(1.0)
    yield "empty", tensor.reshape(-1)[:0]
    yield "integers", torch.ones(tensor.shape, dtype=torch.int32)
    yield "flat", tensor.reshape(-1)[None]
    yield "longer", torch.cat([tensor.reshape(1, -1)] * 3)
    if tensor.is_floating_point():
        yield "NaN", torch.full_like(tensor, float("nan"))
        yield "infinite", torch.full_like(tensor, float("inf"))
    else:
        yield "negative", torch.full_like(tensor, -7)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, list):
        inside = enumerate(value)
    else:
        inside = ()
    for key, item in inside:
        yield from _places(item, (*path, key))


def _put(meta: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        meta = meta[key]
    meta[path[-1]] = value


def _remove(meta: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        meta = meta[key]
    del meta[path[-1]]
