"""From an address to a source: what lies there, and which files of it are meant."""

from __future__ import annotations

import glob
import os
import posixpath
from collections.abc import Mapping
from typing import Any

from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError
from evergrow.core.validation import check_choice
from evergrow.core.wording import setting
from evergrow.data.places import DiskPlace, Place, check_address, is_remote, open_place
from evergrow.data.sources.base import SOURCES, FileSource, SourceOptions
from evergrow.data.sources.patterns import has_magic


def open_source(
    address: str | os.PathLike[str], *, format: str = "auto", options: Mapping[str, Any] | None = None
) -> FileSource:
    r"""Return the data set at an address, to be read by parts.

    Parameters
    ----------
    address : str or path-like
        A folder, a file, or a pattern such as ``s3://bucket/train-{000..099}.tar``; a path, or an address that fsspec
        knows (``s3://``, ``gs://``, ``hf://``).
    format : str
        ``"folder"`` (images in folders named after their classes), ``"table"`` (CSV, TSV or JSON lines of images or
        texts), ``"webdataset"`` (tar shards), ``"parquet"``, ``"arrow"`` (a Hugging Face data set saved to disk) or
        ``"arrays"`` (NPZ and safetensors); ``"auto"`` looks at what is there.
    options : mapping, optional
        How it is read; see :class:`SourceOptions`. Credentials go into ``{"storage": {...}}`` or, where other machines
        are to read too, into the environment.

    Raises
    ------
    DatasetNotFoundError
        If there is nothing at the address.
    EngineError
        If the address cannot be reached or refuses.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.sources import open_source
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.csv").write_text("text,label\nbuy now,spam\nsee you,mail\n")
    ...     source = open_source(f"{folder}/a.csv")
    ...     [source.read(shard).labels.tolist() for shard in source.shards(rows=1, size=1 << 20)]
    [['spam'], ['mail']]
    """
    check_choice("format", format, ("auto", *SOURCES.names()))
    settings = SourceOptions.from_dict(options or {})
    text = os.fspath(address)
    if not text.strip():
        raise ParameterError(f"an address must be a path, or have a scheme, got {text!r}")
    check_address(text)
    place, pattern = _located(text, settings)
    return SOURCES[_format_of(place, pattern) if format == "auto" else format](place, pattern, settings)


def _located(address: str, options: SourceOptions) -> tuple[Place, str]:
    """Return the folder that is meant, and which files in it; no file stands for all of them."""
    if is_remote(address):
        return _located_remotely(address, options)
    path = address.removeprefix("file://")
    if os.path.isdir(path):
        return open_place(path), ""
    if os.path.isfile(path):
        folder, name = os.path.split(path)
        return open_place(folder or "."), _literal(name)
    if not has_magic(path):
        raise DatasetNotFoundError(f"{setting('data')} must be an existing file or folder, got {address}")
    folder, pattern = _split_pattern(path)
    return open_place(folder or "."), pattern


def _located_remotely(address: str, options: SourceOptions) -> tuple[Place, str]:
    scheme, _, path = address.partition("://")
    if has_magic(path):
        folder, pattern = _split_pattern(path)
        return open_place(f"{scheme}://{folder}", options.storage), pattern
    plain = path.rstrip("/")
    folder, name = posixpath.split(plain)
    if name and path == plain and _by_name(name):
        place = open_place(f"{scheme}://{folder}", options.storage)
        if place.exists(name):
            return place, name
    return open_place(address, options.storage), ""


def _split_pattern(path: str) -> tuple[str, str]:
    """Return the folder before the first pattern of a path, and what comes after it."""
    steps = path.split("/")
    first = next(number for number, step in enumerate(steps) if has_magic(step))
    return "/".join(steps[:first]) or ("/" if first else ""), "/".join(steps[first:])


def _literal(name: str) -> str:
    """Return a pattern that stands for this name and no other."""
    return glob.escape(name).replace("{", "[{]") if has_magic(name) else name


def _format_of(place: Place, pattern: str) -> str:
    if pattern:
        known = _by_name(pattern)
        if known is None:
            raise InputError(
                f"{place.title(pattern)} must be a folder, or end like a data file "
                f"({', '.join(suffix for name in SOURCES.names() for suffix in SOURCES[name].suffixes)}), got another"
            )
        return known
    names = place.listing(deep=False)
    if {"dataset_dict.json", "state.json"} & names.keys() and "arrow" in SOURCES:
        return "arrow"
    if not isinstance(place, DiskPlace) and not names and not place.listing(deep=True):
        raise DatasetNotFoundError(f"{place.title()} must hold files, got none")
    candidates = [*names, *(f"data/{name}" for name in _inner(place, "data"))]
    for name in ("webdataset", "parquet", "arrays"):
        if name in SOURCES and any(file.lower().endswith(SOURCES[name].suffixes) for file in candidates):
            return name
    return "folder"


def _inner(place: Place, folder: str) -> list[str]:
    """Return the files of a folder in the place, where it has one of that name: the hub keeps Parquet there."""
    try:
        return list(place.below(folder).listing(deep=False))
    except DatasetNotFoundError:
        return []


def _by_name(name: str) -> str | None:
    """Return the format that the ending of a name stands for."""
    lower = name.lower()
    return next((form for form in SOURCES.names() if lower.endswith(SOURCES[form].suffixes)), None)
