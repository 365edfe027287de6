"""The feature cache: no features are computed twice.

An entry is a folder, named by a hash of what decides the features: the items (by name,
size and time of change), the backbone with its weights and preprocessing, and the
precision asked for. It can therefore never be out of date, only unused. Every
:data:`CHUNK` items are one file, written beside its place and renamed into it, with one
tensor for each block of each view, mirror images apart, so that recipes use what others
left; ``meta.json`` tells people what the entry is. Of a chunk that lacks blocks only
those are computed, and one that is damaged is computed again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from evergrow.core.archive import parse_json, read_header
from evergrow.core.errors import (
    BusyError,
    CacheWarning,
    FileFormatError,
    NewerSchemaError,
    ParameterError,
)
from evergrow.core.files import atomic_path, remove_leftovers
from evergrow.core.record import (
    UNWRITTEN,
    Spec,
    check_kind,
    from_values,
    read_record,
    record,
    require,
    to_values,
    write_record,
)
from evergrow.data.items import Items
from evergrow.features.backbone import BackboneSpec, Precision
from evergrow.features.batches import Failure
from evergrow.features.recipe import FeatureRecipe

VARIABLE = "EVERGROW_CACHE"
"""Environment variable that names the folder of the cache."""

CHUNK = 1024
"""Items in a file; a killed process loses at most one file."""

_LOG = logging.getLogger(__name__)
_META = "meta.json"
_FORMAT = 3
_KEY = re.compile(r"[0-9a-f]{32}")
_LARGEST = 2**31  # bytes of a chunk: a larger file is not read


def default_root() -> Path:
    """Return the folder of the cache: ``EVERGROW_CACHE``, or ``evergrow`` in ``~/.cache``, as torch and the hub do it.

    Examples
    --------
    >>> import os
    >>> from evergrow.features.cache import default_root
    >>> os.environ["EVERGROW_CACHE"] = "somewhere"
    >>> default_root().as_posix()
    'somewhere'
    >>> del os.environ["EVERGROW_CACHE"]
    """
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(
        os.environ.get(VARIABLE) or os.path.join(shared, "evergrow")
    ).expanduser()


def feature_key(stamp: str, spec: BackboneSpec, policy: str) -> str:
    """Return the key of the features that a backbone makes of some items, whichever blocks are read.

    Parameters
    ----------
    stamp : str
        Stamp of the items.
    spec : BackboneSpec
        The backbone. What its weights are counts, not where they came from; its recipe
        does not count, since every chunk keeps its blocks apart.
    policy : str
        Requested precision (:attr:`evergrow.features.EncodeConfig.precision`).

    Examples
    --------
    >>> from evergrow.features.backbone import BackboneSpec
    >>> from evergrow.features.cache import feature_key
    >>> spec = BackboneSpec("toy", "image", 8, "random", "ab12", "timm", {}, {})
    >>> feature_key("00", spec, "auto") == feature_key("01", spec, "auto")
    False
    """
    decisive = {
        name: value
        for name, value in spec.decisive().items()
        if name not in ("recipe", "n_features")
    }
    text = json.dumps([_FORMAT, stamp, decisive, policy], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class ChunkHead:
    """A chunk without its features: names of blocks, precision and failures."""

    names: tuple[str, ...]
    precision: Precision
    failures: tuple[Failure, ...] = ()


@record("feature-chunk")
@dataclass(frozen=True, eq=False)
class Chunk(ChunkHead):
    """Features of consecutive items, as a file holds them.

    Parameters
    ----------
    names : tuple of str
        Blocks that there are.
    precision : {"float32", "float16"}
        What the backbone was run at.
    failures : tuple of Failure
        Items that could not be read.
    blocks : dict of str to ndarray of shape (n, width)
        Every block of the other items, as the network gave it.
    computed : int
        Items that went through the backbone in this call.
    """

    blocks: dict[
        str, Annotated[NDArray[np.float32], Spec(("n", None), dtype="float32")]
    ] = field(default_factory=dict)
    computed: int = field(default=0, metadata=UNWRITTEN)

    def check(self) -> None:
        """Raise unless the blocks have the stated names."""
        require(
            sorted(self.names) == sorted(self.blocks),
            "its blocks are not those that it names",
        )

    def joined(self, other: Chunk) -> Chunk:
        """Return all blocks of two chunks of the same items; if the two do not match, the first chunk."""
        if (self.precision, self.failures) != (other.precision, other.failures):
            return self
        blocks = {**other.blocks, **self.blocks}
        return replace(self, names=tuple(blocks), blocks=blocks)


class CacheEntry:
    """A folder of the cache.

    Parameters
    ----------
    folder : Path
        The folder; it need not exist.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from evergrow.features.recipe import FeatureRecipe
    >>> from evergrow.features.cache import CacheEntry, CacheInfo, Chunk
    >>> features = np.ones((3, 2), dtype=np.float32)
    >>> with tempfile.TemporaryDirectory() as root:
    ...     entry = CacheEntry(pathlib.Path(root, "key"))
    ...     entry.begin(CacheInfo())
    ...     entry.store(range(3), Chunk(("final",), "float32", (), {"final": features}))
    ...     entry.load(range(3), FeatureRecipe(("final",), (2,))).blocks["final"].shape
    (3, 2)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def writing(self, *, wait: bool = True) -> Iterator[None]:
        """Lock the entry, so that no other process computes the same features; if it stays empty, it is removed.

        Parameters
        ----------
        wait : bool
            Whether to wait for another process that holds it, instead of raising
            :class:`BusyError`.
        """
        from filelock import FileLock, Timeout

        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder.with_name(f"{self.folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            if not wait:
                raise BusyError(
                    f"{self.folder} is being written by another process"
                ) from error
            _LOG.warning(
                "waiting for another process that computes the same features (%s)",
                self.folder.name[:12],
            )
            lock.acquire()
        try:
            yield
        finally:
            if self.folder.is_dir() and not self.chunks():
                shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(
                OSError
            ):  # a waiting process computes, at worst, the same again
                Path(lock.lock_file).unlink()
            lock.release()

    def begin(self, about: CacheInfo) -> None:
        """Create the folder and its ``meta.json``; partial files of a killed process are removed."""
        if self.folder.is_symlink():
            raise OSError(
                f"{self.folder} is a link; the cache writes to folders of its own only"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        if not (self.folder / _META).is_file():
            with atomic_path(self.folder / _META) as path:
                path.write_text(
                    json.dumps(to_values(about), indent=1) + "\n", encoding="utf-8"
                )

    def info(self) -> CacheInfo:
        """Return its description, or raise :class:`FileNotFoundError` if there is no such entry."""
        about = CacheInfo()
        path = self.folder / _META
        if (
            path.is_file() and not path.is_symlink()
        ):  # opening a pipe would wait for its writer
            with suppress(FileFormatError, OSError):  # a damaged one only tells less
                about = from_values(
                    CacheInfo, parse_json(path.read_bytes(), _META), _META
                )
        size = sum(
            item.stat(follow_symlinks=False).st_size for item in os.scandir(self.folder)
        )
        age = max(time.time() - self.folder.stat().st_mtime, 0.0)
        return replace(about, key=self.folder.name, bytes=size, age_seconds=age)

    def chunks(self) -> list[Path]:
        """Return the files of chunks, in the order of their rows."""
        return sorted(self.folder.glob("[0-9]*.safetensors"))

    def stored(self, chunks: Sequence[range]) -> dict[range, ChunkHead]:
        """Return the heads of the chunks that are stored; no features are read.

        Raises
        ------
        NewerSchemaError
            If a newer evergrow wrote one. A damaged one is left out, with a warning.
        """
        found: dict[range, ChunkHead] = {}
        for rows in chunks:
            if os.path.lexists(self._path(rows)):
                with self._damage_is_warned_of():
                    found[rows] = _head(self._path(rows))
        return found

    def load(self, rows: range, recipe: FeatureRecipe) -> Chunk | None:
        """Return a chunk that is there, or None if it is damaged or has other widths than a recipe, with a warning."""
        path = self._path(rows)
        with self._damage_is_warned_of():
            _check_file(path)
            stored = read_record(Chunk, path)
            wrong = [failure.row for failure in stored.failures]
            if wrong != sorted(set(wrong) & set(rows)):
                raise FileFormatError(
                    f"{path.name} has failures that are not those of its rows"
                )
            if any(
                len(block) != len(rows) - len(wrong) for block in stored.blocks.values()
            ):
                raise FileFormatError(
                    f"{path.name} has features of another number of items than it is about"
                )
            for name, width in zip(recipe.blocks, recipe.widths, strict=True):
                if name in stored.blocks and stored.blocks[name].shape[1] != width:
                    raise FileFormatError(
                        f"{path.name} has a block {name} that is not {width} columns wide"
                    )
            return stored
        return None

    def store(self, rows: range, chunk: Chunk) -> None:
        """Write a chunk.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        path = self._path(rows)
        if path.is_symlink():
            path.unlink()  # the cache never writes through links
        write_record(path, chunk)

    def clear(self) -> None:
        """Remove the entry."""
        shutil.rmtree(self.folder)

    def _path(self, rows: range) -> Path:
        return self.folder / f"{rows.start:09d}.safetensors"

    @contextmanager
    def _damage_is_warned_of(self) -> Iterator[None]:
        try:
            yield
        except NewerSchemaError:
            raise
        except FileFormatError as error:
            name = self.folder.name[:12]
            warnings.warn(
                f"Cached features {name} are computed again, damaged: {error}",
                CacheWarning,
                stacklevel=3,
            )


def _check_file(path: Path) -> None:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
        raise FileFormatError(
            f"{path.name} of a cache entry must be a file of at most {_LARGEST:,} bytes"
        )


def _head(path: Path) -> ChunkHead:
    """Return the head of a chunk's file, without the features."""
    _check_file(path)
    header = read_header(path)
    check_kind(Chunk, header, path.name)
    return from_values(ChunkHead, header.meta, path.name)


@dataclass(frozen=True)
class CacheInfo:
    """Description of an entry, for people; ``meta.json`` holds the first four fields.

    Parameters
    ----------
    kind : str
        ``"image"`` or ``"text"``.
    n_items : int
        Items that it is about.
    first : str
        Name of the first item, to tell data sets apart; empty for texts.
    backbone : str
        The network that made the features.
    key : str
        Its name.
    bytes : int
        Its size on disk.
    age_seconds : float
        Seconds since something was last written to it.
    """

    kind: str = ""
    n_items: int = 0
    first: str = ""
    backbone: str = ""
    key: str = field(default="", metadata=UNWRITTEN)
    bytes: int = field(default=0, metadata=UNWRITTEN)
    age_seconds: float = field(default=0.0, metadata=UNWRITTEN)

    @classmethod
    def of(cls, items: Items, spec: BackboneSpec) -> CacheInfo:
        """Return the contents of ``meta.json``: no path of this machine, and no text."""
        prefix, colon, place = spec.name.rpartition(":")
        if Path(place).is_absolute():
            name = f"{prefix}{colon}{Path(place).name}"
        else:
            name = spec.name
        return cls(
            items.kind, len(items), items.name(0) if items.kind == "image" else "", name
        )


class FeatureCache:
    """A folder of entries.

    Parameters
    ----------
    root : path-like, optional
        The folder; :func:`default_root` by default. It need not exist.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.features.cache import FeatureCache
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     FeatureCache(folder).list()
    []
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        if root is None:
            self.root = default_root()
        else:
            self.root = Path(root)

    def entry(self, key: str) -> CacheEntry:
        """Return the entry of a key, whether or not it exists."""
        return CacheEntry(self.root / key)

    def list(self) -> list[CacheInfo]:
        """Return the descriptions of all entries, the newest first; other folders, and links, are not touched."""
        try:
            found = [
                item.name
                for item in os.scandir(self.root)
                if item.is_dir(follow_symlinks=False)
            ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ParameterError(
                f"cache must be a readable folder, got {self.root}: {error}"
            ) from error
        infos = []
        for name in filter(_KEY.fullmatch, found):
            with suppress(FileNotFoundError):  # removed meanwhile
                infos.append(self.entry(name).info())
        return sorted(infos, key=lambda info: (info.age_seconds, info.key))

    def remove(self, key: str) -> None:
        """Remove an entry; one that is gone already is no error.

        Raises
        ------
        BusyError
            If another process is writing it.
        """
        entry = self.entry(key)
        if entry.folder.is_symlink() or not entry.folder.is_dir():
            return
        with entry.writing(wait=False):
            entry.clear()
