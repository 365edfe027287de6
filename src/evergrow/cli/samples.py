"""Read the samples that the arguments of a command name, without labels."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from evergrow.cli.console import is_interactive, plural
from evergrow.cli.options import DEFAULT_COLUMNS, ColumnOptions
from evergrow.core.errors import DatasetNotFoundError, InputError
from evergrow.core.escaping import one_line

if TYPE_CHECKING:
    from evergrow.data import DataOptions, Dataset, Samples, Source
    from evergrow.data.items import Items
    from evergrow.engine.job import JobReport

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


def read_training(
    data: str,
    kind: str | None,
    options: DataOptions,
    *,
    as_is: bool,
    as_json: bool,
) -> Samples:
    """Read the labelled training samples that a command learns.

    Parameters
    ----------
    data : str
        Path or address.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes.
    options : DataOptions
        How to read them.
    as_is : bool
        Accept folders that do not look like classes.
    as_json : bool
        Whether the command prints JSON, so that nobody can answer a question.

    Raises
    ------
    InputError
        If the folders do not look like classes, and nobody can answer a question.
    typer.Abort
        If the answer to the question is no.
    """
    from evergrow.data.inputs import read_labelled, read_parts

    found = read_parts(data, options)
    check_layout(found, as_is=as_is, as_json=as_json)
    return read_labelled(found, "train", kind)


def check_layout(found: Dataset, *, as_is: bool, as_json: bool) -> None:
    """Ask whether to learn folders that do not look like classes, or refuse them.

    Parameters
    ----------
    found : Dataset
        The data. Reading it has already printed a warning about its folders.
    as_is, as_json
        As for :func:`read_training`, also the errors.
    """
    if as_is or not found.doubts:
        return
    message = "These folders are probably not the classes"
    if not is_interactive(as_json):
        raise InputError(
            f"{message}; nothing was learned. If they are the classes, add --as-is."
        )
    typer.confirm(f"{message}. Learn them as classes?", abort=True)


def double_label_cautions(samples: Samples, data: str) -> list[str]:
    """Return a warning if images or texts have two labels, or an empty list.

    Equal feature vectors can have different labels, so they are not compared. Remote
    images are not compared, because each would be fetched a second time.
    """
    from evergrow.data.storage import is_remote
    from evergrow.tools.data_check import find_double_labels

    if samples.kind == "features" or is_remote(data):
        return []
    found = find_double_labels(samples)
    if not found:
        return []
    return [_double_label_caution(len(found), samples.kind, found[0].names, data)]


def sharded_double_label_cautions(report: JobReport, kind: str, data: str) -> list[str]:
    """Return :func:`double_label_cautions` of data that was learned in shards."""
    if not report.n_double_labels:
        return []
    names = report.double_labels
    return [_double_label_caution(report.n_double_labels, kind, names, data)]


def _double_label_caution(
    n_found: int, kind: str, names: Sequence[str], data: str
) -> str:
    """Return the warning about samples of two labels, with the names of two."""
    first, second = names
    count = plural(n_found, f"{kind} has", f"{kind}s have")
    return (
        f"{count} two labels, such as {first} and {second}; evergrow data {data} "
        "--check lists them"
    )


def check_source_layout(source: Source, *, as_is: bool, as_json: bool) -> None:
    """Check the layout of data that is learned shard by shard, if it is listed."""
    from evergrow.data.shards import ListedSource

    if isinstance(source, ListedSource):
        check_layout(source.dataset(), as_is=as_is, as_json=as_json)


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
