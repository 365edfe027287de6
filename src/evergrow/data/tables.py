"""Files that list samples: tables (CSV, TSV, JSON lines) of texts or images, lists of images, image folder metadata."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from evergrow.core.errors import DatasetNotFoundError, FileFormatError, InputError
from evergrow.data.folders import TEST_WORDS, TRAIN_WORDS, Walk, is_hidden, partner_name, training_file
from evergrow.data.items import Dataset, Items, Label, Texts, integers, is_image, listed
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree

TABLE_SUFFIXES, LIST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson"), (".txt",)
FILE_COLUMN, SPLIT_COLUMN = "file_name", "split"
NAME_COLUMNS = ("name", FILE_COLUMN)
LABEL_COLUMNS = ("label", "fine_label", "labels", "class", "target")
_IMAGES = ("path", "image", "file", "filename")
_CANDIDATES = (
    ("text", "text", ("text", "sentence")),
    ("image", "image", (*_IMAGES, "img")),
    ("features", "features", ("feature", "features", "embedding", "embeddings", "X")),
    ("image", "text", (*_IMAGES, FILE_COLUMN)),
)
"""Kind of the samples, what the column holds, and its usual names, in the order in which they are looked for."""

_SPLITS = {
    **dict.fromkeys(TRAIN_WORDS, "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "validation"),
}
_METADATA = ("metadata.csv", "metadata.jsonl")

Row = tuple[int, dict[str, str]]
"""Line number in the file, and the cells by column."""


# -- columns --------------------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """What the samples of a table are, and the columns of samples and labels; no label column is an empty name."""

    kind: str
    sample: str
    label: str


def choose_columns(contents: Mapping[str, str], options: DataOptions, title: str) -> Columns:
    """Return the columns that the options name, or else those of usual names.

    Parameters
    ----------
    contents : mapping of str to str
        What each column can hold: ``"text"`` (also names of images), ``"image"``, ``"features"`` or nothing we read.
    options : DataOptions
        Names of columns, and the kind that is wanted.
    title : str
        The file, for messages.

    Raises
    ------
    FileFormatError
        If a column is missing or holds something else; the message says which columns there are.
    """
    for column in (options.text_column, options.image_column, options.label_column):
        if column and column not in contents:
            raise FileFormatError(f"{title} must have a column {column!r}, got {listed(contents, most=8)}")
    given = (options.text_column, options.image_column)
    usual_label = (name for name in LABEL_COLUMNS if name in contents and name not in given)
    label = (options.label_column or next(usual_label, "")) if options.labelled else ""
    for kind, column in zip(("text", "image"), given, strict=True):
        if column and options.kind in ("", kind):
            if contents[column] not in (kind, "text"):
                raise FileFormatError(f"{title}: column {column!r} must hold {kind}s, got other values")
            return Columns(kind, column, label)
    for kind, content, names in _CANDIDATES:
        right = [name for name, held in contents.items() if held == content and name != label]
        usual = [name for name in names if name in right]
        found = usual or (right if content == "image" or (content == "features" and len(right) == 1) else [])
        if found and options.kind in ("", kind):
            return Columns(kind, found[0], label)
    got = f"{listed(contents, most=8)}; name another by text_column or image_column"
    raise FileFormatError(f"{title} must have a column 'text', 'image', 'path' or 'feature', got {got}")


# -- samples that a file lists --------------------------------------------------------------------------------


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
        return replace(self, samples=[self.samples[row] for row in rows], labels=[self.labels[row] for row in rows])


def listed_data(
    tree: Tree, lists: Sequence[SampleList], options: DataOptions, *, folder_names: bool = False, **about: Any
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
    folder_names : bool
        Whether integer labels are named after the folders of their images, where these go together one to one.
    **about
        Other fields of the data set.
    """
    if len({part.images for part in lists}) > 1:
        first, second = (tree.place(part.file) for part in lists)
        raise FileFormatError(f"{second} must hold texts or images like {first}, got the other")
    labels = integers([label for part in lists for label in part.labels])
    items: list[Items] = []
    seen: dict[str, str] = {}
    for part in lists:
        if not part.images:
            items.append(Texts(tuple(part.samples)))
            continue
        folder, names = find_images(tree, part.file, part.samples, options)
        for name in names:
            full = posixpath.join(folder.base, name)
            if full in seen:
                files = dict.fromkeys(posixpath.basename(each.file) for each in lists)
                raise InputError(f"images must be named once, got {name!r} twice in {' and '.join(files)}")
            seen[full] = posixpath.basename(posixpath.dirname(full))
        items.append(folder.images(names))
    n = len(lists[0].samples)
    test = (items[1], labels[n:]) if len(lists) == 2 else (None, ())
    named = _folder_names(labels, list(seen.values())) if folder_names else {}
    return Dataset.of(items[0], labels[:n], *test, names=named, **about)


