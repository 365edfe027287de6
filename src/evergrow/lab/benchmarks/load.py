"""Loading benchmarks by name, and comparing what was loaded with what published results were computed on."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

from evergrow.core.errors import DataWarning, FileFormatError, UnknownNameError
from evergrow.core.escaping import quote_names
from evergrow.core.optional import require
from evergrow.core.registry import nearest
from evergrow.core.validation import with_changes
from evergrow.data import (
    DataOptions,
    Dataset,
    FeatureSet,
    inspect_data,
    load_data,
    read,
    search_path,
)
from evergrow.data.arrays import SUFFIX
from evergrow.data.image_suffixes import is_image
from evergrow.data.items import Samples
from evergrow.data.load import complete_dataset
from evergrow.data.storage import Tree
from evergrow.data.tables import ListedPart, listed_dataset, listed_samples
from evergrow.lab.benchmarks.catalogue import (
    BENCHMARKS,
    Benchmark,
    benchmark_of_folder,
    expected_names,
    find_benchmark,
    locate,
)
from evergrow.lab.benchmarks.official import read_published


def load_benchmark(
    source: str | os.PathLike[str], options: DataOptions | None = None, **settings: Any
) -> Dataset | FeatureSet:
    """Load a data set by the name of a benchmark, or from anything that ``load_data`` reads.

    Parameters
    ----------
    source : str or path-like
        The name of a benchmark (see :func:`list_benchmarks`), looked for in
        ``options.root`` or :func:`evergrow.data.search_path`; a folder with
        CUB-200-2011 or CIFAR-100 as published; otherwise what
        :func:`evergrow.data.load_data` takes.
    options : DataOptions, optional
        How to read it.
    **settings
        Fields of :class:`evergrow.data.DataOptions`, instead of or on top of
        ``options``.

    Returns
    -------
    Dataset or FeatureSet

    Warns
    -----
    DataWarning
        If counts or class names differ from the benchmark's.

    Raises
    ------
    DatasetNotFoundError
        If the data set is not on disk; the message says what to put where.

    Examples
    --------
    >>> from evergrow.lab.benchmarks import load_benchmark
    >>> load_benchmark("imagenet-r", root="nowhere")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    evergrow.core.errors.DatasetNotFoundError: ImageNet-R must be on disk: looked for a folder imagenet-r in nowhere.
    """
    chosen = with_changes(options or DataOptions(), settings, "data setting")
    text = os.fspath(source)
    found = _read(text, chosen)
    if found is None:
        data = load_data(text, chosen)
        if isinstance(data, Dataset):
            _warn(data, check_benchmark(data))
        return data
    labelled, name = found
    data = dataclasses.replace(complete_dataset(labelled, text, chosen), name=name)
    benchmark = _benchmark_of(data)
    if benchmark is not None and labelled.test is None:
        note = "no published split was found, so that results compare with no other"
        data = dataclasses.replace(data, cautions=(*data.cautions, note))
    if benchmark is not None and benchmark.fixed_order:
        note = "published results take the classes in natural order: use a protocol with shuffle = false"
        data = dataclasses.replace(data, notes=(*data.notes, note))
    differences = check_benchmark(data)
    # A complete benchmark may have small classes by nature.
    complete = benchmark is not None and not differences
    _warn(
        data,
        [*differences, *(data.cautions if complete else inspect_data(data).cautions)],
    )
    return data


def check_benchmark(data: Dataset | FeatureSet, name: str | None = None) -> list[str]:
    """Return how a data set differs from a benchmark: in counts, and in class names where they are known.

    Parameters
    ----------
    data : Dataset or FeatureSet
        As :func:`load_benchmark` gave it. Features are not compared.
    name : str, optional
        The benchmark; by default the one that the data set is named after, if any.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data import Dataset
    >>> from evergrow.lab.benchmarks import check_benchmark
    >>> y, texts = np.array([0, 1]), Texts(("a", "b"))
    >>> for line in check_benchmark(Dataset.of(texts, y, texts, y, names=("one", "two")), "vtab"):
    ...     print(line)
    VTAB: classes: 2, expected 50
    VTAB: training samples: 2, expected 1796
    VTAB: test samples: 2, expected 8619
    """
    if name:
        benchmark = find_benchmark(name)
    else:
        benchmark = _benchmark_of(data)
    if name and benchmark is None:
        raise UnknownNameError(
            f"benchmark must be a known name, got {name!r}; nearest: {nearest(name, BENCHMARKS)}"
        )
    if benchmark is None or not isinstance(data, Dataset):
        return []
    return [
        f"{benchmark.title}: {line}"
        for line in _check_counts(data, benchmark) + _check_names(data, benchmark)
    ]


def _read(text: str, options: DataOptions) -> tuple[Dataset, str] | None:
    """Return the items of a source and the name to give them, or None if ``load_data`` reads it."""
    if os.path.isdir(text):
        published = read_published(Path(text))
        if published is None:
            return None
        return (published, Path(text).absolute().name)
    benchmark = None
    if not (os.path.exists(text) or _is_feature_file(text)):
        benchmark = find_benchmark(text)
    if benchmark is None:
        return None
    place = locate(benchmark, None if options.root is None else Path(options.root))
    if place.train_list is not None:
        lists = [
            ListedPart(path.name, _read_list(path))
            for path in (place.train_list, place.test_list)
            if path is not None
        ]
        notes = (
            f"lists: {', '.join(part.file for part in lists)}",
            "lists may split the images otherwise than the folders of PILOT do",
        )
        settings = dataclasses.replace(options, root=str(place.folder))
        tree = Tree(place.train_list.parent)
        named = _folder_names(lists)
        found = listed_dataset(
            tree, lists, settings, names=named, layout="lists", notes=notes
        )
        return found, benchmark.key
    folder = read_published(place.folder) or read(place.folder, options).dataset()
    if isinstance(folder, Dataset):
        return (folder, benchmark.key)
    return None


def _folder_names(lists: list[ListedPart]) -> dict[int, str]:
    """Return the folders that integer labels can be named after, where the two go together one to one."""
    pairs = set()
    for part in lists:
        items = part.samples.raw_items()
        for row, label in enumerate(part.samples.required_labels().tolist()):
            pairs.add((label, Path(items.raw(row)).parent.name))
    names = {
        int(label): folder for label, folder in pairs if label.isdecimal() and folder
    }
    if len(names) == len(pairs) == len(set(names.values())):
        return names
    return {}


def _read_list(path: Path) -> Samples:
    """Return a list of images: lines of a text file, or ``data`` and ``targets`` of a YAML file."""
    if path.suffix == ".txt":
        return read_text_list(path)
    return read_yaml_list(path)


def read_text_list(path: Path) -> Samples:
    """Return the images and labels of a text file, each line a path and a label, or a path in the folder of its class.

    Raises
    ------
    FileFormatError
        If a line is none of these, or there is none.
    """
    names = []
    labels = []
    for number, line in enumerate(
        Tree(path.parent).text(path.name).splitlines(), start=1
    ):
        text = line.strip()
        if not text or text.startswith("# "):
            continue
        name, _, label = text.rpartition("\t" if "\t" in text else " ")
        if is_image(text):
            name, label = text, Path(text).parent.name
        if not name.strip() or not label.strip():
            raise FileFormatError(
                f"{path} line {number} must be a path and a label, got {text!r}"
            )
        names.append(name)
        labels.append(label.strip())
    if not names:
        raise FileFormatError(f"{path} must name at least one image, got none")
    return listed_samples("image", names, labels)


def read_yaml_list(path: Path) -> Samples:
    """Return the images and labels under ``data`` and ``targets`` of a YAML file of plain values.

    Raises
    ------
    FileFormatError
        If it holds anything else, or aliases, by which a small file can stand for
        gigabytes.
    """
    yaml = require("yaml", extra="lab", purpose=f"reading {path.name}")
    loader = getattr(
        yaml, "CSafeLoader", yaml.SafeLoader
    )  # ten times as fast, where it was compiled in
    body = Tree(path.parent).text(path.name)
    try:
        aliases = any(
            isinstance(event, yaml.AliasEvent)
            for event in yaml.parse(body, Loader=loader)
        )
        if aliases:
            content = {}
        else:
            content = yaml.load(body, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path} must be YAML of plain values: {error}"
        ) from error
    names, labels = (
        content.get(key) if isinstance(content, dict) else None
        for key in ("data", "targets")
    )
    if (
        not isinstance(names, list)
        or not isinstance(labels, list)
        or not 0 < len(names) == len(labels)
    ):
        raise FileFormatError(
            f"{path} must hold lists 'data' and 'targets' of one length, and no aliases"
        )
    for row, (name, label) in enumerate(zip(names, labels, strict=True)):
        if (
            not isinstance(name, str)
            or not name
            or isinstance(label, bool)
            or not isinstance(label, (int, str))
        ):
            raise FileFormatError(
                f"{path} entry {row} must be a path and a label, got {name!r} and {label!r}"
            )
    return listed_samples("image", names, [str(label) for label in labels])


def _is_feature_file(name: str) -> bool:
    return any((folder / f"{name}{SUFFIX}").is_file() for folder in search_path())


def _benchmark_of(data: Dataset | FeatureSet) -> Benchmark | None:
    """Return the benchmark that a set of images is named after, or None."""
    if isinstance(data, Dataset) and data.kind == "image":
        return benchmark_of_folder(data.name)
    return None


def _check_counts(data: Dataset, benchmark: Benchmark) -> list[str]:
    have = (data.n_classes, len(data.y_train), len(data.y_test))
    want = benchmark.counts
    for other in benchmark.others:
        if have == (other.n_classes, other.n_train, other.n_test):
            return [
                f"split: {have[1]} / {have[2]} is {other.split}; published numbers are for "
                f"{want.n_train} / {want.n_test}, {want.split}"
            ]
    labels = ("classes", "training samples", "test samples")
    pairs = zip(labels, have, (want.n_classes, want.n_train, want.n_test), strict=True)
    return [
        f"{label}: {value}, expected {expected}"
        for label, value, expected in pairs
        if value != expected
    ]


def _check_names(data: Dataset, benchmark: Benchmark) -> list[str]:
    """Compare class names, unless none is known: then the folders follow another convention."""
    expected = expected_names().get(benchmark.key, ())
    missing = [name for name in expected if name not in set(data.class_names)]
    if not expected or len(missing) == len(expected):
        return []
    unknown = [name for name in data.class_names if name not in set(expected)]
    if missing:
        differences = [f"class names missing: {len(missing)} ({quote_names(missing)})"]
    else:
        differences = []
    return differences + (
        [f"class names not expected: {len(unknown)} ({quote_names(unknown)})"]
        if unknown
        else []
    )


def _warn(data: Dataset, cautions: list[str]) -> None:
    if cautions:
        # The level is that of whoever called load_benchmark.
        warnings.warn(
            f"data set {data.name!r} can be used but: {'; '.join(cautions)}",
            DataWarning,
            stacklevel=3,
        )
