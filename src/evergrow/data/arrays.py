"""Arrays on disk: features, or images as bytes, told apart by their type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError, InputError, LabelError
from evergrow.core.items import ImageArrays
from evergrow.data.array_files import SUFFIXES, read_arrays
from evergrow.data.features import FeatureSet, features_of
from evergrow.data.labelled import Label, LabelledItems
from evergrow.data.options import DataOptions
from evergrow.data.readers import register_file_format


@register_file_format("arrays", SUFFIXES, by_name="first")
def read_array_file(path: Path, options: DataOptions | None = None) -> FeatureSet | LabelledItems:
    """Read an NPZ or safetensors file: unsigned bytes of three or four dimensions are images, floats are features.

    Parameters
    ----------
    path : Path
        A file with ``X_train, y_train, X_test, y_test`` and perhaps ``classes``, the names of labels 0, 1, ...
    options : DataOptions, optional
        Nothing in it concerns arrays.

    Raises
    ------
    FileFormatError
        If the file is damaged, lacks an array, or its arrays do not go together.
    """
    file = read_arrays(path)
    if file.arrays["X_train"].dtype == np.uint8 and file.arrays["X_train"].ndim in (3, 4):
        return _images(path, file.arrays, file.class_names)
    return features_of(path, file)


def _images(path: Path, arrays: Mapping[str, NDArray[Any]], class_names: tuple[str, ...]) -> LabelledItems:
    try:
        train = ImageArrays(arrays["X_train"])
        test = ImageArrays(arrays["X_test"]) if len(arrays["X_test"]) else None
        labels = [_labels(part, arrays, class_names) for part in ("train", "test")]
    except InputError as error:
        raise FileFormatError(f"{path} must hold labelled images: {error}") from error
    return LabelledItems("arrays", train, labels[0], test, labels[1], names=dict(enumerate(class_names)))


def _labels(part: str, arrays: Mapping[str, NDArray[Any]], class_names: tuple[str, ...]) -> list[Label]:
    labels, count = arrays[f"y_{part}"], len(arrays[f"X_{part}"])
    if labels.shape != (count,) or labels.dtype.kind not in "iuU":
        raise LabelError(f"y_{part} must hold {count} integers or strings, got shape {labels.shape} of {labels.dtype}")
    if class_names and labels.dtype.kind != "U" and count and not 0 <= labels.min() <= labels.max() < len(class_names):
        raise LabelError(
            f"y_{part} must be positions in the {len(class_names)} classes, got {labels.min()} to {labels.max()}"
        )
    values: list[Label] = labels.tolist()
    return values
