"""Exports of Label Studio in JSON, as far as every image or text has one class."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from evergrow.core.errors import FileFormatError
from evergrow.data.items import Dataset
from evergrow.data.readers import DataOptions, register_reader
from evergrow.data.storage import Tree
from evergrow.data.tables import SampleList, listed_data


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
        raise FileFormatError(f"{title} is no export of Label Studio. Export a project as JSON or JSON-MIN.")
    rows: list[tuple[str, str, str]] = []
    unusable: Counter[str] = Counter()
    for number, task in enumerate(tasks, start=1):
        kind, sample = _sample(task)
        if not kind:
            raise FileFormatError(f"{title}: task {number} has neither an 'image' nor a 'text'.")
        classes = set(_classes(task))
        if not sample:
            unusable["images on another machine"] += 1
        elif len(classes) != 1:
            unusable["of several classes" if classes else "without a class"] += 1
        else:
            rows.append((kind, sample, classes.pop()))
    reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(unusable.items()))
    if len({kind for kind, _, _ in rows}) != 1:
        raise FileFormatError(f"{title} has " + (f"no sample of one class ({reasons})." if not rows else "both kinds."))
    kinds, samples, labels = zip(*rows, strict=True)
    cautions = (f"samples left out: {unusable.total()} ({reasons})",) if unusable else ()
    listed = SampleList(name, samples, labels, images=kinds[0] == "image")
    return listed_data(tree, [listed], options, layout="label-studio", cautions=cautions)


def _sample(task: Mapping[str, Any]) -> tuple[str, str]:
    """Return whether a task shows an image or a text, and its file or the text; no file for images elsewhere."""
    data = task.get("data", task)
    for kind in ("image", "text"):
        value = data.get(kind) if isinstance(data, dict) else None
        if isinstance(value, str) and value.strip():
            return kind, value if kind == "text" else _image_name(value.strip())
    return "", ""


def _classes(task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes that annotators chose for a task."""
    choice = task.get("choice", task.get("label"))  # JSON-MIN
    values = [choice if isinstance(choice, dict) else {"choices": choice}]
    if isinstance(task.get("annotations"), list):
        given = [each for each in task["annotations"] if isinstance(each, dict) and not each.get("was_cancelled")]
        results = [result for each in given if isinstance(each.get("result"), list) for result in each["result"]]
        values = [result["value"] for result in results if isinstance(result, dict) and "value" in result]
    for value in values:
        chosen = value.get("choices") if isinstance(value, dict) else None
        names = [chosen] if isinstance(chosen, str) else chosen if isinstance(chosen, list) else []
        yield from (name.strip() for name in names if isinstance(name, str) and name.strip())


def _image_name(reference: str) -> str:
    """Return the file that a task refers to, which cannot lead out of a folder; empty for one on another machine.

    Examples
    --------
    >>> from evergrow.data.label_studio import _image_name
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
    name = unquote(parts.path) if "?" in reference else reference
    if parts.path.rstrip("/").endswith("local-files"):
        name = parse_qs(parts.query).get("d", [""])[0]
    return "/".join(step for step in name.replace("\\", "/").split("/") if step not in ("", ".", ".."))
