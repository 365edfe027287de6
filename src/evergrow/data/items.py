"""Samples, the one record of rows with labels; images and texts in it; data sets of a training and a test part.

Nothing is decoded here. An item has a name for messages, and all items together have a
stamp for caches.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    DatasetNotFoundError,
    FileFormatError,
    ImageError,
    InputError,
    LabelError,
)
from evergrow.core.seeding import derive_seed

Kind = Literal["image", "text"]
Label = str | int

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_JOINED_ROWS = 4096  # rows joined at a time: features may be memory-mapped


class Stored(NamedTuple):
    """An image by reference.

    Parameters
    ----------
    store : object
        A file or a library that holds many images, and can be sent to other processes.
        ``read(key)`` returns one: the bytes of a file, a path, an array or a PIL image.
        ``mark(key, times=...)`` returns what tells it from others without reading it;
        with times, also from older versions.
    key : object
        What the store calls the image.
    """

    store: Any
    key: Any


@dataclass(frozen=True, eq=False)
class Images:
    """A sequence of images, by reference or in memory.

    Parameters
    ----------
    values : sequence
        Files by their names relative to ``root``, with forward slashes; or any of
        paths, bytes of image files, arrays of bytes, PIL images, references into a
        store (:class:`Stored`) and errors that say why an image is missing; or one
        array of shape (n, height, width, 3) or (n, height, width), red first.
    titles : tuple of str
        Names for people; files have their own, and others are numbered without.
    root : Path, optional
        Folder that files are relative to. Stamps leave it out, so that a folder can be
        moved.

    Examples
    --------
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow.data.items import Images
    >>> Images(("cat/1.jpg", "dog/1.jpg"), root=Path("data")).take([1]).raw(0).as_posix()
    'data/dog/1.jpg'
    >>> len(Images(np.zeros((5, 32, 32, 3), dtype=np.uint8)).take([0, 4]))
    2
    """

    values: Sequence[Any] | NDArray[np.uint8]
    titles: tuple[str, ...] = ()
    root: Path | None = None
    kind: ClassVar[Kind] = "image"

    def __post_init__(self) -> None:
        array = self.values
        if isinstance(array, np.ndarray) and not (
            array.dtype == np.uint8
            and (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3))
        ):
            raise InputError(
                f"pixels must be uint8 of shape (n, h, w[, 3]), got {array.dtype} {array.shape}"
            )

    @property
    def pixels(self) -> NDArray[np.uint8] | None:
        """All images as one array, where they are one."""
        if isinstance(self.values, np.ndarray):
            return self.values
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all images."""
        return tuple(self.name(row) for row in range(len(self)))

    @property
    def lasting(self) -> bool:
        """Whether they lie on disk, so that caching their features pays."""
        return self.root is not None or (
            len(self) > 0 and isinstance(self.values[0], Stored)
        )

    def __len__(self) -> int:
        return len(self.values)

    def name(self, row: int) -> str:
        """Return the name of an image: its own, or its number."""
        if self.root is not None:
            return str(self.values[row])
        if self.titles:
            return self.titles[row]
        value = self.values[row]
        if isinstance(value, (str, os.PathLike)):
            named = value
        else:
            named = getattr(value, "filename", "")
        if named:
            return os.path.basename(os.fspath(named))
        return f"image {row}"

    def raw(self, row: int) -> Any:
        """Return one image, read from its store where it has one.

        Raises
        ------
        ImageError
            If it is not there.
        """
        value = self.values[row]
        if self.root is not None:
            return self.root / value
        if isinstance(value, ImageError):
            raise value
        if not isinstance(value, Stored):
            return value
        try:
            return value.store.read(value.key)
        except (
            FileFormatError
        ) as error:  # one damaged image among many, which can be left out
            raise ImageError(str(error)) from error

    def batch(self, rows: Iterable[int]) -> list[tuple[str, Any]]:
        """Return name and content of these rows; the error stands in the place of an image that cannot be read."""
        found: list[tuple[str, Any]] = []
        for row in rows:
            try:
                content = self.raw(row)
            except (ImageError, OSError) as error:
                content = error
            found.append((self.name(row), content))
        return found

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Images:
        """Return the images of these rows; none is read."""
        numbers = np.asarray(rows, dtype=np.int64)
        if self.titles:
            titles = tuple(self.titles[row] for row in numbers)
        else:
            titles = ()
        if isinstance(self.values, np.ndarray):
            return Images(self.values[numbers], titles)
        return Images(tuple(self.values[row] for row in numbers), titles, self.root)

    def stamp(self, *, times: bool = True) -> str:
        """Return a hash of contents, and of names, sizes and times of change of files, which are not read.

        Without times, a copy on another machine has the same.
        """
        if self.lasting:
            return self._hash(times=times)
        return self._content

    @cached_property
    def _content(self) -> str:
        return self._hash(times=True)

    def _hash(self, *, times: bool) -> str:
        if isinstance(self.values, np.ndarray):
            digest = hashlib.blake2b(
                f"pixels{self.values.shape}".encode(), digest_size=16
            )
            for start in range(
                0, len(self.values), 1024
            ):  # a part at a time: the array may be memory-mapped
                digest.update(
                    np.ascontiguousarray(self.values[start : start + 1024])
                    .reshape(-1)
                    .data
                )
            return digest.hexdigest()
        digest = hashlib.blake2b(
            b"files" if self.root is not None else b"images", digest_size=16
        )
        for value in self.values:
            if isinstance(value, Stored):
                digest.update(
                    value.store.mark(value.key, times=times).encode(
                        "utf-8", "surrogateescape"
                    )
                    + b"\0"
                )
            elif isinstance(value, (str, os.PathLike)):
                path = os.path.join(self.root or "", value)
                try:
                    status = os.stat(path)
                except OSError as error:
                    raise DatasetNotFoundError(
                        f"image must be a readable file, got {path}: {error}"
                    ) from error
                mark = f"{os.fspath(value)}\0{status.st_size}\0{status.st_mtime_ns if times else 0}\0"
                digest.update(mark.encode("utf-8", "surrogateescape"))
            elif isinstance(value, (bytes, ImageError)):
                if isinstance(value, bytes):
                    body = value
                else:
                    body = str(value).encode()
                digest.update(len(body).to_bytes(8, "little") + body)
            else:
                pixels = np.ascontiguousarray(value)
                shown: tuple[Any, ...] = ()
                if not isinstance(value, np.ndarray):
                    # Palette and orientation of a PIL image decide what is seen, and
                    # are no part of its pixels.
                    shown = (value.mode, value.getpalette(), value.getexif().get(274))
                digest.update(f"{pixels.shape}{pixels.dtype}{shown}\0".encode())
                digest.update(pixels.reshape(-1).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Texts:
    """A sequence of texts in memory.

    Parameters
    ----------
    texts : tuple of str
        The texts.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> Texts(("hello", "world")).take([1]).raw(0)
    'world'
    """

    texts: tuple[str, ...]
    kind: ClassVar[Kind] = "text"

    def __len__(self) -> int:
        return len(self.texts)

    def name(self, row: int) -> str:
        """Return the beginning of the text."""
        text = self.texts[row]
        return repr(text if len(text) <= 40 else f"{text[:37]}...")

    def raw(self, row: int) -> str:
        """Return the text."""
        return self.texts[row]

    def batch(self, rows: Iterable[int]) -> list[tuple[str, Any]]:
        """Return name and content of these rows."""
        return [(self.name(row), self.texts[row]) for row in rows]

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Texts:
        """Return the texts of these rows."""
        return Texts(tuple(self.texts[int(row)] for row in rows))

    def stamp(self, *, times: bool = True) -> str:
        """Return a hash of the texts."""
        digest = hashlib.blake2b(b"texts", digest_size=16)
        for text in self.texts:
            body = text.encode("utf-8", "surrogatepass")
            digest.update(len(body).to_bytes(8, "little") + body)
        return digest.hexdigest()


Items: TypeAlias = Images | Texts
"""What samples can be before they are feature vectors."""


def concat_items(parts: Sequence[Items]) -> Items:
    """Return items of one kind one after another.

    Parameters
    ----------
    parts : sequence of Items
        At least one: all texts, or all images.

    Raises
    ------
    InputError
        If they do not go together.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.data.items import Images, concat_items
    >>> concat_items([Images(("1.jpg",), root=Path("a")), Images(("2.jpg",), root=Path("a/b"))]).names
    ('1.jpg', 'b/2.jpg')
    """
    if not parts or len({part.kind for part in parts}) > 1:
        raise InputError(
            f"items must be at least one, and of one kind to go together, got {len(parts)} parts"
        )
    if len(parts) == 1:
        return parts[0]
    images = [part for part in parts if isinstance(part, Images)]
    if not images:
        return Texts(tuple(part.raw(row) for part in parts for row in range(len(part))))
    arrays = [part.values for part in images if isinstance(part.values, np.ndarray)]
    if len(arrays) == len(images) and len({array.shape[1:] for array in arrays}) == 1:
        return Images(np.concatenate(arrays))
    roots = [part.root for part in images if part.root is not None]
    if len(roots) < len(images):
        values = tuple(
            part.root / value if part.root else value
            for part in images
            for value in part.values
        )
        return Images(values, tuple(name for part in images for name in part.names))
    root = roots[0]
    below = [""] * len(roots)
    if any(other != root for other in roots):  # names are relative to the common folder
        root = Path(os.path.commonpath([other.absolute() for other in roots]))
        below = [other.absolute().relative_to(root).as_posix() for other in roots]
    pairs = (
        (folder, name)
        for folder, part in zip(below, images, strict=True)
        for name in part.values
    )
    return Images(
        tuple(
            posixpath.normpath(posixpath.join(folder, name)) for folder, name in pairs
        ),
        root=root,
    )


# -- samples ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of one kind, with labels where they have some.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        What they are.
    items : Items or None
        Images or texts.
    features : ndarray of shape (n, d) or None
        Feature vectors, their blocks joined.
    labels : ndarray of str of shape (n,) or None
        Class names.
    lasting : bool
        Whether they lie on disk, so that caching their features pays.
    origin : mapping
        What computed the features, as far as that is known.
    widths : tuple of int
        Columns of each block of the features, as far as that is known.
    label_kind : {"name", "integer", "boolean"} or None
        What the labels were before they became names; None for names out of a file.
    weights : ndarray of shape (n,) or None
        What each counts for; None where each counts as one.
    columns : tuple of str
        Names of the columns of the features, where they came in a data frame that has
        names.
    row_names : tuple of str
        Names of the samples for people, where they are not those of the items.
    """

    kind: str
    items: Items | None = None
    features: NDArray[Any] | None = None
    labels: NDArray[np.str_] | None = None
    lasting: bool = False
    origin: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = ()
    label_kind: str | None = None
    weights: NDArray[np.float64] | None = None
    columns: tuple[str, ...] = ()
    row_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        if self.features is not None:
            return len(self.features)
        return len(self.raw_items())

    def raw_items(self) -> Items:
        """Return the images or texts."""
        if self.items is None:
            raise InputError("samples must be images or texts, got feature vectors")
        return self.items

    def required_labels(self) -> NDArray[np.str_]:
        """Return the labels, or raise :class:`LabelError` where there are none."""
        if self.labels is None:
            raise LabelError("data must have labels, got none")
        return self.labels

    def names(self) -> list[str]:
        """Return a name of every sample for people."""
        if self.row_names:
            return list(self.row_names)
        if self.items is None:
            return [f"row {row}" for row in range(len(self))]
        return [self.items.name(row) for row in range(len(self))]

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Samples:
        """Return the samples of these rows."""
        rows = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            items=None if self.items is None else self.items.take(rows),
            features=None if self.features is None else self.features[rows],
            labels=None if self.labels is None else self.labels[rows],
            weights=None if self.weights is None else self.weights[rows],
            row_names=tuple(self.row_names[row] for row in rows)
            if self.row_names
            else (),
        )


def concat_samples(parts: Sequence[Samples]) -> Samples:
    """Return samples of one kind one after another."""
    if len(parts) == 1:
        return parts[0]
    vectors = [part.features for part in parts if part.features is not None]
    items = [part.items for part in parts if part.items is not None]
    labels = [part.labels for part in parts if part.labels is not None]
    return replace(
        parts[0],
        items=concat_items(items) if items else None,
        features=np.concatenate(vectors) if vectors else None,
        labels=np.concatenate(labels) if labels else None,
        row_names=tuple(name for part in parts for name in part.row_names),
    )


# -- blocks of features ----------------------------------------------------------------


def block_slices(widths: Sequence[int]) -> list[slice]:
    """Return the columns of each block.

    Examples
    --------
    >>> from evergrow.data.items import block_slices
    >>> block_slices((2, 3))
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return [
        slice(start, stop) for start, stop in pairwise(accumulate(widths, initial=0))
    ]


def check_widths(name: str, widths: Any, n_columns: int) -> tuple[int, ...]:
    """Return widths of blocks as a tuple, or raise :class:`InputError` unless they add up to the columns there are.

    Parameters
    ----------
    name : str
        What to call them in the message.
    widths : sequence of int
        Width of each block; an empty one stands for a single block.
    n_columns : int
        Columns of the features.

    Examples
    --------
    >>> from evergrow.data.items import check_widths
    >>> check_widths("widths", [2, 3], 5)
    (2, 3)
    """
    if not isinstance(widths, (list, tuple)) or not all(
        isinstance(width, int) and not isinstance(width, bool) and width > 0
        for width in widths
    ):
        raise InputError(f"{name} must be positive integers, got {widths!r}")
    if widths and sum(widths) != n_columns:
        raise InputError(
            f"{name} must add up to the {n_columns} columns of the features, got {sum(widths)}"
        )
    return tuple(widths)


def join_blocks(features: NDArray[Any], widths: Sequence[int]) -> NDArray[Any]:
    """Return features with their blocks scaled to equal energy.

    Of every row, each block is brought to length 1 / sqrt(number of blocks), after a
    square root where it has no negative value: pooled activations of rectified units
    have heavy tails. A block of zeros stays one. A single block is handed on as it is.

    Parameters
    ----------
    features : ndarray of shape (n, d)
        Blocks side by side, as a network gives them.
    widths : sequence of int
        Width of each block.

    Returns
    -------
    ndarray of shape (n, d)
        In the type of the features, float32 for half precision; rows of length one,
        where no block is zero.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.items import join_blocks
    >>> np.round(join_blocks(np.array([[3.0, -4.0, 9.0, 16.0]]), (2, 2)) * 2**0.5, 6).tolist()
    [[0.6, -0.8, 0.6, 0.8]]
    """
    if len(widths) < 2:
        return features
    check_widths("widths", list(widths), features.shape[1])
    if features.dtype.itemsize <= 4:
        dtype = np.float32
    else:
        dtype = np.float64
    out = np.empty(features.shape, dtype=dtype)
    scale = len(widths) ** -0.5
    for start in range(0, len(features), _JOINED_ROWS):
        rows = slice(start, start + _JOINED_ROWS)
        for columns in block_slices(widths):
            out[rows, columns] = scale * _unit_rows(
                np.asarray(features[rows, columns], dtype=np.float64)
            )
    return out


def _unit_rows(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of length one, after a square root of those without a negative value."""
    largest = np.abs(block).max(axis=1, keepdims=True)
    block = block / np.where(
        largest > 0, largest, 1.0
    )  # so that squares neither overflow nor vanish
    plain = (block >= 0).all(axis=1, keepdims=True)
    block = np.where(plain, np.sqrt(np.abs(block)), block)
    norms = np.linalg.norm(block, axis=1, keepdims=True)
    result: NDArray[np.float64] = block / np.where(norms > 0, norms, 1.0)
    return result


# -- data sets -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part and perhaps a test part, with notes and cautions; nothing is decoded.

    Parameters
    ----------
    train : Samples
        Training samples, or all samples where there is no test part.
    test : Samples, optional
        Test samples. They may have classes of their own, unless
        :func:`evergrow.data.load_data` read them.
    class_names : tuple of str
        Classes of the training part, in the order that published class orders permute:
        names by the alphabet, integers by size.
    name : str
        Name for people and records; never a path.
    source, layout : str
        Where the data came from, and how they were laid out there.
    notes, cautions : tuple of str
        What is worth knowing, and what is probably not meant.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data import Dataset
    >>> mail = Dataset.of(Texts(("buy now", "see you", "free")), ["spam", "ham", "spam"])
    >>> mail.class_names, mail.y_train.tolist(), mail.whole
    (('ham', 'spam'), [1, 0, 1], True)
    """

    train: Samples
    test: Samples | None = None
    class_names: tuple[str, ...] = ()
    name: str = ""
    source: str = ""
    layout: str = ""
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        train: Items,
        train_labels: Sequence[Label] | NDArray[Any],
        test: Items | None = None,
        test_labels: Sequence[Label] | NDArray[Any] = (),
        *,
        names: Mapping[int, str] | Sequence[str] = (),
        **about: Any,
    ) -> Dataset:
        """Return a data set from items and labels.

        Parameters
        ----------
        train, test : Items
            The samples.
        train_labels, test_labels : sequence of str or int
            Their labels; if one is a string, all are names.
        names : mapping or sequence of str
            Names of integer labels, where they are known.
        **about
            The other fields.
        """
        if isinstance(names, Mapping):
            known = names
        else:
            known = dict(enumerate(names))
        if test is None:
            given = [(train, train_labels)]
        else:
            given = [(train, train_labels), (test, test_labels)]
        plain: list[list[Any]] = [
            list(np.asarray(labels, dtype=object)) for _, labels in given
        ]
        for (items, _), labels in zip(given, plain, strict=True):
            if len(labels) != len(items):
                raise LabelError(
                    f"labels must be one per sample ({len(items)}), got {len(labels)}"
                )
        if any(isinstance(label, str) for labels in plain for label in labels):
            plain = [[str(label) for label in labels] for labels in plain]
        classes = sorted(set(plain[0]))  # all strings or all integers by now
        named = [
            np.array([known.get(label, str(label)) for label in labels], dtype=np.str_)
            for labels in plain
        ]
        samples = [
            Samples(items.kind, items, labels=own, lasting=True)
            for (items, _), own in zip(given, named, strict=True)
        ]
        ordered = tuple(known.get(label, str(label)) for label in classes)
        return cls(
            samples[0], samples[1] if len(samples) > 1 else None, ordered, **about
        )

    @property
    def kind(self) -> str:
        """What the samples are: ``"image"`` or ``"text"``."""
        return self.train.kind

    @property
    def whole(self) -> bool:
        """Whether there is no test part."""
        return self.test is None

    @property
    def n_classes(self) -> int:
        """Classes in the training part."""
        return len(self.class_names)

    @cached_property
    def y_train(self) -> NDArray[np.int64]:
        """Training labels as positions in the class names."""
        return self._codes(self.train)

    @cached_property
    def y_test(self) -> NDArray[np.int64]:
        """Test labels as positions in the class names."""
        return self._codes(self.test)

    def _codes(self, samples: Samples | None) -> NDArray[np.int64]:
        place = {name: code for code, name in enumerate(self.class_names)}
        if samples is None:
            labels = []
        else:
            labels = samples.required_labels().tolist()
        return np.fromiter(
            (place.get(label, -1) for label in labels), np.int64, len(labels)
        )

    def part(self, part: str) -> Samples:
        """Return ``"train"``, ``"test"`` or ``"all"``; data without a test part are always whole."""
        if self.test is None:
            return self.train
        return {"train": self.train, "test": self.test}.get(part) or concat_samples(
            [self.train, self.test]
        )


def stratified_split(
    codes: NDArray[np.int64], names: Sequence[str], test_size: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Split rows class by class: at least one to each side where there are two.

    Each class is drawn by its name, so that a new class leaves the split of the others
    as it was.

    Returns
    -------
    train_rows, test_rows : ndarray of int
        Sorted.
    single : list of str
        Classes with one sample, which went to training.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.items import stratified_split
    >>> train, test, single = stratified_split(np.array([0, 0, 0, 0, 0, 1]), ["a", "b"], 0.2, seed=1993)
    >>> len(train), len(test), single
    (5, 1, ['b'])
    """
    in_test = np.zeros(len(codes), dtype=bool)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(names)))
    single = []
    for name, rows in zip(names, np.split(order, ends[:-1]), strict=True):
        if len(rows) == 1:
            single.append(name)
        if len(rows) >= 2:
            share = min(max(round(test_size * len(rows)), 1), len(rows) - 1)
            rng = np.random.default_rng(derive_seed(seed, "data", "split", ascii(name)))
            in_test[rng.permutation(rows)[:share]] = True
    if not in_test.any():
        raise LabelError(
            "No test set can be drawn: every class has one sample only. Add samples or bring a test set."
        )
    return np.flatnonzero(~in_test), np.flatnonzero(in_test), single


def check_test_classes(train: Iterable[str], test: Iterable[str]) -> None:
    """Raise :class:`LabelError` unless every class of the test set is in the training set."""
    unknown = sorted(set(test) - set(train))
    if not unknown:
        return
    alike = {_folded(label): label for label in train}
    for label in unknown:
        if _folded(label) in alike:
            raise LabelError(
                f"classes must be spelled alike in training and test set, got {alike[_folded(label)]!r} and {label!r}, "
                "which differ in case or in how accents are stored: rename one"
            )
    raise LabelError(
        f"every class of the test set must be in training, got {listed(unknown)} in the test set only"
    )


def spelled_alike(names: Sequence[str]) -> list[str]:
    """Return a caution where classes differ only in case, blanks or the form of accents."""
    seen: dict[str, str] = {}
    pairs = [
        f"{other} / {name}"
        for name in names
        if (other := seen.setdefault(_folded(name), name)) != name
    ]
    if pairs:
        return [f"classes that differ only in spelling: {listed(pairs)}"]
    return []


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold().strip()


def integers(labels: Sequence[str]) -> Sequence[Label]:
    """Return labels as integers if all are written as such, so that 10 comes after 9.

    Examples
    --------
    >>> from evergrow.data.items import integers
    >>> integers(["10", "9"]), integers(["10", "nine"]), integers(["007"])
    ([10, 9], ['10', 'nine'], ['007'])
    """
    plain = all(_INTEGER.fullmatch(label) for label in set(labels))
    if plain:
        return [int(label) for label in labels]
    return labels


def listed(names: Iterable[str], most: int = 5) -> str:
    """Return the first few names and how many more there are.

    Examples
    --------
    >>> from evergrow.data.items import listed
    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    every = [repr(name) for name in names]
    return ", ".join(every[:most]) + (
        f" and {len(every) - most} more" if len(every) > most else ""
    )


# -- file names ------------------------------------------------------------------------

IMAGE_SUFFIXES = frozenset(
    {
        ".jpg",
        ".jpeg",
        ".jfif",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
    }
)
"""Endings of images that are read without any plugin."""

_PLUGINS = {
    "heic": ("HEIC", "pillow_heif", (".heic", ".heif", ".hif")),
    "raw": (
        "camera RAW",
        "rawpy",
        (
            ".dng",
            ".cr2",
            ".cr3",
            ".nef",
            ".arw",
            ".orf",
            ".rw2",
            ".raf",
            ".pef",
            ".srw",
        ),
    ),
}
_UNREAD = (".avif", ".jxl", ".jp2", ".svg", ".psd")


@cache
def has_plugin(extra: str) -> bool:
    """Return whether the plugin that an extra of evergrow brings is installed; nothing is imported."""
    return importlib.util.find_spec(_PLUGINS[extra][1]) is not None


def plugin_of(name: str) -> str | None:
    """Return the extra whose plugin reads an image file; None for other files."""
    suffix = os.path.splitext(name)[1].lower()
    return next(
        (extra for extra, (_, _, suffixes) in _PLUGINS.items() if suffix in suffixes),
        None,
    )


def unread_format(name: str) -> tuple[str, str] | None:
    """Return the format of an image file that is not read here, and what helps; None for other files.

    Examples
    --------
    >>> from evergrow.data.items import unread_format
    >>> unread_format("drawing.PSD")[1], unread_format("a.jpg")
    ('save them as JPEG or PNG', None)
    """
    extra = plugin_of(name)
    if extra is not None and not has_plugin(extra):
        return _PLUGINS[extra][0], f"pip install 'evergrow[{extra}]' reads them"
    unread = name.lower().endswith(_UNREAD)
    if unread:
        return ("AVIF, JPEG XL, JPEG 2000, SVG or PSD", "save them as JPEG or PNG")
    return None


def is_image(name: str) -> bool:
    """Return whether a file name has the ending of an image that can be read here.

    Examples
    --------
    >>> from evergrow.data.items import is_image
    >>> is_image("a.JPEG"), is_image("labels.txt"), is_image("drawing.psd")
    (True, False, False)
    """
    extra = plugin_of(name)
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES or (
        extra is not None and has_plugin(extra)
    )
