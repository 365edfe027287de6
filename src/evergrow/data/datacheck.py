"""Mistakes in labelled data: one sample under two labels, test samples that were trained on, misplaced samples."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ImageError, InputError
from evergrow.core.seeding import generator
from evergrow.data.items import Items, Samples

SIMILAR = {"image": 0.88, "text": 0.95, "features": 0.99}
"""Cosine of the features from which on two samples count as nearly the same. On the training images of 20 species of
birds the most similar two have 0.86 under EfficientNet-Lite0; saved anew, halved, mirrored or cropped they keep 0.87 to
0.99 with themselves."""

MOST_COMPARED = 50_000
"""Training or test samples that are compared by features; of more, so many are drawn."""

NEIGHBOURS = 5
_AGREEING = 3  # neighbours of one other class, and none of its own, that make a sample look misplaced
_JUDGED = 4  # samples that a class must have for that
_BLOCK = 512  # rows that are compared at a time

PairKind = Literal["two labels", "training and test"]


@dataclass(frozen=True)
class SamplePair:
    """Two samples that are the same, or nearly so, where they should not be.

    Parameters
    ----------
    kind : {"two labels", "training and test"}
        What is wrong about it.
    first, second : int
        Their rows, training samples before test samples.
    names, labels, parts : tuple of (str, str)
        Their names, classes and parts.
    similarity : float
        Cosine of their features; 1 for the same content.
    exact : bool
        Whether their content is the same.
    """

    kind: PairKind
    first: int
    second: int
    names: tuple[str, str]
    labels: tuple[str, str]
    parts: tuple[str, str]
    similarity: float
    exact: bool


@dataclass(frozen=True)
class Misplaced:
    """A sample whose nearest neighbours all belong to other classes, most of them to one.

    Parameters
    ----------
    row, name, label, part
        The sample.
    looks_like : str
        The class of most of its neighbours.
    neighbour : int
        The nearest sample of that class.
    similarity : float
        Cosine with it.
    """

    row: int
    name: str
    label: str
    part: str
    looks_like: str
    neighbour: int
    similarity: float


@dataclass(frozen=True)
class DataCheck:
    """The findings of a check of labelled data.

    Parameters
    ----------
    pairs : tuple of SamplePair
        The same sample under two labels, or in training and test; exact ones first, then by similarity.
    misplaced : tuple of Misplaced
        Samples that look like another class.
    n_samples, n_test : int
        Samples that were checked, and how many of them are test samples.
    repeated : int
        Samples whose content comes again under the same label in the same part, which only weighs double.
    backbone : str
        What computed the features; empty where content alone was compared.
    unread : tuple of str
        Names of samples that could not be read.
    notes : tuple of str
        What was not compared.
    """

    pairs: tuple[SamplePair, ...]
    misplaced: tuple[Misplaced, ...]
    n_samples: int
    n_test: int
    repeated: int
    backbone: str = ""
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.pairs or self.misplaced or self.unread)

    def of_kind(self, kind: PairKind) -> list[SamplePair]:
        """Return the pairs of a kind."""
        return [pair for pair in self.pairs if pair.kind == kind]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Checked:
    """All samples in one row of numbers: training samples, then test samples."""

    samples: tuple[Samples, ...]
    labels: list[str]
    names: list[str]

    def part(self, row: int) -> str:
        return "training" if row < len(self.samples[0]) else "test"

    def pair(self, rows: tuple[int, int], similarity: float, *, exact: bool) -> SamplePair | None:
        """Return two samples that are the same where they should not be; None where nothing is wrong about it."""
        first, second = sorted(rows)
        labels, parts = (self.labels[first], self.labels[second]), (self.part(first), self.part(second))
        if labels[0] == labels[1] and parts[0] == parts[1]:
            return None
        kind: PairKind = "two labels" if labels[0] != labels[1] else "training and test"
        names = (self.names[first], self.names[second])
        return SamplePair(kind, first, second, names, labels, parts, similarity, exact)


Encode = Callable[[Items], tuple[NDArray[Any], NDArray[np.int64]]]
"""From items to features, and the rows that could be read."""


def check_samples(
    train: Samples, test: Samples | None = None, *, encode: Encode | None = None, backbone: str = ""
) -> DataCheck:
    """Return what looks wrong about labelled samples.

    Parameters
    ----------
    train : Samples
        Training samples, or all.
    test : Samples, optional
        Test samples.
    encode : callable, optional
        From items to features and the rows that could be read; without it content alone is compared, and feature
        vectors are compared as they are.
    backbone : str
        Name of what encodes, for the report.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data.datacheck import check_samples
    >>> from evergrow.data.intake import read_labelled
    >>> mail = (Texts(("Buy  now", "see you", "buy now")), ["spam", "ham", "ham"])
    >>> found = check_samples(read_labelled(mail, "train"))
    >>> [(pair.labels, pair.exact) for pair in found.pairs]
    [(('spam', 'ham'), True)]
    """
    parts: tuple[Samples, ...] = (train,) if test is None else (train, test)
    if len({part.kind for part in parts}) > 1:
        raise InputError(f"test must hold {train.kind} samples like the training part, got {parts[1].kind}")
    labels = [label for part in parts for label in part.required_labels().tolist()]
    checked = _Checked(parts, labels, [name for part in parts for name in part.names()])
    pairs, repeated, unread = _by_content(checked)
    misplaced: list[Misplaced] = []
    notes: list[str] = []
    if encode is not None or train.kind == "features":
        X, rows, missing = _vectors(checked, encode, notes)
        unread |= missing
        near, misplaced = _by_features(checked, X, rows, SIMILAR[train.kind])
        known = {(pair.first, pair.second) for pair in pairs}
        pairs += [pair for pair in near if (pair.first, pair.second) not in known]
    pairs.sort(key=lambda pair: (not pair.exact, -pair.similarity, pair.first, pair.second))
    counts = (len(labels), 0 if test is None else len(test), repeated)
    names = tuple(checked.names[row] for row in sorted(unread))
    return DataCheck(tuple(pairs), tuple(misplaced), *counts, backbone, names, tuple(notes))


# -- by content -----------------------------------------------------------------------------------------------


def _by_content(checked: _Checked) -> tuple[list[SamplePair], int, set[int]]:
    """Return pairs of one content, how many samples only come again, and those that could not be read."""
    groups: dict[str, list[int]] = defaultdict(list)
    unread: set[int] = set()
    row = 0
    for part in checked.samples:
        for within in range(len(part)):
            try:
                groups[_content(part, within)].append(row)
            except (ImageError, OSError):
                unread.add(row)
            row += 1
    pairs: list[SamplePair] = []
    repeated = 0
    for first, *others in groups.values():
        found = [checked.pair((first, other), 1.0, exact=True) for other in others]
        repeated += found.count(None)
        pairs += [pair for pair in found if pair is not None]
    return pairs, repeated, unread


def _content(samples: Samples, row: int) -> str:
    """Return a hash of the content of a sample; texts are compared without case, blanks and forms of letters."""
    digest = hashlib.blake2b(digest_size=16)
    raw = samples.features[row] if samples.features is not None else samples.raw_items().raw(row)
    if isinstance(raw, str) and samples.kind == "text":
        digest.update(" ".join(unicodedata.normalize("NFKC", raw).casefold().split()).encode("utf-8", "surrogatepass"))
    elif isinstance(raw, (str, os.PathLike)):
        with open(raw, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    elif isinstance(raw, (bytes, bytearray)):
        digest.update(raw)
    else:
        pixels = np.ascontiguousarray(raw)
        digest.update(f"{pixels.shape}{pixels.dtype}".encode())
        digest.update(pixels.tobytes())
    return digest.hexdigest()


# -- by features ----------------------------------------------------------------------------------------------


def _vectors(
    checked: _Checked, encode: Encode | None, notes: list[str]
) -> tuple[NDArray[np.float32], NDArray[np.int64], set[int]]:
    """Return features of unit length, the rows that they belong to, and the rows that could not be read."""
    import torch

    blocks, rows, start, asked = [], [], 0, set()
    for part in checked.samples:
        chosen: NDArray[np.int64] = np.arange(len(part))
        if len(part) > MOST_COMPARED:
            drawn = torch.randperm(len(part), generator=generator(0, "data check", "rows"))[:MOST_COMPARED]
            chosen = np.sort(drawn.numpy())
            notes.append(f"{MOST_COMPARED:,} of {len(part):,} samples were drawn to be compared by features")
        some = part.take(chosen)
        X, read = (some.features, np.arange(len(some))) if encode is None else encode(some.raw_items())
        blocks.append(np.asarray(X, dtype=np.float32))
        rows.append(start + chosen[read])
        asked |= set((start + chosen).tolist())
        start += len(part)
    X, found = np.concatenate(blocks), np.concatenate(rows)
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.maximum(lengths, 1e-12), found, asked - set(found.tolist())


def _by_features(
    checked: _Checked, X: NDArray[np.float32], rows: NDArray[np.int64], similar: float
) -> tuple[list[SamplePair], list[Misplaced]]:
    """Return nearly equal pairs, and misplaced samples."""
    numbers = rows.tolist()
    labels = [checked.labels[number] for number in numbers]
    n_train = sum(checked.part(number) == "training" for number in numbers)
    sizes = Counter(labels[:n_train])
    pairs: dict[tuple[int, int], SamplePair] = {}
    misplaced: list[Misplaced] = []
    for row, near in _neighbours(X, n_train):
        mine, number = labels[row], numbers[row]
        for other, value in near:
            if value >= similar and (pair := checked.pair((number, numbers[other]), value, exact=False)) is not None:
                pairs.setdefault((pair.first, pair.second), pair)
        if sizes[mine] < _JUDGED:
            continue
        around = Counter(labels[other] for other, _ in near)
        vote, count = max(around.items(), key=lambda entry: (entry[1], entry[0]))
        if vote != mine and not around[mine] and count >= _AGREEING:
            other, value = next(entry for entry in near if labels[entry[0]] == vote)
            name, part = checked.names[number], checked.part(number)
            misplaced.append(Misplaced(number, name, mine, part, vote, numbers[other], value))
    misplaced.sort(key=lambda entry: (-entry.similarity, entry.row))
    return list(pairs.values()), misplaced


def _neighbours(X: NDArray[np.float32], n_train: int) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield every row with its nearest training rows and their cosines, itself excepted, the nearest first."""
    k = min(NEIGHBOURS, n_train - 1)
    for start in range(0, len(X) if k > 0 else 0, _BLOCK):
        block = X[start : start + _BLOCK] @ X[:n_train].T
        own = np.arange(start, min(start + _BLOCK, n_train))
        block[own - start, own] = -2  # below any cosine
        near = np.argpartition(-block, k - 1, axis=1)[:, :k]
        values = np.take_along_axis(block, near, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        for row, places in enumerate(order):
            yield start + row, list(zip(near[row, places].tolist(), values[row, places].tolist(), strict=True))
