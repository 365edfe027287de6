"""Training files and the test files that go with them: ``x_train.csv`` and ``x_test.csv``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from evergrow.core.errors import DatasetNotFoundError

if TYPE_CHECKING:
    from evergrow.datasets.labelled import LabelledItems
    from evergrow.datasets.options import DataOptions
    from evergrow.datasets.readers import FolderRead

_PARTNERS = ("test", "testing", "val", "valid", "validation", "dev")


def partner(train: Path) -> Path | None:
    """Return the test list or table that goes with a training one: ``x_train.yaml`` and ``x_test.yaml``.

    Examples
    --------
    >>> import pathlib
    >>> from evergrow.datasets.pairs import partner
    >>> partner(pathlib.Path("nowhere/train.csv")) is None
    True
    """
    at = train.stem.lower().rfind("train")
    if at < 0:
        return None
    end = at + (8 if train.stem.lower().startswith("training", at) else 5)
    for word in _PARTNERS:
        candidate = train.with_name(f"{train.stem[:at]}{word}{train.stem[end:]}{train.suffix}")
        if candidate.is_file():
            return candidate
    return None


def training_file(folder: Path, suffixes: tuple[str, ...]) -> Path | None:
    """Return the training list or table in a folder or its ``splits`` that has a partner, if there is one."""
    for place in (folder, folder / "splits"):
        if place.is_dir():
            for file in sorted(place.iterdir()):
                right = file.suffix.lower() in suffixes and file.stem.lower().endswith(("train", "training"))
                if right and partner(file) is not None:
                    return file
    return None


def pair_reader(
    suffixes: tuple[str, ...], read: Callable[[Path, Path | None, DataOptions], LabelledItems]
) -> tuple[Callable[[Path], bool], FolderRead]:
    """Return how to tell and how to read a folder that holds a training file of these endings and its partner."""

    def fits(folder: Path) -> bool:
        return training_file(folder, suffixes) is not None

    def read_folder(folder: Path, options: DataOptions) -> LabelledItems:
        train = training_file(folder, suffixes)
        if train is None:
            raise DatasetNotFoundError(
                f"{folder} must hold a training file and its partner, such as train{suffixes[0]} and test{suffixes[0]}"
            )
        return read(train, partner(train), options)

    return fits, read_folder
