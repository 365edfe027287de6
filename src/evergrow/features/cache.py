"""The feature cache: features are computed once.

An entry is a folder. Its name is a hash of the items (names, sizes and modification
times), of the backbone with its weights and preprocessing, and of the requested
precision. Entries are therefore never out of date.

A file holds a :class:`~evergrow.features.encoding.Chunk` of consecutive items. It has
one tensor per block of a single view and side, so that recipes share blocks. Only
missing blocks are computed. Damaged files are computed again. Files are replaced
atomically. ``meta.json`` describes the entry for people.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from evergrow.core.files import StrPath, atomic_path, remove_leftovers
from evergrow.core.record import (
    UNWRITTEN,
    check_kind,
    from_values,
    read_record,
    to_values,
    write_record,
)
from evergrow.data.items import Items
from evergrow.features.backbone import BackboneSpec, FeatureRecipe
from evergrow.features.encoding import Chunk, ChunkHead

_LOG = logging.getLogger(__name__)
_META = "meta.json"
_FORMAT = 3  # part of every key, so that entries of other formats are not found
_KEY = re.compile(r"[0-9a-f]{32}")
_MAX_BYTES = 2**31  # larger files are not read

SAME_FEATURES = 1e-3
"""Largest distance of two feature vectors of the same sample, relative to their norm.

