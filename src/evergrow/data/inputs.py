"""The front door for data: convert anything that users pass to samples.

Accepted are paths, images, arrays, texts, features, data frames and streams. Objects of
pandas, polars, Pillow and torch are recognised by their class names, so that these
libraries need not be imported.

Labels become class names: ``str(label)``, so that model files, the command line and
exports only handle strings. A model also stores the type of its labels: strings
("name"), integers or booleans. :func:`as_labels` converts names back.
"""

from __future__ import annotations

import difflib
import glob
import os
import posixpath
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    InputError,
    LabelError,
    ParameterError,
)
from evergrow.core.files import StrPath
from evergrow.core.validation import as_weights, is_instance_of, with_changes
from evergrow.data.arrays import read_npy
from evergrow.data.feature_blocks import as_features
from evergrow.data.folders import is_hidden, test_file_of, unwrapped
from evergrow.data.items import Dataset, Images, Items, Samples, Texts, is_image
from evergrow.data.readers import (
    ARCHIVE_SUFFIXES,
    DEFAULTS,
    DataOptions,
    file_suffixes,
    reader_of_file,
    reader_of_folder,
)
from evergrow.data.shards import ListedSource, Source, make_source
from evergrow.data.storage import Tree, check_address, is_remote
from evergrow.data.webdataset import is_webdataset

Part = Literal["train", "test", "all"]
"""Part of a data set. A source without parts is always read completely."""

CHUNK = 256
"""Samples of a stream that are held in memory at a time."""

_TORCH = "torch.utils.data"


# -- with labels -----------------------------------------------------------------------


def read_labelled(
    data: Any, part: Part, kind: str | None = None, options: DataOptions | None = None
) -> Samples:
    """Return labelled samples of any accepted source.

    Parameters
    ----------
    data : path-like, Dataset, Samples or (items, labels)
        The source. Paths and names are read by :func:`evergrow.data.read`. No test
        part is drawn: a source without one is read completely. Blocks of features are
        joined; other Samples are returned unchanged.
    part : {"train", "test", "all"}
        Part to read of a source with a training and a test part.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes, to tell texts from paths.
    options : DataOptions, optional
        How to read a path or name: layout, columns of tables.

    Raises
    ------
    InputError
        If `data` has another type, or items are malformed.
    LabelError
        If there is not one valid label per item, or labels are of several types.

    Warns
    -----
    DataWarning
        Once, with all probable mistakes in the data.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import read_labelled
    >>> samples = read_labelled((np.eye(3), ["a", "b", "b"]), "train")
    >>> samples.kind, samples.labels.tolist()
    ('features', ['a', 'b', 'b'])
    """
    if isinstance(data, Samples):
        return data.join()
    if isinstance(data, (str, os.PathLike)):
        data = read_parts(data, options)
    if isinstance(data, Dataset):
        return data.part(part)
    if isinstance(data, tuple) and len(data) == 2:
        samples = read_items(data[0], kind)
        labels = label_values(data[1])
        names = as_names(labels, len(samples))
        return replace(samples, labels=names, label_kind=_label_kind(labels))
    size = f" of {len(data)}" if isinstance(data, tuple) else ""
    raise InputError(
        "data must be a path, a Dataset or a pair (items, labels), "
        f"got {type(data).__name__}{size}"
    )


def read_parts(source: StrPath, options: DataOptions | None = None) -> Dataset:
    """Return the data at a path or under a name, and warn of probable mistakes.

    No test part is drawn.
    """
    found = read(source, options).dataset()
    warn_about(name_of(os.fspath(source)), found.cautions, level=4)
    return found


# -- without labels --------------------------------------------------------------------


