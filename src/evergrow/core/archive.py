"""One safetensors file for a model: tensors, a JSON description, a schema version and a checksum.

Loading parses a length-prefixed JSON header and raw numbers; nothing in the file is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load as _load_tensors
from safetensors.torch import save_file as _save_tensors

from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.files import atomic_path

SCHEMA_VERSION = 1
_KEY = "evergrow"


@dataclass(frozen=True)
class Archive:
    """What a file holds.

    Parameters
    ----------
    kind : str
        What was saved, for example ``"SCLClassifier"``.
    meta : dict
        JSON-serialisable description.
    tensors : dict of str to torch.Tensor
        CPU tensors by name.
    """

    kind: str
    meta: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def _digest(kind: str, meta_text: str, tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(kind.encode())
    digest.update(meta_text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def write_archive(path: str | os.PathLike[str], archive: Archive) -> None:
    """Write ``archive`` to ``path`` so that a crash leaves the old file or the new one, never half.

    Parameters
    ----------
    path : path-like
        Target; its folder must exist. It is replaced in one step once everything is on disk.
    archive : Archive
        What to write.

    Raises
    ------
    OSError
        If it cannot be written, for example because the disk is full; what was there before stays.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in archive.tensors.items()}
    meta_text = json.dumps(archive.meta, sort_keys=True)
    head = {
        "schema": SCHEMA_VERSION,
        "kind": archive.kind,
        "digest": _digest(archive.kind, meta_text, tensors),
        "meta": meta_text,
    }
    # One key only: safetensors writes several in no fixed order, and the same model must give the same file.
    metadata = {_KEY: json.dumps(head, sort_keys=True)}
    with atomic_path(path) as temporary:
        try:
            _save_tensors(tensors, temporary, metadata=metadata)
        except safetensors.SafetensorError as error:  # what it makes of a full disk
            raise OSError(f"{path} could not be written: {error}") from error


def read_archive(path: str | os.PathLike[str], kind: str) -> Archive:
    """Read an archive of the given kind, checking schema, kind and checksum.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    FileFormatError
        If the file is not an evergrow file of this kind, is truncated or was altered.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    data = Path(path).read_bytes()
    head, meta_text = _read_head(path, data)
    schema = head.get("schema")
    if not isinstance(schema, int):
        raise FileFormatError(f"{path} must carry an integer schema version, got {schema!r}")
    if schema > SCHEMA_VERSION:
        raise NewerSchemaError(
            f"{path} must have schema {SCHEMA_VERSION} or older, got {schema}: "
            "it was written by a newer evergrow; upgrade with 'pip install -U evergrow'"
        )
    if head.get("kind") != kind:
        raise FileFormatError(f"{path} must hold a {kind}, got {head.get('kind')!r}")
    try:
        tensors = _load_tensors(data)
        meta = json.loads(meta_text)
    except (safetensors.SafetensorError, json.JSONDecodeError, ValueError, KeyError) as error:
        raise FileFormatError(f"{path} must be a whole evergrow file, got a damaged one: {error}") from error
    if _digest(kind, meta_text, tensors) != head.get("digest"):
        raise FileFormatError(f"{path} must match its checksum, but its contents were altered or damaged")
    return Archive(kind, meta, tensors)


def _read_head(path: str | os.PathLike[str], data: bytes) -> tuple[dict[str, Any], str]:
    """Parse the safetensors header by its published layout: u64 length, then JSON."""
    try:
        (length,) = struct.unpack("<Q", data[:8])
        if length > len(data) - 8:
            raise ValueError("the header is cut off")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        head = json.loads(metadata[_KEY])
        meta_text = head["meta"]
        if not isinstance(head, dict) or not isinstance(meta_text, str):
            raise ValueError("the header has the wrong form")
    except (struct.error, ValueError, KeyError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} must be an evergrow file, got {len(data)} bytes that are none or are truncated ({error})"
        ) from error
    return head, meta_text
