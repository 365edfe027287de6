"""Labelled features on disk: NPZ and safetensors files, by path or by name in a search path."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError, LabelError, ParameterError
from evergrow.core.feature_blocks import check_widths, join_blocks
from evergrow.core.registry import nearest
from evergrow.data.array_files import REQUIRED, SUFFIXES, ArrayFile, read_arrays, write_arrays


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features and labels of a training and a test set, in the type they were stored in.

    Parameters
    ----------
    name : str
        Name for people and records; never a path.
    X_train, X_test : ndarray of shape (n, d), (m, d)
        Finite features.
    y_train, y_test : ndarray of shape (n,), (m,)
        Labels; test labels occur in training.
    class_names : tuple of str
        Names of integer labels 0, 1, ...; may be empty.
    backbone : mapping
        What computed the features, as plain values for records and files; may be empty.
    origin : str
        Fingerprint of the raw data that the features were computed from, if they were just now. Two machines compute
        features that differ in their last digits, so these are told apart by origin and backbone.
    unknown : mapping
        Optional fields that a later evergrow wrote into the file, kept to be written again.
    whole : bool
        Whether there is no test set on purpose, because the data have none; only then ``X_test`` is empty.
    widths : tuple of int
        Columns of each block, where a row holds several side by side as a network gave them; :meth:`train` and
        :meth:`test` hand them on joined, at equal energy. Empty where rows are to be taken as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data import FeatureSet
    >>> X, y = np.eye(6), np.array([0, 0, 1, 1, 2, 2])
    >>> data = FeatureSet("toy", X, y, X, y)
    >>> data.train(np.array([2, 3]))[1].tolist()
    [1, 1]
    """

    name: str
    X_train: NDArray[Any]
    y_train: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]
    class_names: tuple[str, ...] = ()
    backbone: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False
    widths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            empty = part == "test" and self.whole
            _check_part(part, getattr(self, f"X_{part}"), getattr(self, f"y_{part}"), empty=empty)
        if self.X_train.shape[1] != self.X_test.shape[1]:
            raise InputError(
                f"X_test must have {self.X_train.shape[1]} columns like X_train, got {self.X_test.shape[1]}"
            )
        check_widths("widths", self.widths, self.X_train.shape[1])
        unknown = np.setdiff1d(self.y_test, self.y_train)
        if len(unknown):
            raise LabelError(f"y_test must only hold labels of y_train, got {unknown[:5].tolist()} besides")

    @property
    def n_classes(self) -> int:
        """Classes in the training set."""
        return len(np.unique(self.y_train))

    def train(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a copy of these training rows and their labels."""
        return join_blocks(self.X_train[rows], self.widths), self.y_train[rows]

    def test(self, rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return a copy of these test rows and their labels."""
        return join_blocks(self.X_test[rows], self.widths), self.y_test[rows]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the contents, so that records know which data they are about whatever the file's name."""
        if self.origin:
            return origin_fingerprint(self.origin, self.backbone)
        digest = hashlib.blake2b(repr(self.widths).encode() if self.widths else b"", digest_size=8)
        for name in REQUIRED:
            array = np.ascontiguousarray(getattr(self, name))
            digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        backbone = {"backbone": dict(self.backbone)} if self.backbone else {}
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "n_train": len(self.y_train),
            "n_test": len(self.y_test),
            "n_features": int(self.X_train.shape[1]),
            "n_classes": self.n_classes,
            **backbone,
        }