def read_items(
    items: Any, kind: str | None = None, options: DataOptions | None = None
) -> Samples:
    """Return samples without labels.

    Parameters
    ----------
    items : object
        - one or several paths of images; a folder, an archive or a table of images;
        - one or several images (PIL images, uint8 arrays);
        - one or several texts, or the path of a file of texts;
        - feature vectors, or the path of an ``.npy`` file, or of an ``.npz`` file with
          an array ``X``;
        - a data frame: numbers are features, a single column can hold texts or paths.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes. It decides between texts and paths, and
        between uint8 features and pixels.
    options : DataOptions, optional
        How to read a path: columns of tables.

    Returns
    -------
    Samples
        Without labels, except for `items` that are Samples: of these, only blocks of
        features are joined.

    Raises
    ------
    DatasetNotFoundError
        If a file does not exist.
    InputError
        If there are no items, or they are of several kinds.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import read_items
    >>> read_items(["a text", "another"]).kind
    'text'
    >>> read_items(np.zeros((2, 8, 8, 3), np.uint8)).kind
    'image'
    """
    if isinstance(items, Samples):
        return items.join()
    if isinstance(items, Items):
        lasting = isinstance(items, Images) and items.lasting
        return Samples(items.kind, items, lasting=lasting)
    if isinstance(items, (str, os.PathLike)):
        return _from_text_or_path(items, kind, options or DEFAULTS)
    if isinstance(items, list):
        return _from_sequence(items, kind)
    if is_pil_image(items):
        return Samples("image", Images((items,)))
    if hasattr(items, "detach"):  # a tensor of torch
        items = items.detach().cpu().numpy()
        if items.ndim in (3, 4) and kind != "features":
            items = channels_last(items)
    if is_frame(items):
        values, columns = frame_values(items, kind)
        if isinstance(values, list):
            return _from_sequence(values, kind)
        return replace(_from_features(values), columns=columns)
    if hasattr(items, "__array__"):
        return _from_array(np.asarray(items), kind)
    if not isinstance(items, Sequence) or isinstance(items, (bytes, bytearray)):
        raise InputError(
            "items must be paths, images, texts or feature vectors, "
            f"got {type(items).__name__}"
        )
    return _from_sequence(items, kind)


def read_unknown(
    unknown: Any,
    kind: str | None,
    part: Part = "all",
    options: DataOptions | None = None,
) -> Samples:
    """Return samples of unknown classes, with labels only if the source has some.

    A pair (items, labels), a data set or a path is read by :func:`read_labelled`.
    Other items, and folders of images without class folders, are read by
    :func:`read_items`.
    """
    if isinstance(unknown, (str, os.PathLike, tuple, Dataset)):
        try:
            return read_labelled(unknown, part, kind, options)
        except InputError:
            # A folder without class folders has no labels.
            if not isinstance(unknown, (str, os.PathLike)) or os.path.isfile(unknown):
                raise
    return read_items(unknown, kind)


def _from_text_or_path(
    value: StrPath, kind: str | None, options: DataOptions
) -> Samples:
    """Return the samples at a path, or a string that is not a path as one text."""
    # Unlike Path.is_file, os.path.isfile accepts texts too long for a file name.
    if os.path.isfile(value) or os.path.isdir(value):
        return _from_existing_path(Path(value), kind, options)
    if Path(value).suffix.lower() in (".npy", ".npz") and kind != "text":
        raise DatasetNotFoundError(f"No file {os.fspath(value)!r} here.")
    can_be_text = kind == "text" or (kind is None and not is_image(os.fspath(value)))
    if isinstance(value, str) and can_be_text:
        return Samples("text", Texts((value,)))
    return _from_paths([value])


def _from_existing_path(path: Path, kind: str | None, options: DataOptions) -> Samples:
    """Return all samples of a folder or a file. Of an NPZ file, take the test part."""
    name = os.fspath(path)
    suffix = path.suffix.lower()
    if path.is_file():
        if suffix == ".npy":
            return _from_features(read_npy(path))
        if is_image(name) or reader_of_file(name) is None:
            return _from_paths([path])
    wanted = kind if kind in ("image", "text") else ""
    part = "test" if suffix == ".npz" else "all"
    source = read(path, options, labelled=False, kind=wanted, part=part)
    found = source.samples()
    if isinstance(source, ListedSource):
        warn_about(name_of(name), source.dataset().cautions, level=5)
    return replace(found, labels=None)


