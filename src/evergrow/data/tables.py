"""Files that list samples: tables of texts or images, and lists of texts.

Tables are CSV, TSV or JSON lines, the metadata of a Hugging Face image folder, or an
export of Label Studio. Every line of a ``.txt`` file is a text.
"""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from evergrow.core.csv_rows import read_csv_rows
from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.core.escaping import quote_names
from evergrow.data.class_labels import as_integers
from evergrow.data.folders import (
    counts_text,
    has_train_test,
    is_hidden,
    test_file_of,
    training_file,
)
from evergrow.data.items import Dataset, Images, Items, Samples, Texts
from evergrow.data.readers import (
    TEST_WORDS,
    TRAIN_WORDS,
    DataOptions,
    has_files,
    register_reader,
)
from evergrow.data.storage import Tree

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
_SUFFIXES = (*TABLE_SUFFIXES, ".txt")

# Usual names of columns, in the order of the search.
FILE_COLUMN = "file_name"
SPLIT_COLUMN = "split"
NAME_COLUMNS = ("name", FILE_COLUMN)
LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
_IMAGE_COLUMNS = ("path", "image", "file", "filename")


_CONTENT_NAMES = {
    "text": "texts",
    "image": "images",
    "features": "feature vectors",
    "": "numbers or other values",
}
"""Contents of a column, for messages."""


class _Candidate(NamedTuple):
    """A kind of samples, the content of their column, and its usual names."""

    kind: str
    content: str
    names: tuple[str, ...]


_CANDIDATES = (
    _Candidate("text", "text", ("text", "sentence")),
    _Candidate("image", "image", (*_IMAGE_COLUMNS, "img")),
    _Candidate(
        "features",
        "features",
        ("feature", "features", "embedding", "embeddings", "X"),
    ),
    _Candidate("image", "text", (*_IMAGE_COLUMNS, FILE_COLUMN)),
)
"""Columns of samples in the order of the search."""

