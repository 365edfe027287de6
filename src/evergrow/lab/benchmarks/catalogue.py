"""Catalogue of benchmarks: names, folders, and numbers of classes and images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evergrow.core.errors import DatasetNotFoundError
from evergrow.core.record import from_values
from evergrow.data import search_path
from evergrow.data.folders import test_file_of, unwrapped
from evergrow.data.storage import Tree

_LISTS = (".txt", ".yaml", ".yml")


@dataclass(frozen=True)
class Counts:
    """Numbers of classes and images in a split.

    Parameters
    ----------
    n_classes, n_train, n_test : int
        Number of classes, training images and test images.
    split : str
        Source of the split.
    """

    n_classes: int
    n_train: int
    n_test: int
    split: str


@dataclass(frozen=True)
class Benchmark:
    """A benchmark dataset.

    Parameters
    ----------
    key : str
        Name in evergrow.
    title : str
        Display name.
    counts : Counts
        Numbers in published results.
    folders : tuple of str
        Names of its folder, in any case and punctuation. The first is the usual one.
    aliases : tuple of str
        Other names for :func:`find_benchmark`.
    others : tuple of Counts
        Other splits in use.
    fixed_order : bool
        Whether published results use the natural order of classes.
    archive : str
        Archive that contains the folder, with its MD5 sum.
    """

    key: str
    title: str
    counts: Counts
    folders: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    others: tuple[Counts, ...] = ()
    fixed_order: bool = False
    archive: str = ""

    @property
    def names(self) -> frozenset[str]:
        """All names, without case and punctuation."""
        return frozenset(
            _normalize(name) for name in (self.key, *self.folders, *self.aliases)
        )


def _read(name: str) -> Any:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


BENCHMARKS: dict[str, Benchmark] = {
    item.key: item
    for item in (
        from_values(Benchmark, values, "a benchmark")
        for values in _read("benchmarks.json")
    )
}


def find_benchmark(name: str) -> Benchmark | None:
    """Return the benchmark with a name or alias in any case and punctuation, or None.

    Examples
    --------
    >>> from evergrow.lab.benchmarks.catalogue import find_benchmark
    >>> find_benchmark("ImageNet_R").key, find_benchmark("inr").key
    ('imagenet-r', 'imagenet-r')
    >>> find_benchmark("my own data")
    """
    normalized = _normalize(name)
    for benchmark in BENCHMARKS.values():
        if normalized in benchmark.names:
            return benchmark
    return None


def benchmark_of_folder(name: str) -> Benchmark | None:
    """Return the benchmark with the name of a folder, or None.

    Aliases such as ``obj`` are ignored, because they are too common.

    Examples
    --------
    >>> from evergrow.lab.benchmarks.catalogue import benchmark_of_folder
    >>> benchmark_of_folder("CUB_200_2011").key, benchmark_of_folder("obj")
    ('cub', None)
    """
    normalized = _normalize(name)
    for benchmark in BENCHMARKS.values():
        folders = (benchmark.key, *benchmark.folders)
        if normalized in {_normalize(folder) for folder in folders}:
            return benchmark
    return None


def list_benchmarks() -> list[str]:
    """Return the names of all benchmarks.

    Examples
    --------
    >>> from evergrow.lab.benchmarks import list_benchmarks
    >>> list_benchmarks()[:3]
    ['cars', 'cifar100', 'cub']
    """
    return sorted(BENCHMARKS)


@cache
def expected_names() -> dict[str, tuple[str, ...]]:
    """Return the class names of benchmarks by key, in order, if they are known."""
    return {key: tuple(names) for key, names in _read("class_names.json").items()}


@dataclass(frozen=True)
class BenchmarkLocation:
    """Location of a benchmark: a folder, or a pair of lists.

    Parameters
    ----------
    folder : Path
        The folder, or the root of the images in the lists.
    train_list, test_list : Path, optional
        The lists.
    """

    folder: Path
    train_list: Path | None = None
    test_list: Path | None = None


def locate(benchmark: Benchmark, root: Path | None = None) -> BenchmarkLocation:
    """Return the location of a benchmark in a root or in the search path.

    Raises
    ------
    DatasetNotFoundError
        If it is not found. The message says which files to put where.
    """
    roots = search_path() if root is None else [root]
    for base in roots:
        if not base.is_dir():
            continue
        folders = sorted(
            entry
            for entry in _folders(base)
            if _normalize(entry.name) in benchmark.names
        )
        if root is not None and _normalize(base.resolve().name) in benchmark.names:
            folders.append(base)
        if folders:
            folder = folders[0]
            lists = None
            if not _has_split(folder):
                lists = _find_lists(benchmark, base, folder)
            return BenchmarkLocation(folder, *(lists or ()))
    raise DatasetNotFoundError(_how_to_get(benchmark, roots))


def _has_split(folder: Path) -> bool:
    inner = unwrapped(Tree(folder)).root
    return any((inner / name).is_dir() for name in ("train", "Train", "training"))


def _find_lists(
    benchmark: Benchmark, base: Path, folder: Path
) -> tuple[Path, Path] | None:
    """Return the lists of a benchmark, from the places that repositories use.

    The training list is named like ``imagenet-r_train.yaml``.
    """
    places = (
        folder,
        folder / "splits",
        base / "splits",
        base,
        base.parent / "splits",
        base.parent,
    )
    for place in places:
        if not place.is_dir():
            continue
        for file in sorted(place.iterdir()):
            stem = file.stem.lower()
            if file.suffix.lower() not in _LISTS or not stem.endswith("train"):
                continue
            name = _normalize(stem[: -len("train")])
            is_own_folder = place in (folder, folder / "splits")
            if name in benchmark.names or (not name and is_own_folder):
                other = test_file_of(Tree(place), file.name)
                if other is not None:
                    return file, place / other
    return None


def _folders(base: Path) -> list[Path]:
    try:
        return [entry for entry in base.iterdir() if entry.is_dir()]
    except OSError:
        return []  # an unreadable folder of the search path


def _how_to_get(benchmark: Benchmark, roots: Sequence[Path]) -> str:
    counts = benchmark.counts
    folder = benchmark.folders[0]
    files = f"{folder}/train/<class>/* and {folder}/test/<class>/*"
    if benchmark.key == "cifar100":
        files = f"{folder}/train, test and meta"
    if benchmark.archive:
        files += f" (the archive is {benchmark.archive})"
    searched = ", ".join(str(root) for root in roots)
    return (
        f"{benchmark.title} must be on disk: looked for a folder "
        f"{' or '.join(benchmark.folders)} in {searched}. Put {files} in ./data, or "
        "set the environment variable EVERGROW_DATA to the folder above it. The "
        f"benchmark has {counts.n_classes} classes, {counts.n_train} training and "
        f"{counts.n_test} test images"
    )


def _normalize(name: str) -> str:
    """Return the letters and digits of a name in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
