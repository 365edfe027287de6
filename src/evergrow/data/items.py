"""Records of data: images and texts, samples with labels, training and test parts.

Nothing is decoded here. Every item has a name for messages, and a sequence of items has
a stamp for caches, a hash that identifies it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
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
from evergrow.core.files import StrPath
from evergrow.data.class_labels import Label
from evergrow.data.feature_blocks import (
    as_features,
    check_finite,
    check_widths,
    join_blocks,
)

Kind = Literal["image", "text"]

_IMAGES_AT_A_TIME = 1024
"""Images that are hashed at a time, because the array may be memory-mapped."""

_EXIF_ORIENTATION = 274
"""Number of the EXIF tag that says how to rotate an image."""


class StoredImage(NamedTuple):
    """An image by reference.

    Parameters
    ----------
    store : object
        A file or library that holds many images and can be pickled. Its method
        ``read(key)`` returns the bytes of an image file, a path, an array or a PIL
        image. Its method ``mark(key, times=...)`` returns a text that identifies the
        image without reading it; with times, it also changes when the file is modified.
    key : object
        Key of the image in the store.
    """

    store: Any
    key: Any


@dataclass(frozen=True, eq=False)
class Images:
    """A sequence of images, by reference or in memory.

    Parameters
    ----------
    values : sequence
        File names relative to ``root``, with forward slashes. Or any of paths, bytes of
        image files, uint8 arrays, PIL images, references into a store
        (:class:`StoredImage`), and errors that explain why an image is missing. Or one
        array of shape (n, height, width, 3) in RGB order, or (n, height, width).
    titles : tuple of str
        Names for messages. Files have names already; other images without titles are
        numbered.
    root : Path, optional
        Folder of the files. Stamps do not depend on it, so the folder can be moved.

    Examples
    --------
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from evergrow.data.items import Images
    >>> images = Images(("cat/1.jpg", "dog/1.jpg"), root=Path("data"))
    >>> images.take([1]).raw(0).as_posix()
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
        if not isinstance(array, np.ndarray):
            return
        is_gray = array.ndim == 3
        is_rgb = array.ndim == 4 and array.shape[3] == 3
        if array.dtype != np.uint8 or not (is_gray or is_rgb):
            raise InputError(
                "pixels must be uint8 of shape (n, h, w[, 3]), "
                f"got {array.dtype} {array.shape}"
            )

    @property
    def pixels(self) -> NDArray[np.uint8] | None:
        """The array of all images, or None if they are not one array."""
        return self.values if isinstance(self.values, np.ndarray) else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all images."""
        return tuple(self.name(row) for row in range(len(self)))

    @property
    def lasting(self) -> bool:
        """Whether the images are stored in files, so that caching features pays."""
        if self.root is not None:
            return True
        return len(self) > 0 and isinstance(self.values[0], StoredImage)

    def __len__(self) -> int:
        return len(self.values)

    def name(self, row: int) -> str:
        """Return the name of an image, or its number if it has none."""
        if self.root is not None:
            return str(self.values[row])
        if self.titles:
            return self.titles[row]
        value = self.values[row]
        if isinstance(value, (str, os.PathLike)):
            file_name = value
        else:
            file_name = getattr(value, "filename", "")
        if file_name:
            return os.path.basename(os.fspath(file_name))
        return f"image {row}"

    def raw(self, row: int) -> Any:
        """Return an undecoded image: a path, bytes, an array or a PIL image.

        The image is read from its store if it has one.

        Raises
        ------
        ImageError
            If the image is missing or damaged.
        """
        value = self.values[row]
        if self.root is not None:
            return self.root / value
        if isinstance(value, ImageError):
            raise value
        if not isinstance(value, StoredImage):
            return value
        try:
            return value.store.read(value.key)
        except FileFormatError as error:
            # One damaged image among many can be skipped, a damaged file cannot.
            raise ImageError(str(error)) from error

    def batch(self, rows: Iterable[int]) -> list[tuple[str, Any]]:
        """Return the name of each image and the result of :meth:`raw`, or its error."""
        found: list[tuple[str, Any]] = []
        for row in rows:
            try:
                content = self.raw(row)
            except (ImageError, OSError) as error:
                content = error
            found.append((self.name(row), content))
        return found

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Images:
        """Return the images at row indices without reading them."""
        indices = np.asarray(rows, dtype=np.int64)
        titles: tuple[str, ...] = ()
        if self.titles:
            titles = tuple(self.titles[row] for row in indices)
        if isinstance(self.values, np.ndarray):
            return Images(self.values[indices], titles)
        return Images(tuple(self.values[row] for row in indices), titles, self.root)

    def stamp(self, *, times: bool = True) -> str:
        """Return a hash of images in memory, and of names and sizes of files.

        Files are not read. With ``times``, the hash depends on modification times too;
        without, a copy on another machine has the same hash. Images in memory are
        hashed once: changes of an array after the first call are not seen.
        """
        if self.lasting:
            return self._hash(times=times)
        return self._content_hash

    @cached_property
    def _content_hash(self) -> str:
        return self._hash(times=True)

    def _hash(self, *, times: bool) -> str:
        """Return the stamp without looking whether it was computed before."""
        if isinstance(self.values, np.ndarray):
            return _hash_of_pixels(self.values)
        prefix = b"files" if self.root is not None else b"images"
        digest = hashlib.blake2b(prefix, digest_size=16)
        for value in self.values:
            for part in self._identity(value, times=times):
                digest.update(part)
        return digest.hexdigest()

    def _identity(self, value: Any, *, times: bool) -> Iterable[Any]:
        """Yield bytes-like objects that together identify one image."""
        if isinstance(value, StoredImage):
            mark = value.store.mark(value.key, times=times)
            yield mark.encode("utf-8", "surrogateescape") + b"\0"
        elif isinstance(value, (str, os.PathLike)):
            status = self._status(value)
            changed = status.st_mtime_ns if times else 0
            mark = f"{os.fspath(value)}\0{status.st_size}\0{changed}\0"
            yield mark.encode("utf-8", "surrogateescape")
        elif isinstance(value, (bytes, ImageError)):
            body = value if isinstance(value, bytes) else str(value).encode()
            yield len(body).to_bytes(8, "little") + body
        else:
            pixels = np.ascontiguousarray(value)
            appearance: tuple[Any, ...] = ()
            if not isinstance(value, np.ndarray):
                # Palette and orientation of a PIL image decide what it shows, but are
                # not among its pixels.
                orientation = value.getexif().get(_EXIF_ORIENTATION)
                appearance = (value.mode, value.getpalette(), orientation)
            yield f"{pixels.shape}{pixels.dtype}{appearance}\0".encode()
            yield pixels.reshape(-1).data

    def _status(self, name: StrPath) -> os.stat_result:
        """Return the status of a file, or raise :class:`DatasetNotFoundError`."""
        path = os.path.join(self.root or "", name)
        try:
            return os.stat(path)
        except OSError as error:
            raise DatasetNotFoundError(
                f"image must be a readable file, got {path}: {error}"
            ) from error


def _hash_of_pixels(array: NDArray[np.uint8]) -> str:
    """Return a hash of the shape and the values of an array of images."""
    digest = hashlib.blake2b(f"pixels{array.shape}".encode(), digest_size=16)
    for start in range(0, len(array), _IMAGES_AT_A_TIME):
        part = np.ascontiguousarray(array[start : start + _IMAGES_AT_A_TIME])
        digest.update(part.reshape(-1).data)
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
        """Return the beginning of a text in quotes."""
        text = self.texts[row]
        return repr(text if len(text) <= 40 else f"{text[:37]}...")

    def raw(self, row: int) -> str:
        """Return a text."""
        return self.texts[row]

    def batch(self, rows: Iterable[int]) -> list[tuple[str, Any]]:
        """Return name and content of the texts at row indices."""
        return [(self.name(row), self.texts[row]) for row in rows]

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Texts:
        """Return the texts at row indices."""
        return Texts(tuple(self.texts[int(row)] for row in rows))

    def stamp(self, *, times: bool = True) -> str:
        """Return a hash of the texts; ``times`` has no effect."""
        digest = hashlib.blake2b(b"texts", digest_size=16)
        for text in self.texts:
            body = text.encode("utf-8", "surrogatepass")
            digest.update(len(body).to_bytes(8, "little") + body)
        return digest.hexdigest()


Items: TypeAlias = Images | Texts
"""Samples from which a backbone computes features."""


def concat_items(parts: Sequence[Items]) -> Items:
    """Concatenate items of one kind. Nothing is read.

    If all parts are image files in folders, their names are relative to the common
    folder of all parts.

    Parameters
    ----------
    parts : sequence of Items
        At least one; all texts, or all images.

    Raises
    ------
    InputError
        If there are no parts, or parts of both kinds.

    Examples
    --------
    >>> from pathlib import Path
    >>> from evergrow.data.items import Images, concat_items
    >>> first = Images(("1.jpg",), root=Path("a"))
    >>> second = Images(("2.jpg",), root=Path("a/b"))
    >>> concat_items([first, second]).names
    ('1.jpg', 'b/2.jpg')
    """
    if not parts or len({part.kind for part in parts}) > 1:
        raise InputError(
            "items must be at least one part, and all parts of one kind, "
            f"got {len(parts)} parts"
        )
    if len(parts) == 1:
        return parts[0]
    images = [part for part in parts if isinstance(part, Images)]
    if not images:
        return Texts(tuple(part.raw(row) for part in parts for row in range(len(part))))
    return _concat_images(images)


def _concat_images(parts: Sequence[Images]) -> Images:
    """Concatenate images in the first of three forms that holds all of them.

    These are one array, files with a common root, and single values with titles.
    """
    arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
    if len(arrays) == len(parts) and len({array.shape[1:] for array in arrays}) == 1:
        return Images(np.concatenate(arrays))
    roots = [part.root for part in parts if part.root is not None]
    if len(roots) < len(parts):
        values = tuple(
            part.root / value if part.root else value
            for part in parts
            for value in part.values
        )
        return Images(values, tuple(name for part in parts for name in part.names))
    root = roots[0]
    prefixes = [""] * len(roots)
    if any(other != root for other in roots):
        root = Path(os.path.commonpath([other.absolute() for other in roots]))
        prefixes = [other.absolute().relative_to(root).as_posix() for other in roots]
    names = tuple(
        posixpath.normpath(posixpath.join(prefix, name))
        for prefix, part in zip(prefixes, parts, strict=True)
        for name in part.values
    )
    return Images(names, root=root)


# -- image files by suffix -------------------------------------------------------------

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
"""Suffixes of images that Pillow reads without a plugin."""


class _Plugin(NamedTuple):
    """An optional package that reads more image formats."""

    title: str
    module: str
    suffixes: tuple[str, ...]


_RAW_SUFFIXES = (
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
)

_PLUGINS = {
    "heic": _Plugin("HEIC", "pillow_heif", (".heic", ".heif", ".hif")),
    "raw": _Plugin("camera RAW", "rawpy", _RAW_SUFFIXES),
}
"""Plugins by the name of the evergrow extra that installs them."""

# Images in these formats are reported, and not counted as other files.
_UNSUPPORTED = (".avif", ".jxl", ".jp2", ".svg", ".psd")


@cache
def has_plugin(extra: str) -> bool:
    """Return whether the plugin of an extra is installed, without importing it."""
    return importlib.util.find_spec(_PLUGINS[extra].module) is not None


def plugin_of(name: str) -> str | None:
    """Return the extra whose plugin reads an image file, or None for other files."""
    suffix = os.path.splitext(name)[1].lower()
    for extra, plugin in _PLUGINS.items():
        if suffix in plugin.suffixes:
            return extra
    return None


def unread_format(name: str) -> tuple[str, str] | None:
    """Return the format of an image file that cannot be read, and the remedy.

    Returns None for images that can be read, and for files that are not images.

    Examples
    --------
    >>> from evergrow.data.items import unread_format
    >>> unread_format("drawing.PSD")[1], unread_format("a.jpg")
    ('save them as JPEG or PNG', None)
    """
    extra = plugin_of(name)
    if extra is not None and not has_plugin(extra):
        return (
            f"{_PLUGINS[extra].title} images",
            f"pip install 'evergrow[{extra}]' reads them",
        )
    if name.lower().endswith(_UNSUPPORTED):
        return "AVIF, JPEG XL, JPEG 2000, SVG or PSD images", "save them as JPEG or PNG"
    return None


def is_image(name: str) -> bool:
    """Return whether a file name has the suffix of an image that can be read here.

    Formats of optional plugins count if the plugin is installed.

    Examples
    --------
    >>> from evergrow.data.items import is_image
    >>> is_image("a.JPEG"), is_image("labels.txt"), is_image("drawing.psd")
    (True, False, False)
    """
    if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
        return True
    extra = plugin_of(name)
    return extra is not None and has_plugin(extra)


# -- samples ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples of one kind, with or without labels.

    Parameters
    ----------
    kind : {"image", "text", "features"}
        Kind of the samples.
    items : Items or None
        Images or texts.
    features : ndarray of shape (n, d) or None
        Feature vectors.
    labels : ndarray of str of shape (n,) or None
        Class names.
    lasting : bool
        Whether the samples are stored in files, so that caching features pays.
    backbone : mapping
        Backbone and recipe of the features as plain values; empty if unknown.
    widths : tuple of int
        Columns of each block, if rows of features hold several blocks side by side;
        empty if unknown.
    joined : bool
        Whether the blocks are scaled to equal energy, as heads learn them. Features of
        a data set are stored as a network computes them; see :meth:`join`.
    label_kind : {"name", "integer", "boolean"} or None
        Type of the labels before their conversion to names; None for labels read from a
        file.
    weights : ndarray of shape (n,) or None
        Sample weights; None stands for equal weights.
    columns : tuple of str
        Column names of features that came from a data frame.
    row_names : tuple of str
        Names of the samples for messages; by default the names of the items.
    """

    kind: str
    items: Items | None = None
    features: NDArray[Any] | None = None
    labels: NDArray[np.str_] | None = None
    lasting: bool = False
    backbone: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = ()
    joined: bool = True
    label_kind: str | None = None
    weights: NDArray[np.float64] | None = None
    columns: tuple[str, ...] = ()
    row_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        if self.features is not None:
            return len(self.features)
        return len(self.raw_items())

    @property
    def n_features(self) -> int:
        """Number of feature columns; 0 for images and texts."""
        return 0 if self.features is None else self.features.shape[1]

    def required_features(self) -> NDArray[Any]:
        """Return the features; raise :class:`InputError` for images and texts."""
        if self.features is None:
            raise InputError(f"samples must be feature vectors, got {self.kind}s")
        return self.features

    def raw_items(self) -> Items:
        """Return the images or texts; raise :class:`InputError` for features."""
        if self.items is None:
            raise InputError("samples must be images or texts, got feature vectors")
        return self.items

    def required_labels(self) -> NDArray[np.str_]:
        """Return the labels; raise :class:`LabelError` without labels."""
        if self.labels is None:
            raise LabelError("data must have labels, got none")
        return self.labels

    def names(self) -> list[str]:
        """Return a name of every sample for messages; several can be equal."""
        if self.row_names:
            return list(self.row_names)
        if self.items is None:
            return [f"row {row}" for row in range(len(self))]
        return [self.items.name(row) for row in range(len(self))]

    def join(self) -> Samples:
        """Return the samples with features as heads learn them.

        They are float32 or float64, and their blocks are joined at equal energy.
        Images and texts are returned unchanged.
        """
        if self.features is None or self.joined:
            return self
        features = join_blocks(as_features(self.features, "features"), self.widths)
        return replace(self, features=features, joined=True)

    def take(self, rows: NDArray[np.int64] | Sequence[int]) -> Samples:
        """Return the samples at row indices."""
        rows = np.asarray(rows, dtype=np.int64)
        row_names = self.row_names
        if row_names:
            row_names = tuple(row_names[row] for row in rows)
        return replace(
            self,
            items=None if self.items is None else self.items.take(rows),
            features=None if self.features is None else self.features[rows],
            labels=None if self.labels is None else self.labels[rows],
            weights=None if self.weights is None else self.weights[rows],
            row_names=row_names,
        )


