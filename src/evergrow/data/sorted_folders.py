"""Folders that ``evergrow sort`` made, after a person has corrected them."""

from __future__ import annotations

import posixpath

from evergrow.core.csv_rows import read_csv_rows
from evergrow.core.errors import InputError
from evergrow.core.escaping import exact_text, quote_names
from evergrow.data.folders import Walk
from evergrow.data.items import Dataset
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree

TABLE = "sorted.csv"
"""Name of the table of a sort, in the folder of sorted files."""

UNKNOWN = "unknown"
UNSURE = "unsure"
"""Folders of unknown images, and of predictions outside of the limits."""

_NEEDED = ("answer", "destination", "note")
"""Columns of the table that this module reads."""

_HEADER_BYTES = 1000


def _has_sort_columns(tree: Tree) -> bool:
    """Return whether the table of a folder has the columns of a sort.

    A spreadsheet may have written the table again, with another separator.
    """
    first_line = tree.read(TABLE, 0, _HEADER_BYTES).split(b"\n")[0]
    return all(column.encode() in first_line for column in _NEEDED)


@register_reader(
    "sorted",
    fits=lambda tree: tree.is_file(TABLE) and _has_sort_columns(tree),
    rank=15,
)
def read_sorted(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read the class folders of a sorted folder.

    The folders of unknown and unsure images are left out: nobody has named their
    classes. A folder that ``sort`` made for a class has the name of the class, also if
    the class name is not a valid folder name.

    Raises
    ------
    InputError
        If no class folder holds an image.
    """
    classes, doubtful = _folders_of_table(tree)
    walk = Walk(tree)
    names: list[str] = []
    labels: list[str] = []
    left_out: dict[str, int] = {}
    for folder in walk.subfolders():
        images = walk.images(folder)
        if folder in doubtful:
            left_out[folder] = len(images)
            continue
        names += images
        labels += [classes.get(folder, folder)] * len(images)
    if not names:
        raise InputError(
            f"{tree.display_name()} holds no image in a folder of a class. Move images "
            f"out of {quote_names(sorted(left_out))} into folders named after their "
            "classes."
        )
    cautions = [
        f"folder {folder!r} left out: nobody has checked its {count} images; move them "
        "to the folders of their classes to learn them"
        for folder, count in left_out.items()
        if count
    ]
    return Dataset.of(
        tree.images(names),
        labels,
        layout="sorted",
        notes=tuple(walk.notes()),
        cautions=(*cautions, *walk.cautions()),
    )


def _folders_of_table(tree: Tree) -> tuple[dict[str, str], set[str]]:
    """Return the class of each folder in the table, and the folders without a class.

    A table that was changed so that it cannot be read names no folders.
    """
    classes: dict[str, str] = {}
    doubtful = {UNKNOWN, UNSURE}
    try:
        lines = read_csv_rows(tree.text(TABLE), tree.display_name(TABLE))
        _, header = next(lines, (0, []))
        answer, destination, note = [header.index(column) for column in _NEEDED]
        for _, cells in lines:
            if not cells:
                continue
            folder = posixpath.dirname(exact_text(cells[destination]))
            if cells[note] and folder:
                doubtful.add(folder)
            elif folder:
                classes[folder] = exact_text(cells[answer])
    except (ValueError, IndexError):
        return {}, {UNKNOWN, UNSURE}
    return classes, doubtful - classes.keys()
