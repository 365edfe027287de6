"""The benchmarks of the field: their names, their folders, and the numbers of their images."""

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
from evergrow.data.folders import partner_name, unwrapped
from evergrow.data.storage import Tree

_LISTS = (".txt", ".yaml", ".yml")


@dataclass(frozen=True)
class Counts:
    """Numbers of classes and images in a split.

    Parameters
    ----------
    n_classes, n_train, n_test : int
        Classes, training and test images.
    split : str
        Whose split that is.
    """

    n_classes: int
    n_train: int
    n_test: int
    split: str


@dataclass(frozen=True)
class Benchmark:
    """One data set of the field.

    Parameters
    ----------
    key : str
        Its name here.
    title : str
        Its name for people.
    counts : Counts
        What published results were computed on.
    folders : tuple of str
        Names of its folder, in any case and punctuation; the first is the usual one.
    aliases : tuple of str
        Other names that it can be asked for by.
    others : tuple of Counts
        Other splits in use, which give other numbers.
    fixed_order : bool
        Whether published results take its classes in natural order.
    archive : str
        The archive that the folder comes in, with its MD5 sum.
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
            _plain(name) for name in (self.key, *self.folders, *self.aliases)
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
    """Return the benchmark of a name or alias, whatever its case and punctuation, or None.

    Examples
    --------
    >>> from evergrow.lab.benchmarks.catalogue import find_benchmark
    >>> find_benchmark("ImageNet_R").key, find_benchmark("inr").key, find_benchmark("my own data")
    ('imagenet-r', 'imagenet-r', None)
    """
    plain = _plain(name)
    return next((item for item in BENCHMARKS.values() if plain in item.names), None)


def benchmark_of_folder(name: str) -> Benchmark | None:
    """Return the benchmark that a folder is named after, or None; aliases such as ``obj`` are too common to count.

    Examples
    --------
    >>> from evergrow.lab.benchmarks.catalogue import benchmark_of_folder
    >>> benchmark_of_folder("CUB_200_2011").key, benchmark_of_folder("obj")
    ('cub', None)
    """
    plain = _plain(name)
    return next(
        (
            item
            for item in BENCHMARKS.values()
            if plain in {_plain(folder) for folder in (item.key, *item.folders)}
        ),
        None,
    )


def list_benchmarks() -> list[str]:
    """Return the names of all benchmarks that counts are known of.

    Examples
    --------
    >>> from evergrow.lab.benchmarks import list_benchmarks
    >>> list_benchmarks()[:3]
    ['cars', 'cifar100', 'cub']
    """
    return sorted(BENCHMARKS)


@cache
def expected_names() -> dict[str, tuple[str, ...]]:
    """Return the class names of the benchmarks whose names are known, in order."""
    return {key: tuple(names) for key, names in _read("class_names.json").items()}


@dataclass(frozen=True)
class BenchmarkLocation:
    """Location of a benchmark: a folder of its own, or a pair of lists.

    Parameters
    ----------
    folder : Path
        The folder, or the one that the lists' images are looked for in.
    train_list, test_list : Path, optional
        The lists.
    """

    folder: Path
    train_list: Path | None = None
    test_list: Path | None = None


def locate(benchmark: Benchmark, root: Path | None = None) -> BenchmarkLocation:
    """Return where a benchmark lies below a root, or below the folders of the search path.

    Raises
    ------
    DatasetNotFoundError
        If it is in none of them; the message says what to put where.
    """
    if root is None:
        roots = search_path()
    else:
        roots = [root]
    for base in roots:
        if not base.is_dir():
            continue
        inside = [
            entry for entry in _folders(base) if _plain(entry.name) in benchmark.names
        ]
        if root is not None and _plain(base.resolve().name) in benchmark.names:
            own = [base]
        else:
            own = []
        for folder in (*sorted(inside), *own):
            if _has_split(folder):
                return BenchmarkLocation(folder)
            lists = _find_lists(benchmark, base, folder)
            if lists:
                return BenchmarkLocation(folder, *lists)
            return BenchmarkLocation(folder)
    raise DatasetNotFoundError(_how_to_get(benchmark, roots))


def _has_split(folder: Path) -> bool:
    inner = unwrapped(Tree(folder)).root
    return any((inner / name).is_dir() for name in ("train", "Train", "training"))


def _find_lists(
    benchmark: Benchmark, base: Path, folder: Path
) -> tuple[Path, Path] | None:
    """Return ``imagenet-r_train.yaml`` and its partner, from the places that the field's repositories keep them in."""
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
            named = _plain(stem[: -len("train")])
            if named in benchmark.names or (
                not named and place in (folder, folder / "splits")
            ):
                other = partner_name(Tree(place), file.name)
                if other is not None:
                    return file, place / other
    return None


def _folders(base: Path) -> list[Path]:
    try:
        return [entry for entry in base.iterdir() if entry.is_dir()]
    except OSError:
        return []  # a folder of the search path that cannot be read holds nothing


def _how_to_get(benchmark: Benchmark, roots: Sequence[Path]) -> str:
    counts = benchmark.counts
    folder = benchmark.folders[0]
    if benchmark.key == "cifar100":
        want = f"{folder}/train, test and meta"
    else:
        want = f"{folder}/train/<class>/* and {folder}/test/<class>/*"
    if benchmark.archive:
        archive = f" (the archive is {benchmark.archive})"
    else:
        archive = ""
    return (
        f"{benchmark.title} must be on disk: looked for a folder {' or '.join(benchmark.folders)} in "
        f"{', '.join(str(root) for root in roots)}. Put {want}{archive} in ./data, or name the folder above it in the "
        f"environment variable EVERGROW_DATA; it has {counts.n_classes} classes, {counts.n_train} training and "
        f"{counts.n_test} test images"
    )


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
