"""Files that list samples: tables (CSV, TSV, JSON lines) of texts or images, metadata of images, lines of texts."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from evergrow.core.csv_rows import read_csv_rows
from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.data.folders import has_train_test, is_hidden, partner_name, training_file
from evergrow.data.items import Dataset, Items, Texts, integers, listed
from evergrow.data.readers import TEST_WORDS, TRAIN_WORDS, DataOptions, register_reader
from evergrow.data.storage import Tree

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
_SUFFIXES = (*TABLE_SUFFIXES, ".txt")
FILE_COLUMN = "file_name"
SPLIT_COLUMN = "split"
NAME_COLUMNS = ("name", FILE_COLUMN)
LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
_IMAGES = ("path", "image", "file", "filename")
_CANDIDATES = (
    ("text", "text", ("text", "sentence")),
    ("image", "image", (*_IMAGES, "img")),
    ("features", "features", ("feature", "features", "embedding", "embeddings", "X")),
    ("image", "text", (*_IMAGES, FILE_COLUMN)),
)
"""Kind of the samples, content of the column and its usual names, in the order of the search."""

_SPLITS = {
    **dict.fromkeys(TRAIN_WORDS, "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "validation"),
}
_METADATA = ("metadata.csv", "metadata.jsonl")

Row = tuple[int, dict[str, str]]
"""Line number in the file, and the cells by column."""


# -- columns ---------------------------------------------------------------------------


class Columns(NamedTuple):
    """What the samples of a table are, and the columns of samples and labels; no label column is an empty name."""

    kind: str
    sample: str
    label: str


def choose_columns(
    contents: Mapping[str, str], options: DataOptions, title: str
) -> Columns:
    """Return the columns named by the options, or else by their usual names.

    Parameters
    ----------
    contents : mapping of str to str
        What each column can hold: ``"text"`` (also names of images), ``"image"``,
        ``"features"`` or nothing we read.
    options : DataOptions
        Names of columns, and the kind that is wanted.
    title : str
        The file, for messages.

    Raises
    ------
    FileFormatError
        If a column is missing or holds something else; the message says which columns
        there are.
    """
    for column in (options.text_column, options.image_column, options.label_column):
        if column and column not in contents:
            raise FileFormatError(
                f"{title} must have a column {column!r}, got {listed(contents, most=8)}"
            )
    given = (options.text_column, options.image_column)
    usual_label = (
        name for name in LABEL_COLUMNS if name in contents and name not in given
    )
    label = ""
    if options.labelled:
        label = options.label_column or next(usual_label, "")
    for kind, column in zip(("text", "image"), given, strict=True):
        if column and options.kind in ("", kind):
            if contents[column] not in (kind, "text"):
                raise FileFormatError(
                    f"{title}: column {column!r} must hold {kind}s, got other values"
                )
            return Columns(kind, column, label)
    for kind, content, names in _CANDIDATES:
        right = [
            name for name, held in contents.items() if held == content and name != label
        ]
        usual = [name for name in names if name in right]
        found = usual or (
            right
            if content == "image" or (content == "features" and len(right) == 1)
            else []
        )
        if found and options.kind in ("", kind):
            return Columns(kind, found[0], label)
    got = f"{listed(contents, most=8)}; name another by text_column or image_column"
    raise FileFormatError(
        f"{title} must have a column 'text', 'image', 'path' or 'feature', got {got}"
    )


# -- samples that a file lists ---------------------------------------------------------


@dataclass(frozen=True)
class SampleList:
    """Texts or names of images that a file lists, their labels, and training or test where the file says it."""

    file: str
    samples: Sequence[str]
    labels: Sequence[str]
    images: bool = True
    splits: Sequence[str] = field(default=())

    def take(self, split: str) -> SampleList:
        """Return the samples of one split."""
        rows = [row for row, own in enumerate(self.splits) if own == split]
        return replace(
            self,
            samples=[self.samples[row] for row in rows],
            labels=[self.labels[row] for row in rows],
        )


def listed_data(
    tree: Tree, lists: Sequence[SampleList], options: DataOptions, **about: Any
) -> Dataset:
    """Return the data set of a training list and, where there is one, a test list.

    Parameters
    ----------
    tree : Tree
        Where the lists are.
    lists : sequence of SampleList
        One or two.
    options : DataOptions
        The folder of the images, if it is given.
    **about
        Names of integer labels, and other fields of the data set.
    """
    if len({part.images for part in lists}) > 1:
        first, second = (tree.place(part.file) for part in lists)
        raise FileFormatError(
            f"{second} must hold texts or images like {first}, got the other"
        )
    labels = integers([label for part in lists for label in part.labels])
    items: list[Items] = []
    seen: set[str] = set()
    for part in lists:
        if not part.images:
            items.append(Texts(tuple(part.samples)))
            continue
        folder, names = find_images(tree, part.file, part.samples, options)
        for name in names:
            full = posixpath.join(folder.base, name)
            if full in seen:
                files = dict.fromkeys(posixpath.basename(each.file) for each in lists)
                raise InputError(
                    f"images must be named once, got {name!r} twice in {' and '.join(files)}"
                )
            seen.add(full)
        items.append(folder.images(names))
    n = len(lists[0].samples)
    if len(lists) == 2:
        test = (items[1], labels[n:])
    else:
        test = (None, ())
    return Dataset.of(items[0], labels[:n], *test, **about)


def find_images(
    tree: Tree, file: str, names: Sequence[str], options: DataOptions
) -> tuple[Tree, list[str]]:
    """Return the folder that holds the images of a file, and their names in it.

    Files name their images from the folder that some program was run in
    (``data/imagenet-r/...``), so ever shorter names are tried: in the folder of the
    file, the one above it, and the usual ones in both.

    Raises
    ------
    DatasetNotFoundError
        If an image is missing.
    """
    if tree.remote:
        tree.sizes  # noqa: B018  # one listing, rather than a question for every image
    title = tree.place(file)
    last = posixpath.splitext(posixpath.basename(file))[0].rpartition("_")[2]
    bases = [""]
    if options.root is not None:
        tree = Tree(options.root)
    else:
        own = posixpath.dirname(file)
        if not own and tree.on_disk and tree.root != tree.root.parent:
            tree, own = Tree(tree.root.parent), tree.root.name
        bases = [own, posixpath.dirname(own)]
    places = [
        posixpath.join(base, inner).rstrip("/")
        for base in bases
        for inner in ("", "images", "data", last)
    ]
    folders = list(dict.fromkeys(places))
    plain = [posixpath.normpath(name.strip().replace("\\", "/")) for name in names]
    found = (
        (folder, drop)
        for name in plain[
            :: max(len(plain) // 5, 1)
        ]  # the first image may be the one that is missing
        for drop in range(name.count("/") + 1)
        for folder in folders
        if tree.is_file(posixpath.join(folder, _without_folders(name, drop)))
    )
    place, drop = next(found, (folders[0], 0))
    folder = tree.below(place)
    inside = [_without_folders(name, drop) for name in plain]
    missing = [name for name in inside if not folder.is_file(name)]
    if missing:
        looked = listed([each or "." for each in folders], most=8)
        raise DatasetNotFoundError(
            f"the images of {title} must be there, but {len(missing)} of {len(inside)} are not: {listed(missing)}; "
            f"looked in {looked} of {tree.place()}; name the folder they are in by root"
        )
    return folder, inside


def _without_folders(name: str, drop: int) -> str:
    if drop:
        return "/".join(name.split("/")[drop:]) or name
    return name


# -- readers ---------------------------------------------------------------------------


@register_reader(
    "table", suffixes=_SUFFIXES, fits=lambda tree: bool(_tables_of(tree)), rank=45
)
def read_table(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read a table and, if there is one, the table of test samples that goes with it; lines of a ``.txt`` are texts.

    Of a folder, these are its metadata, its training and test table, or its one table
    with images beside it.

    Raises
    ------
    FileFormatError
        If a table cannot be understood; the message has the line.
    InputError
        If a text or a label is empty, or an image is named twice.
    DatasetNotFoundError
        If an image that a table names is missing.
    """
    if name:
        names = [name]
    else:
        names = _tables_of(tree)
    partner = None
    if name and options.labelled:
        partner = partner_name(tree, name)
    names += [partner] if partner else []
    lists = [_rows(tree, each, options) for each in names]
    notes = [f"tables: {', '.join(map(posixpath.basename, names))}"]
    if len(lists) == 1:
        lists, notes = _split_parts(lists[0], tree.place(names[0]))
    return listed_data(tree, lists, options, layout="table", notes=tuple(notes))


