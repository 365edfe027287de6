"""Exports of annotation tools in JSON: COCO and Label Studio, as far as every image or text has one class."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from evergrow.core.errors import DatasetNotFoundError, FileFormatError
from evergrow.data.folders import TEST_WORDS, TRAIN_WORDS, find_place, partner_name
from evergrow.data.items import Dataset, Items, Texts, listed
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree

_FILES = ("annotations.json", "result.json", "labels.json", "_annotations.coco.json")
"""Names that tools give to the one file of a folder: many scripts, Label Studio, FiftyOne, Roboflow."""

_PARTS = (TRAIN_WORDS, TEST_WORDS)


@dataclass
class Annotated:
    """Samples of an export that have one class, and a count of those that have not.

    Parameters
    ----------
    layout : str
        Whose export it is.
    samples : list of str
        Names of images, or texts.
    labels : list of str
        Their classes.
    texts : bool
        Whether they are texts.
    unusable : Counter
        Samples left out, by reason.
    notes : list of str
        What is worth a word.
    """

    layout: str
    samples: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    texts: bool = False
    unusable: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


@register_reader("annotations", suffixes=(".json",), fits=lambda tree: bool(_files_in(tree)), marks=(".json",), rank=48)
def read_annotations(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read an export of COCO or Label Studio, or a folder with one in it, and the test file that goes with it.

    Raises
    ------
    FileFormatError
        If it is neither, or no sample in it has exactly one class.
    DatasetNotFoundError
        If its images are not there.
    """
    names = _files_in(tree) if not name else [name]
    if not names:
        raise DatasetNotFoundError(f"{tree.place()} must hold {' or '.join(_FILES)}, got none of them")
    if name and tree.on_disk and tree.root != tree.root.parent:
        # Images often lie beside the folder of the annotations, which a tree of the folder above can see.
        tree, names = Tree(tree.root.parent), [posixpath.join(tree.root.name, name)]
    if name:
        names += [other for other in [partner_name(tree, names[0])] if other is not None]
    parts = [parse_annotations(tree.text(file), tree.place(file)) for file in names]
    if len({part.texts for part in parts}) > 1:
        raise FileFormatError(f"{tree.place(names[1])} must hold texts or images like the training file")
    items = [_items(tree, file, part, options) for file, part in zip(names, parts, strict=True)]
    test = (items[1], parts[1].labels) if len(parts) == 2 else (None, ())
    return Dataset.of(
        items[0],
        parts[0].labels,
        *test,
        layout=parts[0].layout,
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        cautions=tuple(caution for part in parts for caution in _cautions(part)),
    )


def _files_in(tree: Tree) -> list[str]:
    """Return the annotations of a folder: one file, or those of a training and a test part."""
    folders = tree.folders()
    whole, train, test = (
        [name for place in places for file in _FILES if tree.is_file(name := posixpath.join(place, file))][:1]
        for places in ([""], *([folders[word] for word in words if word in folders] for words in _PARTS))
    )
    if whole or train:
        return whole or [*train, *test]
    # As COCO is published: instances_train2017.json in a folder of its own.
    files = tree.files(folders["annotations"]) if "annotations" in folders else []
    exports = [name for name in files if name.lower().endswith(".json")]
    pairs = [[name, other] for name in exports if (other := partner_name(tree, name)) is not None]
    return pairs[0] if pairs else exports if len(exports) == 1 else []


