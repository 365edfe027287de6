"""Reading what ``evergrow predict`` is asked about: files, folders, texts, feature vectors and standard input."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError
from evergrow.core.escaping import one_line

STDIN = "-"


@dataclass(frozen=True, eq=False)
class Question:
    """The items of a question, in any form that a learner takes, with a name of each for people."""

    items: Any
    names: list[str]


def check_items(items: list[str]) -> None:
    """Refuse items that are no files, before a model is loaded to be asked about them."""
    for item in items:
        if item != STDIN and not os.path.exists(item):
            text = f"; give a text itself by --text {_quoted(item)}" if not os.path.splitext(item)[1] else ""
            raise DatasetNotFoundError(f"ITEMS must be existing files or folders, got {item!r}{text}")


def read_question(kind: str, items: list[str], texts: list[str]) -> Question:
    """Return the items that the arguments name.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        What the model takes.
    items : list of str
        Arguments: paths, or ``-`` for standard input.
    texts : list of str
        Texts given as such.
    """
    if texts and kind != "text":
        raise InputError(f"--text must be left out for a model of {_kinds(kind)}, got {texts[0]!r}")
    if items.count(STDIN) > 1:
        raise ParameterError("- must be given once, since standard input can be read once")
    if kind == "text":
        return _texts(items, texts)
    return _vectors(items) if kind == "features" else _images(items)


def _kinds(kind: str) -> str:
    return {"image": "images", "text": "texts"}.get(kind, "feature vectors")


def _texts(items: list[str], texts: list[str]) -> Question:
    from evergrow.learner.intake import read_items

    found: list[str] = []
    for item in items:
        if item == STDIN:
            found += [line.strip() for line in _piped()]
            continue
        if not os.path.isfile(item):
            raise DatasetNotFoundError(
                f"ITEMS must be existing files of texts, got {item!r}; give a text itself by --text {_quoted(item)}"
            )
        samples = read_items(Path(item), "text").raw_items()
        found += [samples.raw(row) for row in range(len(samples))]
    found += texts
    if not found:
        raise InputError("ITEMS must hold at least one text, got none: name a file, give --text or pipe lines into -")
    for text in found:
        _check_letters(text)
    return Question(read_items(found, "text"), [one_line(text) for text in found])


def _piped() -> list[str]:
    """Return the lines of standard input that hold something."""
    try:
        return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    except OSError as error:
        raise InputError(
            f"- must stand for a standard input that can be read, got {error.strerror or error}"
        ) from error


def _check_letters(text: str) -> None:
    """Refuse a text with bytes that are no letters; in a file name they would be part of the name."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"texts must be UTF-8, got {one_line(text)!r}") from error


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _vectors(items: list[str]) -> Question:
    from evergrow.learner.intake import read_items

    if len(items) != 1 or items[0] == STDIN:
        raise InputError(f"ITEMS must be one .npy or .npz file, since the model takes feature vectors, got {items}")
    samples = read_items(Path(items[0]), "features")
    return Question(samples, samples.names())


def _images(items: list[str]) -> Question:
    """Return images by the names they were given by; a single folder stays one, so that it is found in the cache."""
    from evergrow.learner.intake import read_items

    names: list[str] = []
    for item in items:
        if item == STDIN:
            names += _piped()
        else:
            names.append(item)
    if not names:
        raise InputError("ITEMS must hold at least one image, got none: name files or folders, or pipe names into -")
    if len(names) == 1 and os.path.isdir(names[0]):
        samples = read_items(Path(names[0]), "image")
        return Question(samples, [os.path.join(names[0], name) for name in samples.names()])
    files: list[str] = []
    for name in names:
        if os.path.isdir(name):
            files += [os.path.join(name, below) for below in read_items(Path(name), "image").names()]
        else:
            files.append(name)
    return Question([Path(file) for file in files], files)
