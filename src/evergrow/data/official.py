"""CUB-200-2011 and Stanford Cars as their authors publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evergrow.core.errors import DatasetNotFoundError, FileFormatError
from evergrow.core.items import ImageFiles
from evergrow.data.labelled import LabelledItems, listed
from evergrow.data.lists import read_text
from evergrow.data.options import DataOptions
from evergrow.data.readers import register_layout

_CUB_FILES = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
_CARS_TRAIN = ("devkit/cars_train_annos.mat", "cars_train_annos.mat")
_CARS_TEST = ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")
_CARS_META = ("devkit/cars_meta.mat", "cars_meta.mat")


def is_cub(folder: Path) -> bool:
    """Return whether a folder holds the official CUB-200-2011, in its own folder or directly."""
    return _cub_folder(folder) is not None


@register_layout("cub", fits=is_cub, rank=30)
def read_cub(folder: Path, options: DataOptions) -> LabelledItems:
    """Read ``images.txt``, ``image_class_labels.txt``, ``train_test_split.txt``, ``classes.txt`` and ``images/``.

    Raises
    ------
    DatasetNotFoundError
        If a file or an image is missing.
    FileFormatError
        If the tables do not go together.
    """
    own = _cub_folder(folder)
    if own is None:
        raise DatasetNotFoundError(f"{folder} must hold {', '.join(_CUB_FILES)}, but it does not")
    images, labels, split, classes = (_numbered(own / name) for name in _CUB_FILES)
    if images.keys() != labels.keys() or images.keys() != split.keys():
        odd = sorted((images.keys() ^ labels.keys()) | (images.keys() ^ split.keys()))
        raise FileFormatError(f"{own}: all tables must number the same images, got {odd[:5]} in some of them only")
    unknown = sorted(set(labels.values()) - {str(number) for number in classes})
    if unknown:
        raise FileFormatError(f"{own / 'classes.txt'} must name all classes, but it lacks {listed(unknown)}")
    files: dict[str, list[str]] = {"1": [], "0": []}
    codes: dict[str, list[int]] = {"1": [], "0": []}
    for number, name in sorted(images.items()):
        if split[number] not in files:
            raise FileFormatError(f"{own / 'train_test_split.txt'} must hold 0 and 1, got {split[number]!r}")
        files[split[number]].append(f"images/{name}")
        codes[split[number]].append(int(labels[number]))
    parts = [_existing(own, files[part]) for part in ("1", "0")]
    return LabelledItems("cub", parts[0], codes["1"], parts[1], codes["0"], names=classes)


def is_cars(folder: Path) -> bool:
    """Return whether a folder holds the official Stanford Cars."""
    return _first(folder, _CARS_TRAIN) is not None


@register_layout("cars", fits=is_cars, rank=40)
def read_cars(folder: Path, options: DataOptions) -> LabelledItems:
    """Read ``devkit/*.mat``, ``cars_train/`` and ``cars_test/``.

    Raises
    ------
    DatasetNotFoundError
        If a file or an image is missing, among them the test annotations with labels, which are a separate download.
    FileFormatError
        If a file is not what it should be.
    """
    tables = []
    for places in (_CARS_TRAIN, _CARS_TEST, _CARS_META):
        path = _first(folder, places)
        if path is None:
            raise DatasetNotFoundError(f"{folder} must hold {' or '.join(places)}, but it does not")
        tables.append((path, _mat(path)))
    names = _cars_names(*tables[2])
    parts = []
    for (path, table), part in zip(tables[:2], ("cars_train", "cars_test"), strict=True):
        rows = _annotations(path, table)
        parts.append((_existing(folder, [f"{part}/{name}" for name, _ in rows]), [label for _, label in rows]))
    (train, train_labels), (test, test_labels) = parts
    return LabelledItems("cars", train, train_labels, test, test_labels, names=names)


def _cub_folder(folder: Path) -> Path | None:
    for candidate in (folder, folder / "CUB_200_2011"):
        if all((candidate / name).is_file() for name in _CUB_FILES):
            return candidate
    return None


def _numbered(path: Path) -> dict[int, str]:
    """Return a table of ``number value`` lines."""
    table: dict[int, str] = {}
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        number, _, value = text.strip().partition(" ")
        if not number.isdecimal() or not value.strip() or int(number) in table:
            raise FileFormatError(f"{path} line {line} must be a new number and a value, got {text.strip()!r}")
        table[int(number)] = value.strip()
    return table


def _existing(root: Path, names: list[str]) -> ImageFiles:
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise DatasetNotFoundError(
            f"the images must be in {root}, but {len(missing)} of {len(names)} are not: {listed(missing)}"
        )
    return ImageFiles(root, tuple(names))


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _mat(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(path, simplify_cells=True)
    # The reader has no error of its own for damaged files; it fails where its parsing happens to fail.
    except Exception as error:
        raise FileFormatError(f"{path} must be a whole MATLAB file: {error}") from error
    return content


def _cars_names(path: Path, table: dict[str, Any]) -> dict[int, str]:
    if "class_names" not in table:
        raise FileFormatError(f"{path} must hold class_names, got {sorted(table)}")
    names = table["class_names"]
    every = [names] if isinstance(names, str) else list(names)  # one name alone comes without its list
    return {number: str(name) for number, name in enumerate(every, start=1)}


def _annotations(path: Path, table: dict[str, Any]) -> list[tuple[str, int]]:
    try:
        rows = table["annotations"]
        rows = [rows] if isinstance(rows, dict) else rows
        return [(str(row["fname"]), int(row["class"])) for row in rows]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FileFormatError(f"{path} must hold annotations with fname and class: {error!r}") from error
