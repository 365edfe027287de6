"""Mistakes in labelled data: one sample under two labels, test samples that were trained on, misplaced samples."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ImageError, InputError
from evergrow.data.items import Items, Samples

SIMILAR = {"image": 0.88, "text": 0.95, "features": 0.99}
"""Cosine of the features from which on two samples count as nearly the same. On the training images of 20 species of
birds the most similar two have 0.86 under EfficientNet-Lite0; saved anew, halved,
mirrored or cropped they keep 0.87 to 0.99 with themselves."""

MOST_COMPARED = 50_000
"""Training or test samples that are compared by features; of more, so many are taken at equal distances."""

NEIGHBOURS = 5
# Neighbours of one other class, and none of its own, that make a sample look misplaced
_AGREEING = 3
_JUDGED = 4  # samples that a class must have for that

FindingKind = Literal["two labels", "training and test", "misplaced"]


@dataclass(frozen=True)
class Finding:
    """Two samples that should not be the same, or of which one looks misplaced.

    Parameters
    ----------
    kind : {"two labels", "training and test", "misplaced"}
        What is wrong: one sample under two labels, one in training and test, or a
        sample whose nearest neighbours all belong to other classes; then the second is
        the nearest of the class that most of them have.
    rows, names, labels, parts : tuple of two
        Rows of both, training samples before test samples, and their names, classes and
        parts.
    similarity : float
        Cosine of their features; 1 for the same content.
    exact : bool
        Whether their content is the same.
    """

    kind: FindingKind
    rows: tuple[int, int]
    names: tuple[str, str]
    labels: tuple[str, str]
    parts: tuple[str, str]
    similarity: float
    exact: bool


@dataclass(frozen=True)
class DataCheck:
    """The findings of a check of labelled data.

    Parameters
    ----------
    findings : tuple of Finding
        Exact ones first, then by similarity.
    n_samples, n_test : int
        Samples that were checked, and how many of them are test samples.
    repeated : int
        Samples whose content comes again under the same label in the same part, which
        only weighs double.
    backbone : str
        What computed the features; empty where content alone was compared.
    unread : tuple of str
        Names of samples that could not be read.
    notes : tuple of str
        What was not compared.
    """

    findings: tuple[Finding, ...]
    n_samples: int
    n_test: int
    repeated: int
    backbone: str = ""
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.findings or self.unread)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


Encode = Callable[[Items], tuple[NDArray[Any], NDArray[np.int64]]]
"""From items to features, and the rows that could be read."""


def check_samples(
    train: Samples,
    test: Samples | None = None,
    *,
    encode: Encode | None = None,
    backbone: str = "",
) -> DataCheck:
    """Return what looks wrong about labelled samples.

    Parameters
    ----------
    train : Samples
        Training samples, or all.
    test : Samples, optional
        Test samples.
    encode : callable, optional
        From items to features and the rows that could be read; without it content alone
        is compared, and feature vectors are compared as they are.
    backbone : str
        Name of what encodes, for the report.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.tools.data_check import check_samples
    >>> from evergrow.data.inputs import read_labelled
    >>> mail = (Texts(("Buy  now", "see you", "buy now")), ["spam", "ham", "ham"])
    >>> found = check_samples(read_labelled(mail, "train"))
    >>> [(finding.kind, finding.labels, finding.exact) for finding in found.findings]
    [('two labels', ('spam', 'ham'), True)]
    """
    parts: tuple[Samples, ...] = (train,)
    if test is not None:
        parts = (train, test)
        if test.kind != train.kind:
            raise InputError(
                f"test must hold {train.kind} samples like the training part, got "
                f"{test.kind}"
            )
    labels = [label for part in parts for label in part.required_labels().tolist()]
    names = [name for part in parts for name in part.names()]
    found: dict[tuple[int, ...], Finding] = {}
    notes: list[str] = []

    def see(
        kind: FindingKind | None,
        rows: tuple[int, int],
        similarity: float,
        *,
        exact: bool = False,
    ) -> bool:
        """Keep two samples unless that is known, or nothing is wrong about them; return whether something is."""
        first, second = sorted(rows) if kind is None else rows
        where = ["training" if row < len(train) else "test" for row in (first, second)]
        if kind is None and labels[first] == labels[second] and where[0] == where[1]:
            return False
        kind = kind or (
            "two labels" if labels[first] != labels[second] else "training and test"
        )
        about = (
            (names[first], names[second]),
            (labels[first], labels[second]),
            (where[0], where[1]),
        )
        key = (first, second, int(kind == "misplaced"))
        found.setdefault(key, Finding(kind, (first, second), *about, similarity, exact))
        return True

    groups, unread = _contents(parts)
    repeated = sum(
        not see(None, (first, row), 1.0, exact=True)
        for first, *rows in groups
        for row in rows
    )
    if encode is not None or train.kind == "features":
        X, numbers, missing = _vectors(parts, encode, notes)
        unread |= missing
        n_train = int((numbers < len(train)).sum())
        sizes = Counter(labels[row] for row in numbers[:n_train])
        for row, near in _neighbours(X, numbers, n_train):
            for other, similarity in near:
                if similarity >= SIMILAR[train.kind]:
                    see(None, (row, other), similarity)
            around = Counter(labels[other] for other, _ in near)
            vote, count = max(around.items(), key=lambda entry: (entry[1], entry[0]))
            if (
                sizes[labels[row]] >= _JUDGED
                and not around[labels[row]]
                and count >= _AGREEING
            ):
                see(
                    "misplaced",
                    *next(
                        ((row, other), value)
                        for other, value in near
                        if labels[other] == vote
                    ),
                )
    ordered = sorted(
        found.values(),
        key=lambda finding: (not finding.exact, -finding.similarity, finding.rows),
    )
    counts = (len(labels), 0 if test is None else len(test), repeated)
    return DataCheck(
        tuple(ordered),
        *counts,
        backbone,
        tuple(names[row] for row in sorted(unread)),
        tuple(notes),
    )


def _contents(parts: tuple[Samples, ...]) -> tuple[list[list[int]], set[int]]:
    """Return the rows of every content, and those that could not be read."""
    groups: dict[str, list[int]] = defaultdict(list)
    unread: set[int] = set()
    every = ((part, row) for part in parts for row in range(len(part)))
    for number, (part, row) in enumerate(every):
        unread.add(number)
        with suppress(ImageError, OSError):
            groups[_content(part, row)].append(number)
            unread.remove(number)
    return list(groups.values()), unread


def _content(samples: Samples, row: int) -> str:
    """Return a hash of the content of a sample; texts are compared without case, blanks and forms of letters."""
    digest = hashlib.blake2b(digest_size=16)
    if samples.features is not None:
        raw = samples.features[row]
    else:
        raw = samples.raw_items().raw(row)
    if isinstance(raw, str) and samples.kind == "text":
        digest.update(
            " ".join(unicodedata.normalize("NFKC", raw).casefold().split()).encode(
                "utf-8", "surrogatepass"
            )
        )
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


def _vectors(
    parts: tuple[Samples, ...], encode: Encode | None, notes: list[str]
) -> tuple[NDArray[Any], NDArray[np.int64], set[int]]:
    """Return features, the rows that they belong to, and the rows that could not be read."""
    blocks = []
    rows = []
    start = 0
    asked = set()
    for part in parts:
        chosen: NDArray[np.int64] = np.arange(len(part))
        if len(part) > MOST_COMPARED:
            chosen = np.linspace(0, len(part) - 1, MOST_COMPARED).astype(np.int64)
            notes.append(
                f"{MOST_COMPARED:,} of {len(part):,} samples were compared by features"
            )
        some = part.take(chosen)
        X, read = (
            (some.features, np.arange(len(some)))
            if encode is None
            else encode(some.raw_items())
        )
        blocks.append(np.asarray(X, dtype=np.float32))
        rows.append(start + chosen[read])
        asked |= set((start + chosen).tolist())
        start += len(part)
    found = np.concatenate(rows)
    return np.concatenate(blocks), found, asked - set(found.tolist())


def _neighbours(
    X: NDArray[Any], rows: NDArray[np.int64], n_train: int
) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield every row with its nearest training rows and their cosines, itself excepted, the nearest first."""
    from sklearn.neighbors import NearestNeighbors

    k = min(NEIGHBOURS, n_train - 1)
    if k < 1:
        return
    search = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(
        X[:n_train]
    )
    for start, asked in (
        (0, None),
        (n_train, X[n_train:]),
    ):  # without rows, the training rows except each itself
        if asked is None or len(asked):
            distances, places = search.kneighbors(asked)
            for row, near, far in zip(
                rows[start:].tolist(),
                rows[places].tolist(),
                distances.tolist(),
                strict=False,
            ):
                yield (
                    row,
                    [
                        (other, 1.0 - distance)
                        for other, distance in zip(near, far, strict=True)
                    ],
                )
