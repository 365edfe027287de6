"""CIFAR in the form it is distributed in: Python pickles, opened without letting them run anything."""

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
from evergrow.core.items import ImageArrays
from evergrow.data.labelled import LabelledItems
from evergrow.data.options import DataOptions
from evergrow.data.readers import register_layout

FOLDER = "cifar-100-python"
_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
_LARGEST = 512 * 2**20  # the training file has 155 MB


class PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows numpy arrays, containers, numbers and strings, and nothing that could do harm.

    A pickle runs whatever functions it names. This one only lets it name the three that rebuild an array of numbers
    and the one that turns text to bytes; any other name is refused before anything is called.
    """

    _reconstruct: ClassVar[Any] = np.empty(0).__reduce__()[0]  # numpy's own, whatever module it lives in
    _allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return one of the few things that a file may name."""
        if (module_name, global_name) == ("_codecs", "encode"):
            return _encode
        try:
            return self._allowed[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}") from None


def _encode(text: str, encoding: str) -> bytes:
    """Stand in for ``codecs.encode``, with the one encoding that pickles of bytes use."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding}")
    return text.encode("latin1")


def is_cifar(folder: Path) -> bool:
    """Return whether a folder holds CIFAR-100, in its own folder or directly."""
    return _own_folder(folder) is not None


@register_layout("cifar", fits=is_cifar, rank=20)
def read_cifar(folder: Path, options: DataOptions) -> LabelledItems:
    """Read CIFAR-100 from ``cifar-100-python/train``, ``test`` and ``meta``.

    Raises
    ------
    DatasetNotFoundError
        If a file is missing.
    FileFormatError
        If a file is damaged or names something other than arrays and plain values.
    """
    own = _own_folder(folder)
    if own is None:
        raise DatasetNotFoundError(f"{folder} must hold {FOLDER}/train, test and meta, got none of them")
    odd: list[str] = []
    contents = {name: _open(own / name, odd) for name in _MD5}
    names = contents["meta"].get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileFormatError(f"{own / 'meta'} must hold fine_label_names, got {sorted(contents['meta'])}")
    (train, train_labels), (test, test_labels) = (
        _part(own / part, contents[part], len(names)) for part in ("train", "test")
    )
    cautions = [f"contents differ from the official files: {', '.join(odd)}"] if odd else []
    return LabelledItems(
        "cifar",
        ImageArrays(train),
        train_labels,
        ImageArrays(test),
        test_labels,
        names=dict(enumerate(names)),
        cautions=cautions,
    )


def _own_folder(folder: Path) -> Path | None:
    for candidate in (folder, folder / FOLDER):
        if all((candidate / name).is_file() for name in _MD5):
            return candidate
    return None


def _open(path: Path, odd: list[str]) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            raise FileFormatError(f"{path} must be at most {_LARGEST >> 20} MiB, got {path.stat().st_size >> 20}")
        body = path.read_bytes()
    except OSError as error:
        raise DatasetNotFoundError(f"file must be readable, got {path}: {error}") from error
    if hashlib.md5(body, usedforsecurity=False).hexdigest() != _MD5[path.name]:
        odd.append(path.name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy finds the array types of 2009 deprecated
            content = PlainUnpickler(io.BytesIO(body), encoding="latin1").load()
    # A damaged pickle can fail in any of the calls that rebuild its values.
    except Exception as error:
        raise FileFormatError(f"{path} must be a whole file of arrays and plain values: {error}") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} must hold a dictionary, got {type(content).__name__}")
    return {str(key): value for key, value in content.items()}


def _part(path: Path, content: dict[str, Any], n_classes: int) -> tuple[NDArray[np.uint8], list[int]]:
    pixels, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3072,):
        shape = getattr(pixels, "shape", type(pixels).__name__)
        raise FileFormatError(f"{path} must hold 'data' of n x 3072 bytes, got {shape}")
    right = isinstance(labels, list) and len(labels) == len(pixels)
    if not right or not all(isinstance(label, int) and 0 <= label < n_classes for label in labels or ()):
        raise FileFormatError(f"{path} must hold {len(pixels)} 'fine_labels' from 0 to {n_classes - 1}, got others")
    images = np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, [int(label) for label in labels or ()]
