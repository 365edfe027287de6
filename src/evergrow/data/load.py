"""One function for every kind of data on disk: it looks at what is there and reads it."""

from __future__ import annotations

import dataclasses
import glob
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from evergrow.core.errors import DatasetNotFoundError, DataWarning, InputError
from evergrow.core.registry import nearest
from evergrow.core.settings import with_changes
from evergrow.core.wording import setting
from evergrow.data.features import FeatureSet, available_features, search_path
from evergrow.data.folders import unwrapped
from evergrow.data.globs import is_pattern, patterns_of, read_globs
from evergrow.data.inspection import DataReport, inspect_data, inspect_reading
from evergrow.data.labelled import LabelledItems, as_rawset, stratified_split
from evergrow.data.options import DataOptions
from evergrow.data.pairs import partner
from evergrow.data.rawset import RawSet
from evergrow.data.readers import LAYOUTS, SCHEMES, file_format, file_suffixes, fitting_layout
from evergrow.data.video import is_video


def load_data(
    source: str | os.PathLike[str] | list[str], options: DataOptions | None = None, **settings: Any
) -> RawSet | FeatureSet:
    r"""Load labelled images, texts or features from wherever they are; nothing is decoded.

    Parameters
    ----------
    source : str, path-like or list of str
        - a folder: ``train/<class>/*`` and ``test/<class>/*`` (or val, valid, validation), one folder per class (a
          test set is then drawn, unless ``split="none"``), training and test lists or tables, or a saved Hugging Face
          data set;
        - a file: ``.npz`` or ``.safetensors`` arrays, a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` table of
          ``text,label`` or ``path,label``, a ``.txt`` or ``.yaml`` list of images, a ``.json`` export of COCO or Label
          Studio, a ``.zip`` or ``.tar`` of a folder, which is not unpacked;
        - a pattern such as ``photos/*/*.jpg``, or several, as a list or as in ``$PATH``: the folder of an image is its
          class;
        - the name of a file or folder in :func:`search_path`;
        - ``hf:OWNER/NAME`` (and ``#CONFIG``), also as ``hf://datasets/OWNER/NAME``.
    options : DataOptions, optional
        How to read it.
    **settings
        Fields of :class:`DataOptions`, instead of or on top of ``options``.

    Returns
    -------
    RawSet or FeatureSet
        Features if the arrays are features, raw data otherwise.

    Warns
    -----
    DataWarning
        Once, with all that is not as expected, such as classes with few samples.

    Raises
    ------
    DatasetNotFoundError
        If there is no such data; the message says what was looked for, where, and how to get it.
    FileFormatError, InputError, LabelError
        If the data contradict themselves; the message names the file, line or class.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data import load_data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "mail.csv")
    ...     _ = table.write_text("text,label\n" + "buy now,spam\nsee you,ham\n" * 10)
    ...     data = load_data(table, test_size=0.3)
    >>> data.class_names, len(data.train), len(data.test)
    (('ham', 'spam'), 14, 6)

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "mail.csv")
    ...     _ = table.write_text("text,label\n" + "buy now,spam\nsee you,ham\n" * 10)
    ...     data = load_data(table, split="none")
    >>> len(data.train), len(data.test), data.whole
    (20, 0, True)
    """
    chosen = with_changes(options or DataOptions(), settings, "data setting")
    data = _load_patterns(source, chosen) if isinstance(source, list) else _load(os.fspath(source), chosen)
    if isinstance(data, FeatureSet):
        return data if chosen.split == "none" else with_test_part(data, chosen)
    _warn(data)
    return data


def with_test_part(data: FeatureSet, options: DataOptions) -> FeatureSet:
    """Return features with a test part: theirs, or where they have none one that is drawn from every class."""
    if not data.whole:
        return data
    classes, codes = np.unique(data.y_train, return_inverse=True)
    keep, hold, _ = stratified_split(codes.astype(np.int64), [str(label) for label in classes], options)
    rows = {"train": keep, "test": hold}
    parts = {f"{array}_{part}": getattr(data, f"{array}_train")[rows[part]] for array in "Xy" for part in rows}
    return dataclasses.replace(data, **parts, whole=False, origin="")


