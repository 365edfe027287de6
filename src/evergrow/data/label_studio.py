"""Exports of Label Studio in JSON, as far as every image or text has one class."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from evergrow.core.errors import FileFormatError
from evergrow.data.folders import files_of_parts, partner_name
from evergrow.data.items import Dataset, listed
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree
from evergrow.data.tables import SampleList, listed_data

_FILES = ("annotations.json", "result.json", "labels.json")
"""Names that people and Label Studio give to the one file of a folder."""


@register_reader("label-studio", suffixes=(".json",), fits=lambda tree: bool(files_of_parts(tree, _FILES)), rank=48)
def read_label_studio(tree: Tree, name: str, options: DataOptions) -> Dataset:
    """Read an export of Label Studio, or a folder with one in it, and the test file that goes with it.

    Raises
    ------
    FileFormatError
        If it is none, or no sample in it has exactly one class.
    DatasetNotFoundError
        If its images are not there.
    """
    names = [each for each in (name, partner_name(tree, name)) if each] if name else files_of_parts(tree, _FILES)
    lists, cautions = [], []
    for file in names:
        samples, unusable = _read_tasks(tree, file)
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(unusable.items()))
        if not samples.samples:
            raise FileFormatError(f"{tree.place(file)} must give a sample exactly one class, got none ({reasons})")
        lists.append(samples)
        cautions += [f"samples left out: {unusable.total()} ({reasons})"] if unusable else []
    return listed_data(tree, lists, options, layout="label-studio", cautions=tuple(cautions))


def _read_tasks(tree: Tree, file: str) -> tuple[SampleList, Counter[str]]:
    """Return the samples of an export, as JSON or JSON-MIN, that have one class, and a count of others by reason."""
    title = tree.place(file)
    try:
        tasks = json.loads(tree.text(file))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{title} must be JSON: {error}") from error
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, dict) for task in tasks):
        raise FileFormatError(f"{title} must be an export of Label Studio, got another JSON")
    samples: list[str] = []
    labels: list[str] = []
    unusable: Counter[str] = Counter()
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
            unusable["images on another machine"] += 1
        elif len(classes) == 1:
            samples.append(sample)
            labels += classes
        elif classes:
            unusable["of several classes"] += 1
        else:
            unusable["with boxes, outlines or ratings only" if others else "without a class"] += 1
    if len(kinds) > 1:
        raise FileFormatError(f"{title} must hold images or texts, got both")
    return SampleList(file, samples, labels, images=kinds == {"image"}), unusable


def _choices(task: Mapping[str, Any]) -> tuple[set[str], bool]:
    """Return the classes that annotators chose for a task, and whether they marked anything else."""
    if isinstance(task.get("annotations"), list):
        given = [each for each in task["annotations"] if isinstance(each, dict) and not each.get("was_cancelled")]
        results = [result for each in given if isinstance(each.get("result"), list) for result in each["result"]]
        values = [result.get("value") if isinstance(result, dict) else None for result in results]
    else:  # JSON-MIN: one value per question
        value = task.get("choice", task.get("label"))
        values = [value if isinstance(value, dict) else {"choices": [value] if isinstance(value, str) else value}]
    classes: set[str] = set()
    others = False
    for value in values:
        chosen = value.get("choices", True) if isinstance(value, dict) else True
        names = [name.strip() for name in chosen if isinstance(name, str)] if isinstance(chosen, list) else []
        classes |= {name for name in names if name}
        others = others or (not names and bool(chosen))
    return classes, others


def _image_name(reference: str) -> str:
    """Return the file that a task refers to, relative to wherever the images are; empty where it is elsewhere.

    No name leads out of the folder that it is looked for in.

    Examples
    --------
    >>> from evergrow.data.label_studio import _image_name
    >>> _image_name("/data/local-files/?d=birds/1.jpg"), _image_name("/data/upload/3/../ab-1.jpg")
    ('birds/1.jpg', 'data/upload/3/ab-1.jpg')
    >>> _image_name("s3://bucket/1.jpg")
    ''
    """
    name = reference.strip()
    try:
        parts = urlsplit(name)
    except ValueError:
        pass
    else:
        if parts.scheme in ("http", "https", "s3", "gs", "azure-blob"):
            return ""
        local = parts.path.rstrip("/").endswith("local-files")
        name = parse_qs(parts.query).get("d", [""])[0] if local else unquote(parts.path if "?" in name else name)
    return "/".join(step for step in name.replace("\\", "/").split("/") if step not in ("", ".", ".."))