def _split_parts(whole: SampleList, title: str) -> tuple[list[SampleList], list[str]]:
    """Return the training and the test rows by the split column; without test rows there is one part."""
    if not whole.splits:
        return [whole], []
    train, test, validation = (
        whole.take(split) for split in ("train", "test", "validation")
    )
    if not train.samples:
        raise FileFormatError(
            f"{title} must have rows with {SPLIT_COLUMN} = train, got none"
        )
    both = test.samples and validation.samples
    if both:
        notes = [f"rows for validation left out: {len(validation.samples)}"]
    else:
        notes = []
    return [train, *[part for part in (test, validation) if part.samples][:1]], notes


def _tables_of(tree: Tree) -> list[str]:
    """Return the tables of a folder: metadata, a training and a test table, or the only one without class folders."""
    found = _metadata(tree)
    if found or has_train_test(tree):
        return found
    train = training_file(tree, _SUFFIXES)
    if train is not None:
        return [train, partner_name(tree, train) or train]
    folders = [
        name
        for name, kind in tree.entries()
        if kind == "folder" and not is_hidden(name)
    ]
    if folders == ["data"]:
        inside = tree.files("data")
    else:
        inside = []
    tables = [
        name
        for name in (*tree.files(), *inside)
        if name.lower().endswith(TABLE_SUFFIXES)
    ]
    if len(tables) == 1 and len(folders) <= 1:
        return tables
    return []