def _from_paths(paths: Sequence[StrPath]) -> Samples:
    """Return image files as samples, or raise for the first one that is missing."""
    missing = [os.fspath(path) for path in paths if not os.path.isfile(path)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        hint = ""
        if not any(is_image(name) or os.sep in name for name in missing):
            hint = (
                "; texts need a text backbone, such as 'all-MiniLM-L6-v2' or "
                "'sentence:NAME'"
            )
        raise DatasetNotFoundError(
            f"images must be existing files, got {missing[0]!r}{more}{hint}"
        )
    absolute = [os.path.abspath(path) for path in paths]
    root = Path(os.path.commonpath([os.path.dirname(path) for path in absolute]))
    names = tuple(Path(path).relative_to(root).as_posix() for path in absolute)
    return Samples("image", Images(names, root=root), lasting=True)


def _from_sequence(items: Sequence[Any], kind: str | None) -> Samples:
    """Return the texts, paths, images or feature vectors of a sequence as samples."""
    if len(items) == 0:
        raise InputError("items must hold at least one item, got none")
    if all(isinstance(item, (str, os.PathLike)) for item in items):
        if _are_texts(items, kind):
            return Samples("text", Texts(tuple(items)))
        return _from_paths(items)
    if kind != "features" and all(
        is_pil_image(item) or is_pixels(item) for item in items
    ):
        return Samples("image", Images(tuple(items)))
    try:
        array = np.asarray(items, dtype=np.float64)
    except (TypeError, ValueError):
        types = ", ".join(sorted({type(item).__name__ for item in items})[:5])
        raise InputError(
            f"items must all be paths, images, texts or feature vectors, got {types}"
        ) from None
    return _from_features(array)


def _are_texts(items: Sequence[Any], kind: str | None) -> bool:
    """Return whether strings and paths are texts rather than paths of images.

    Strings that all end like image files are texts only if the model is known to take
    other samples, and one of the files is missing.
    """
    if kind == "image" or not all(isinstance(item, str) for item in items):
        return False
    if not all(is_image(item) for item in items):
        return True
    return kind is not None and not all(os.path.isfile(item) for item in items)


def _from_array(array: NDArray[Any], kind: str | None) -> Samples:
    """Return the images, texts or feature vectors of an array as samples."""
    if array.size == 0:
        raise InputError(
            f"items must hold at least one item, got an array of shape {array.shape}"
        )
    if array.dtype.kind in "UO":
        return _from_sequence(array.tolist(), kind)
    if array.dtype != np.uint8 or kind == "features":
        return _from_features(array)
    # Of shape (h, w) or (h, w, channels); other 3-D arrays are grey images (n, h, w).
    is_one_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if is_one_image:
        return Samples("image", Images((array,)))
    if array.ndim == 4 and array.shape[3] != 3:
        # Images of one or four channels are not kept as one array.
        return Samples("image", Images(tuple(array)))
    return Samples("image", Images(array))


def _from_features(array: NDArray[Any]) -> Samples:
    """Return one feature vector, or a matrix of them, as samples."""
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        hint = ""
        if array.ndim in (3, 4) and array.dtype.kind in "fiu":
            hint = "; images must be uint8, from 0 to 255"
        raise InputError(
            "features must be numbers of shape (n, d), "
            f"got {array.dtype} of shape {array.shape}{hint}"
        )
    return Samples("features", features=as_features(array, "features"))


# -- paths, addresses and names --------------------------------------------------------


def read(
    source: StrPath, options: DataOptions | None = None, **settings: Any
) -> Source:
    r"""Return the data at a path, at an address or under a name as a source.

    The reader is chosen here; samples are listed and read on use.

    Parameters
    ----------
    source : str or path-like
        - a folder: ``train/<class>/*`` and ``test/<class>/*`` (or val, valid,
          validation), one folder per class, training and test lists or tables,
          WebDataset tars, Parquet or feature files, a saved Hugging Face data set;
        - a file: ``.npz`` arrays; a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``
          table of ``text,label`` or ``path,label``; a ``.json`` export of Label Studio;
          a ``.zip`` or ``.tar`` of a folder, which is not unpacked;
        - a pattern of such files, such as ``train-*.tar``;
        - an fsspec address (``s3://``, ``gs://``, ``hf://datasets/OWNER/NAME``) of such
          a folder or file;
        - the name of a file or folder in :func:`search_path`.
    options : DataOptions, optional
        How to read the data.
    **settings
        Fields of :class:`DataOptions`; they override ``options``.

    Returns
    -------
    Source
        With :meth:`~Source.samples`, :meth:`~Source.chunks` and :meth:`~Source.shards`.

    Raises
    ------
    DatasetNotFoundError
        If there is no such data; the message suggests a similar name.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data import read
    >>> rows = "text,label\nbuy now,spam\nsee you,mail\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.csv").write_text(rows)
    ...     source = read(f"{folder}/a.csv")
    ...     shards = source.shards(rows=1, size=1 << 20)
    ...     [source.read(shard).labels.tolist() for shard in shards]
    [['spam'], ['mail']]
    """
    chosen = with_changes(options or DEFAULTS, settings, "data setting")
    text = os.fspath(source)
    if not text.strip():
        raise ParameterError(
            f"an address must be a path, or have a scheme, got {text!r}"
        )
    check_address(text)
    tree, pattern = _split_source(text, chosen)
    is_archive = pattern.lower().endswith(ARCHIVE_SUFFIXES)
    reader = chosen.layout
    if reader == "auto" or (is_archive and reader != "webdataset"):
        reader = _detect_reader(tree, pattern)
    return make_source(reader, tree, pattern, chosen)


def _split_source(text: str, options: DataOptions) -> tuple[Tree, str]:
    """Return a folder, and the file or pattern in it that a source names, or ""."""
    scheme, mark, path = text.rpartition("://")
    remote = is_remote(text)
    # A local folder can have a bracket in its name, which looks like a pattern.
    if glob.has_magic(path) and (remote or not os.path.exists(path)):
        folder, pattern = _split_pattern(path)
        if remote:
            return Tree(f"{scheme}{mark}{folder}"), pattern
        if path.startswith("/"):
            folder = folder or "/"
        return Tree(folder or "."), pattern
    if not remote:
        found = _existing_path(path, options)
        if found.is_dir():
            return Tree(found), ""
        return Tree(found.parent), found.name
    folder, name = posixpath.split(path)
    if name and reader_of_file(name):
        tree = Tree(f"{scheme}{mark}{folder}")
        if tree.is_file(name):
            return tree, name
    return Tree(text), ""


def _split_pattern(path: str) -> tuple[str, str]:
    """Split a path before its first step with a wildcard."""
    steps = path.split("/")
    first = next(index for index, step in enumerate(steps) if glob.has_magic(step))
    return "/".join(steps[:first]), "/".join(steps[first:])


def _existing_path(path: str, options: DataOptions) -> Path:
    """Return a path that exists, or the first match of a name in the search path."""
    # Unlike Path.exists, os.path.exists accepts texts too long for a file name.
    if os.path.exists(path):
        return Path(path)
    if Path(path).parent == Path("."):
        roots = search_path() if options.root is None else [Path(options.root)]
        for root in roots:
            for suffix in ("", *file_suffixes()):
                candidate = root / f"{path}{suffix}"
                if os.path.exists(candidate):
                    return candidate
    raise _not_found(path)


def search_path() -> list[Path]:
    """Return the folders in which names are looked up; the first match wins.

    These are the folders in ``$EVERGROW_DATA`` (separated as in ``$PATH``), then
    ``./data``.

    Examples
    --------
    >>> from evergrow.data import search_path
    >>> search_path()[-1].as_posix()
    'data'
    """
    folders = os.environ.get("EVERGROW_DATA", "").split(os.pathsep)
    return [*(Path(folder) for folder in folders if folder), Path("data")]


def _not_found(path: str) -> DatasetNotFoundError:
    """Return the error for a missing path, with the most similar existing name."""
    folder, name = os.path.split(os.path.normpath(path))
    folders = [".", *map(os.fspath, search_path())]
    if folder:
        folders = [folder]
    similar = _similar_name(name, folders)
    hint = ""
    if similar:
        hint = f" Did you mean {os.path.join(folder, similar)!r}?"
    if folder and os.path.isdir(folder):
        return DatasetNotFoundError(f"No folder or file {name!r} in {folder}.{hint}")
    return DatasetNotFoundError(f"No folder or file {path!r} here.{hint}")


def _similar_name(name: str, folders: Iterable[str]) -> str:
    """Return the most similar name of a file or folder in some folders, or ""."""
    entries = [
        entry
        for folder in folders
        if os.path.isdir(folder) and os.access(folder, os.R_OK)
        for entry in os.listdir(folder)
        if not is_hidden(entry)
    ]
    stems = [os.path.splitext(entry)[0] for entry in entries]
    close = difflib.get_close_matches(name, [*entries, *stems], n=1, cutoff=0.6)
    return close[0] if close else ""


def check_source(source: StrPath) -> None:
    """Raise :class:`DatasetNotFoundError` if a local path or name does not exist.

    Remote addresses and patterns are not checked. Nothing is read.

    Examples
    --------
    >>> from evergrow.data.inputs import check_source
    >>> check_source("nowhere/birds")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.DatasetNotFoundError: No folder or file 'nowhere/birds' here.
    """
    text = os.fspath(source)
    if not is_remote(text) and not glob.has_magic(text):
        _existing_path(text.removeprefix("file://"), DEFAULTS)


def _detect_reader(tree: Tree, pattern: str) -> str:
    """Return the name of the reader for a folder, or for a file or pattern in it."""
    if not pattern:
        if tree.remote:
            # Drivers list a folder without access as empty; listing the folder itself
            # raises the error.
            tree.listing(deep=False)
        return reader_of_folder(unwrapped(tree))
    reader = reader_of_file(pattern)
    if reader is None:
        suffixes = ", ".join(file_suffixes())
        raise InputError(
            f"{tree.display_name(pattern)} must be a folder, or end like a data file "
            f"({suffixes}), got another"
        )
    is_tar = pattern.lower().endswith(".tar")
    if is_tar and (glob.has_magic(pattern) or is_webdataset(tree, pattern)):
        return "webdataset"
    return reader


def name_of(source: str) -> str:
    """Return the name of a data set at a path or address: that of its folder or file.

    A pair of training and test files is named after what comes before "train" in the
    name, or after its folder. Suffixes are removed.
    """
    path = Path(source.partition("#")[0])
    if path.is_dir():
        return path.absolute().name
    if not path.is_file():
        return path.name
    name = path.stem.removesuffix(".tar")
    if test_file_of(Tree(path.parent), path.name) is None:
        return name
    before_train = name[: name.lower().rfind("train")].strip("-_. ")
    return before_train or path.absolute().parent.name


def warn_about(name: str, cautions: Iterable[str], level: int = 3) -> None:
    """Issue one :class:`DataWarning` with all cautions, or none without cautions.

    ``level`` is the ``stacklevel`` of the warning: 3 names the caller of the caller.
    """
    text = "; ".join(cautions)
    if text:
        warnings.warn(
            f"data set {name!r} can be used but: {text}", DataWarning, stacklevel=level
        )


# -- in chunks -------------------------------------------------------------------------


def labelled_chunks(
    data: Any, y: Any, sample_weight: Any, part: Part, kind: str | None
) -> Iterable[Samples]:
    """Return labelled samples as one chunk, or a generator of the chunks of a stream.

    Parameters
    ----------
    data, y : object
        As for :meth:`evergrow.Learner.fit`. With `y`, `data` are items.
    sample_weight : array-like or None
        Weight of each sample.
    part : {"train", "test", "all"}
        Part to read of a source with a training and a test part.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes.

    Raises
    ------
    InputError
        If there is no sample, weights are not one per sample, or labels or weights are
        passed with a stream.
    """
    if is_stream(data):
        if y is not None or sample_weight is not None:
            raise InputError(
                "a stream must come as pairs (item, label), got labels or weights "
                "beside it"
            )
        return read_chunks(data, kind)
    samples = read_labelled(data if y is None else (data, y), part, kind)
    if not len(samples):
        raise InputError("data must hold at least one sample, got none")
    weights = as_weights(sample_weight, len(samples))
    if weights is not None:
        samples = replace(samples, weights=weights)
    return [samples]


def item_chunks(items: Any, kind: str | None) -> Iterable[Samples]:
    """Return items as one chunk, or a generator of the chunks of a stream.

    Labels of a stream are ignored.

    Parameters
    ----------
    items : object
        As for :meth:`evergrow.Learner.predict`.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes.

    Raises
    ------
    InputError
        If a stream has no item.
    """
    if is_stream(items):
        return read_chunks(items, kind, labelled=False)
    return [read_items(items, kind)]


def read_chunks(
    data: Any, kind: str | None, *, labelled: bool = True
) -> Iterator[Samples]:
    """Yield the samples of a stream in chunks of :data:`CHUNK`, reading it once.

    Parameters
    ----------
    data : iterator, Dataset or DataLoader
        Pairs (item, label) or batches (items, labels); items alone if labels are not
        required.
    kind : {"image", "text", "features"}, optional
        Kind of samples that the model takes.
    labelled : bool
        Whether labels are required. Otherwise labels of pairs are ignored.

    Raises
    ------
    InputError
        If there is no sample.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import read_chunks
    >>> pairs = ((row, f"class {number % 2}") for number, row in enumerate(np.eye(300)))
    >>> [len(samples) for samples in read_chunks(pairs, "features")]
    [256, 44]
    """
    pairs = stream_pairs(data, labelled=labelled)
    empty = True
    while chunk := list(islice(pairs, CHUNK)):
        empty = False
        items = [item for item, _ in chunk]
        if labelled:
            yield read_labelled((items, [label for _, label in chunk]), "all", kind)
        else:
            yield read_items(items, kind)
    if empty:
        noun = "sample" if labelled else "item"
        raise InputError(f"data must hold at least one {noun}, got none")


# -- labels ---------------------------------------------------------------------------


def as_names(labels: Any, n: int) -> NDArray[np.str_]:
    """Return the labels of n samples as class names.

    Raises
    ------
    LabelError
        If there are not n labels, or one is neither a number nor a visible name.

    Examples
    --------
    >>> from evergrow.data.inputs import as_names
    >>> as_names([3, 10], 2).tolist()
    ['3', '10']
    """
    values = label_values(labels)
    if len(values) != n:
        raise LabelError(f"labels must be one per sample ({n}), got {len(values)}")
    for value in values:
        is_nan = value != value
        if not isinstance(value, (str, int, float)) or is_nan or not str(value).strip():
            raise LabelError(f"labels must be visible names or numbers, got {value!r}")
    return np.array([str(value) for value in values], dtype=np.str_)


def label_values(labels: Any) -> list[Any]:
    """Return labels in a list, an array or a one-column data frame as Python values."""
    if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__"):
        raise LabelError(
            f"labels must be a sequence of class names, got {type(labels).__name__}"
        )
    if is_frame(labels):
        columns = list(labels.columns)
        if len(columns) != 1:
            raise LabelError(
                f"a data frame of labels must have one column, got {len(columns)}"
            )
        labels = labels[columns[0]]
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    return [
        value.item() if isinstance(value, np.generic) else value for value in values
    ]


def _label_kind(values: Sequence[Any]) -> str:
    """Return the kind of labels: ``"name"``, ``"integer"`` or ``"boolean"``.

    Labels are Python values. Floats count as names. Labels of several types raise
    :class:`LabelError`.
    """
    types = {type(value).__name__ for value in values}
    if len(types) > 1:
        raise LabelError(
            f"labels must all be of one kind, got a mix of {', '.join(sorted(types))}"
        )
    only = next(iter(types), "str")
    return {"int": "integer", "bool": "boolean"}.get(only, "name")


_TRUTHS = {"False": False, "True": True}


def can_read(kind: str, name: str) -> bool:
    """Return whether a class name can be converted to a type of labels.

    Integers must fit into 64 bits and be written as ``str`` writes them.

    Parameters
    ----------
    kind : {"name", "integer", "boolean"}
        The type of the labels. Every class name is a ``"name"``.
    name : str
        The class name.

    Examples
    --------
    >>> from evergrow.data.inputs import can_read
    >>> can_read("integer", "-3"), can_read("integer", "03")
    (True, False)
    >>> can_read("boolean", "True"), can_read("name", "03")
    (True, True)
    """
    if kind == "name":
        return True
    if kind == "boolean":
        return name in _TRUTHS
    digits = name.removeprefix("-")
    # Integers of 64 bits have at most 19 digits, and int() refuses thousands of digits.
    is_whole = digits.isascii() and digits.isdecimal() and len(digits) <= 19
    return is_whole and str(int(name)) == name and -(2**63) <= int(name) < 2**63


def as_labels(names: Iterable[str], kind: str) -> NDArray[Any]:
    """Return class names as labels of a type, "name", "integer" or "boolean".

    Examples
    --------
    >>> from evergrow.data.inputs import as_labels
    >>> as_labels(["3", "10"], "integer").tolist()
    [3, 10]
    >>> as_labels(["False"], "boolean").tolist()
    [False]
    """
    if kind == "integer":
        return np.array([int(name) for name in names], dtype=np.int64)
    if kind == "boolean":
        return np.array([_TRUTHS[name] for name in names], dtype=np.bool_)
    return np.array(list(names), dtype=np.str_)


# -- images ----------------------------------------------------------------------------


def is_pil_image(item: Any) -> bool:
    """Return whether an object is an image of Pillow."""
    return is_instance_of(item, "PIL.Image", "Image")


def is_pixels(item: Any) -> bool:
    """Return whether an object is one image as an array of bytes."""
    return (
        isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim in (2, 3)
    )


def channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """Return channels-first images as bytes with channels last.

    Parameters
    ----------
    array : ndarray of shape (c, h, w) or (n, c, h, w)
        One image or several with one or three channels, as bytes or as floats from 0
        to 1. Images that already have their channels last are only converted to bytes.

    Returns
    -------
    ndarray of uint8 of shape (h, w, 3) or (n, h, w, 3)
        Contiguous. Without the last axis if there is one channel.

    Raises
    ------
    InputError
        If floats lie outside of 0 to 1, for example because images are normalised.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.inputs import channels_last
    >>> channels_last(np.full((3, 4, 5), 0.2, np.float32))[0, 0].tolist()
    [51, 51, 51]
    """
    if array.dtype.kind == "f":
        low = float(array.min()) if array.size else 0.0
        high = float(array.max()) if array.size else 0.0
        if not 0.0 <= low <= high <= 1.0:
            raise InputError(
                f"images of floats must lie between 0 and 1, got {low:.3g} to "
                f"{high:.3g}: leave out the normalisation, which the backbone applies"
            )
        array = np.rint(array * 255.0).astype(np.uint8)
    is_channels_first = array.shape[-3] in (1, 3) and array.shape[-1] not in (1, 3, 4)
    if array.dtype == np.uint8 and is_channels_first:
        array = np.moveaxis(array, -3, -1)
        if array.shape[-1] == 1:
            array = array[..., 0]
    return np.ascontiguousarray(array)


# -- data frames -----------------------------------------------------------------------


def is_frame(value: Any) -> bool:
    """Return whether an object is a data frame of pandas, polars or the like.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.inputs import is_frame
    >>> is_frame(pandas.DataFrame({"a": [1]}))
    True
    >>> is_frame(pandas.Series([1])), is_frame([[1]])
    (False, False)
    """
    return (
        hasattr(value, "columns")
        and hasattr(value, "to_numpy")
        and len(getattr(value, "shape", ())) == 2
    )


def is_pandas(value: Any) -> bool:
    """Return whether an object is a data frame or series of pandas, with an index."""
    return is_instance_of(value, "pandas", "DataFrame", "Series")


def frame_values(
    frame: Any, kind: str | None
) -> tuple[NDArray[Any] | list[Any], tuple[str, ...]]:
    """Return the numbers and column names of a data frame, or its column of texts.

    Parameters
    ----------
    frame : DataFrame
        Of pandas or polars.
    kind : {"image", "text", "features"} or None
        Kind of samples that the model takes, if known.

    Returns
    -------
    values : ndarray of shape (n, d) or list
        Numbers, or the texts or paths of a single column.
    names : tuple of str
        Column names; empty for texts and paths, and for names that are not strings.

    Raises
    ------
    InputError
        If there are no rows, a column is not numeric, or only some names are strings.

    Examples
    --------
    >>> import pandas
    >>> from evergrow.data.inputs import frame_values
    >>> frame_values(pandas.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}), None)[1]
    ('a', 'b')
    >>> frame_values(pandas.DataFrame({"text": ["hello", "hi"]}), None)[0]
    ['hello', 'hi']
    """
    if frame.shape[0] == 0:
        raise InputError("items must hold at least one item, got a frame without rows")
    array = np.asarray(frame.to_numpy())
    names = list(frame.columns)
    if len(names) == 1 and kind != "features" and array.dtype.kind in "OUT":
        return list(frame[names[0]]), ()
    # Names are used if all are strings, as in scikit-learn.
    strings = [isinstance(name, str) for name in names]
    if any(strings) and not all(strings):
        raise InputError(
            "columns of a data frame must all be named by strings, or none of them, "
            "got some of each"
        )
    if array.dtype.kind not in "fiu":
        array = np.column_stack([_numbers(frame, name) for name in names])
    return array, tuple(names) if all(strings) else ()


def _numbers(frame: Any, name: Any) -> NDArray[np.float64]:
    """Return a column as numbers. Missing values become NaN, which is refused later."""
    column = np.asarray(frame[name].to_numpy())
    try:
        if column.dtype.kind not in "biufO":
            raise TypeError
        return column.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "columns of a frame must be numbers to be features, "
            f"got {name!r} of {frame[name].dtype}; "
            "pass texts and paths as one column, such as frame['text']"
        ) from None


