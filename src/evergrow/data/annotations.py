"""Exports of annotation tools in JSON: COCO and Label Studio, as far as every image or text has one class."""

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from evergrow.core.errors import FileFormatError
from evergrow.data.folders import TEST_WORDS, TRAIN_WORDS, partner_name
from evergrow.data.items import Dataset, listed
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree
from evergrow.data.tables import SampleList, listed_data

_FILES = ("annotations.json", "result.json", "labels.json", "_annotations.coco.json")
"""Names that tools give to the one file of a folder: many scripts, Label Studio, FiftyOne, Roboflow."""


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
    boxes : bool
        Whether boxes or outlines are among the annotations.
    """

    layout: str
    samples: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    texts: bool = False
    unusable: Counter[str] = field(default_factory=Counter)
    boxes: bool = False

    def add(self, sample: str, classes: Iterable[str]) -> None:
        """Add a sample that has one class, or count it as unusable."""
        different = set(classes)
        if len(different) != 1:
            self.unusable["of several classes" if different else "without a class"] += 1
            return
        self.samples.append(sample)
        self.labels.append(different.pop())

    def reasons(self) -> str:
        """Return why samples were left out, and how many."""
        return ", ".join(f"{reason}: {count}" for reason, count in sorted(self.unusable.items()))


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
    names = [each for each in (name, partner_name(tree, name)) if each] if name else _files_in(tree)
    parts = [parse_annotations(tree.text(file), tree.place(file)) for file in names]
    notes = ["annotations are boxes or outlines: whole images are learned, not what is inside of them"]
    return listed_data(
        tree,
        [
            SampleList(file, part.samples, part.labels, images=not part.texts)
            for file, part in zip(names, parts, strict=True)
        ],
        options,
        layout=parts[0].layout,
        notes=tuple(notes if any(part.boxes for part in parts) else ()),
        cautions=tuple(
            f"samples left out: {sum(part.unusable.values())} ({part.reasons()})" for part in parts if part.unusable
        ),
    )


def _files_in(tree: Tree) -> list[str]:
    """Return the annotations of a folder: one file, or those of a training and a test part."""
    folders = tree.folders()
    places = [[""], *([folders[word] for word in words if word in folders] for words in (TRAIN_WORDS, TEST_WORDS))]
    whole, train, test = (
        [name for place in part for file in _FILES if tree.is_file(name := posixpath.join(place, file))][:1]
        for part in places
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
        raise FileFormatError(f"{title} must be an export of COCO or Label Studio, got another JSON")
    if not found.samples:
        reasons = found.reasons() or "it is empty"
        raise FileFormatError(f"{title} must give at least one sample exactly one class, got none ({reasons})")
    return found


def _coco(content: Mapping[str, Any], title: str) -> Annotated:
    for key in ("images", "categories", "annotations"):
        if not isinstance(content[key], list) or not all(isinstance(entry, dict) for entry in content[key]):
            raise FileFormatError(f"{title}: {key} must be a list of objects, got something else")
    names, files = _by_id(content, "categories", "name", title), _by_id(content, "images", "file_name", title)
    classes: dict[int | str, list[str]] = {number: [] for number in files}
    found = Annotated("coco")
    for annotation in content["annotations"]:
        image, category = (_plain(annotation.get(key)) for key in ("image_id", "category_id"))
        if image not in classes or category not in names:
            raise FileFormatError(f"{title} must annotate images and categories that are in it, got {annotation!r:.80}")
        found.boxes = found.boxes or bool(annotation.get("bbox") or annotation.get("segmentation"))
        classes[image].append(names[category])
    for number, name in files.items():
        found.add(_inside(name), classes[number])
    return found


def _by_id(content: Mapping[str, Any], key: str, word: str, title: str) -> dict[Any, str]:
    """Return the names of images or categories by their ids, of which none may come twice."""
    found: dict[Any, str] = {}
    for entry in content[key]:
        number, name = _plain(entry.get("id")), entry.get(word)
        if number is None or number in found or not isinstance(name, str) or not name.strip():
            raise FileFormatError(f"{title}: {key} must have an id of their own and a {word}, got {entry!r:.80}")
        found[number] = name.strip()
    return found


def _plain(value: Any) -> Any:
    """Return an id, or None for what can be none."""
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


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
        sample = data[kind] if kind == "text" else _image_name(data[kind])
        classes, others = _choices(task)
        if not sample:
            found.unusable["images on another machine"] += 1
        elif not classes and others:
            found.unusable["with boxes, outlines or ratings only"] += 1
        else:
            found.add(sample, classes)
    if len(kinds) > 1:
        raise FileFormatError(f"{title} must hold images or texts, got both")
    found.texts = kinds == {"text"}
    return found


def _choices(task: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the classes that annotators chose for a task, and whether they marked anything else."""
    if isinstance(task.get("annotations"), list):
        given = [each for each in task["annotations"] if isinstance(each, dict) and not each.get("was_cancelled")]
        results = [result for each in given if isinstance(each.get("result"), list) for result in each["result"]]
        values = [result.get("value") if isinstance(result, dict) else None for result in results]
    else:  # JSON-MIN: one value per question
        value = task.get("choice", task.get("label"))
        values = [value if isinstance(value, dict) else {"choices": [value] if isinstance(value, str) else value}]
    classes: list[str] = []
    others = False
    for value in values:
        chosen = value.get("choices", True) if isinstance(value, dict) else True
        names = [name.strip() for name in chosen if isinstance(name, str)] if isinstance(chosen, list) else []
        classes += [name for name in names if name]
        others = others or (not names and bool(chosen))
    return classes, others


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
        return _inside(reference.strip())
    if parts.scheme in ("http", "https", "s3", "gs", "azure-blob"):
        return ""
    if parts.path.rstrip("/").endswith("local-files"):
        return _inside(parse_qs(parts.query).get("d", [""])[0])
    return _inside(unquote(parts.path if "?" in reference else reference.strip()))


def _inside(name: str) -> str:
    """Return a name that cannot lead out of the folder it is looked for in."""
    return "/".join(step for step in name.replace("\\", "/").split("/") if step not in ("", ".", ".."))