def concat_samples(parts: Sequence[Samples]) -> Samples:
    """Concatenate samples of one kind, all with labels or all without.

    They must have no weights. Other fields are those of the first part.
    """
    if len(parts) == 1:
        return parts[0]
    features = [part.features for part in parts if part.features is not None]
    items = [part.items for part in parts if part.items is not None]
    labels = [part.labels for part in parts if part.labels is not None]
    return replace(
        parts[0],
        items=concat_items(items) if items else None,
        features=np.concatenate(features) if features else None,
        labels=np.concatenate(labels) if labels else None,
        row_names=tuple(name for part in parts for name in part.row_names),
    )


# -- data sets -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training samples and optional test samples, with notes about them.

    Parameters
    ----------
    train : Samples
        Training samples, or all samples if there is no test part. Features are stored
        as a network computes them.
    test : Samples, optional
        Test samples. They can have classes that the training samples lack, unless
        :func:`evergrow.data.load_data` read them.
    class_names : tuple of str
        Classes of the training part in the order that published class orders permute:
        names alphabetically, integers by value.
    name : str
        Name of the data set; never a path.
    source, layout : str
        Path or address of the data, and the reader that read them.
    notes, cautions : tuple of str
        Remarks for the user, and probable mistakes in the data.
    doubts : tuple of str
        Cautions that the classes are probably not the right folders.
    origin : str
        Fingerprint of the images or texts that features were computed from, if known.
    unknown : mapping
        Fields of a feature file that a later evergrow wrote; they are written again.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data import Dataset
    >>> texts = Texts(("buy now", "see you", "free"))
    >>> mail = Dataset.of(texts, ["spam", "ham", "spam"])
    >>> mail.class_names, mail.y_train.tolist(), mail.has_test
    (('ham', 'spam'), [1, 0, 1], False)
    >>> import numpy as np
    >>> toy = Dataset.of(np.eye(4), [3, 3, 5, 5], name="toy")
    >>> toy.kind, toy.X_train.shape, toy.y_train.tolist()
    ('features', (4, 4), [0, 0, 1, 1])
    """

    train: Samples
    test: Samples | None = None
    class_names: tuple[str, ...] = ()
    name: str = ""
    source: str = ""
    layout: str = ""
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    origin: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        train: Items | NDArray[Any],
        train_labels: Sequence[Label] | NDArray[Any],
        test: Items | NDArray[Any] | None = None,
        test_labels: Sequence[Label] | NDArray[Any] = (),
        *,
        names: Mapping[int, str] | Sequence[str] = (),
        backbone: Mapping[str, Any] | None = None,
        widths: Sequence[int] = (),
        **about: Any,
    ) -> Dataset:
        """Return a data set of items or features and labels.

        Parameters
        ----------
        train, test : Items or ndarray of shape (n, d)
            Images or texts, or feature vectors as a network computes them.
        train_labels, test_labels : sequence of str or int
            Their labels. If one label is a string, all are treated as names.
        names : mapping or sequence of str
            Names of integer labels, if known.
        backbone : mapping, optional
            Backbone and recipe of features as plain values.
        widths : sequence of int
            Columns of each block of features; empty for a single block.
        **about
            Fields of the data set: name, source, layout, notes, cautions and doubts.

        Raises
        ------
        InputError
            If features are not finite numbers, or differ in their columns.
        LabelError
            If there is not one label per sample.
        """
        named = names.items() if isinstance(names, Mapping) else enumerate(names)
        known: dict[Any, str] = dict(named)

        def class_name(label: Label) -> str:
            return known.get(label, str(label))

        parts = [(train, list(np.asarray(train_labels, dtype=object)))]
        if test is not None:
            parts.append((test, list(np.asarray(test_labels, dtype=object))))
        for items, labels in parts:
            if len(labels) != len(items):
                raise LabelError(
                    f"labels must be one per sample ({len(items)}), got {len(labels)}"
                )
        if any(isinstance(label, str) for _, labels in parts for label in labels):
            parts = [(items, list(map(str, labels))) for items, labels in parts]
        samples = []
        for items, labels in parts:
            array = np.array(list(map(class_name, labels)), dtype=np.str_)
            if isinstance(items, Items):
                part = Samples(items.kind, items, labels=array, lasting=True)
            else:
                part = _feature_samples(items, array, widths, backbone or {})
            samples.append(part)
        if len({part.n_features for part in samples}) > 1:
            raise InputError(
                f"test features must have {samples[0].n_features} columns like the "
                f"training features, got {samples[1].n_features}"
            )
        # All labels are strings or all are integers here, so they can be sorted.
        class_names = tuple(map(class_name, sorted(set(parts[0][1]))))
        test_samples = samples[1] if len(samples) > 1 else None
        return cls(samples[0], test_samples, class_names, **about)

    @property
    def kind(self) -> str:
        """Kind of the samples: ``"image"``, ``"text"`` or ``"features"``."""
        return self.train.kind

    @property
    def X_train(self) -> NDArray[Any]:  # noqa: N802
        """Training features as stored; raises :class:`InputError` for other data."""
        return self.train.required_features()

    @property
    def X_test(self) -> NDArray[Any]:  # noqa: N802
        """Test features as stored; no rows if there is no test part."""
        if self.test is None:
            return self.X_train[:0]
        return self.test.required_features()

    @property
    def has_test(self) -> bool:
        """Whether there is a test part."""
        return self.test is not None

    @property
    def n_classes(self) -> int:
        """Number of classes in the training part."""
        return len(self.class_names)

    @cached_property
    def y_train(self) -> NDArray[np.int64]:
        """Training labels as indices into the class names."""
        return self._codes(self.train)

    @cached_property
    def y_test(self) -> NDArray[np.int64]:
        """Test labels as indices into the class names; -1 for other classes."""
        if self.test is None:
            return np.empty(0, dtype=np.int64)
        return self._codes(self.test)

    def _codes(self, samples: Samples) -> NDArray[np.int64]:
        index = {name: code for code, name in enumerate(self.class_names)}
        labels = samples.required_labels().tolist()
        return np.array([index.get(label, -1) for label in labels], dtype=np.int64)

    def part(self, part: str) -> Samples:
        """Return the part ``"train"``, ``"test"`` or ``"all"``.

        Without a test part, every name stands for all samples. Blocks of features are
        joined.
        """
        if self.test is None or part == "train":
            return self.train.join()
        if part == "test":
            return self.test.join()
        return concat_samples([self.train, self.test]).join()

    def describe(self) -> dict[str, Any]:
        """Return a description of the data for a record, as plain values."""
        described: dict[str, Any] = {
            "name": self.name,
            "n_train": len(self.train),
            "n_test": 0 if self.test is None else len(self.test),
            "n_features": self.train.n_features,
            "n_classes": self.n_classes,
        }
        if self.train.backbone:
            described["backbone"] = dict(self.train.backbone)
        return described


def _feature_samples(
    X: Any, labels: NDArray[np.str_], widths: Sequence[int], backbone: Mapping[str, Any]
) -> Samples:
    """Return features of a data set as samples after checking their form."""
    if (
        not isinstance(X, np.ndarray)
        or X.ndim != 2
        or X.dtype.kind not in "fiu"
        or 0 in X.shape
    ):
        shape = getattr(X, "shape", ())
        raise InputError(
            "samples must be Images, Texts or a non-empty 2-D array of numbers, "
            f"got {type(X).__name__} of shape {shape}"
        )
    check_finite(X, "features")
    return Samples(
        "features",
        features=X,
        labels=labels,
        backbone=backbone,
        widths=check_widths("widths", list(widths), X.shape[1]),
        joined=False,
    )
