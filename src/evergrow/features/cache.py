"""The feature cache: what was extracted once is never extracted again.

An entry is addressed by what decides the features: the items (by name, size and time of change), the backbone with its
weights and preprocessing, and the precision asked for. It can therefore never be out of date, only unused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evergrow.core.errors import FileFormatError, NewerSchemaError, ParameterError, UnknownNameError
from evergrow.core.fields import Fields
from evergrow.core.items import Items
from evergrow.core.wording import setting
from evergrow.features.base import BackboneSpec
from evergrow.features.cache_entry import CacheEntry, written_by
from evergrow.features.recipes import FeatureRecipe

VARIABLE = "EVERGROW_CACHE"
"""Environment variable that names the folder of the cache."""

_FORMAT = 1
_KEY = re.compile(r"[0-9a-f]{32}")
_SHORTEST = 4  # characters of a key that may stand for all of it


def default_root() -> Path:
    """Return the folder of the cache: ``EVERGROW_CACHE``, or where this system keeps what can be made again.

    Examples
    --------
    >>> import os
    >>> from evergrow.features.cache import default_root
    >>> os.environ["EVERGROW_CACHE"] = "somewhere"
    >>> default_root().as_posix()
    'somewhere'
    >>> del os.environ["EVERGROW_CACHE"]
    """
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "evergrow" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "evergrow"
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".cache") / "evergrow"


def feature_key(stamp: str, spec: BackboneSpec, policy: str) -> str:
    """Return the key of the features that a backbone makes of some items.

    Parameters
    ----------
    stamp : str
        Stamp of the items.
    spec : BackboneSpec
        The backbone; where its weights came from plays no part, what they are does.
    policy : str
        Precision asked for, and what decodes (:attr:`evergrow.features.settings.ExtractConfig.policy`).

    Examples
    --------
    >>> from evergrow.features.base import BackboneSpec
    >>> from evergrow.features.cache import feature_key
    >>> spec = BackboneSpec("toy", "image", 8, "random", "ab12", "timm", {}, {})
    >>> feature_key("00", spec, "auto") == feature_key("01", spec, "auto")
    False
    """
    text = json.dumps([_FORMAT, stamp, spec.decisive(), policy], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def describe(items: Items, stamp: str, spec: BackboneSpec, policy: str) -> dict[str, Any]:
    """Return what ``meta.json`` tells people about an entry; no path of this machine, and nothing of any text."""
    return {
        "format": _FORMAT,
        **written_by(),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "kind": items.kind,
        "n_items": len(items),
        "first": items.name(0) if items.kind == "image" else "",
        "items": stamp,
        "backbone": {**spec.to_dict(), "name": _without_folders(spec.name)},
        "policy": policy,
    }


def _apart_from_recipe(spec: BackboneSpec) -> dict[str, Any]:
    """Return what decides the features but for which blocks there are, as :func:`describe` writes it."""
    values = {**spec.decisive(), "name": _without_folders(spec.name)}
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return {name: value for name, value in plain.items() if name not in ("recipe", "n_features")}


def _without_folders(name: str) -> str:
    """Return a backbone's name; of one that was loaded from a folder, only the folder's own name."""
    prefix, colon, place = name.rpartition(":")
    return f"{prefix}{colon}{Path(place).name}" if Path(place).is_absolute() else name


@dataclass(frozen=True)
class CacheInfo:
    """Description of an entry, for people.

    Parameters
    ----------
    key : str
        Its name.
    state : {"finished", "unfinished", "damaged", "newer"}
        Whether it can be used, taken up, neither, or only by a newer evergrow.
    kind : str
        ``"image"`` or ``"text"``.
    first : str
        Name of the first item, to tell data sets apart; empty for texts.
    n_items, done : int
        How many items it is about, and how many of them are done.
    failures : int
        How many could not be read.
    bytes : int
        Its size on disk.
    created : str
        When it was begun, as an ISO date.
    backbone, preset : str
        What made the features.
    precision : str
        What the backbone was run at.
    """

    key: str
    state: str
    kind: str
    first: str
    n_items: int
    done: int
    failures: int
    bytes: int
    created: str
    backbone: str
    preset: str
    precision: str

    @property
    def age_seconds(self) -> float:
        """Seconds since it was begun."""
        return max(0.0, (datetime.now(timezone.utc) - datetime.fromisoformat(self.created)).total_seconds())

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


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
        self.root = default_root() if root is None else Path(root)

    def entry(self, key: str) -> CacheEntry:
        """Return the entry of a key, whether or not it exists."""
        return CacheEntry(self.root / key)

    def containing(self, stamp: str, spec: BackboneSpec, policy: str) -> Iterator[tuple[CacheEntry, FeatureRecipe]]:
        """Yield finished entries of the same items, backbone and precision whose recipe has all blocks that are wanted.

        Parameters
        ----------
        stamp, spec, policy
            As for :func:`feature_key`.
        """
        wanted = _apart_from_recipe(spec)
        for name in self._names():
            entry = self.entry(name)
            try:
                meta = entry.meta()
                if meta is None or meta.text("items", default="") != stamp or not meta.flag("finished", default=False):
                    continue
                theirs = BackboneSpec.from_dict(meta.mapping("backbone"))
                same = meta.text("policy") == policy and _apart_from_recipe(theirs) == wanted
            except FileFormatError:  # damaged, or of a newer evergrow: told where it is asked for by its key
                continue
            if same and theirs.blocks.columns(spec.blocks) is not None:
                yield entry, theirs.blocks

    def _names(self) -> list[str]:
        try:
            return [item.name for item in os.scandir(self.root) if _KEY.fullmatch(item.name) and _is_folder(item)]
        except OSError:
            return []

    def list(self) -> list[CacheInfo]:
        """Return the descriptions of all entries, the newest first; other folders in the root are not touched."""
        try:
            names = [item.name for item in os.scandir(self.root) if _KEY.fullmatch(item.name) and _is_folder(item)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ParameterError(f"{setting('cache')} must be a readable folder, got {self.root}: {error}") from error
        infos = [info for info in map(self.info, names) if info is not None]
        return sorted(infos, key=lambda info: (info.created, info.key), reverse=True)

    def info(self, key: str) -> CacheInfo | None:
        """Return the description of one entry, None if it was removed meanwhile."""
        entry = self.entry(key)
        try:
            changed = entry.folder.stat().st_mtime
            size = sum(item.stat(follow_symlinks=False).st_size for item in os.scandir(entry.folder))
        except FileNotFoundError:
            return None
        try:
            meta, state = entry.meta(), "unfinished"
            meta = meta or Fields({}, {}, {}, key)
            backbone = Fields(meta.mapping("backbone", default={}), {}, {}, key)
            finished = meta.flag("finished", default=False)
            shards = [] if finished else entry.shards()
            n_items = meta.integer("n_items", default=0)
            return CacheInfo(
                key=key,
                state="finished" if finished else state,
                kind=meta.text("kind", default=""),
                first=meta.text("first", default=""),
                n_items=n_items,
                done=n_items if finished else (shards[-1].stop if shards else 0),
                failures=len(meta.values("failures")) if finished else sum(len(shard.failures) for shard in shards),
                bytes=size,
                created=_moment(meta.text("created", default=""), changed),
                backbone=backbone.text("name", default=""),
                preset=backbone.text("preset", default=""),
                precision=meta.text("precision", default="") or (shards[-1].precision if shards else ""),
            )
        except NewerSchemaError:
            state = "newer"
        except FileFormatError:
            state = "damaged"
        return CacheInfo(key, state, "", "", 0, 0, 0, size, _moment("", changed), "", "", "")

    def find(self, name: str) -> CacheInfo:
        """Return the entry whose key begins with ``name``.

        Raises
        ------
        UnknownNameError
            If there is none.
        ParameterError
            If the name is too short or fits several.
        """
        if len(name) < _SHORTEST:
            raise ParameterError(f"key must have at least {_SHORTEST} characters, got {name!r}")
        matching = [info for info in self.list() if info.key.startswith(name)]
        if not matching:
            raise UnknownNameError(f"key must be that of an entry in {self.root}, got {name!r}")
        if len(matching) > 1:
            listed = ", ".join(info.key[:12] for info in matching)
            raise ParameterError(f"key must stand for one entry, got {name!r} which fits {listed}")
        return matching[0]

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
        with entry.hold():
            entry.clear()


def _is_folder(item: os.DirEntry[str]) -> bool:
    """Return whether this is a folder of the cache's own: what a link leads to is not the cache's to list or clear."""
    return item.is_dir(follow_symlinks=False)


def _moment(value: str, otherwise: float) -> str:
    """Return an ISO date with its time zone: the one given if it is one, else that of a time stamp."""
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).isoformat()
    except ValueError:
        return datetime.fromtimestamp(otherwise, timezone.utc).isoformat(timespec="seconds")