def check_columns(given: Sequence[str], learned: Sequence[str]) -> None:
    """Raise :class:`InputError` unless named columns match the learned ones in order.

    Columns without names, of arrays and files, are matched by position.

    Examples
    --------
    >>> from evergrow.data.inputs import check_columns
    >>> check_columns(["b", "a"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be ...; got 'b' instead of 'a'
    >>> check_columns(["a", "c"], ["a", "b"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.InputError: columns must be ...; missing: 'b'; not learned: 'c'
    """
    if not given or not learned or list(given) == list(learned):
        return
    missing = [f"missing: {name!r}" for name in learned if name not in set(given)]
    added = [f"not learned: {name!r}" for name in given if name not in set(learned)]
    differences = [*missing[:5], *added[:5]]
    if not differences:
        pairs = zip(given, learned, strict=False)
        now, was = next((now, was) for now, was in pairs if now != was)
        differences = [f"got {now!r} instead of {was!r}"]
    raise InputError(
        f"columns must be those learned, in their order; {'; '.join(differences)}"
    )


# -- streams ---------------------------------------------------------------------------


def is_stream(data: Any) -> bool:
    """Return whether data is an iterator, or a Dataset or DataLoader of torch.

    Examples
    --------
    >>> from evergrow.data.inputs import is_stream
    >>> is_stream(row for row in range(3)), is_stream([1, 2])
    (True, False)
    """
    if isinstance(data, (list, str)):  # the most frequent types first
        return False
    return isinstance(data, Iterator) or is_instance_of(
        data, _TORCH, "Dataset", "DataLoader"
    )


