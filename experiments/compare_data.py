"""Make the image sets of the comparison from public GitHub repositories.

Command:   python experiments/compare_data.py [NAME ...] [--to data/compare] [--more N]
           without a NAME all sets are made
Result:    data/compare/NAME/{train,test}/CLASS/*.webp, and a line of counts per set
           with --more: data/compare/NAME_more/train/CLASS/*.webp, up to N images per
           class that are in neither part and not in a published test part

Needs git. A repository is cloned once, without its history, into
data/compare/repositories.
Images are cut to their central square and stored at 330 pixels or less (WebP, quality
70), which is what the comparison measures on. A split that a set publishes is kept.
Other sets are split by a seeded draw per class. A class keeps at most the number of
training and test images in `SETS`, so that all sets are measured in minutes.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError

from evergrow.core.seeding import generator

SIDE = 330
"""Largest side of a stored image, in pixels."""

QUALITY = 70
"""Quality of WebP."""

SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class Repository:
    """A bare clone of a public repository."""

    folder: Path

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        out = self._git("ls-tree", "-r", "-z", "--name-only", "HEAD")
        return sorted(out.decode().split("\0")[:-1])

    def read(self, name: str) -> bytes:
        """Return the contents of a file."""
        return self._git("cat-file", "blob", f"HEAD:{name}")

    def _git(self, *arguments: str) -> bytes:
        command = ["git", "--git-dir", str(self.folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout


Sample = tuple[str, str, str]
"""Part (``"train"``, ``"test"`` or ``""`` for no published split), class, file name."""


@dataclass(frozen=True)
class ImageSet:
    """A set of images.

    Parameters
    ----------
    repository : str
        Owner and name on GitHub.
    list_samples : callable
        From a repository to its samples.
    n_train, n_test : int
        Largest number of images per class.
    """

    repository: str
    list_samples: Callable[[Repository], Iterable[Sample]]
    n_train: int
    n_test: int


def by_pattern(pattern: str) -> Callable[[Repository], Iterable[Sample]]:
    """Return a lister of files that match a pattern with the groups part and label."""

    def list_samples(repository: Repository) -> Iterable[Sample]:
        for name in repository.names():
            match = re.fullmatch(pattern, name)
            if match and name.lower().endswith(SUFFIXES):
                groups = match.groupdict()
                yield groups.get("part", ""), groups["label"], name

    return list_samples


def list_groceries(repository: Repository) -> Iterable[Sample]:
    """List the 81 fine classes, in the published split."""
    table = repository.read("dataset/classes.csv").decode()
    rows = list(csv.reader(table.splitlines()))[1:]
    labels = {int(row[1]): row[0] for row in rows}
    for part in ("train", "test"):
        for line in repository.read(f"dataset/{part}.txt").decode().splitlines():
            name, label, _ = line.split(",")
            yield part, labels[int(label)], f"dataset/{name.strip()}"


def list_solar_cells(repository: Repository) -> Iterable[Sample]:
    """List solar cells by their probability of a defect: 0, 1/3, 2/3 or 1."""
    folder = "src/elpv_dataset/data"
    for line in repository.read(f"{folder}/labels.csv").decode().splitlines():
        name, probability, _ = line.split()
        yield "", f"defect {float(probability):.2f}", f"{folder}/{name}"


SETS = {
    "flowers102": ImageSet(
        "3ba2ii/Flower-Classifier",
        by_pattern(r"flowers/(?:train|valid|test)/(?P<label>\d+)/[^/]+"),
        n_train=8,
        n_test=4,
    ),
    "groceries81": ImageSet(
        "marcusklasson/GroceryStoreDataset", list_groceries, n_train=8, n_test=4
    ),
    "plantdoc27": ImageSet(
        "pratikkayal/PlantDoc-Dataset",
        by_pattern(r"(?P<part>train|test)/(?P<label>[^/]+)/[^/]+"),
        n_train=15,
        n_test=10,
    ),
    "satellite7": ImageSet(
        "palewithout/RSSCN7", by_pattern(r"(?P<label>[a-g]\w+)/[^/]+"), 30, 50
    ),
    "textures10": ImageSet(
        "pan8915/DeepTexture", by_pattern(r"images/(?P<label>\w+)/[^/]+"), 20, 30
    ),
    "waste6": ImageSet(
        "congduytran12/Trash-Classification-",
        by_pattern(r"dataset-resized/(?P<label>\w+)/[^/]+"),
        n_train=30,
        n_test=60,
    ),
    "sketches7": ImageSet(
        "MachineLearning2020/Homework3-PACS",
        by_pattern(r"PACS/sketch/(?P<label>\w+)/[^/]+"),
        n_train=30,
        n_test=100,
    ),
    "cartoons7": ImageSet(
        "MachineLearning2020/Homework3-PACS",
        by_pattern(r"PACS/cartoon/(?P<label>\w+)/[^/]+"),
        n_train=30,
        n_test=100,
    ),
    "solar4": ImageSet("zae-bayern/elpv-dataset", list_solar_cells, 40, 60),
}
"""All sets by name. The number in a name is the number of classes."""


def clone(name: str, folder: Path) -> Repository:
    """Return a clone of a GitHub repository, made if it is not there."""
    target = folder / name.replace("/", "+")
    if not target.is_dir():
        part = target.with_suffix(".part")
        address = f"https://github.com/{name}"
        command = ["git", "clone", "--bare", "--depth", "1", address, str(part)]
        subprocess.run(command, check=True)
        part.rename(target)
    return Repository(target)


def choose(
    samples: Iterable[Sample], wanted: ImageSet, n_more: int = 0
) -> list[Sample]:
    """Return the samples to store, with their part.

    Classes without enough test images for half of `wanted.n_test` are left out.

    Parameters
    ----------
    samples : iterable of Sample
        Samples of the repository.
    wanted : ImageSet
        The set.
    n_more : int, default=0
        If positive, return up to this number of further training samples per class
        instead.
    """
    grouped: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for part, label, name in samples:
        grouped[label][part].append(name)
    chosen: list[Sample] = []
    for label, parts in sorted(grouped.items()):
        shuffled = {part: shuffle(names, label) for part, names in parts.items()}
        published = shuffled.get("")
        train = shuffled.get("train", [])[: wanted.n_train]
        test = shuffled.get("test", [])[: wanted.n_test]
        if published is not None:
            train = published[: wanted.n_train]
            test = published[wanted.n_train :][: wanted.n_test]
        if n_more:
            spare = shuffled.get("train", [])[wanted.n_train :]
            if published is not None:
                spare = published[wanted.n_train + wanted.n_test :]
            chosen += [("train", label, name) for name in spare[:n_more]]
            continue
        if len(test) < wanted.n_test // 2:
            say(f"  left out: {label}, with {len(train)} + {len(test)} images")
            continue
        chosen += [("train", label, name) for name in train]
        chosen += [("test", label, name) for name in test]
    return chosen


def shuffle(names: list[str], label: str) -> list[str]:
    """Return names in a random order that depends only on the label."""
    order = torch.randperm(len(names), generator=generator(0, "comparison", label))
    return [names[index] for index in order]


def shrink(image: bytes) -> bytes:
    """Return the central square of an image as WebP."""
    with Image.open(io.BytesIO(image)) as opened:
        whole = opened.convert("RGB")
    side = min(whole.size)
    left = (whole.width - side) // 2
    top = (whole.height - side) // 2
    size = min(side, SIDE)
    square = whole.resize(
        (size, size),
        Image.Resampling.BICUBIC,
        box=(left, top, left + side, top + side),
    )
    out = io.BytesIO()
    square.save(out, format="webp", quality=QUALITY)
    return out.getvalue()


def make(name: str, to: Path, n_more: int = 0) -> None:
    """Write a set of images, or further training images of it."""
    wanted = SETS[name]
    repository = clone(wanted.repository, to / "repositories")
    counts = {"train": 0, "test": 0}
    size = 0
    if n_more:
        name = f"{name}_more"
    for part, label, file in choose(wanted.list_samples(repository), wanted, n_more):
        folder = to / name / part / label
        folder.mkdir(parents=True, exist_ok=True)
        try:
            small = shrink(repository.read(file))
        except (subprocess.CalledProcessError, UnidentifiedImageError):
            say(f"  cannot be read: {file}")
            continue
        (folder / f"{counts[part]:05d}.webp").write_bytes(small)
        counts[part] += 1
        size += len(small)
    say(f"{name}: {counts['train']} + {counts['test']} images, {size / 1e6:.1f} MB")


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Make the sets of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=Path("data/compare"))
    parser.add_argument("--more", type=int, default=0, metavar="N")
    given = parser.parse_args()
    for name in set(given.names) - set(SETS):
        parser.error(f"no set {name!r}; there are {', '.join(SETS)}")
    for name in given.names or SETS:
        make(name, given.to, given.more)


if __name__ == "__main__":
    main()
