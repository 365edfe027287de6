"""Data by path, address or name; archives are read as folders."""

from __future__ import annotations

import difflib
import glob
import os
import posixpath
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import (
    DatasetNotFoundError,
    DataWarning,
    FileFormatError,
    InputError,
    ParameterError,
)
from evergrow.core.validation import with_changes
from evergrow.data.archives import ARCHIVE_SUFFIXES, DataArchive
from evergrow.data.arrays import FeatureSet
from evergrow.data.folders import Walk, images_below, is_hidden, partner_name, unwrapped
from evergrow.data.items import (
    Dataset,
    check_test_classes,
    listed,
    spelled_alike,
    stratified_split,
)
from evergrow.data.readers import (
    DEFAULTS,
    DataOptions,
    file_suffixes,
    read_folder,
    reader_of_file,
    reader_of_folder,
    register_reader,
)
from evergrow.data.shards import Source, make_source
from evergrow.data.storage import Tree, check_address, is_remote
from evergrow.data.tables import TABLE_SUFFIXES
from evergrow.data.webdataset import is_webdataset

FEW = 5
"""Classes with fewer training samples than this are worth a word."""


def read(
    source: str | os.PathLike[str], options: DataOptions | None = None, **settings: Any
) -> Source:
    r"""Return the data at a path, an address or under a name, to be read whole, in chunks or by shards.

    Parameters
    ----------
    source : str or path-like
        - a folder: ``train/<class>/*`` and ``test/<class>/*`` (or val, valid,
          validation), one folder per class,
          training and test lists or tables, WebDataset tars, Parquet or feature files,
          a saved Hugging Face set;
        - a file: ``.npz`` arrays, a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``
          table of
          ``text,label`` or ``path,label``, a ``.json`` export of Label Studio, a
          ``.zip`` or ``.tar`` of a folder, which is not unpacked;
        - a pattern of such files, such as ``train-*.tar``;
        - an address that fsspec knows (``s3://``, ``gs://``,
          ``hf://datasets/OWNER/NAME``) of any of these;
        - the name of a file or folder in :func:`search_path`.
    options : DataOptions, optional
        How to read it.
    **settings
        Fields of :class:`DataOptions`, instead of or on top of ``options``.

    Returns
    -------
    Source
        With :meth:`~Source.samples`, :meth:`~Source.chunks` and :meth:`~Source.shards`.

    Raises
    ------
    DatasetNotFoundError
        If there is no such data; the message says what there is of a similar name.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data import read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a.csv").write_text("text,label\nbuy now,spam\nsee you,mail\n")
    ...     source = read(f"{folder}/a.csv")
    ...     [source.read(shard).labels.tolist() for shard in source.shards(rows=1, size=1 << 20)]
    [['spam'], ['mail']]
    """
    if settings:
        chosen = with_changes(options or DEFAULTS, settings, "data setting")
    else:
        chosen = options or DEFAULTS
    text = os.fspath(source)
    if not text.strip():
        raise ParameterError(
            f"an address must be a path, or have a scheme, got {text!r}"
        )
    check_address(text)
    tree, pattern = _located(text, chosen)
    packed = (
        pattern.lower().endswith(ARCHIVE_SUFFIXES) and chosen.layout != "webdataset"
    )
    if packed or chosen.layout == "auto":
        reader = _reader(tree, pattern)
    else:
        reader = chosen.layout
    return make_source(reader, tree, pattern, chosen)


def _located(text: str, options: DataOptions) -> tuple[Tree, str]:
    """Return the folder that is meant, and which files in it; no file stands for all of them."""
    scheme, mark, path = text.rpartition("://")
    far = is_remote(text)
    if glob.has_magic(path) and (far or not os.path.exists(path)):
        steps = path.split("/")
        first = next(
            number for number, step in enumerate(steps) if glob.has_magic(step)
        )
        folder = "/".join(steps[:first]) or ("/" if first and not far else "")
        return Tree(f"{scheme}{mark}{folder}" if far else folder or "."), "/".join(
            steps[first:]
        )
    if not far:
        found = _existing(path, options)
        if found.is_dir():
            return (Tree(found), "")
        return (Tree(found.parent), found.name)
    folder, name = posixpath.split(path)
    if name and reader_of_file(name):
        tree = Tree(f"{scheme}{mark}{folder}")
        if tree.is_file(name):
            return tree, name
    return Tree(text), ""