def check_not_stream(data: Any) -> None:
    """Raise :class:`InputError` for a stream, whose images can be read only once."""
    if is_stream(data):
        raise InputError(
            "data must be read several times to adapt a backbone, so it must not be a "
            f"stream, got {type(data).__name__}"
        )


def stream_pairs(data: Any, *, labelled: bool) -> Iterator[tuple[Any, Any]]:
    """Yield single items of a stream with their labels. Batches are split.

    Parameters
    ----------
    data : iterator, Dataset or DataLoader
        Pairs (item, label), batches (items, labels), or items alone.
    labelled : bool
        Whether labels are required. An item without a label has the label None.

    Raises
    ------
    InputError
        If labels are required and an element is not a pair.
    LabelError
        If a batch does not have one label per item.
    """
    is_loader = is_instance_of(data, _TORCH, "DataLoader")
    has_batches = is_loader and data.batch_size is not None
    for element in _elements(data):
        # `content` is one item or a batch of items, and `label` accordingly.
        content, label, is_pair = _split_pair(element, labelled)
        is_sequence = isinstance(label, (list, tuple))
        has_many_labels = is_sequence or getattr(label, "ndim", 0) > 0
        if is_pair and (has_batches or has_many_labels):
            if len(content) != len(label):
                raise LabelError(
                    f"labels must be one per sample ({len(content)}), got {len(label)}"
                )
            yield from zip(map(_as_item, content), map(_as_label, label), strict=True)
        elif has_batches:
            for item in content:
                yield _as_item(item), None
        else:
            yield _as_item(content), _as_label(label)