def _metadata(tree: Tree) -> list[str]:
    """Return the metadata files of a Hugging Face image folder: one, or one each for training and test."""
    folders = tree.folders()
    places = [
        [""],
        *(
            [folders[word] for word in words if word in folders]
            for words in (TRAIN_WORDS, TEST_WORDS)
        ),
    ]
    whole, train, test = (
        [
            file
            for place in part
            for name in _METADATA
            if tree.is_file(file := posixpath.join(place, name))
        ][:1]
        for part in places
    )
    found = whole or ([*train, *test] if train else [])
    # Another file may happen to be called so.
    if all(FILE_COLUMN.encode() in tree.read(name, 0, 4096) for name in found):
        return found
    return []


# -- rows and cells --------------------------------------------------------------------


def _rows(tree: Tree, name: str, options: DataOptions) -> SampleList:
    """Return the samples of a table; with labels every row must have both, without, empty samples are left out."""
    title = tree.place(name)
    text = tree.text(name)
    lower = name.lower()
    if posixpath.basename(name) in _METADATA:
        options = replace(options, image_column=options.image_column or FILE_COLUMN)
    if lower.endswith(".txt"):
        header = ["text"]
        rows = [
            (row, {"text": line.strip()})
            for row, line in enumerate(text.split("\n"), start=1)
        ]
    elif lower.endswith((".jsonl", ".ndjson")):
        header, rows = _read_json_lines(text, title)
    else:
        separator = max(",;\t", key=text.partition("\n")[0].count)
        header, rows = _read_csv(
            text, title, "\t" if lower.endswith(".tsv") else separator
        )
    if not rows:
        raise FileFormatError(f"{title} must hold at least one row, got none")
    columns = choose_columns(dict.fromkeys(header, "text"), options, title)
    if options.labelled and not columns.label:
        got = listed(header, most=8)
        raise FileFormatError(
            f"{title} must have a column 'label', got {got}; name another by label_column"
        )
    split = ""
    if options.labelled and SPLIT_COLUMN in header:
        split = SPLIT_COLUMN
    needed = [column for column in (columns.sample, columns.label, split) if column]
    kept: list[list[str]] = []
    for line, cells in rows:
        for column in needed:
            if column not in cells:
                raise FileFormatError(
                    f"{title} line {line} must have {column!r} as a string or an integer, got {listed(cells)}"
                )
            if options.labelled and not cells[column].strip():
                raise InputError(f"{title} line {line}: {column} must not be empty")
        word = "train"
        if split:
            word = cells[split].strip().lower()
        if word not in _SPLITS:
            raise FileFormatError(
                f"{title} line {line}: {split} must be train, test or validation, got {word!r}"
            )
        if cells[columns.sample].strip():
            kept.append(
                [
                    cells[columns.sample],
                    cells.get(columns.label, "").strip(),
                    _SPLITS[word],
                ]
            )
    if not kept:
        raise FileFormatError(f"{title} must hold at least one text, got none")
    samples, labels, splits = zip(*kept, strict=True)
    return SampleList(
        name, samples, labels, columns.kind == "image", splits if split else ()
    )