def _existing(path: str, options: DataOptions) -> Path:
    """Return a path, or the match of a name in the search path."""
    if os.path.exists(path):  # unlike Path.exists, no error for a name that is too long
        return Path(path)
    if Path(path).parent == Path("."):
        if options.root is None:
            roots = search_path()
        else:
            roots = [Path(options.root)]
        named = (
            root / f"{path}{suffix}"
            for root in roots
            for suffix in ("", *file_suffixes())
        )
        found = next((each for each in named if os.path.exists(each)), None)
        if found is not None:
            return found
    raise _nowhere(path)


def search_path(environ: Mapping[str, str] | None = None) -> list[Path]:
    """Return the folders that names are looked for in, first match wins.

    These are the folders of ``$EVERGROW_DATA`` (several as in ``$PATH``), then
    ``./data``.

    Examples
    --------
    >>> from evergrow.data import search_path
    >>> [folder.as_posix() for folder in search_path({"EVERGROW_DATA": "/a"})]
    ['/a', 'data']
    """
    environ = os.environ if environ is None else environ
    folders = [
        Path(part)
        for part in environ.get("EVERGROW_DATA", "").split(os.pathsep)
        if part
    ]
    return [*folders, Path("data")]


def _nowhere(path: str) -> DatasetNotFoundError:
    """Return the error about a name that is not there, with the nearest one that is."""
    folder, name = os.path.split(os.path.normpath(path))
    if folder:
        places = [folder]
    else:
        places = [".", *map(os.fspath, search_path())]
    open_ones = [
        place for place in places if os.path.isdir(place) and os.access(place, os.R_OK)
    ]
    there = [
        entry
        for place in open_ones
        for entry in os.listdir(place)
        if not is_hidden(entry)
    ]
    close = difflib.get_close_matches(
        name,
        [*there, *(os.path.splitext(entry)[0] for entry in there)],
        n=1,
        cutoff=0.6,
    )
    hint = ""
    if close:
        hint = f" Did you mean {os.path.join(folder, close[0])!r}?"
    where = "here"
    if folder and os.path.isdir(folder):
        where = f"in {folder}"
    return DatasetNotFoundError(
        f"No folder or file {path if where == 'here' else name!r} {where}.{hint}"
    )


def check_source(source: str | os.PathLike[str]) -> None:
    """Raise :class:`DatasetNotFoundError` if there is nothing on this machine that could be read; reads nothing.

    Examples
    --------
    >>> from evergrow.data.load import check_source
    >>> check_source("nowhere/birds")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.DatasetNotFoundError: No folder or file 'nowhere/birds' here.
    """
    text = os.fspath(source)
    if not is_remote(text) and not glob.has_magic(
        text
    ):  # their readers say what is wrong
        _existing(text.removeprefix("file://"), DEFAULTS)


def _reader(tree: Tree, pattern: str) -> str:
    if not pattern:
        if tree.remote:
            tree.listing(
                deep=False
            )  # of a place that is refused drivers list everything below as nothing
        return reader_of_folder(unwrapped(tree))
    known = reader_of_file(pattern)
    if known is None:
        endings = ", ".join(file_suffixes())
        raise InputError(
            f"{tree.place(pattern)} must be a folder, or end like a data file ({endings}), got another"
        )
    plain_tar = pattern.lower().endswith(".tar")
    if plain_tar and (glob.has_magic(pattern) or is_webdataset(tree, pattern)):
        return "webdataset"
    return known


# -- archives --------------------------------------------------------------------