def _elements(data: Any) -> Iterator[Any]:
    """Yield the elements of a stream; a map-style Dataset is indexed up to its length.

    ``iter`` would index the data set beyond its end, and few raise IndexError.
    """
    map_style = (
        is_instance_of(data, _TORCH, "Dataset")
        and hasattr(data, "__len__")
        and not hasattr(data, "__iter__")
    )
    if not map_style:
        yield from data
        return
    for row in range(len(data)):
        yield data[row]


def _split_pair(element: Any, labelled: bool) -> tuple[Any, Any, bool]:
    """Split an element of a stream into items and labels.

    Returns
    -------
    content : object
        One item, or a batch of items.
    label : object
        The label or labels. None if the element is not a pair.
    is_pair : bool
        Whether the element is a pair.
    """
    is_tuple = isinstance(element, (tuple, list))
    if is_tuple and len(element) == 2:
        return element[0], element[1], True
    if labelled:
        size = f" of {len(element)}" if hasattr(element, "__len__") else ""
        raise InputError(
            "data must come as pairs (item, label) or (items, labels), "
            f"got a {type(element).__name__}{size}"
        )
    if is_tuple and len(element) == 1:
        return element[0], None, False
    return element, None, False


def _as_label(label: Any) -> Any:
    """Return a zero-dimensional array or tensor as a Python value."""
    if hasattr(label, "item") and getattr(label, "ndim", 1) == 0:
        return label.item()
    return label


def _as_item(item: Any) -> Any:
    """Return one item as an array, an image or a text, with channels last."""
    is_tensor = hasattr(item, "detach")
    value = item.detach().cpu().numpy() if is_tensor else item
    if (
        isinstance(value, np.ndarray)
        and value.ndim == 3
        and (is_tensor or value.dtype.kind == "f")
    ):
        return channels_last(value)
    return value