def _folder_names(labels: Sequence[Label], folders: Sequence[str]) -> dict[int, str]:
    pairs = set(zip(labels, folders, strict=True))
    names = {label: folder for label, folder in pairs if isinstance(label, int) and folder}
    return names if len(names) == len(pairs) == len(set(names.values())) else {}


def find_images(tree: Tree, file: str, names: Sequence[str], options: DataOptions) -> tuple[Tree, list[str]]:
    """Return the folder that holds the images of a file, and their names in it.

    Files name their images from the folder that some program was run in (``data/imagenet-r/...``), so ever shorter
    names are tried: in the folder of the file, the one above it, and the usual ones in both.

    Raises
    ------
    DatasetNotFoundError
        If an image is missing.
    """
    title, last = tree.place(file), posixpath.splitext(posixpath.basename(file))[0].rpartition("_")[2]
    bases = [""]
    if options.root_path is not None:
        tree = Tree(options.root_path)
    else:
        own = posixpath.dirname(file)
        if not own and tree.on_disk and tree.root != tree.root.parent:
            tree, own = Tree(tree.root.parent), tree.root.name
        bases = [own, posixpath.dirname(own)]
    places = [posixpath.join(base, inner).rstrip("/") for base in bases for inner in ("", "images", "data", last)]
    folders = list(dict.fromkeys(places))
    plain = [posixpath.normpath(name.strip().replace("\\", "/")) for name in names]
    found = (
        (folder, drop)
        for name in plain[:: max(len(plain) // 5, 1)]  # the first image may be the one that is missing
        for drop in range(name.count("/") + 1)
        for folder in folders
        if tree.is_file(posixpath.join(folder, _without_folders(name, drop)))
    )
    place, drop = next(found, (folders[0], 0))
    folder, inside = tree.below(place), [_without_folders(name, drop) for name in plain]
    missing = [name for name in inside if not folder.is_file(name)]
    if missing:
        looked = listed([each or "." for each in folders], most=8)
        raise DatasetNotFoundError(
            f"the images of {title} must be there, but {len(missing)} of {len(inside)} are not: {listed(missing)}; "
            f"looked in {looked} of {tree.place()}; name the folder they are in by root"
        )
    return folder, inside


def _without_folders(name: str, drop: int) -> str:
    return "/".join(name.split("/")[drop:]) or name if drop else name


# -- readers --------------------------------------------------------------------------------------------------


@register_reader("table", suffixes=TABLE_SUFFIXES)
def read_table(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read a table and, if there is one, the table of test samples that goes with it.

    Raises
    ------
    FileFormatError
        If a table cannot be understood; the message has the line.
    InputError
        If a text or a label is empty, or an image is named twice.
    DatasetNotFoundError
        If an image that a table names is missing.
    """
    test = partner_name(tree, name) if options.labelled else None
    if test is not None:
        notes = [f"tables: {posixpath.basename(name)}, {posixpath.basename(test)}"]
        return listed_data(
            tree, [_rows(tree, each, options) for each in (name, test)], options, layout="table", notes=tuple(notes)
        )
    parts, notes = _split_parts(_rows(tree, name, options), tree.place(name))
    return listed_data(tree, parts, options, layout="table", notes=tuple(notes))


def _split_parts(whole: SampleList, title: str) -> tuple[list[SampleList], list[str]]:
    """Return the training and the test rows by the split column; without test rows there is one part."""
    if not whole.splits:
        return [whole], []
    train, test, validation = (whole.take(split) for split in ("train", "test", "validation"))
    if not train.samples:
        raise FileFormatError(f"{title} must have rows with {SPLIT_COLUMN} = train, got none")
    both = test.samples and validation.samples
    notes = [f"rows for validation left out: {len(validation.samples)}"] if both else []
    return [train, *[part for part in (test, validation) if part.samples][:1]], notes


def _single_table(tree: Tree) -> str | None:
    """Return the only table of a folder without class folders: one that holds the images of the table at most."""
    folders = [name for name, kind in tree.entries() if kind == "folder" and not is_hidden(name)]
    inside = tree.files("data") if folders == ["data"] else []
    tables = [name for name in (*tree.files(), *inside) if name.lower().endswith(TABLE_SUFFIXES)]
    return tables[0] if len(tables) == 1 and len(folders) <= 1 else None


def _table_of(tree: Tree) -> str | None:
    return training_file(tree, TABLE_SUFFIXES) or _single_table(tree)


@register_reader("tables", fits=lambda tree: _table_of(tree) is not None, rank=70)
def read_tables(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read the training and the test table of a folder, or its one table with images in the folder beside it."""
    return read_table(tree, _table_of(tree) or "train.csv", options)


@register_reader(
    "lists",
    suffixes=LIST_SUFFIXES,
    fits=lambda tree: training_file(tree, LIST_SUFFIXES) is not None,
    rank=60,
)
def read_lists(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read a training list and, if there is one, the test list; without labels, the lines are texts.

    Raises
    ------
    FileFormatError
        If a list cannot be understood; the message has the line.
    InputError
        If an image is named twice.
    DatasetNotFoundError
        If images are missing; the message says where they were looked for.
    """
    train = name or training_file(tree, LIST_SUFFIXES) or "train.txt"
    if not options.labelled:
        texts = tuple(line.strip() for line in tree.text(train).split("\n") if line.strip())
        if not texts:
            raise FileFormatError(f"{tree.place(train)} must hold at least one text, got none")
        return Dataset.of(Texts(texts), [""] * len(texts), layout="lists")
    names = [each for each in (train, partner_name(tree, train)) if each is not None]
    notes = (f"lists: {', '.join(posixpath.basename(each) for each in names)}",)
    parts = [read_list(tree, each) for each in names]
    return listed_data(tree, parts, options, folder_names=True, layout="lists", notes=notes)


def read_list(tree: Tree, name: str) -> SampleList:
    r"""Read one list of images.

    Each line is a path and a label parted by blanks or a tab; a line that ends with the name of an image has no label
    and takes that of its folder. Lines that begin with ``# `` are comments.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from evergrow.data.storage import Tree
    >>> from evergrow.data.tables import read_list
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "train.txt").write_text("cat/1.jpg 0\ndog/1.jpg 1\n")
    ...     read_list(Tree(folder), "train.txt").labels
    ['0', '1']
    """
    names: list[str] = []
    labels: list[str] = []
    for number, line in enumerate(tree.text(name).split("\n"), start=1):
        text = line.strip()
        if not text or text.startswith("# "):
            continue
        path, _, label = text.rpartition("\t" if "\t" in text else " ")
        if is_image(text):
            path, label = text, posixpath.basename(posixpath.dirname(text.replace("\\", "/")))
        if not path.strip() or not label.strip():
            raise FileFormatError(f"{tree.place(name)} line {number} must be a path and a label, got {text!r}")
        names.append(path)
        labels.append(label.strip())
    if not names:
        raise FileFormatError(f"{tree.place(name)} must name at least one image, got none")
    return SampleList(name, names, labels)


# -- the imagefolder of Hugging Face --------------------------------------------------------------------------


def _metadata(tree: Tree) -> list[str]:
    """Return the metadata of a folder, or those of its training and its test folder."""
    folders = tree.folders()
    places = [[""], *([folders[word] for word in words if word in folders] for words in (TRAIN_WORDS, TEST_WORDS))]
    whole, train, test = (
        [file for place in part for name in _METADATA if tree.is_file(file := posixpath.join(place, name))][:1]
        for part in places
    )
    found = whole or ([*train, *test] if train else [])
    # Another file may happen to be called so.
    return found if all(FILE_COLUMN.encode() in tree.read(name, 0, 4096) for name in found) else []


@register_reader("imagefolder", fits=lambda tree: bool(_metadata(tree)), rank=45)
def read_imagefolder(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read images that ``metadata.csv`` or ``metadata.jsonl`` names by ``file_name``, and their labels.

    The metadata lie beside the images, for all or in a training and a test folder.
    """
    tables = _metadata(tree)
    settings = replace(options, image_column=options.image_column or FILE_COLUMN)
    lists = [_rows(tree, table, settings) for table in tables]
    cautions = []
    for part in lists:
        walk = Walk(tree.below(posixpath.dirname(part.file)))
        rest = len(walk.images(".")) - len(part.samples)
        left_out = f"images that {posixpath.basename(part.file)} does not name left out: {rest}"
        cautions += [*([left_out] if rest > 0 else []), *walk.cautions()]
    parts, notes = (lists, []) if len(lists) == 2 else _split_parts(lists[0], tree.place(tables[0]))
    return listed_data(tree, parts, options, layout="imagefolder", notes=tuple(notes), cautions=tuple(cautions))


# -- rows and cells -------------------------------------------------------------------------------------------


def _rows(tree: Tree, name: str, options: DataOptions) -> SampleList:
    """Return the samples of a table; with labels every row must have both, without, empty samples are left out."""
    title = tree.place(name)
    text, lower = tree.text(name), name.lower()
    if lower.endswith((".jsonl", ".ndjson")):
        header, rows = _read_json_lines(text, title)
    else:
        separator = max(",;\t", key=text.partition("\n")[0].count)
        header, rows = _read_csv(text, title, "\t" if lower.endswith(".tsv") else separator)
    if not rows:
        raise FileFormatError(f"{title} must hold at least one row, got none")
    columns = choose_columns(dict.fromkeys(header, "text"), options, title)
    if options.labelled and not columns.label:
        got = listed(header, most=8)
        raise FileFormatError(f"{title} must have a column 'label', got {got}; name another by label_column")
    split = SPLIT_COLUMN if options.labelled and SPLIT_COLUMN in header else ""
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
        word = cells[split].strip().lower() if split else "train"
        if word not in _SPLITS:
            raise FileFormatError(f"{title} line {line}: {split} must be train, test or validation, got {word!r}")
        if cells[columns.sample].strip():
            kept.append([cells[columns.sample], cells.get(columns.label, "").strip(), _SPLITS[word]])
    if not kept:
        raise FileFormatError(f"{title} must hold at least one text, got none")
    samples, labels, splits = zip(*kept, strict=True)
    return SampleList(name, samples, labels, columns.kind == "image", splits if split else ())


def _read_csv(text: str, title: str, separator: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    header: list[str] = []
    # Not pyarrow.csv: a message needs the line, and texts go over several.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    before = csv.field_size_limit(2**31 - 1)  # texts may be long; the limit belongs to the whole process
    try:
        for cells in reader:
            if not cells or cells == [""]:
                continue
            if not header:
                header = [cell.strip() for cell in cells]
                if len(set(header)) != len(header):
                    raise FileFormatError(f"{title} must have every column once, got {listed(header, most=8)}")
            elif len(cells) != len(header):
                raise FileFormatError(
                    f"{title} line {reader.line_num} must have {len(header)} cells, got {len(cells)}; "
                    "texts with separators in them need quotes"
                )
            else:
                rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise FileFormatError(f"{title} line {reader.line_num} must be a row of cells: {error}") from error
    finally:
        csv.field_size_limit(before)
    return header, rows


def _read_json_lines(text: str, title: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    for line, entry in enumerate(text.split("\n"), start=1):
        if not entry.strip():
            continue
        try:
            record = json.loads(entry)
        except (json.JSONDecodeError, RecursionError) as error:
            raise FileFormatError(f"{title} line {line} must be JSON: {error}") from error
        if not isinstance(record, dict):
            raise FileFormatError(f"{title} line {line} must be a JSON object, got {type(record).__name__}")
        rows.append((line, {key: str(value) for key, value in record.items() if isinstance(value, (str, int))}))
    return list(dict.fromkeys(key for _, cells in rows for key in cells)), rows