def _load_patterns(patterns: list[str], options: DataOptions) -> RawSet:
    labelled = read_globs(patterns)
    return _finish(labelled, os.pathsep.join(patterns), _name_of_pattern(patterns[0]), options)


def _load(text: str, options: DataOptions) -> RawSet | FeatureSet:
    if not text:
        raise DatasetNotFoundError("data set must be a path or a name, got an empty string")
    scheme, _, rest = text.partition(":")
    if scheme.lower() in SCHEMES and rest:
        return _finish(SCHEMES[scheme.lower()](rest, options), text, rest.partition("#")[0], options)
    path = Path(text)
    if is_pattern(text):
        return _load_patterns(patterns_of(text), options)
    if os.path.exists(text):  # unlike Path.exists, no error for what is too long for a name
        return _load_path(path, options)
    _check_nameable(text)
    return _load_name(text, options)


def check_source(source: str | os.PathLike[str]) -> None:
    """Raise :class:`DatasetNotFoundError` if there is nothing that :func:`load_data` could read; reads nothing.

    Parameters
    ----------
    source : str or path-like
        As for :func:`load_data`.

    Examples
    --------
    >>> from evergrow.data.load import check_source
    >>> check_source("nowhere/birds")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.DatasetNotFoundError: data set must be an existing folder or file, got 'nowhere/birds'
    """
    text = os.fspath(source)
    scheme, _, rest = text.partition(":")
    if is_on_disk(text) or is_video(text) or (scheme.lower() in SCHEMES and rest):
        return  # of videos and cameras their reader says what is wrong
    _check_nameable(text)
    if _find_named(text, search_path(), ("", *file_suffixes("first", "last"))) is None:
        raise _nowhere(text, search_path())


def _check_nameable(text: str) -> None:
    """Refuse what is a path that leads nowhere, and no name either."""
    if not text:
        raise DatasetNotFoundError(f"{setting('source')} must be a path or a name, got an empty string")
    if Path(text).parent != Path(".") or text.lower().endswith(file_suffixes()):
        raise DatasetNotFoundError(f"data set must be an existing folder or file, got {text!r}")


def _load_path(path: Path, options: DataOptions) -> RawSet | FeatureSet:
    data = _read_path(path, options)
    if isinstance(data, FeatureSet):
        return dataclasses.replace(data, name=options.name) if options.name else data
    return _finish(data, str(path), _name_of(path), options)


def read_path(source: str | os.PathLike[str], options: DataOptions | None = None) -> LabelledItems | FeatureSet:
    r"""Read a folder or file as :func:`load_data` does, but return the labelled items as they are.

    No test set is drawn, labels are not numbered, and a test set may have classes of its own.

    Parameters
    ----------
    source : str or path-like
        An existing folder or file.
    options : DataOptions, optional
        How to read it.

    Warns
    -----
    DataWarning
        Once, with all that is probably not meant.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.load import read_path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "mail.csv")
    ...     _ = table.write_text("text,label\nbuy now,spam\n")
    ...     mail = read_path(table)
    >>> mail.train_labels, mail.test is None
    (['spam'], True)
    """
    text = os.fspath(source)
    if is_pattern(text):
        data: LabelledItems | FeatureSet = read_globs(patterns_of(text))
        name = _name_of_pattern(text)
    else:
        data, name = _read_path(Path(text), options or DataOptions()), _name_of(Path(text))
    if isinstance(data, LabelledItems):
        _warn_of(name, data.cautions)
    return data


def is_on_disk(source: str | os.PathLike[str]) -> bool:
    """Return whether a source is a file, a folder or a pattern, and not a name to be looked up."""
    return os.path.exists(source) or is_pattern(os.fspath(source))