_SPLITS = {
    **dict.fromkeys(TRAIN_WORDS, "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "validation"),
}
"""The part that each word in the split column names."""

_METADATA = ("metadata.csv", "metadata.jsonl")
"""Names of the file that describes a Hugging Face image folder."""

Row = tuple[int, dict[str, str]]
"""Line number in the file, and the cells by column."""


# -- columns ---------------------------------------------------------------------------


class Columns(NamedTuple):
    """Kind of the samples, their column, and the column of labels, or ""."""

    kind: str
    sample: str
    label: str


def choose_columns(
    contents: Mapping[str, str], options: DataOptions, title: str
) -> Columns:
    """Return the columns given in the options, or those with the usual names.

    Parameters
    ----------
    contents : mapping of str to str
        Content of each column: ``"text"`` (also for names of images), ``"image"``,
        ``"features"``, or an empty string for anything else.
    options : DataOptions
        Names of columns, and the kind of samples.
    title : str
        The file, for messages.

    Raises
    ------
    FileFormatError
        If a column is missing or has another content; the message lists the columns.
    """
    for column in (options.text_column, options.image_column, options.label_column):
        if column and column not in contents:
            raise FileFormatError(
                f"{title} must have a column {column!r}, "
                f"got {quote_names(contents, most=8)}"
            )
    given = {"text": options.text_column, "image": options.image_column}
    label = ""
    if options.labelled:
        free = (
            name for name in LABEL_COLUMNS if name in contents.keys() - given.values()
        )
        label = options.label_column or next(free, "")
    for kind, column in given.items():
        if column and options.kind in ("", kind):
            if contents[column] not in (kind, "text"):
                raise FileFormatError(
                    f"{title}: column {column!r} must hold {kind}s, got other values"
                )
            return Columns(kind, column, label)
    for candidate in _CANDIDATES:
        if options.kind in ("", candidate.kind):
            sample = _find_column(contents, candidate, label)
            if sample:
                return Columns(candidate.kind, sample, label)
    raise _missing_column(contents, options, label, title)


def _missing_column(
    contents: Mapping[str, str], options: DataOptions, label: str, title: str
) -> FileFormatError:
    """Return the error for a table without a column of samples of this kind.

    A column with a usual name has other contents then, and is named.
    """
    kind = options.kind
    for candidate in _CANDIDATES:
        if kind not in ("", candidate.kind):
            continue
        for name in candidate.names:
            if name in contents and name != label and candidate.kind != "features":
                return FileFormatError(
                    f"{title}: column {name!r} must hold {candidate.kind}s, got "
                    f"{_CONTENT_NAMES[contents[name]]}; name another column by "
                    f"{candidate.kind}_column"
                )
    wanted = "'text', 'image', 'path' or 'feature'"
    settings = "text_column or image_column"
    if kind == "text":
        wanted = "'text'"
        settings = "text_column"
    elif kind == "image":
        wanted = "'image' or 'path' with images"
        settings = "image_column"
    others = [name for name in contents if name != label]
    found = quote_names(others, most=8) or "no other column"
    besides = f" besides the labels in {label!r}" if label else ""
    return FileFormatError(
        f"{title} must have a column {wanted}{besides}, got {found}; "
        f"name another by {settings}"
    )


def _find_column(contents: Mapping[str, str], candidate: _Candidate, label: str) -> str:
    """Return the column of a candidate by its usual names or its content, or "".

    Image bytes, and vectors in only one column, are found under any name.
    """
    matching = [
        name
        for name, content in contents.items()
        if content == candidate.content and name != label
    ]
    for name in candidate.names:
        if name in matching:
            return name
    if candidate.content == "image" and matching:
        return matching[0]
    if candidate.content == "features" and len(matching) == 1:
        return matching[0]
    return ""


# -- samples listed in a file ----------------------------------------------------------


class ListedPart(NamedTuple):
    """The training or test part of a data set, as a file lists it.

    Parameters
    ----------
    file : str
        The file.
    samples : Samples
        Texts or images with labels. Names of images are as written in the file.
    """

    file: str
    samples: Samples


def listed_samples(kind: str, values: Sequence[str], labels: Sequence[str]) -> Samples:
    """Return texts, or images by the names written in a file, with their labels."""
    items: Items = Texts(tuple(values)) if kind == "text" else Images(tuple(values))
    return Samples(kind, items, labels=np.array(labels, dtype=np.str_))


def listed_dataset(
    tree: Tree, parts: Sequence[ListedPart], options: DataOptions, **about: Any
) -> Dataset:
    """Return the data set of a training part and an optional test part.

    Parameters
    ----------
    tree : Tree
        Folder of the files.
    parts : sequence of ListedPart
        One or two.
    options : DataOptions
        ``root`` is the folder of the images, if given.
    **about
        Further arguments of :meth:`Dataset.of`.

    Raises
    ------
    FileFormatError
        If one part holds texts and the other one images.
    InputError
        If an image is listed twice.
    DatasetNotFoundError
        If an image is missing.
    """
    if len({part.samples.kind for part in parts}) > 1:
        first, second = (tree.display_name(part.file) for part in parts)
        raise FileFormatError(
            f"{second} must hold texts or images like {first}, got the other"
        )
    written = [part.samples.required_labels().tolist() for part in parts]
    labels = as_integers([label for part in written for label in part])
    items = [part.samples.raw_items() for part in parts]
    if isinstance(items[0], Images):
        items = _listed_images(tree, parts, options)
    n_train = len(items[0])
    test = items[1] if len(items) == 2 else None
    return Dataset.of(items[0], labels[:n_train], test, labels[n_train:], **about)


def _listed_images(
    tree: Tree, parts: Sequence[ListedPart], options: DataOptions
) -> list[Items]:
    """Return the images of each part by reference to their files.

    An image that is listed twice raises :class:`InputError`.
    """
    items: list[Items] = []
    seen: set[str] = set()
    for part in parts:
        written = part.samples.raw_items()
        assert isinstance(written, Images)  # all parts are of one kind
        folder, names = _find_images(tree, part.file, list(written.values), options)
        for name in names:
            path = posixpath.join(folder.base, name)
            if path in seen:
                files = dict.fromkeys(posixpath.basename(p.file) for p in parts)
                raise InputError(
                    f"images must be named once, got {name!r} twice in "
                    f"{' and '.join(files)}"
                )
            seen.add(path)
        items.append(folder.images(names))
    return items


def _find_images(
    tree: Tree, file: str, names: Sequence[str], options: DataOptions
) -> tuple[Tree, list[str]]:
    """Return the folder of the images that a file lists, and their names in it.

    Files can list images relative to the working directory of some program
    (``data/imagenet-r/...``). So leading folders are removed from the names until they
    are found in the folder of the file, the folder above it, or a usual subfolder of
    both.

    Raises
    ------
    DatasetNotFoundError
        If an image is missing.
    """
    title = tree.display_name(file)
    searched, folders = _image_folders(tree, file, options)
    plain = [posixpath.normpath(name.strip().replace("\\", "/")) for name in names]
    folder_name, n_removed = _locate_images(searched, folders, plain)
    folder = searched.below(folder_name)
    shortened = [_without_folders(name, n_removed) for name in plain]
    missing = [name for name in shortened if not folder.is_file(name)]
    if missing:
        places = quote_names([name or "." for name in folders], most=8)
        raise DatasetNotFoundError(
            f"{len(missing)} of {len(shortened)} images of {title} are missing: "
            f"{quote_names(missing)}; looked in {places} of {searched.display_name()}; "
            "put the table into the folder of the images, or pass that folder as root"
        )
    return folder, shortened


def _image_folders(
    tree: Tree, file: str, options: DataOptions
) -> tuple[Tree, list[str]]:
    """Return a tree, and the folders in it that can hold the images of a file.

    The tree is that of ``options.root``, or reaches one folder above the file. A remote
    tree is listed here.
    """
    if tree.remote:
        tree.list_once()  # otherwise, every image would take a request
    bases = [""]
    if options.root is not None:
        tree = Tree(options.root)
    else:
        folder = posixpath.dirname(file)
        if not folder and tree.on_disk and tree.root != tree.root.parent:
            folder = tree.root.name
            tree = Tree(tree.root.parent)
        bases = [folder, posixpath.dirname(folder)]
    stem = posixpath.splitext(posixpath.basename(file))[0]
    last_word = stem.rpartition("_")[2]  # such as "train" of "cub_train"
    folders = [
        posixpath.join(base, inner).rstrip("/")
        for base in bases
        for inner in ("", "images", "data", last_word)
    ]
    return tree, list(dict.fromkeys(folders))


def _locate_images(
    tree: Tree, folders: Sequence[str], names: Sequence[str]
) -> tuple[str, int]:
    """Return the folder of the images, and the number of leading folders to remove.

    Several names are tried, because the first image can be the missing one.
    """
    for name in names[:: max(len(names) // 5, 1)]:
        for n_removed in range(name.count("/") + 1):
            shortened = _without_folders(name, n_removed)
            for folder in folders:
                if tree.is_file(posixpath.join(folder, shortened)):
                    return folder, n_removed
    return folders[0], 0


def _without_folders(name: str, n_removed: int) -> str:
    """Return a path without its first folders; unchanged if nothing would be left."""
    return "/".join(name.split("/")[n_removed:]) or name


# -- the reader ------------------------------------------------------------------------


@register_reader(
    "table",
    suffixes=_SUFFIXES,
    fits=lambda tree: has_files(tree, _SUFFIXES) and bool(_tables_of(tree)),
    rank=45,
)
def read_table(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read a table, and its table of test samples if there is one.

    In a folder, these are its metadata, its training and test table, or its only table.

    Raises
    ------
    FileFormatError
        If a table is malformed; the message names the line.
    InputError
        If a text or a label is empty, or an image is listed twice.
    DatasetNotFoundError
        If a listed image is missing.
    """
    names = [name] if name else _tables_of(tree)
    if name and options.labelled:
        partner = test_file_of(tree, name)
        if partner:
            names.append(partner)
    tables = [_read_rows(tree, each, options) for each in names]
    if len(tables) == 1:
        parts, notes = _split_parts(names[0], *tables[0], tree.display_name(names[0]))
    else:
        parts = [
            ListedPart(file, samples)
            for file, (samples, _) in zip(names, tables, strict=True)
        ]
        notes = [f"tables: {', '.join(map(posixpath.basename, names))}"]
    return listed_dataset(tree, parts, options, layout="table", notes=tuple(notes))


def _split_parts(
    file: str, samples: Samples, splits: Sequence[str], title: str
) -> tuple[list[ListedPart], list[str]]:
    """Return the training and test parts by the split of each row, and notes.

    Without ``splits``, all samples are one part. Validation rows are the test part if
    there are no test rows, and left out otherwise.
    """
    if not splits:
        return [ListedPart(file, samples)], []
    column = np.array(splits)
    train, test, validation = (
        np.flatnonzero(column == split) for split in ("train", "test", "validation")
    )
    if not len(train):
        raise FileFormatError(
            f"{title} must have rows with {SPLIT_COLUMN} = train, got none"
        )
    notes = []
    if len(test) and len(validation):
        notes.append(f"rows for validation left out: {len(validation)}")
    parts = [ListedPart(file, samples.take(train))]
    rows = test if len(test) else validation
    if len(rows):
        parts.append(ListedPart(file, samples.take(rows)))
    return parts, notes


def _tables_of(tree: Tree) -> list[str]:
    """Return the tables of a folder, training first, or nothing.

    These are its metadata, or a training and a test table, or its only table if the
    folder has at most one subfolder.
    """
    metadata = _metadata(tree)
    if metadata or has_train_test(tree):
        return metadata
    train = training_file(tree, _SUFFIXES)
    if train is not None:
        return [train, test_file_of(tree, train) or train]
    folders = [
        name
        for name, kind in tree.entries()
        if kind == "folder" and not is_hidden(name)
    ]
    files = tree.files()
    if folders == ["data"]:
        files += tree.files("data")
    tables = [name for name in files if name.lower().endswith(TABLE_SUFFIXES)]
    return tables if len(tables) == 1 and len(folders) <= 1 else []


def _metadata(tree: Tree) -> list[str]:
    """Return the metadata files of a Hugging Face image folder, or nothing.

    That is one file for all images, or one each for training and test.
    """
    folders = tree.folders()
    found = _metadata_in(tree, [""])
    if not found:
        train = [folders[word] for word in TRAIN_WORDS if word in folders]
        test = [folders[word] for word in TEST_WORDS if word in folders]
        found = _metadata_in(tree, train)
        if found:
            found = found + _metadata_in(tree, test)
    # Other files can have the same name, but not this column.
    if all(FILE_COLUMN.encode() in tree.read(name, 0, 4096) for name in found):
        return found
    return []


def _metadata_in(tree: Tree, folders: Sequence[str]) -> list[str]:
    """Return the first metadata file in some folders, if any, in a list."""
    for folder in folders:
        for name in _METADATA:
            file = posixpath.join(folder, name)
            if tree.is_file(file):
                return [file]
    return []


# -- rows and cells --------------------------------------------------------------------


def _read_rows(
    tree: Tree, name: str, options: DataOptions
) -> tuple[Samples, Sequence[str]]:
    """Return the samples of a table, and the split of each sample.

    Without a split column, the splits are empty. A split is "train", "test" or
    "validation". With labels, every row must have a sample and a label. Without, rows
    with an empty sample are left out.
    """
    title = tree.display_name(name)
    if posixpath.basename(name) in _METADATA:
        options = replace(options, image_column=options.image_column or FILE_COLUMN)
    header, rows = _read_cells(tree.text(name), name.lower(), title)
    if not rows:
        raise FileFormatError(f"{title} must hold at least one row, got none")
    columns = choose_columns(dict.fromkeys(header, "text"), options, title)
    if options.labelled and not columns.label:
        others = quote_names((name for name in header if name != columns.sample), 8)
        raise FileFormatError(
            f"{title} must have a column 'label' besides the samples in "
            f"{columns.sample!r}, got {others or 'no other column'}; "
            "name another by label_column"
        )
    split = SPLIT_COLUMN if options.labelled and SPLIT_COLUMN in header else ""
    needed = [column for column in (columns.sample, columns.label, split) if column]
    values = []
    labels = []
    splits = []
    for line, cells in rows:
        for column in needed:
            if column not in cells:
                raise FileFormatError(
                    f"{title} line {line} must have {column!r} as a string or an "
                    f"integer, got {quote_names(cells)}"
                )
            if options.labelled and not cells[column].strip():
                raise InputError(f"{title} line {line}: {column} must not be empty")
        if split:
            splits.append(_split_named(cells[split], f"{title} line {line}"))
        if cells[columns.sample].strip():
            values.append(cells[columns.sample])
            labels.append(cells.get(columns.label, "").strip())
    if not values:
        raise FileFormatError(f"{title} must hold at least one text, got none")
    return listed_samples(columns.kind, values, labels), splits


def _split_named(cell: str, title: str) -> str:
    """Return the split that a cell names: "train", "test" or "validation"."""
    word = cell.strip().lower()
    if word not in _SPLITS:
        raise FileFormatError(
            f"{title}: {SPLIT_COLUMN} must be train, test or validation, got {word!r}"
        )
    return _SPLITS[word]


def _read_cells(text: str, name: str, title: str) -> tuple[list[str], list[Row]]:
    """Return the header and the rows of a table by the suffix of its name."""
    if name.endswith(".txt"):
        lines = enumerate(text.split("\n"), start=1)
        return ["text"], [(number, {"text": line.strip()}) for number, line in lines]
    if name.endswith((".jsonl", ".ndjson")):
        return _read_json_lines(text, title)
    separator = "\t"
    if not name.endswith(".tsv"):
        separator = max(",;\t", key=text.partition("\n")[0].count)
    return _read_csv(text, title, separator)


def _read_csv(text: str, title: str, separator: str) -> tuple[list[str], list[Row]]:
    """Return the header and the rows; rows of other lengths are refused."""
    rows: list[Row] = []
    header: list[str] = []
    # pyarrow.csv gives no line numbers for messages.
    for line, cells in read_csv_rows(text, title, separator):
        if not cells or cells == [""]:
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            if len(set(header)) != len(header):
                raise FileFormatError(
                    f"{title} must have every column once, "
                    f"got {quote_names(header, most=8)}"
                )
        elif len(cells) != len(header):
            raise FileFormatError(
                f"{title} line {line} must have {len(header)} cells, got "
                f"{len(cells)}; put texts with separators in quotes"
            )
        else:
            rows.append((line, dict(zip(header, cells, strict=True))))
    return header, rows


def _read_json_lines(text: str, title: str) -> tuple[list[str], list[Row]]:
    """Return the keys of all lines, and the strings and integers of each line."""
    rows: list[Row] = []
    header: dict[str, None] = {}
    for line, entry in enumerate(text.split("\n"), start=1):
        if not entry.strip():
            continue
        try:
            record = json.loads(entry)
        except (ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{title} line {line} must be JSON: {error}"
            ) from error
        if not isinstance(record, dict):
            raise FileFormatError(
                f"{title} line {line} must be a JSON object, "
                f"got {type(record).__name__}"
            )
        cells = {
            key: str(value)
            for key, value in record.items()
            if isinstance(value, (str, int))
        }
        header |= dict.fromkeys(cells)
        rows.append((line, cells))
    return list(header), rows


# -- exports of Label Studio -----------------------------------------------------------


@register_reader("label-studio", suffixes=(".json",))
def read_label_studio(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read a Label Studio export as JSON or JSON-MIN.

    Samples without exactly one class are counted and left out.

    Raises
    ------
    FileFormatError
        If it is not such an export, or no sample has exactly one class.
    DatasetNotFoundError
        If its images are missing.
    """
    title = tree.display_name(name)
    rows: list[tuple[str, str, str]] = []
    unusable: Counter[str] = Counter()
    for number, task in enumerate(_read_tasks(tree.text(name), title), start=1):
        kind, sample = _sample(task)
        if not kind:
            raise FileFormatError(
                f"{title}: task {number} has neither an 'image' nor a 'text'."
            )
        classes = set(_classes(task))
        if not sample:
            unusable["images on another machine"] += 1
        elif len(classes) != 1:
            unusable["of several classes" if classes else "without a class"] += 1
        else:
            rows.append((kind, sample, classes.pop()))
    reasons = counts_text(unusable)
    if not rows:
        raise FileFormatError(f"{title} has no sample of one class ({reasons}).")
    kinds, samples, labels = zip(*rows, strict=True)
    if len(set(kinds)) != 1:
        raise FileFormatError(f"{title} has both kinds.")
    cautions: tuple[str, ...] = ()
    if unusable:
        cautions = (f"samples left out: {unusable.total()} ({reasons})",)
    part = ListedPart(name, listed_samples(kinds[0], samples, labels))
    return listed_dataset(
        tree, [part], options, layout="label-studio", cautions=cautions
    )


def _read_tasks(text: str, title: str) -> list[dict[str, Any]]:
    """Return the tasks of an export."""
    try:
        tasks = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{title} is not JSON: {error}") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise FileFormatError(
            f"{title} is not an export of Label Studio. Export a project as JSON or "
            "JSON-MIN."
        )
    return tasks


def _sample(task: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of a task, or "", and its text or the name of its image.

    The name is "" for an image on another machine.
    """
    data = task.get("data", task)
    if not isinstance(data, dict):
        return "", ""
    image = data.get("image")
    if isinstance(image, str) and image.strip():
        return "image", _image_name(image.strip())
    text = data.get("text")
    if isinstance(text, str) and text.strip():
        return "text", text
    return "", ""


def _classes(task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes that annotators chose for a task."""
    for value in _annotated_values(task):
        choices = value.get("choices") if isinstance(value, dict) else None
        if isinstance(choices, str):
            choices = [choices]
        if isinstance(choices, list):
            for name in choices:
                if isinstance(name, str) and name.strip():
                    yield name.strip()


def _annotated_values(task: Mapping[str, Any]) -> list[Any]:
    """Return the values of all annotations that were not cancelled.

    Choices are a string or a list under ``"choices"``; other values have no such key.
    """
    if not isinstance(task.get("annotations"), list):  # JSON-MIN
        choice = task.get("choice", task.get("label"))
        return [choice if isinstance(choice, dict) else {"choices": choice}]
    values = []
    for annotation in task["annotations"]:
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        results = annotation.get("result")
        if isinstance(results, list):
            values += [
                result["value"]
                for result in results
                if isinstance(result, dict) and "value" in result
            ]
    return values


def _image_name(reference: str) -> str:
    """Return the file that a task refers to, or "" for one on another machine.

    The name never leads out of a folder.

    Examples
    --------
    >>> from evergrow.data.tables import _image_name
    >>> _image_name("/data/local-files/?d=birds/1.jpg")
    'birds/1.jpg'
    >>> _image_name("/data/upload/3/ab-1.jpg")
    'data/upload/3/ab-1.jpg'
    >>> _image_name("s3://bucket/1.jpg"), _image_name("../../etc/1.jpg")
    ('', 'etc/1.jpg')
    """
    try:
        parts = urlsplit(reference)
    except ValueError:
        return ""
    if parts.scheme in ("http", "https", "s3", "gs", "azure-blob"):
        return ""
    name = unquote(parts.path) if "?" in reference else reference
    if parts.path.rstrip("/").endswith("local-files"):
        name = parse_qs(parts.query).get("d", [""])[0]
    steps = name.replace("\\", "/").split("/")
    return "/".join(step for step in steps if step not in ("", ".", ".."))