def parse_annotations(text: str, title: str) -> Annotated:
    """Return the samples of an export that have one class.

    Parameters
    ----------
    text : str
        The JSON.
    title : str
        The file, for messages.

    Examples
    --------
    >>> from evergrow.data.annotations import parse_annotations
    >>> coco = '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "category_id": 3}],'
    >>> found = parse_annotations(coco + '"categories": [{"id": 3, "name": "cat"}]}', "coco.json")
    >>> found.samples, found.labels
    (['a.jpg'], ['cat'])
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{title} must be JSON: {error}") from error
    if isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys():
        found = _coco(content, title)
    elif isinstance(content, list) and content and all(isinstance(task, dict) for task in content):
        found = _label_studio(content, title)
    else:
        raise FileFormatError(
            f"{title} must be an export of COCO (images, annotations, categories) or Label Studio (a list of tasks), "
            "got another JSON"
        )
    if not found.samples:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in sorted(found.unusable.items())) or "it is empty"
        raise FileFormatError(f"{title} must give at least one sample exactly one class, got none ({reasons})")
    return found


def _cautions(part: Annotated) -> list[str]:
    if not part.unusable:
        return []
    reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(part.unusable.items()))
    return [f"samples left out: {sum(part.unusable.values())} ({reasons})"]


# -- COCO -----------------------------------------------------------------------------------------------------


def _coco(content: Mapping[str, Any], title: str) -> Annotated:
    names = _by_id(content, "categories", "name", title)
    files = _by_id(content, "images", "file_name", title)
    classes: dict[int | str, list[str]] = {number: [] for number in files}
    boxes = 0
    for annotation in _records(content, "annotations", title):
        image, category = annotation.get("image_id"), annotation.get("category_id")
        if not _plain(image) or image not in classes or not _plain(category) or category not in names:
            raise FileFormatError(
                f"{title} must have annotations of images and categories in it, got image {image!r} and category "
                f"{category!r}"
            )
        boxes += bool(annotation.get("bbox") or annotation.get("segmentation"))
        classes[image].append(names[category])
    found = Annotated("coco")
    for number, name in files.items():
        _add(found, name, classes[number])
    if boxes:
        found.notes.append("annotations are boxes or outlines: whole images are learned, not what is inside of them")
    return found


def _records(content: Mapping[str, Any], key: str, title: str) -> list[dict[str, Any]]:
    records = content[key]
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise FileFormatError(f"{title}: {key} must be a list of objects, got something else")
    return records


def _by_id(content: Mapping[str, Any], key: str, word: str, title: str) -> dict[int | str, str]:
    """Return the names of images or categories by their ids, of which none may come twice."""
    found: dict[int | str, str] = {}
    for record in _records(content, key, title):
        number: Any = record.get("id")
        name = record.get(word)
        if not _plain(number):
            raise FileFormatError(f"{title}: every one of {key} must have a number or a name as its id, got {number!r}")
        if number in found:
            raise FileFormatError(f"{title}: every one of {key} must have an id of its own, got {number!r} twice")
        if not isinstance(name, str) or not name.strip():
            raise FileFormatError(f"{title}: {word} must be a text that is not empty, got {name!r}")
        found[number] = name.strip()
    return found


def _plain(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _add(found: Annotated, sample: str, classes: Iterable[str]) -> None:
    """Add a sample that has one class, or count it as unusable."""
    different = sorted(set(classes))
    if not different:
        found.unusable["without a class"] += 1
    elif len(different) > 1:
        found.unusable["of several classes"] += 1
    else:
        found.samples.append(sample)
        found.labels.append(different[0])


# -- Label Studio ---------------------------------------------------------------------------------------------


def _label_studio(tasks: Sequence[dict[str, Any]], title: str) -> Annotated:
    """Return the samples of an export as JSON or JSON-MIN."""
    found = Annotated("label-studio")
    kinds = set()
    for number, task in enumerate(tasks, start=1):
        data = task.get("data", task)
        kind = next((key for key in ("image", "text") if isinstance(data, dict) and isinstance(data.get(key), str)), "")
        if not kind or not data[kind].strip():
            raise FileFormatError(f"{title} task {number} must have an 'image' or a 'text', got {listed(task, most=6)}")
        kinds.add(kind)
        sample = data[kind]
        if kind == "image":
            sample = _image_name(sample)
            if not sample:
                found.unusable["images on another machine"] += 1
                continue
        classes, others = _choices(task)
        if not classes and others:
            found.unusable["with boxes, outlines or ratings only"] += 1
        else:
            _add(found, sample, classes)
    if len(kinds) > 1:
        raise FileFormatError(f"{title} must hold images or texts, got both")
    found.texts = kinds == {"text"}
    return found


def _choices(task: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the classes that annotators chose for a task, and whether they marked anything else."""
    if not isinstance(task.get("annotations"), list):  # JSON-MIN: one value per question
        value = task.get("choice", task.get("label"))
        chosen = value.get("choices") if isinstance(value, dict) else value
        if isinstance(chosen, list) and any(isinstance(entry, dict) for entry in chosen):
            return [], True  # boxes
        return _names([chosen] if isinstance(chosen, str) else chosen), False
    classes: list[str] = []
    others = False
    for annotation in task["annotations"]:
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        results = annotation.get("result")
        for result in results if isinstance(results, list) else []:
            value = result.get("value") if isinstance(result, dict) else None
            if isinstance(value, dict) and "choices" in value:
                classes += _names(value["choices"])
            else:
                others = True
    return classes, others


