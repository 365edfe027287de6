"""Read the samples that the arguments of a command name, without labels."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergrow.cli.options import DEFAULT_COLUMNS, ColumnOptions
from evergrow.core.errors import DatasetNotFoundError, InputError
from evergrow.core.escaping import one_line

if TYPE_CHECKING:
    from evergrow.data.items import Items

STDIN = "-"

NamedSamples = tuple[Any, list[str]]
"""Samples in any form that a learner takes, and the display name of each."""

_KINDS = {"image": "images", "text": "texts", "features": "feature vectors"}
_MAX_STDIN_BYTES = 256 * 2**20


def check_paths(paths: Sequence[str]) -> None:
    """Raise :class:`DatasetNotFoundError` for a path that does not exist."""
    for path in paths:
        if path != STDIN and not os.path.exists(path):
            raise _not_found(path)


def _not_found(path: str) -> DatasetNotFoundError:
    """Return the error for a missing path, which may be a text by its look."""
    message = f"No file or folder {path!r} here"
    if not os.path.splitext(path)[1]:
        quoted = '"' + path.replace('"', '\\"') + '"'
        message += f"; to predict a text, use --text {quoted}"
    return DatasetNotFoundError(f"{message}.")


def read_samples(
    kind: str,
    paths: Sequence[str],
    texts: Sequence[str] = (),
    columns: ColumnOptions = DEFAULT_COLUMNS,
) -> NamedSamples:
    """Read the samples that the arguments of a command name.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        Kind of samples that the model takes.
    paths : sequence of str
        Files and folders; ``-`` is standard input.
    texts : sequence of str
        Texts given by ``--text``.
    columns : ColumnOptions
        Names of the columns of tables.

    Returns
    -------
    samples : object
        The samples, in a form that `Learner.predict` takes.
    names : list of str
        The display name of each sample: a path, or a text on one line.

    Raises
    ------
    InputError
        If nothing is named, or samples of another kind.
    DatasetNotFoundError
        If a file does not exist.
    """
    if texts and kind != "text":
        raise InputError(
            f"--text is for models of texts, and this one takes {_KINDS[kind]}."
        )
    if kind == "image":
        return _read_images(paths, columns)
    if kind == "text":
        return _read_texts(paths, texts, columns)
    return _read_features(paths)


def _read_features(paths: Sequence[str]) -> NamedSamples:
    """Read the feature vectors of the one file that may be named."""
    from evergrow.data.inputs import read_items

    if len(paths) != 1 or paths[0] == STDIN:
        raise InputError(
            "This model takes feature vectors: name one .npy or .npz file."
        )
    samples = read_items(Path(paths[0]), "features")
    return samples, samples.names()


def _read_texts(
    paths: Sequence[str], texts: Sequence[str], columns: ColumnOptions
) -> NamedSamples:
    """Read the texts of files and of standard input, followed by further texts."""
    from evergrow.data.inputs import read_items

    found: list[str] = []
    for path in paths:
        if path == STDIN:
            found += [line.strip() for line in _stdin_lines()]
            continue
        if not os.path.isfile(path):
            raise _not_found(path)
        items = read_items(Path(path), "text", columns.data_options()).raw_items()
        found += [items.raw(row) for row in range(len(items))]
    found += texts
    if not found:
        raise InputError(
            "There is no text to predict: name a file, use --text, or pipe lines "
            "into -."
        )
    for text in found:
        # Bytes that are not UTF-8 are allowed in file names only.
        if text.encode("utf-8", "replace").decode() != text:
            raise InputError(f"The text {one_line(text)!r} is not UTF-8.")
    return read_items(found, "text"), [one_line(text) for text in found]


def _read_images(paths: Sequence[str], columns: ColumnOptions) -> NamedSamples:
    """Read images of files, folders, archives and tables.

    A single folder stays one item list, so that the cache finds its features.
    """
    from evergrow.data.inputs import read_items
    from evergrow.data.items import concat_items, is_image
    from evergrow.data.readers import reader_of_file

    sources: list[str] = []
    for path in paths:
        sources += _stdin_lines() if path == STDIN else [path]
    names: list[str] = []
    parts: list[Items] = []
    for source in sources:
        images = read_items(Path(source), "image", columns.data_options()).raw_items()
        parts.append(images)
        is_file = not os.path.isdir(source)
        if is_file and (is_image(source) or reader_of_file(source) is None):
            names.append(source)
        else:
            names += [
                os.path.join(source, images.name(row)) for row in range(len(images))
            ]
    if not names:
        raise InputError(
            "There is no image to predict: name files or folders, or pipe file names "
            "into -."
        )
    return concat_items(parts), names


def _stdin_lines() -> list[str]:
    """Return the nonempty lines of standard input.

    Bytes that are not UTF-8 are kept as surrogates, because file names may have them.

    Raises
    ------
    InputError
        If the input is larger than 256 MiB or is not text.
    """
    body: bytes = sys.stdin.buffer.read(_MAX_STDIN_BYTES + 1)
    if len(body) > _MAX_STDIN_BYTES:
        raise InputError(
            f"Standard input is larger than {_MAX_STDIN_BYTES // 2**20} MiB; save it "
            "to files and name them."
        )
    if b"\0" in body:
        raise InputError(
            "Standard input takes file names or texts, one per line; save an image to "
            "a file and name it."
        )
    lines = body.decode("utf-8", "surrogateescape").split("\n")
    return [line.rstrip("\r") for line in lines if line.strip()]