def origin_fingerprint(origin: str, backbone: Mapping[str, Any]) -> str:
    """Return the fingerprint of features that a backbone computes from the data of a fingerprint."""
    text = json.dumps([origin, dict(backbone)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _check_part(part: str, X: Any, y: Any, *, empty: bool = False) -> None:
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if empty and len(shape) == 2 and shape[0]:
        raise InputError(f"X_{part} must be empty where whole is true, got {shape[0]} rows")
    bad = shape[1:] == (0,) if empty else 0 in shape
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype.kind != "f" or bad:
        raise InputError(
            f"X_{part} must be a non-empty 2-D floating-point array, "
            f"got shape {getattr(X, 'shape', ())} of {getattr(X, 'dtype', type(X).__name__)}"
        )
    if not isinstance(y, np.ndarray) or y.shape != X.shape[:1] or y.dtype.kind not in "biuU":
        raise LabelError(
            f"y_{part} must hold {X.shape[0]} integers or strings, "
            f"got shape {getattr(y, 'shape', ())} of {getattr(y, 'dtype', type(y).__name__)}"
        )
    for start in range(0, len(X), 4096):  # a part at a time: the array may be memory-mapped
        finite = np.isfinite(X[start : start + 4096]).all(axis=1)
        if not finite.all():
            row = start + int(finite.argmin())
            raise InputError(f"X_{part} must be finite, got NaN or infinity, first in row {row}")


# -- files ----------------------------------------------------------------------------------------------


def load_features(name: str | os.PathLike[str]) -> FeatureSet:
    """Load a data set by path, or by name from the search path.

    Parameters
    ----------
    name : str or path-like
        A path to a ``.npz`` or ``.safetensors`` file, or a bare name such as ``"clinc150_minilm"``, looked
        for in :func:`search_path`. The file holds ``X_train, y_train, X_test, y_test`` and may hold
        ``classes``, the names of labels 0, 1, ... (in a safetensors file: a JSON list under the metadata key
        ``classes``). Without a test set ``X_test`` and ``y_test`` are empty or not there. Pickled arrays are refused.

    Returns
    -------
    FeatureSet

    Raises
    ------
    DatasetNotFoundError
        If there is no such file.
    FileFormatError
        If the file is damaged or lacks an array.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow.data import load_features
    >>> X, y = np.eye(4), np.array([0, 0, 1, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/toy.npz", X_train=X, y_train=y, X_test=X, y_test=y)
    ...     load_features(f"{folder}/toy.npz").n_classes
    2
    """
    path = find_features(name)
    return features_of(path, read_arrays(path))


def save_features(path: str | os.PathLike[str], data: FeatureSet) -> None:
    """Write a feature set to a file that :func:`load_features` reads, in one step.

    Parameters
    ----------
    path : path-like
        A ``.npz`` or ``.safetensors`` file. The latter holds integer labels only.
    data : FeatureSet
        What to write; its backbone is written beside the arrays, for people.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from evergrow.data import FeatureSet, load_features, save_features
    >>> data = FeatureSet("toy", np.eye(2), np.array([0, 1]), np.eye(2), np.array([0, 1]), ("cat", "dog"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_features(f"{folder}/toy.safetensors", data)
    ...     load_features(f"{folder}/toy.safetensors").class_names
    ('cat', 'dog')
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise ParameterError(f"feature file must end in {' or '.join(SUFFIXES)}, got {target.name!r}")
    if target.suffix != ".npz" and "U" in (data.y_train.dtype.kind, data.y_test.dtype.kind):
        raise ParameterError("labels must be integers in a .safetensors file, got strings: write .npz instead")
    arrays = {name: getattr(data, name) for name in REQUIRED}
    write_arrays(target, ArrayFile(arrays, data.class_names, dict(data.backbone), dict(data.unknown), data.widths))


def features_of(path: Path, file: ArrayFile) -> FeatureSet:
    """Return the feature set that a file's arrays are, or say why they are none."""
    try:
        X_train, y_train, X_test, y_test = (file.arrays[key] for key in REQUIRED)
        whole = len(X_test) == 0 == len(y_test)
        return FeatureSet(
            path.stem,
            X_train,
            y_train,
            X_test,
            y_test,
            file.class_names,
            file.backbone,
            unknown=file.unknown,
            whole=whole,
            widths=file.widths,
        )
    except (InputError, LabelError) as error:
        hint = "; images are read by load_data" if file.arrays["X_train"].dtype == np.uint8 else ""
        raise FileFormatError(f"{path} must be a labelled feature set: {error}{hint}") from error


def search_path(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the folders that names are looked for in, first match wins.

    These are the folders of ``$EVERGROW_DATA`` (several as in ``$PATH``), then ``./data``.

    Examples
    --------
    >>> from evergrow.data import search_path
    >>> [folder.as_posix() for folder in search_path({"EVERGROW_DATA": "/a"})]
    ['/a', 'data']
    """
    environ = os.environ if environ is None else environ
    folders = [Path(part) for part in environ.get("EVERGROW_DATA", "").split(os.pathsep) if part]
    return [*folders, Path("data")]


def available_features() -> list[str]:
    """Return the names of the data sets in the search path."""
    return sorted({file.stem for folder in search_path() for file in _feature_files(folder)})


def find_features(name: str | os.PathLike[str]) -> Path:
    """Return the file of a data set, or raise :class:`DatasetNotFoundError`."""
    text = os.fspath(name)
    if os.sep in text or "/" in text or text.endswith(SUFFIXES):
        path = Path(text)
        if path.is_file() and path.suffix in SUFFIXES:
            return path
        raise DatasetNotFoundError(
            f"data set must be an existing .npz or .safetensors file, got {text!r}. {_how_to_get()}"
        )
    candidates = [folder / f"{text}{suffix}" for folder in search_path() for suffix in SUFFIXES]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    looked = ", ".join(str(folder) for folder in search_path())
    known = available_features()
    hint = f"nearest there: {nearest(text, known)}" if known else "none of these folders holds a data set"
    raise DatasetNotFoundError(
        f"data set {text!r} must be on disk: looked for {text}.npz and {text}.safetensors in {looked}; "
        f"{hint}. {_how_to_get()}"
    )


def _feature_files(folder: Path) -> list[Path]:
    return [file for suffix in SUFFIXES for file in folder.glob(f"*{suffix}")] if folder.is_dir() else []


def _how_to_get() -> str:
    return (
        "To get it, put the file in ./data or in a folder named by the environment variable EVERGROW_DATA; "
        "one of your own features is an .npz file of the arrays X_train, y_train, X_test and y_test"
    )