@register_reader("archive", suffixes=ARCHIVE_SUFFIXES)
def read_archive(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read an archive as the folder would be read that it unpacks to; nothing is unpacked.

    Raises
    ------
    InputError
        If its layout is one that cannot be read from an archive.
    """
    archive = DataArchive(tree, name)
    inside = Tree(tree.place(name), archive=archive)
    while (inner := _only_folder(inside)) is not None:
        inside = inside.below(inner)
    if not options.labelled:
        return images_below(inside)
    if options.layout in ("auto", "archive"):
        layout = reader_of_folder(inside)
    else:
        layout = options.layout
    found = read_folder(layout, inside, options)
    if not isinstance(found, Dataset):
        raise InputError(f"{inside.place()} must be unpacked to be read as {layout!r}")
    if not archive.skipped:
        return found
    said = ", ".join(
        f"{reason}: {count}" for reason, count in sorted(archive.skipped.items())
    )
    return replace(
        found, cautions=(*found.cautions, f"entries of the archive left out: {said}")
    )


def _only_folder(tree: Tree) -> str | None:
    """Return the one folder that everything is in, unless images alone are: then it is a class."""
    visible = [(name, kind) for name, kind in tree.entries() if not is_hidden(name)]
    if len(visible) != 1 or visible[0][1] != "folder":
        return None
    below = tree.below(visible[0][0])
    data = any(name.lower().endswith(TABLE_SUFFIXES) for name in below.files())
    if data or Walk(below).subfolders():
        return visible[0][0]
    return None


# -- data sets with a test part --------------------------------------------------------


def load_data(
    source: str | os.PathLike[str], options: DataOptions | None = None, **settings: Any
) -> Dataset | FeatureSet:
    r"""Load labelled images, texts or features with a training and a test part; nothing is decoded.

    Parameters
    ----------
    source : str or path-like
        What :func:`read` takes.
    options : DataOptions, optional
        How to read it. Where there is no test part one is drawn, unless ``test_size``
        is 0.
    **settings
        Fields of :class:`DataOptions`, instead of or on top of ``options``.

    Returns
    -------
    Dataset or FeatureSet
        Features if the arrays are features, samples otherwise.

    Warns
    -----
    DataWarning
        Once, with all that is probably not meant, such as classes with few samples.

    Raises
    ------
    DatasetNotFoundError
        If there is no such data.
    FileFormatError, InputError, LabelError
        If the data contradict themselves; the message names the file, line or class.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data import load_data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "mail.csv")
    ...     _ = table.write_text("text,label\n" + "buy now,spam\nsee you,ham\n" * 10)
    ...     data, whole = load_data(table, test_size=0.3), load_data(table, test_size=0)
    >>> data.class_names, len(data.train), len(data.test)
    (('ham', 'spam'), 14, 6)
    >>> len(whole.train), whole.test
    (20, None)
    """
    chosen = with_changes(options or DEFAULTS, settings, "data setting")
    text = os.fspath(source)
    data = _complete(read(text, chosen).dataset(), text, chosen)
    if isinstance(data, Dataset):
        warn_of(data.name, inspect_data(data).cautions)
    return data


def _complete(
    data: Dataset | FeatureSet, source: str, options: DataOptions
) -> Dataset | FeatureSet:
    """Return data with a name and, where they have no test part, with one that is drawn, unless none is wanted."""
    if isinstance(data, Dataset):
        return finish(data, source, options)
    if options.test_size == 0 or not data.whole:
        return data
    classes, codes = np.unique(data.y_train, return_inverse=True)
    names = [str(label) for label in classes]
    keep, hold, _ = stratified_split(
        codes.astype(np.int64), names, options.test_size, options.seed
    )
    rows = {"train": keep, "test": hold}
    parts = {
        f"{array}_{part}": getattr(data, f"{array}_train")[rows[part]]
        for array in "Xy"
        for part in rows
    }
    return replace(data, **parts, whole=False, origin="")


def load_features(name: str | os.PathLike[str]) -> FeatureSet:
    """Load a data set by path, or by name from the search path.

    Parameters
    ----------
    name : str or path-like
        A path to a ``.npz`` file, or a bare name such as ``"clinc150_minilm"``, looked
        for in :func:`search_path`. The file holds ``X_train, y_train, X_test, y_test``
        and may hold ``classes``, the names of labels 0, 1, ... Without a test set
        ``X_test`` and ``y_test`` are empty or not there. Pickled arrays are refused.

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
    found = read(name).dataset()
    if isinstance(found, FeatureSet):
        return found
    raise FileFormatError(
        f"{os.fspath(name)} must be a labelled feature set, got others, which are read by load_data"
    )


def finish(data: Dataset, source: str, options: DataOptions) -> Dataset:
    """Return data with a name, and with a test part if one is to be drawn; classes of the test part must be known."""
    drawn = data.test is None and options.test_size > 0
    cautions = list(data.cautions)
    if data.test is not None:
        check_test_classes(data.class_names, data.test.required_labels().tolist())
    elif drawn:
        keep, hold, single = stratified_split(
            data.y_train, data.class_names, options.test_size, options.seed
        )
        note = f"test set drawn here: {options.test_size:g} of each class, seed {options.seed}"
        data = replace(
            data,
            train=data.train.take(keep),
            test=data.train.take(hold),
            notes=(*data.notes, note),
        )
        cautions += (
            [f"classes with one sample are in the training set only: {listed(single)}"]
            if single
            else []
        )
    else:
        data = replace(
            data,
            notes=(*data.notes, "no test set: all samples are in the training set"),
        )
    tested = set(_labels(data, "test"))
    untested = [name for name in data.class_names if name not in tested]
    if untested and data.test is not None and not drawn:
        cautions.append(f"classes without a test sample: {listed(untested)}")
    cautions += spelled_alike(data.class_names)
    return replace(data, name=name_of(source), source=source, cautions=tuple(cautions))