def survey(source: str | os.PathLike[str], options: DataOptions | None = None) -> DataReport:
    r"""Return a report on all that is there: what learning and testing would take, no test set drawn.

    Unlike :func:`load_data`, it takes test sets with classes of their own, as a model does that is evaluated on them.

    Parameters
    ----------
    source : str or path-like
        As for :func:`load_data`.
    options : DataOptions, optional
        How to read it; a test set is drawn only if its ``split`` says so.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.load import survey
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = pathlib.Path(folder, "mail.csv")
    ...     _ = table.write_text("text,label\nbuy now,spam\nsee you,ham\n")
    ...     report = survey(table)
    >>> report.n_classes, report.n_train, report.n_test
    (2, 2, 0)
    """
    chosen = options or DataOptions(split="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # the report says it all
        data = read_path(source, chosen) if is_on_disk(source) else None
        if isinstance(data, LabelledItems):
            strange = {str(label) for label in data.test_labels} - {str(label) for label in data.train_labels}
            if strange:
                return inspect_reading(data, name=_name_of_source(source), source=os.fspath(source))
            return inspect_data(_finish(data, os.fspath(source), _name_of_source(source), chosen))
        if isinstance(data, FeatureSet):
            return inspect_data(data if chosen.split == "none" else with_test_part(data, chosen))
        return inspect_data(load_data(source, chosen))


def _read_path(path: Path, options: DataOptions) -> LabelledItems | FeatureSet:
    if path.is_dir():
        return read_folder(path, options)
    form = file_format(path)
    if form is None:
        raise InputError(f"data file must end in one of {', '.join(file_suffixes())}, got {str(path)!r}")
    return form.read(path, options)


def _load_name(name: str, options: DataOptions) -> RawSet | FeatureSet:
    """Load by name: a file of arrays of just that name, or else a folder or any file of that name."""
    roots = [options.root_path] if options.root_path is not None else search_path()
    named = _find_named(name, roots, file_suffixes("first")) or _find_named(name, roots, ("", *file_suffixes("last")))
    if named is not None:
        return _load_path(named, options)
    raise _nowhere(name, roots)


def _nowhere(name: str, roots: list[Path]) -> DatasetNotFoundError:
    suffixes = ", ".join(file_suffixes("first", "last"))
    near = f"; nearest: {nearest(name, known)}" if (known := available_features()) else ""
    return DatasetNotFoundError(
        f"data set {name!r} must be on disk: looked for a folder or file {name} "
        f"({suffixes}) in {', '.join(str(root) for root in roots)}{near}. "
        "Give the path of a folder with train/<class>/* and test/<class>/*, or name the folder above it in the "
        "environment variable EVERGROW_DATA"
    )


def _find_named(name: str, roots: list[Path], suffixes: tuple[str, ...]) -> Path | None:
    """Return the first folder or file of a name and one of these endings below the roots."""
    candidates = (root / f"{name}{suffix}" for root in roots for suffix in suffixes)
    return next((path for path in candidates if path.exists()), None)


def read_folder(folder: Path, options: DataOptions) -> LabelledItems:
    """Read a folder in the layout that the options name, or in the first one that fits."""
    folder = unwrapped(folder)
    layout = fitting_layout(folder) if options.layout == "auto" else LAYOUTS[options.layout]
    return layout.read(folder, options)


# -- finishing ----------------------------------------------------------------------------------------------


def _finish(labelled: LabelledItems, source: str, name: str, options: DataOptions) -> RawSet:
    return as_rawset(labelled, name=options.name or Path(name).name, source=source, options=options)


def _name_of_source(source: str | os.PathLike[str]) -> str:
    text = os.fspath(source)
    return _name_of_pattern(text) if is_pattern(text) else _name_of(Path(text))


def _name_of_pattern(text: str) -> str:
    """Name a pattern after the last folder that it names in full."""
    plain = [part for part in Path(patterns_of(text)[0]).parts if not glob.has_magic(part) and part != os.sep]
    return plain[-1] if plain else "patterns"


def _name_of(path: Path) -> str:
    """Name a folder or file after itself, a pair of files after what they share, or after their folder."""
    if path.is_dir():
        return path.absolute().name
    name = path.stem.removesuffix(".tar")
    if partner(path) is None:
        return name
    return name[: name.lower().rfind("train")].strip("-_. ") or path.absolute().parent.name


def _warn(data: RawSet) -> None:
    _warn_of(data.name, inspect_data(data).cautions, level=4)


def _warn_of(name: str, cautions: list[str], level: int = 3) -> None:
    if cautions:
        # The level is that of whoever called load_data or read_path.
        warnings.warn(f"data set {name!r} can be used but: {'; '.join(cautions)}", DataWarning, stacklevel=level)
