"""Images named by patterns such as ``photos/*/*.jpg``: their folders are their classes."""

from __future__ import annotations

import glob
import os
import posixpath
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from evergrow.core.errors import DatasetNotFoundError, InputError
from evergrow.core.image_formats import is_image, plugin_format
from evergrow.core.items import ImageFiles
from evergrow.data.labelled import LabelledItems, listed


def is_pattern(text: str) -> bool:
    """Return whether a name is a pattern, or several as in ``$PATH``, and no file or folder.

    Examples
    --------
    >>> from evergrow.data.globs import is_pattern
    >>> is_pattern("photos/*/*.jpg"), is_pattern("photos")
    (True, False)
    """
    return glob.has_magic(text) and not os.path.exists(text)


def patterns_of(text: str) -> list[str]:
    """Return the patterns in a name: one, or several with a colon between (a semicolon on Windows).

    Examples
    --------
    >>> from evergrow.data.globs import patterns_of
    >>> patterns_of("a/*.jpg:b/*.jpg"), patterns_of("10:30/*.jpg")
    (['a/*.jpg', 'b/*.jpg'], ['10:30/*.jpg'])
    """
    pieces = text.split(os.pathsep)
    return pieces if all(map(glob.has_magic, pieces)) else [text]


def read_globs(patterns: Sequence[str]) -> LabelledItems:
    """Read the images that patterns name; the folder that an image is in is its class.

    Parameters
    ----------
    patterns : sequence of str
        As :mod:`glob` takes them; ``**`` stands for any folders.

    Raises
    ------
    DatasetNotFoundError
        If a pattern matches no image.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.globs import read_globs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat/1.jpg", "dog/1.jpg", "dog/notes.txt"):
    ...         pathlib.Path(folder, name).parent.mkdir(exist_ok=True)
    ...         _ = pathlib.Path(folder, name).write_bytes(b"x")
    ...     read_globs([f"{folder}/*/*"]).train_labels
    ['cat', 'dog']
    """
    if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InputError(f"patterns must be at least one pattern such as 'photos/*/*.jpg', got {patterns!r}")
    found: dict[str, None] = {}
    ignored: Counter[str] = Counter()
    unread: Counter[str] = Counter()
    for pattern in patterns:
        files = [name for name in sorted(glob.iglob(pattern, recursive=True)) if os.path.isfile(name)]
        images = [os.path.abspath(name) for name in files if is_image(name)]
        if not images:
            raise DatasetNotFoundError(f"pattern must match at least one image, got none for {pattern!r}")
        for name in files:
            kind = None if is_image(name) else plugin_format(name)
            if kind is not None:
                unread[f"{kind.title} images left out: {{}}; {kind.remedy}"] += 1
            elif not is_image(name):
                ignored[os.path.splitext(name)[1].lower() or "no suffix"] += 1
        found.update(dict.fromkeys(images))
    root = Path(os.path.commonpath([os.path.dirname(name) for name in found]))
    if all(os.path.dirname(name) == os.fspath(root) for name in found):
        root = root.parent  # one folder: it is the class, and its name must be in the names
    names = sorted(Path(name).relative_to(root).as_posix() for name in found)
    notes = [f"patterns: {listed(patterns)}; the folder of an image is its class"]
    if ignored:
        notes.append(f"files left out: {sum(ignored.values())} ({', '.join(map(str, sorted(ignored)))})")
    cautions = [sentence.format(count) for sentence, count in sorted(unread.items())]
    labels = [posixpath.basename(posixpath.dirname(name)) or root.name for name in names]
    return LabelledItems("patterns", ImageFiles(root, tuple(names)), labels, notes=notes, cautions=cautions)
