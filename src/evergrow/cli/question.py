"""Reading what commands are asked about or learn: files, folders, texts, features and standard input."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergrow.cli.options import AS_FOUND, Reading
from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError
from evergrow.core.escaping import one_line

if TYPE_CHECKING:
    from evergrow.data.items import Items

STDIN = "-"
KINDS = {"image": "images", "text": "texts", "features": "feature vectors"}
_LONGEST = 256 * 2**20  # bytes that an image, or a list of names, on standard input may have


@dataclass(frozen=True, eq=False)
class Question:
    """The items of a question, in any form that a learner takes, with a name of each for people."""

    items: Any
    names: list[str]


def check_items(items: list[str]) -> None:
    """Refuse items that are no files, before a model is loaded to be asked about them."""
    for item in items:
        if item != STDIN and not os.path.exists(item):
            raise _missing(item)


def _missing(item: str) -> DatasetNotFoundError:
    quoted = '"' + item.replace('"', '\\"') + '"'
    text = "" if os.path.splitext(item)[1] else f"; give a text itself by --text {quoted}"
    return DatasetNotFoundError(f"No file or folder {item!r} here{text}.")


def read_question(kind: str, items: list[str], texts: list[str], reading: Reading = AS_FOUND) -> Question:
    """Return the items that the arguments name.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        What the model takes.
    items : list of str
        Arguments: paths, or ``-`` for standard input.
    texts : list of str
        Texts given as such.
    reading : Reading
        Names of the columns of tables.
    """
    if texts and kind != "text":
        raise InputError(f"--text is for models of texts, and this one takes {KINDS[kind]}.")
    if items.count(STDIN) > 1:
        raise ParameterError("Give - once: standard input can be read only once.")
    if kind == "text":
        return _texts(items, texts, reading)
    if kind == "image":
        return _images(items, reading)
    from evergrow.data.intake import read_items

    if len(items) != 1 or items[0] == STDIN:
        raise InputError("This model takes feature vectors: name one .npy or .npz file.")
    samples = read_items(Path(items[0]), "features")
    return Question(samples, samples.names())


def _texts(items: list[str], texts: list[str], reading: Reading) -> Question:
    from evergrow.data.intake import read_items

    found: list[str] = []
    for item in items:
        if item == STDIN:
            found += [line.strip() for line in _lines(_piped())]
            continue
        if not os.path.isfile(item):
            raise _missing(item)
        samples = read_items(Path(item), "text", reading.options()).raw_items()
        found += [samples.raw(row) for row in range(len(samples))]
    found += texts
    if not found:
        raise InputError("There is no text to ask about: name a file, give --text or pipe lines into -.")
    # In a file name other bytes would be part of the name.
    foreign = next((text for text in found if text.encode("utf-8", "replace").decode() != text), None)
    if foreign is not None:
        raise InputError(f"The text {one_line(foreign)!r} is not UTF-8.")
    return Question(read_items(found, "text"), [one_line(text) for text in found])


def _images(items: list[str], reading: Reading) -> Question:
    """Return images by the names they were given by; a single folder stays one, so that it is found in the cache."""
    from evergrow.data.items import Images, concat_items

    names: list[str] = []
    parts: list[Items] = []
    for item in items:
        body = _piped() if item == STDIN else b""
        # File names hold no zero bytes, and images do; of a damaged one the beginning tells.
        if b"\0" in body[:4096] or body.startswith((b"\xff\xd8\xff", b"\x89PNG")):
            names.append(STDIN)
            parts.append(Images((body,), (STDIN,)))
            continue
        for name in _lines(body) if item == STDIN else [item]:
            shown, images = _named_images(name, reading)
            names += shown
            parts.append(images)
    if not names:
        raise InputError("There is no image to ask about: name files or folders, or pipe names or one image into -.")
    return Question(concat_items(parts), names)


def _named_images(name: str, reading: Reading) -> tuple[list[str], Items]:
    """Return the images of a file, a folder, an archive or a table, with a name of each."""
    from evergrow.data.intake import read_items
    from evergrow.data.items import is_image
    from evergrow.data.readers import reader_of_file

    items = read_items(Path(name), "image", reading.options()).raw_items()
    if not os.path.isdir(name) and (is_image(name) or reader_of_file(name) is None):
        return [name], items
    return [os.path.join(name, items.name(row)) for row in range(len(items))], items


def _piped() -> bytes:
    """Return what standard input holds: one image, or lines."""
    try:
        body: bytes = sys.stdin.buffer.read(_LONGEST + 1)
    except OSError as error:
        raise InputError(f"Standard input cannot be read: {error.strerror or error}") from error
    if len(body) > _LONGEST:
        raise InputError(f"Standard input holds more than the {_LONGEST // 2**20} MiB that are read of it.")
    return body


def _lines(body: bytes) -> list[str]:
    """Return the lines that hold something; a file name need not be UTF-8."""
    lines = body.decode("utf-8", "surrogateescape").split("\n")
    return [line.rstrip("\r") for line in lines if line.strip()]