def _names(chosen: Any) -> list[str]:
    return (
        [name.strip() for name in chosen if isinstance(name, str) and name.strip()] if isinstance(chosen, list) else []
    )


def _image_name(reference: str) -> str:
    """Return the file that a task refers to, relative to wherever the images are; empty where it is elsewhere.

    Examples
    --------
    >>> from evergrow.data.annotations import _image_name
    >>> _image_name("/data/local-files/?d=birds/1.jpg"), _image_name("/data/upload/3/ab-1.jpg")
    ('birds/1.jpg', 'data/upload/3/ab-1.jpg')
    >>> _image_name("s3://bucket/1.jpg")
    ''
    """
    try:
        parts = urlsplit(reference.strip())
    except ValueError:
        return reference.strip()
    if parts.scheme in ("http", "https", "s3", "gs", "azure-blob"):
        return ""
    if parts.path.rstrip("/").endswith("local-files"):
        return parse_qs(parts.query).get("d", [""])[0]
    return unquote(parts.path if "?" in reference else reference.strip()).lstrip("/")


# -- where the images are -------------------------------------------------------------------------------------


def _items(tree: Tree, name: str, part: Annotated, options: DataOptions) -> Items:
    if part.texts:
        empty = next((text for text in part.samples if not text.strip()), None)
        if empty is not None:
            raise FileFormatError(f"{tree.place(name)} must have texts that are not empty, got {empty!r}")
        return Texts(tuple(part.samples))
    if options.root_path is not None:
        tree, folders = Tree(options.root_path), ["", "images", "data"]
    else:
        folders = _image_folders(tree, name)
    # A name must not lead out of the folder that it is looked for in.
    inside = ["/".join(step for step in _steps(sample) if step != "..") for sample in part.samples]
    folder, drop = find_place(folders, inside, tree.is_file) or ("", 0)
    names = [posixpath.join(folder, *sample.split("/")[drop:]) for sample in inside]
    missing = [sample for sample, found in zip(inside, names, strict=True) if not found or not tree.is_file(found)]
    if missing:
        raise DatasetNotFoundError(
            f"the images of {tree.place(name)} must be on disk, but {len(missing)} of {len(names)} are not: "
            f"{listed(missing)}; looked in {listed([each or '.' for each in folders], most=8)} of {tree.place()}; "
            "set root to the folder they are in"
        )
    twice = [sample for sample, count in Counter(names).items() if count > 1]
    if twice:
        raise FileFormatError(f"{tree.place(name)} must name every image once, got {listed(twice)} twice")
    return tree.images(names)


def _steps(path: str) -> list[str]:
    return [step for step in path.replace("\\", "/").split("/") if step not in ("", ".")]


def _image_folders(tree: Tree, name: str) -> list[str]:
    """Return the folders that images are looked for in: those beside the file, and ``train2017`` for its own name."""
    own = posixpath.dirname(name)
    above = posixpath.dirname(own)
    last = posixpath.splitext(posixpath.basename(name))[0].rpartition("_")[2]
    places = [posixpath.join(base, inner) for base in (own, above) for inner in ("", "images", "data", last)]
    return list(dict.fromkeys(posixpath.normpath(place) if place else "" for place in places))