def name_of(source: str) -> str:
    """Return the name of a data set: of its folder or file, or the common part of two file names."""
    path = Path(source.partition("#")[0])
    if path.is_dir():
        return path.absolute().name
    name = path.stem.removesuffix(".tar")
    if not path.is_file() or partner_name(Tree(path.parent), path.name) is None:
        return name if path.is_file() else path.name
    return (
        name[: name.lower().rfind("train")].strip("-_. ") or path.absolute().parent.name
    )


def warn_of(name: str, cautions: Iterable[str], level: int = 3) -> None:
    """Warn once of all probable mistakes; ``level`` is the stack level of the warning."""
    said = "; ".join(cautions)
    if said:
        warnings.warn(
            f"data set {name!r} can be used but: {said}", DataWarning, stacklevel=level
        )


# -- reports ---------------------------------------------------------------------------


@dataclass(frozen=True)
class DataReport:
    """A report on a data set, in plain values.

    Parameters
    ----------
    name, kind, layout, source : str
        Name, ``"image"``, ``"text"`` or ``"features"``, layout, and where it came from.
    n_classes, n_train, n_test : int
        Counts.
    n_features : int
        Width of the features; 0 for raw data.
    smallest, largest : list of (str, int, int)
        Classes with the fewest and the most training samples: name, training and test
        samples.
    cautions, notes : list of str
        What is probably not meant, and what is worth knowing.
    """

    name: str
    kind: str
    layout: str
    source: str
    n_classes: int
    n_train: int
    n_test: int
    n_features: int
    smallest: list[tuple[str, int, int]]
    largest: list[tuple[str, int, int]]
    cautions: list[str]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def inspect_data(
    data: Dataset | FeatureSet | str | os.PathLike[str],
    options: DataOptions | None = None,
    *,
    most: int = 3,
) -> DataReport:
    """Return a report on data: kind, classes, counts and probable mistakes.

    Parameters
    ----------
    data : Dataset, FeatureSet, str or path-like
        As :func:`load_data` gave it, or what :func:`read` takes. The test part of the
        latter may have classes of its own, as that of a model's evaluation has.
    options : DataOptions, optional
        How to read it; by default no test part is drawn.
    most : int
        How many of the smallest and largest classes to name.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data import Dataset, inspect_data
    >>> report = inspect_data(Dataset.of(Texts(("a", "b", "c")), ["one", "two", "two"]))
    >>> report.smallest[0], report.cautions
    (('one', 1, 0), ["classes with fewer than 5 training samples: 2 of 2 ('one', 'two')"])
    """
    if isinstance(data, (str, os.PathLike)):
        text = os.fspath(data)
        options = options or DataOptions(test_size=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # the report says it all
            data = read(text, options).dataset()
            if isinstance(data, Dataset) and not {*_labels(data, "test")} <= {
                *data.class_names
            }:
                data = replace(data, name=name_of(text), source=text)
            else:
                data = _complete(data, text, options)
    train = Counter(_labels(data, "train"))
    test = Counter(_labels(data, "test"))
    names = [
        name
        for name in dict.fromkeys([*data.class_names, *sorted({*train, *test})])
        if train[name] + test[name]
    ]
    rows = sorted(
        ((name, train[name], test[name]) for name in names), key=lambda row: row[1]
    )
    few = [name for name in names if 0 < train[name] < FEW]
    strange = sorted({*test} - {*train})
    cautions = list(data.cautions)
    if strange:
        cautions.append(
            f"classes in the test set only: {listed(strange)}; they can be told apart, not learned"
        )
    if few:
        cautions.append(
            f"classes with fewer than {FEW} training samples: {len(few)} of {len(train)} ({listed(few)})"
        )
    return DataReport(
        *(data.name, data.kind, data.layout, data.source),
        n_classes=len(train),
        n_train=train.total(),
        n_test=test.total(),
        n_features=0 if isinstance(data, Dataset) else int(data.X_train.shape[1]),
        smallest=rows[:most],
        largest=rows[::-1][:most],
        cautions=cautions,
        notes=list(data.notes),
    )


def _labels(data: Dataset | FeatureSet, part: str) -> list[str]:
    """Return the class names of the training or the test samples."""
    if isinstance(data, FeatureSet):
        return [data.class_name(label) for label in getattr(data, f"y_{part}").tolist()]
    samples = data.train if part == "train" else data.test
    if samples is None:
        return []
    return samples.required_labels().tolist()
