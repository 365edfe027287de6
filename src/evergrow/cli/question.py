"""Reading what commands are asked about or learn: files, folders, texts, videos, features and standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evergrow.cli.options import AS_FOUND, Reading, VideoOptions
from evergrow.core.errors import DatasetNotFoundError, InputError, ParameterError
from evergrow.core.escaping import one_line

if TYPE_CHECKING:
    from evergrow.data.items import Items
    from evergrow.learner.learner import Learner

STDIN = "-"


@dataclass(frozen=True, eq=False)
class Question:
    """The items of a question, in any form that a learner takes, with a name of each for people."""

    items: Any
    names: list[str]


def check_items(items: list[str]) -> None:
    """Refuse items that are no files, before a model is loaded to be asked about them."""
    from evergrow.data.folders import is_pattern
    from evergrow.data.video import is_video

    for item in items:
        if item != STDIN and not is_video(item) and not os.path.exists(item) and not is_pattern(item):
            text = f"; give a text itself by --text {_quoted(item)}" if not os.path.splitext(item)[1] else ""
            raise DatasetNotFoundError(f"No file or folder {item!r} here{text}.")


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
        raise InputError(f"--text is for models of texts, and this one takes {_kinds(kind)}.")
    if items.count(STDIN) > 1:
        raise ParameterError("Give - once: standard input can be read only once.")
    if kind == "text":
        return _texts(items, texts, reading)
    return _vectors(items) if kind == "features" else _images(items, reading)


def _kinds(kind: str) -> str:
    return {"image": "images", "text": "texts"}.get(kind, "feature vectors")


def _texts(items: list[str], texts: list[str], reading: Reading) -> Question:
    from evergrow.data.intake import read_items

    found: list[str] = []
    for item in items:
        if item == STDIN:
            found += [line.strip() for line in _piped()]
            continue
        if not os.path.isfile(item):
            raise DatasetNotFoundError(f"No file {item!r} here; give a text itself by --text {_quoted(item)}.")
        samples = read_items(Path(item), "text", reading.options()).raw_items()
        found += [samples.raw(row) for row in range(len(samples))]
    found += texts
    if not found:
        raise InputError("There is no text to ask about: name a file, give --text or pipe lines into -.")
    for text in found:
        _check_letters(text)
    return Question(read_items(found, "text"), [one_line(text) for text in found])


def _piped() -> list[str]:
    """Return the lines of standard input that hold something."""
    try:
        return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> InputError:
    return InputError(f"Standard input cannot be read: {error.strerror or error}")


def _check_letters(text: str) -> None:
    """Refuse a text with bytes that are no letters; in a file name they would be part of the name."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"The text {one_line(text)!r} is not UTF-8.") from error


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _vectors(items: list[str]) -> Question:
    from evergrow.data.intake import read_items

    if len(items) != 1 or items[0] == STDIN:
        raise InputError("This model takes feature vectors: name one .npy or .npz file.")
    samples = read_items(Path(items[0]), "features")
    return Question(samples, samples.names())


def _images(items: list[str], reading: Reading) -> Question:
    """Return images by the names they were given by; a single folder stays one, so that it is found in the cache."""
    from evergrow.data.items import concat_items

    parts: list[Items] = []
    names: list[str] = []
    for item in items:
        shown, images = _piped_images(reading) if item == STDIN else _named_images(item, reading)
        names += shown
        parts += images
    if not names:
        raise InputError("There is no image to ask about: name files or folders, or pipe names or one image into -.")
    return Question(concat_items(parts), names)


def _named_images(name: str, reading: Reading) -> tuple[list[str], list[Items]]:
    """Return the images of a file, a folder, an archive, a table or a pattern, with a name of each."""
    from evergrow.data.folders import is_pattern, patterns_of, read_patterns
    from evergrow.data.intake import read_items
    from evergrow.data.items import is_image
    from evergrow.data.readers import reader_of_file

    if is_pattern(name):
        items = read_patterns(patterns_of(name)).train.raw_items()
    else:
        items = read_items(Path(name), "image", reading.options()).raw_items()
        if not os.path.isdir(name) and (is_image(name) or reader_of_file(name) is None):
            return [name], [items]
    inside = [items.name(row) for row in range(len(items))]
    return [below if is_pattern(name) else os.path.join(name, below) for below in inside], [items]


def _listed_images(lines: list[str], reading: Reading) -> tuple[list[str], list[Items]]:
    found = [_named_images(line, reading) for line in lines]
    return [name for names, _ in found for name in names], [part for _, parts in found for part in parts]


def video_question(learner: Learner, items: list[str], video: VideoOptions) -> Question | None:
    """Return the frames of videos and cameras as a question; None where no item is one.

    Raises
    ------
    InputError
        If the model is not one of images, or other items are among them.
    """
    from evergrow.data.video import is_video

    videos = [item for item in items if is_video(item)]
    if not videos:
        return None
    if learner.kind_ != "image":
        raise InputError(f"{videos[0]} is a video, and the model takes {_kinds(learner.kind_)}.")
    if len(items) > 1:
        raise InputError(f"Ask about one video or camera at a time, such as {videos[0]} alone.")
    source = video.source(videos[0])
    features = learner.features(iter(source))  # one chunk of frames is held at a time
    return Question(features, [source.name(number) for number in range(len(features) + len(features.failures))])


def labelled_frames(data: str, label: str | None, video: VideoOptions) -> Iterator[tuple[Any, str]] | None:
    """Return the frames of a video or camera with the class that was given; None where DATA is no such.

    Raises
    ------
    ParameterError
        If a class is missing, or given for other data.
    """
    from evergrow.data.video import is_video

    if not is_video(data):
        if label is not None:
            raise ParameterError(f"--label is for a video or camera:N, and {data} is neither; leave it out.")
        return None
    if label is None:
        raise ParameterError(f"A video has no labels: name the class of the frames of {data} by --label.")
    return video.source(data).labelled(label)


# -- an image on standard input -------------------------------------------------------------------------------

_LONGEST = 256 * 2**20
"""Bytes that an image, or a list of names, on standard input may have."""


def _is_image(body: bytes) -> bool:
    """Return whether bytes begin like an image file, and not like the name of one."""
    plain = body.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"))
    windows = body.startswith(b"BM") and b"\0" in body[:16]
    return plain or windows or body[8:12] == b"WEBP" or body[4:8] == b"ftyp"


def _piped_images(reading: Reading) -> tuple[list[str], list[Items]]:
    """Return the one image that standard input holds, or the images whose names it lists."""
    from evergrow.data.items import Images

    source = getattr(sys.stdin, "buffer", None)
    if source is None:
        return _listed_images(_piped(), reading)
    try:
        body: bytes = source.read(_LONGEST + 1)
    except OSError as error:
        raise _unreadable(error) from error
    if len(body) > _LONGEST:
        raise InputError(f"Standard input holds more than the {_LONGEST // 2**20} MiB that are read of it.")
    if _is_image(body):
        return [STDIN], [Images((body,), (STDIN,))]
    lines = body.decode("utf-8", "surrogateescape").split("\n")
    return _listed_images([line.rstrip("\r") for line in lines if line.strip()], reading)
