"""CUB-200-2011 and CIFAR-100 in the form of their authors."""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, FileFormatError
from evergrow.core.escaping import quote_names
from evergrow.data import Dataset
from evergrow.data.items import Images
from evergrow.data.storage import Tree

_CUB_FILES = (
    "images.txt",
    "image_class_labels.txt",
    "train_test_split.txt",
    "classes.txt",
)
_CIFAR_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
_CIFAR_MAX_BYTES = 512 * 2**20  # the training file has 155 MB


def read_published(folder: Path) -> Dataset | None:
    """Read a folder with CUB-200-2011 or CIFAR-100 as published; otherwise return None.

    Raises
    ------
    DatasetNotFoundError
        If a file or an image is missing.
    FileFormatError
        If a file is damaged, or the files contradict each other.
    """
    for inner in (folder, folder / "CUB_200_2011"):
        if _has_all(inner, _CUB_FILES):
            return read_cub(inner)
    for inner in (folder, folder / "cifar-100-python"):
        if _has_all(inner, tuple(_CIFAR_MD5)):
            return read_cifar(inner)
    return None


def _has_all(folder: Path, names: tuple[str, ...]) -> bool:
    return all((folder / name).is_file() for name in names)


def read_cub(folder: Path) -> Dataset:
    """Read CUB-200-2011: its four tables and ``images/``.

    Raises
    ------
    DatasetNotFoundError
        If a file or an image is missing.
    FileFormatError
        If the tables contradict each other.
    """
    images, labels, split, classes = (_numbered(folder / name) for name in _CUB_FILES)
    if images.keys() != labels.keys() or images.keys() != split.keys():
        mismatched = (images.keys() ^ labels.keys()) | (images.keys() ^ split.keys())
        raise FileFormatError(
            f"{folder}: all tables must number the same images, "
            f"got {sorted(mismatched)[:5]} in some of them only"
        )
    unknown = sorted(set(labels.values()) - {str(number) for number in classes})
    if unknown:
        raise FileFormatError(
            f"{folder / 'classes.txt'} must name all classes, "
            f"but it lacks {quote_names(unknown)}"
        )
    files: dict[str, list[str]] = {"1": [], "0": []}
    codes: dict[str, list[int]] = {"1": [], "0": []}
    for number, name in sorted(images.items()):
        part = split[number]
        if part not in files:
            raise FileFormatError(
                f"{folder / 'train_test_split.txt'} must hold 0 and 1, got {part!r}"
            )
        files[part].append(f"images/{name}")
        codes[part].append(int(labels[number]))
    train = _existing_images(folder, files["1"])
    test = _existing_images(folder, files["0"])
    return Dataset.of(train, codes["1"], test, codes["0"], names=classes, layout="cub")


def _numbered(path: Path) -> dict[int, str]:
    """Read a table of ``number value`` lines."""
    table: dict[int, str] = {}
    for line, text in enumerate(Tree(path.parent).text(path.name).split("\n"), start=1):
        if not text.strip():
            continue
        number, _, value = text.strip().partition(" ")
        if not number.isdecimal() or not value.strip() or int(number) in table:
            raise FileFormatError(
                f"{path} line {line} must be a new number and a value, "
                f"got {text.strip()!r}"
            )
        table[int(number)] = value.strip()
    return table


def _existing_images(root: Path, names: list[str]) -> Images:
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise DatasetNotFoundError(
            f"the images must be in {root}, but {len(missing)} of {len(names)} are "
            f"not: {quote_names(missing)}"
        )
    return Images(tuple(names), root=root)


# -- CIFAR-100: Python pickles, read without running code ------------------------------


class PlainUnpickler(pickle.Unpickler):
    """An unpickler of numpy arrays, containers, numbers and strings only.

    A pickle calls any function that it names. This one may name only the three that
    rebuild an array of numbers and the one that converts text to bytes. Any other name
    raises before anything is called.
    """

    # numpy's function, which has moved between modules
    _reconstruct: ClassVar[Any] = np.empty(0).__reduce__()[0]
    _allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return an allowed function or type; raise for any other name."""
        if (module_name, global_name) == ("_codecs", "encode"):
            return _encode
        try:
            return self._allowed[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {module_name}.{global_name}"
            ) from None


def _encode(text: str, encoding: str) -> bytes:
    """Encode text like ``codecs.encode``, in the encoding of pickled bytes only."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}")
    return text.encode("latin1")


def read_cifar(folder: Path) -> Dataset:
    """Read CIFAR-100 from ``cifar-100-python/train``, ``test`` and ``meta``.

    Raises
    ------
    DatasetNotFoundError
        If a file is missing.
    FileFormatError
        If a file is damaged or contains anything but arrays and plain values.
    """
    train = _read_pickle(folder / "train")
    test = _read_pickle(folder / "test")
    meta = _read_pickle(folder / "meta")
    names = meta.get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileFormatError(
            f"{folder / 'meta'} must hold fine_label_names, got {sorted(meta)}"
        )
    X_train, y_train = _cifar_part(folder / "train", train, len(names))
    X_test, y_test = _cifar_part(folder / "test", test, len(names))
    modified = [name for name, md5 in _CIFAR_MD5.items() if _md5(folder / name) != md5]
    cautions: tuple[str, ...] = ()
    if modified:
        cautions = (f"contents differ from the official files: {', '.join(modified)}",)
    return Dataset.of(
        Images(X_train),
        y_train,
        Images(X_test),
        y_test,
        names=names,
        layout="cifar",
        cautions=cautions,
    )


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def _read_pickle(path: Path) -> dict[str, Any]:
    """Read the dictionary in a pickle without running its code."""
    try:
        size = path.stat().st_size
        if size > _CIFAR_MAX_BYTES:
            raise FileFormatError(
                f"{path} must be at most {_CIFAR_MAX_BYTES >> 20} MiB, got {size >> 20}"
            )
        body = path.read_bytes()
    except OSError as error:
        raise DatasetNotFoundError(
            f"file must be readable, got {path}: {error}"
        ) from error
    try:
        with warnings.catch_warnings():
            # numpy has deprecated the array types of 2009.
            warnings.simplefilter("ignore")
            content = PlainUnpickler(io.BytesIO(body), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can fail in any call
        raise FileFormatError(
            f"{path} must be a whole file of arrays and plain values: {error}"
        ) from error
    if not isinstance(content, dict):
        raise FileFormatError(
            f"{path} must hold a dictionary, got {type(content).__name__}"
        )
    return {str(key): value for key, value in content.items()}


def _cifar_part(
    path: Path, content: dict[str, Any], n_classes: int
) -> tuple[NDArray[np.uint8], list[int]]:
    pixels = content.get("data")
    labels = content.get("fine_labels")
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (3072,)
    ):
        shape = getattr(pixels, "shape", type(pixels).__name__)
        raise FileFormatError(f"{path} must hold 'data' of n x 3072 bytes, got {shape}")
    valid = isinstance(labels, list) and len(labels) == len(pixels)
    if not valid or not all(
        isinstance(label, int) and 0 <= label < n_classes for label in labels or ()
    ):
        raise FileFormatError(
            f"{path} must hold {len(pixels)} 'fine_labels' from 0 to {n_classes - 1}, "
            "got others"
        )
    images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, [int(label) for label in labels or ()]