Half precision and other batches change features by less.
"""


def default_root() -> Path:
    """Return the folder of the cache.

    It is ``EVERGROW_CACHE``, or ``evergrow`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

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
    folder = os.environ.get("EVERGROW_CACHE") or os.path.join(shared, "evergrow")
    return Path(folder).expanduser()


def feature_key(stamp: str, spec: BackboneSpec, policy: str) -> str:
    """Return the name of the cache entry of items and a backbone.

    Parameters
    ----------
    stamp : str
        Stamp of the items, which covers their names, sizes and modification times.
    spec : BackboneSpec
        The backbone. The source of its weights and its recipe do not change the key.
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


class CacheEntry:
    """A folder of the cache, with features of one set of items.

    Parameters
    ----------
    folder : Path
        The folder. It need not exist.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np
    >>> from evergrow.features.encoding import Chunk
    >>> from evergrow.features.cache import CacheEntry, CacheInfo
    >>> from evergrow.features.backbone import FeatureRecipe
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
        """Lock the entry against other processes and threads.

        Its folder is removed at the end if it holds no chunks.

        Parameters
        ----------
        wait : bool
            Whether to wait for another process that holds the lock. A warning is
            logged first.

        Raises
        ------
        BusyError
            If another process holds the lock and `wait` is False.
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
            has_chunks = any(self.folder.glob("[0-9]*.safetensors"))
            if self.folder.is_dir() and not has_chunks:
                shutil.rmtree(self.folder, ignore_errors=True)
            # A process that waits for the removed file may compute the features again.
            with suppress(OSError):
                Path(lock.lock_file).unlink()
            lock.release()

    def begin(self, about: CacheInfo) -> None:
        """Create the folder and its ``meta.json``. Remove files of killed processes.

        Raises
        ------
        OSError
            If the folder cannot be written, or is a link.
        """
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
        """Return its description. Without a readable ``meta.json``, fields are empty.

        Raises
        ------
        FileNotFoundError
            If the entry does not exist.
        """
        about = CacheInfo()
        path = self.folder / _META
        is_file = path.is_file() and not path.is_symlink()  # opening a pipe would wait
        if is_file:
            with suppress(FileFormatError, OSError):  # a damaged file is ignored
                content = parse_json(path.read_bytes(), _META)
                about = from_values(CacheInfo, content, _META)
        size = sum(
            item.stat(follow_symlinks=False).st_size for item in os.scandir(self.folder)
        )
        age = max(time.time() - self.folder.stat().st_mtime, 0.0)
        return replace(about, key=self.folder.name, bytes=size, age_seconds=age)

    def read_heads(self, chunks: Sequence[range]) -> dict[range, ChunkHead]:
        """Return names of blocks, precision and failures of chunks in the cache.

        Features are not read. Missing chunks are left out, and damaged ones are left
        out with a warning.

        Parameters
        ----------
        chunks : sequence of range
            The wanted chunks, each by the indices of its items.

        Returns
        -------
        dict of range to ChunkHead
            The head of each chunk: everything stored in it but the features.

        Raises
        ------
        NewerSchemaError
            If a later version wrote a chunk.
        """
        found: dict[range, ChunkHead] = {}
        for rows in chunks:
            path = self._path(rows)
            if os.path.lexists(path):
                with self._warn_if_damaged():
                    _check_file(path)
                    header = read_header(path)
                    check_kind(Chunk, header, path.name)
                    found[rows] = from_values(ChunkHead, header.meta, path.name)
        return found

    def load(self, rows: range, recipe: FeatureRecipe) -> Chunk | None:
        """Read a stored chunk. Warn and return None if it is missing or damaged.

        Blocks of the chunk that are not in the recipe are read too. A chunk counts as
        damaged if a block has another width than in the recipe.

        Raises
        ------
        NewerSchemaError
            If a later version wrote the chunk.
        """
        path = self._path(rows)
        with self._warn_if_damaged():
            _check_file(path)
            stored = read_record(Chunk, path)
            _check_chunk(stored, rows, recipe, path.name)
            return stored
        return None

    def store(self, rows: range, chunk: Chunk) -> None:
        """Write the chunk of the items `rows`.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        path = self._path(rows)
        if path.is_symlink():
            path.unlink()  # do not write through links
        write_record(path, chunk)

    def clear(self) -> None:
        """Remove the folder with all chunks."""
        shutil.rmtree(self.folder)

    def remove_similar(
        self, blocks: Mapping[str, NDArray[np.floating]]
    ) -> tuple[int, bool]:
        """Remove all chunks that hold one of the given rows, and damaged chunks.

        Parameters
        ----------
        blocks : mapping of str to ndarray of shape (n, d)
            Features of the rows by the name of the block.

        Returns
        -------
        n_removed : int
            Number of removed chunks.
        is_searched : bool
            Whether every chunk had one of the blocks.
        """
        n_removed = 0
        is_searched = True
        for path in sorted(self.folder.glob("[0-9]*.safetensors")):
            try:
                _check_file(path)
                stored = read_record(Chunk, path).blocks
            except NewerSchemaError:
                is_searched = False
                continue
            except FileFormatError:
                path.unlink()
                n_removed += 1
                continue
            common = stored.keys() & blocks.keys()
            if not common:
                is_searched = False
            if any(_have_common_row(stored[name], blocks[name]) for name in common):
                path.unlink()
                n_removed += 1
        return n_removed, is_searched

    def _path(self, rows: range) -> Path:
        return self.folder / f"{rows.start:09d}.safetensors"

    @contextmanager
    def _warn_if_damaged(self) -> Iterator[None]:
        """Turn a :class:`FileFormatError` of the body of ``with`` into a warning.

        A :class:`NewerSchemaError` is raised: files of a later version are not damaged.
        """
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


def _check_chunk(chunk: Chunk, rows: range, recipe: FeatureRecipe, name: str) -> None:
    """Raise :class:`FileFormatError` if a stored chunk does not fit its place.

    Parameters
    ----------
    chunk : Chunk
        The chunk that was read.
    rows : range
        Indices of its items. Failures must be among them, in ascending order.
    recipe : FeatureRecipe
        Widths of the blocks. Blocks that it does not name are not checked.
    name : str
        Name of the file in messages.
    """
    failed = [failure.row for failure in chunk.failures]
    if failed != sorted(set(failed) & set(rows)):
        raise FileFormatError(f"{name} has failures that are not those of its rows")
    n_rows = len(rows) - len(failed)
    if any(len(block) != n_rows for block in chunk.blocks.values()):
        raise FileFormatError(
            f"{name} has features of another number of items than it is about"
        )
    for block, width in zip(recipe.blocks, recipe.widths, strict=True):
        if block in chunk.blocks and chunk.blocks[block].shape[1] != width:
            raise FileFormatError(
                f"{name} has a block {block} that is not {width} columns wide"
            )


def _have_common_row(stored: NDArray[Any], rows: NDArray[Any]) -> bool:
    """Return whether a row of one matrix equals a row of another one.

    Rows are equal if they differ by at most :data:`SAME_FEATURES` of their norm.
    """
    if stored.shape[1:] != rows.shape[1:] or not len(stored) or not len(rows):
        return False
    first = stored.astype(np.float64)
    second = rows.astype(np.float64)
    first_squares = np.square(first).sum(axis=1)
    second_squares = np.square(second).sum(axis=1)
    squared_distances = first_squares[:, None] + second_squares - 2 * first @ second.T
    are_equal = squared_distances <= SAME_FEATURES**2 * second_squares
    return bool(are_equal.any())


def _check_file(path: Path) -> None:
    """Raise :class:`FileFormatError` for links, pipes, folders and huge files."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_BYTES:
        raise FileFormatError(
            f"{path.name} of a cache entry must be a file of at most {_MAX_BYTES:,} "
            "bytes"
        )


@dataclass(frozen=True)
class CacheInfo:
    """Description of an entry. ``meta.json`` holds the first five fields.

    Parameters
    ----------
    kind : str
        ``"image"`` or ``"text"``.
    n_items : int
        Number of items.
    first : str
        Name of the first item, to tell datasets apart. Empty for texts.
    backbone : str
        Name of the backbone.
    weights_hash : str
        Hash of its weights. Empty in entries of earlier versions.
    key : str
        Name of the entry.
    bytes : int
        Size on disk.
    age_seconds : float
        Seconds since the last write.
    """

    kind: str = ""
    n_items: int = 0
    first: str = ""
    backbone: str = ""
    weights_hash: str = ""
    key: str = field(default="", metadata=UNWRITTEN)
    bytes: int = field(default=0, metadata=UNWRITTEN)
    age_seconds: float = field(default=0.0, metadata=UNWRITTEN)

    @classmethod
    def of(cls, items: Items, spec: BackboneSpec) -> CacheInfo:
        """Describe items and a backbone, without paths of this machine or texts."""
        prefix, colon, place = spec.name.rpartition(":")
        backbone = spec.name
        if Path(place).is_absolute():
            backbone = f"{prefix}{colon}{Path(place).name}"
        first = items.name(0) if items.kind == "image" else ""
        return cls(items.kind, len(items), first, backbone, spec.weights_hash)


class FeatureCache:
    """The feature cache.

    Parameters
    ----------
    root : path-like, optional
        Folder of the entries. By default :func:`default_root`. It need not exist.

    Examples
    --------
    >>> import tempfile
    >>> from evergrow.features.cache import FeatureCache
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     FeatureCache(folder).list()
    []
    """

    def __init__(self, root: StrPath | None = None) -> None:
        self.root = default_root() if root is None else Path(root)

    def entry(self, key: str) -> CacheEntry:
        """Return an entry, which need not exist."""
        return CacheEntry(self.root / key)

    def list(self) -> list[CacheInfo]:
        """Return the descriptions of all entries, the one written last first.

        Other folders and links are ignored.

        Raises
        ------
        ParameterError
            If the folder cannot be read.
        """
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
            with suppress(FileNotFoundError):  # removed by another process
                infos.append(self.entry(name).info())
        return sorted(infos, key=lambda info: (info.age_seconds, info.key))

    def remove(self, key: str) -> None:
        """Remove an entry, if it exists.

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

    def remove_similar(
        self,
        blocks: Mapping[str, NDArray[np.floating]],
        *,
        kind: str,
        weights_hash: str,
    ) -> tuple[int, int]:
        """Remove all files with features of some samples.

        Files are searched for rows that equal the given ones up to
        :data:`SAME_FEATURES`, whatever the names of the items were. A file holds up to
        1,024 items. Features of its other items are computed again when needed.

        Parameters
        ----------
        blocks : mapping of str to ndarray of shape (n, d)
            Features of the samples by the name of the block.
        kind : {"image", "text"}
            Kind of the samples.
        weights_hash : str
            Hash of the network that computed the features.

        Returns
        -------
        n_files : int
            Number of removed files.
        n_unsearched : int
            Number of entries of this kind that may hold other features of the samples:
            of another network, or other blocks.

        Raises
        ------
        BusyError
            If another process is writing an entry.
        """
        n_files = 0
        n_unsearched = 0
        for info in self.list():
            if info.kind not in (kind, ""):
                continue
            entry = self.entry(info.key)
            with entry.writing(wait=False):
                n_removed, is_searched = entry.remove_similar(blocks)
            n_files += n_removed
            if info.weights_hash != weights_hash:
                is_searched = False
            if not is_searched and entry.folder.exists():
                n_unsearched += 1
        return n_files, n_unsearched
