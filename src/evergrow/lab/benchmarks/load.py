"""Load benchmarks by name and compare them with the data of published results."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

from evergrow.core.errors import DataWarning, FileFormatError, UnknownNameError
from evergrow.core.escaping import quote_names
from evergrow.core.imports import import_extra
from evergrow.core.registry import nearest
from evergrow.core.validation import with_changes
from evergrow.data import (
    DataOptions,
    Dataset,
    inspect_data,
    load_data,
    read,
    search_path,
)
from evergrow.data.arrays import SUFFIX
from evergrow.data.items import Samples, is_image
from evergrow.data.load import complete_data
from evergrow.data.storage import Tree
from evergrow.data.tables import ListedPart, listed_dataset, listed_samples
from evergrow.lab.benchmarks.catalogue import (
    BENCHMARKS,
    Benchmark,
    BenchmarkLocation,
    benchmark_of_folder,
    expected_names,
    find_benchmark,
    locate,
)
from evergrow.lab.benchmarks.official import read_published


def load_benchmark(
    source: str | os.PathLike[str], options: DataOptions | None = None, **settings: Any
) -> Dataset:
    """Load a benchmark by name, or any source of :func:`evergrow.data.load_data`.

    Parameters
    ----------
    source : str or path-like
        Name of a benchmark (see :func:`list_benchmarks`), searched in ``options.root``
        or :func:`evergrow.data.search_path`; a folder with CUB-200-2011 or CIFAR-100 as
        published; or any source of :func:`evergrow.data.load_data`.
    options : DataOptions, optional
        Options for reading.
    **settings
        Fields of :class:`evergrow.data.DataOptions` that override ``options``.

    Returns
    -------
    Dataset

    Warns
    -----
    DataWarning
        If counts or class names differ from those of the benchmark.

    Raises
    ------
    DatasetNotFoundError
        If the dataset is not on disk. The message says which files to put where.

    Examples
    --------
    >>> from evergrow.lab.benchmarks import load_benchmark
    >>> load_benchmark("imagenet-r", root="nowhere")
    Traceback (most recent call last):
        ...
    evergrow.core.errors.DatasetNotFoundError: ImageNet-R must be on disk: ...
    """
    chosen = with_changes(options or DataOptions(), settings, "data setting")
    text = os.fspath(source)
    found = _read(text, chosen)
    if found is None:
        data = load_data(text, chosen)
        _warn(data, check_benchmark(data))
        return data
    labelled, name = found
    data = dataclasses.replace(complete_data(labelled, text, chosen), name=name)
    benchmark = _benchmark_of(data)
    if benchmark is not None and labelled.test is None:
        note = "no published split was found, so results are not comparable"
        data = dataclasses.replace(data, cautions=(*data.cautions, note))
    if benchmark is not None and benchmark.fixed_order:
        note = (
            "published results take the classes in natural order: use a protocol with "
            "shuffle = false"
        )
        data = dataclasses.replace(data, notes=(*data.notes, note))
    differences = check_benchmark(data)
    cautions = list(data.cautions)
    if benchmark is None or differences:
        # A complete benchmark may have small classes, so it is not inspected.
        cautions = inspect_data(data).cautions
    _warn(data, [*differences, *cautions])
    return data


def check_benchmark(data: Dataset, name: str | None = None) -> list[str]:
    """Return the differences between a dataset and a benchmark.

    Counts are compared, and class names if they are known.

    Parameters
    ----------
    data : Dataset
        Result of :func:`load_benchmark`. Features are not compared.
    name : str, optional
        Name of the benchmark. By default it follows from the name of the dataset.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data import Dataset
    >>> from evergrow.lab.benchmarks import check_benchmark
    >>> y, texts = np.array([0, 1]), Texts(("a", "b"))
    >>> data = Dataset.of(texts, y, texts, y, names=("one", "two"))
    >>> for line in check_benchmark(data, "vtab"):
    ...     print(line)
    VTAB: classes: 2, expected 50
    VTAB: training samples: 2, expected 1796
    VTAB: test samples: 2, expected 8619
    """
    benchmark = find_benchmark(name) if name else _benchmark_of(data)
    if name and benchmark is None:
        close = nearest(name, BENCHMARKS)
        raise UnknownNameError(
            f"benchmark must be a known name, got {name!r}; nearest: {close}"
        )
    if benchmark is None or data.kind == "features":
        return []
    differences = _check_counts(data, benchmark) + _check_names(data, benchmark)
    return [f"{benchmark.title}: {line}" for line in differences]


def _read(text: str, options: DataOptions) -> tuple[Dataset, str] | None:
    """Read a source and return it with its name, or None if ``load_data`` reads it."""
    if os.path.isdir(text):
        published = read_published(Path(text))
        if published is None:
            return None
        return published, Path(text).absolute().name
    if os.path.exists(text) or _is_feature_file(text):
        return None
    benchmark = find_benchmark(text)
    if benchmark is None:
        return None
    place = locate(benchmark, None if options.root is None else Path(options.root))
    if place.train_list is not None:
        return _read_lists(place, options), benchmark.key
    folder = read_published(place.folder) or read(place.folder, options).dataset()
    if isinstance(folder, Dataset):
        return folder, benchmark.key
    return None


def _read_lists(place: BenchmarkLocation, options: DataOptions) -> Dataset:
    """Read a benchmark whose split is given by lists of images."""
    paths = [path for path in (place.train_list, place.test_list) if path is not None]
    lists = [ListedPart(path.name, _read_list(path)) for path in paths]
    notes = (
        f"lists: {', '.join(part.file for part in lists)}",
        "lists may split the images otherwise than the folders of PILOT do",
    )
    return listed_dataset(
        Tree(paths[0].parent),
        lists,
        dataclasses.replace(options, root=str(place.folder)),
        names=_folder_names(lists),
        layout="lists",
        notes=notes,
    )


def _folder_names(lists: list[ListedPart]) -> dict[int, str]:
    """Return folder names by integer label, if they correspond one to one."""
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
    """Read a list of images: a text file, or ``data`` and ``targets`` in YAML."""
    if path.suffix == ".txt":
        return read_text_list(path)
    return read_yaml_list(path)


def read_text_list(path: Path) -> Samples:
    """Read a text file with a path and a label per line.

    The label may be left out if the folder of the path is the class.

    Raises
    ------
    FileFormatError
        If a line is neither form, or there are no lines.
    """
    names = []
    labels = []
    lines = Tree(path.parent).text(path.name).splitlines()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("# "):
            continue
        name, _, label = text.rpartition("\t" if "\t" in text else " ")
        if is_image(text):
            name = text
            label = Path(text).parent.name
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
    """Read the paths in ``data`` and labels in ``targets`` of a YAML file.

    Raises
    ------
    FileFormatError
        If it contains anything else, or aliases, which can expand a small file to
        gigabytes.
    """
    yaml = import_extra("yaml", extra="lab", purpose=f"reading {path.name}")
    # The C loader is ten times faster, if available.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    body = Tree(path.parent).text(path.name)
    content = None
    try:
        events = yaml.parse(body, Loader=loader)
        if not any(isinstance(event, yaml.AliasEvent) for event in events):
            content = yaml.load(body, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path} must be YAML of plain values: {error}"
        ) from error
    names = None
    labels = None
    if isinstance(content, dict):
        names = content.get("data")
        labels = content.get("targets")
    if (
        not isinstance(names, list)
        or not isinstance(labels, list)
        or not 0 < len(names) == len(labels)
    ):
        raise FileFormatError(
            f"{path} must hold lists 'data' and 'targets' of one length, and no aliases"
        )
    for row, (name, label) in enumerate(zip(names, labels, strict=True)):
        valid_label = isinstance(label, (int, str)) and not isinstance(label, bool)
        if not isinstance(name, str) or not name or not valid_label:
            raise FileFormatError(
                f"{path} entry {row} must be a path and a label, "
                f"got {name!r} and {label!r}"
            )
    return listed_samples("image", names, [str(label) for label in labels])


def _is_feature_file(name: str) -> bool:
    return any((folder / f"{name}{SUFFIX}").is_file() for folder in search_path())


def _benchmark_of(data: Dataset) -> Benchmark | None:
    """Return the benchmark with the name of an image dataset, or None."""
    if data.kind == "image":
        return benchmark_of_folder(data.name)
    return None


def _check_counts(data: Dataset, benchmark: Benchmark) -> list[str]:
    found = (data.n_classes, len(data.y_train), len(data.y_test))
    counts = benchmark.counts
    for other in benchmark.others:
        if found == (other.n_classes, other.n_train, other.n_test):
            return [
                f"split: {found[1]} / {found[2]} is {other.split}; published numbers "
                f"are for {counts.n_train} / {counts.n_test}, {counts.split}"
            ]
    labels = ("classes", "training samples", "test samples")
    expected = (counts.n_classes, counts.n_train, counts.n_test)
    return [
        f"{label}: {value}, expected {right}"
        for label, value, right in zip(labels, found, expected, strict=True)
        if value != right
    ]


def _check_names(data: Dataset, benchmark: Benchmark) -> list[str]:
    """Compare class names, unless all are unknown: then folders are named otherwise."""
    expected = expected_names().get(benchmark.key, ())
    missing = [name for name in expected if name not in set(data.class_names)]
    if not expected or len(missing) == len(expected):
        return []
    unknown = [name for name in data.class_names if name not in set(expected)]
    differences = []
    if missing:
        differences.append(
            f"class names missing: {len(missing)} ({quote_names(missing)})"
        )
    if unknown:
        differences.append(
            f"class names not expected: {len(unknown)} ({quote_names(unknown)})"
        )
    return differences


def _warn(data: Dataset, cautions: list[str]) -> None:
    if cautions:
        # The warning points at the caller of load_benchmark.
        warnings.warn(
            f"dataset {data.name!r} can be used but: {'; '.join(cautions)}",
            DataWarning,
            stacklevel=3,
        )
