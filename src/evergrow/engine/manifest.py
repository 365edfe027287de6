"""The manifest of a data set: its shards and the sample that a first fit grows its layer on, the same for everybody.

It depends on the data, on their division and on a seed, and on nothing else: not on the number of workers, the machine
or the time. Its hash names the results of every shard, so that what was computed for other data is never taken for
these.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json
from evergrow.core.errors import EngineError, FileFormatError, InputError
from evergrow.core.files import atomic_path
from evergrow.core.record import Between, from_document, record, require, to_document, to_values
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number
from evergrow.data import Shard, Source
from evergrow.learner.learning import BLOCK


@dataclass(frozen=True)
class Division:
    """How a data set is divided; the same numbers give the same shards.

    Parameters
    ----------
    rows, size : int
        Most samples and bytes of a shard.
    first_rows : int
        Most samples that the layer of a first fit is grown on, and that a model is calibrated on.
    """

    rows: int = 4096
    size: int = 256 << 20
    first_rows: int = BLOCK

    def __post_init__(self) -> None:
        check_number("rows", self.rows, low=1, integer=True)
        check_number("size", self.size, low=1, integer=True)
        check_number("first_rows", self.first_rows, low=2, integer=True)


@record("engine-manifest")
@dataclass(frozen=True)
class Manifest:
    """A data set in shards.

    Parameters
    ----------
    source : dict
        From which the source is made again; where the data lie is no part of the hash.
    kind : {"image", "text", "features"}
        What the samples are.
    identity : str
        Hash of the data, by the source.
    division : Division
        How it was divided.
    shards : tuple of Shard
        The shards, numbered from 0.
    first : tuple of int or None
        The samples that a layer is grown on, ascending, counted through all shards; None for all.
    widths : tuple of int
        Columns of each block, where samples are features of several.
    unreadable : dict of str to str
        Files of which not even the contents could be listed, with the reason, where such are left out.

    Examples
    --------
    >>> from evergrow.engine.manifest import Division, Manifest
    >>> from evergrow.data import Shard
    >>> shards = (Shard(0, 60, 0), Shard(1, 40, 0))
    >>> manifest = Manifest({}, "features", "0123", Division(first_rows=3), shards, first=(5, 59, 61))
    >>> [manifest.first_of(shard).tolist() for shard in shards]
    [[5, 59], [1]]
    """

    source: dict[str, Any] = field(compare=False)
    kind: str
    identity: str
    division: Division
    shards: tuple[Shard, ...]
    first: tuple[int, ...] | None = None
    widths: tuple[Annotated[int, Between(1, 2**53)], ...] = ()
    unreadable: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise :class:`FileFormatError` where the shards of a file cannot be, or its first samples are not theirs."""
        require(self.kind in ("image", "text", "features"), f"its 'kind' of samples is {self.kind!r:.60}")
        require(bool(self.shards), "it has no shards")
        numbered = [shard.number for shard in self.shards] == list(range(len(self.shards)))
        require(numbered and all(shard.rows > 0 for shard in self.shards), "its shards are empty or not in order")
        if self.first is not None:
            ascending = bool(self.first) and all(a < b for a, b in pairwise(self.first))
            inside = ascending and self.first[-1] < self.rows
            require(inside, "its first samples are not ascending rows of its shards")

    @property
    def rows(self) -> int:
        """Samples in all shards."""
        return sum(shard.rows for shard in self.shards)

    def first_of(self, shard: Shard) -> NDArray[np.int64]:
        """Return the rows of a shard that are among the first, counted from its beginning."""
        if self.first is None:
            return np.arange(shard.rows)
        start = int(self._starts[shard.number])
        low, high = np.searchsorted(self._first, [start, start + shard.rows])
        return self._first[low:high] - start

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        return np.array(self.first or (), dtype=np.int64)

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(shard.rows for shard in self.shards)])[:-1]

    @cached_property
    def key(self) -> str:
        """A hash of everything but where the data lie."""
        return digest_of({name: value for name, value in to_values(self).items() if name != "source"})

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest, in one step."""
        write_json(path, {**to_document(self), "hash": self.key})


def plan(source: Source, division: Division | None = None, seed: int = 0, *, skip: bool = False) -> Manifest:
    """Return the manifest of a data set.

    Parameters
    ----------
    source : Source
        The data.
    division : Division, optional
        How to divide it.
    seed : int
        Of the draw of the first samples.
    skip : bool
        Whether files of which not even the contents can be listed are left out, and named in the manifest.

    Raises
    ------
    InputError
        If it has no samples.
    FileFormatError
        If a file is damaged, and such are not to be left out.
    """
    division, identity = division or Division(), source.identity()
    unreadable: dict[str, str] = {}
    try:
        shards = tuple(source.shards(division.rows, division.size))
    except FileFormatError:
        if not skip or len(source.files) == 1:
            raise
        source, unreadable = source.readable()
        shards = tuple(source.shards(division.rows, division.size))
    if not sum(shard.rows for shard in shards):
        raise InputError("data must hold at least one sample, got none")
    if [shard.number for shard in shards] != list(range(len(shards))):
        raise EngineError("a source must number its shards from 0 on, got other numbers")
    return Manifest(
        source.describe(),
        source.kind,
        identity,
        division,
        shards,
        _drawn(shards, division.first_rows, seed),
        tuple(source.widths),
        unreadable,
    )


def _drawn(shards: Sequence[Shard], most: int, seed: int) -> tuple[int, ...] | None:
    """Return the first samples, drawn evenly from all shards; None where they are all."""
    n = sum(shard.rows for shard in shards)
    if n <= most:
        return None
    draw = np.random.default_rng(derive_seed(seed, "engine", "first rows"))
    return tuple(np.sort(draw.choice(n, size=most, replace=False, shuffle=False)).tolist())


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Return the manifest that a file holds.

    Raises
    ------
    FileFormatError
        If it is no manifest, or was altered.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    values = parse_json(Path(path).read_bytes(), os.fspath(path))
    manifest = from_document(Manifest, values, os.fspath(path))
    if values.get("hash") != manifest.key:
        raise FileFormatError(f"{os.fspath(path)} was altered: its hash is not that of its contents")
    return manifest


def check_same_data(found: Manifest, wanted: Manifest, path: str | os.PathLike[str]) -> None:
    """Raise :class:`EngineError` where a folder has the manifest of other data, or of the same divided otherwise."""
    if found.identity != wanted.identity or found.kind != wanted.kind:
        raise EngineError(
            f"{os.fspath(path)} must be the manifest of these data ({_told(wanted)}), got that of others "
            f"({_told(found)}): choose another folder"
        )
    if found.key != wanted.key:
        otherwise = "another seed, or other files that cannot be read"
        differing = [
            f"{name} {value}" for name, value in vars(found.division).items() if vars(wanted.division)[name] != value
        ]
        raise EngineError(
            f"{os.fspath(path)} must divide these data as asked for, got {', '.join(differing) or otherwise}: "
            "ask for the same or choose another folder"
        )


def _told(manifest: Manifest) -> str:
    return f"{manifest.rows:,} samples of kind {manifest.kind}, identity {manifest.identity[:12]}"


def digest_of(values: dict[str, Any] | Sequence[Any]) -> str:
    """Return a short hash of plain values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def write_json(path: str | os.PathLike[str], values: dict[str, Any]) -> None:
    """Write plain values as one JSON file, in one step."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