def _read_csv(text: str, title: str, separator: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    header: list[str] = []
    # Not pyarrow.csv: messages need the line number, and cells may hold line ends.
    for line, cells in read_csv_rows(text, title, separator):
        if not cells or cells == [""]:
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            if len(set(header)) != len(header):
                raise FileFormatError(
                    f"{title} must have every column once, got {listed(header, most=8)}"
                )
        elif len(cells) != len(header):
            raise FileFormatError(
                f"{title} line {line} must have {len(header)} cells, got "
                f"{len(cells)}; texts with separators in them need quotes"
            )
        else:
            rows.append((line, dict(zip(header, cells, strict=True))))
    return header, rows


def _read_json_lines(text: str, title: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    for line, entry in enumerate(text.split("\n"), start=1):
        if not entry.strip():
            continue
        try:
            record = json.loads(entry)
        except (
            ValueError,
            RecursionError,
        ) as error:  # also integers of thousands of digits
            raise FileFormatError(
                f"{title} line {line} must be JSON: {error}"
            ) from error
        if not isinstance(record, dict):
            raise FileFormatError(
                f"{title} line {line} must be a JSON object, got {type(record).__name__}"
            )
        rows.append(
            (
                line,
                {
                    key: str(value)
                    for key, value in record.items()
                    if isinstance(value, (str, int))
                },
            )
        )
    return list(dict.fromkeys(key for _, cells in rows for key in cells)), rows


# -- exports of Label Studio -----------------------------------------------------------


@register_reader("label-studio", suffixes=(".json",))
def read_label_studio(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read an export as JSON or JSON-MIN; samples without exactly one class are counted and left out.

    Raises
    ------
    FileFormatError
        If it is no such export, or no sample in it has exactly one class.
    DatasetNotFoundError
        If its images are not there.
    """
    title = tree.place(name)
    try:
        tasks = json.loads(tree.text(name))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{title} is no JSON: {error}") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise FileFormatError(
            f"{title} is no export of Label Studio. Export a project as JSON or JSON-MIN."
        )
    rows: list[tuple[str, str, str]] = []
    unusable: Counter[str] = Counter()
    for number, task in enumerate(tasks, start=1):
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
    reasons = ", ".join(
        f"{reason}: {count}" for reason, count in sorted(unusable.items())
    )
    if len({kind for kind, _, _ in rows}) != 1:
        raise FileFormatError(
            f"{title} has "
            + (f"no sample of one class ({reasons})." if not rows else "both kinds.")
        )
    kinds, samples, labels = zip(*rows, strict=True)
    if unusable:
        cautions = (f"samples left out: {unusable.total()} ({reasons})",)
    else:
        cautions = ()
    found = SampleList(name, samples, labels, images=kinds[0] == "image")
    return listed_data(tree, [found], options, layout="label-studio", cautions=cautions)


def _sample(task: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of a task and its file or text; images on other machines have no file."""
    data = task.get("data", task)
    for kind in ("image", "text"):
        value = None
        if isinstance(data, dict):
            value = data.get(kind)
        if isinstance(value, str) and value.strip():
            return kind, value if kind == "text" else _image_name(value.strip())
    return "", ""


def _classes(task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes that annotators chose for a task."""
    choice = task.get("choice", task.get("label"))  # JSON-MIN
    values = [choice if isinstance(choice, dict) else {"choices": choice}]
    if isinstance(task.get("annotations"), list):
        given = [
            each
            for each in task["annotations"]
            if isinstance(each, dict) and not each.get("was_cancelled")
        ]
        results = [
            result
            for each in given
            if isinstance(each.get("result"), list)
            for result in each["result"]
        ]
        values = [
            result["value"]
            for result in results
            if isinstance(result, dict) and "value" in result
        ]
    for value in values:
        chosen = None
        if isinstance(value, dict):
            chosen = value.get("choices")
        if isinstance(chosen, str):
            names = [chosen]
        elif isinstance(chosen, list):
            names = chosen
        else:
            names = []
        yield from (
            name.strip() for name in names if isinstance(name, str) and name.strip()
        )


def _image_name(reference: str) -> str:
    """Return the file that a task refers to, which cannot lead out of a folder; empty for one on another machine.

    Examples
    --------
    >>> from evergrow.data.tables import _image_name
    >>> _image_name("/data/local-files/?d=birds/1.jpg"), _image_name("/data/upload/3/ab-1.jpg")
    ('birds/1.jpg', 'data/upload/3/ab-1.jpg')
    >>> _image_name("s3://bucket/1.jpg"), _image_name("../../etc/1.jpg")
    ('', 'etc/1.jpg')
    """
    try:
        parts = urlsplit(reference)
    except ValueError:
        return ""
    if parts.scheme in ("http", "https", "s3", "gs", "azure-blob"):
        return ""
    if "?" in reference:
        name = unquote(parts.path)
    else:
        name = reference
    if parts.path.rstrip("/").endswith("local-files"):
        name = parse_qs(parts.query).get("d", [""])[0]
    return "/".join(
        step
        for step in name.replace("\\", "/").split("/")
        if step not in ("", ".", "..")
    )
