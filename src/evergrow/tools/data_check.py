"""Find mistakes in labelled data by comparing content and features.

Three kinds of mistakes are found: one sample with two labels, a test sample that is
also a training sample, and samples among samples of other classes.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import ImageError, InputError
from evergrow.data.items import Items, Samples

SIMILAR = {"image": 0.88, "text": 0.95, "features": 0.99}
"""Minimum cosine of features of nearly identical samples.

Under EfficientNet-Lite0 the most similar two of 20 bird species' training images have
0.86. Images that are saved again, halved, mirrored or cropped have 0.87 to 0.99.
"""

MAX_COMPARED = 50_000
"""Maximum training or test samples to compare by features, evenly spaced."""

N_NEIGHBORS = 5
"""Number of nearest training samples to compare with."""

_MIN_AGREEING = 3
"""Neighbours of one other class that make a sample look misplaced."""

_MIN_CLASS_SIZE = 4
"""Classes with fewer samples are not searched for misplaced samples."""

FindingKind = Literal["two labels", "training and test", "misplaced"]


@dataclass(frozen=True)
class Finding:
    """Two samples that should not be the same, or one that looks misplaced.

    Parameters
    ----------
    kind : {"two labels", "training and test", "misplaced"}
        ``"two labels"``: one sample with two labels. ``"training and test"``: one
        sample in both parts. ``"misplaced"``: all neighbours of the first sample have
        other classes, and the second sample is the nearest of their most frequent
        class.
    rows, names, labels, parts : tuple of two
        Rows, names, classes and parts of both samples. Rows count training samples
        first.
    similarity : float
        Cosine of their features; 1 for identical content.
    exact : bool
        Whether the content is identical.
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
    """Result of checking labelled data.

    Parameters
    ----------
    findings : tuple of Finding
        Identical samples first, then by descending similarity.
    n_samples, n_test : int
        Number of checked samples, and of test samples among them.
    repeated : int
        Number of samples that repeat another one with the same label and part. They
        are not findings: learning one gives the sample twice the weight.
    backbone : str
        Name of the backbone. Empty if only content was compared.
    unread : tuple of str
        Names of unreadable samples.
    notes : tuple of str
        Limits of the comparison, for example that only some samples were compared.
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
        """Whether there are no findings and no unreadable samples."""
        return not (self.findings or self.unread)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


Encode = Callable[[Items], tuple[NDArray[Any], NDArray[np.int64]]]
"""Maps items to features and the rows of readable items."""


def check_samples(
    train: Samples,
    test: Samples | None = None,
    *,
    encode: Encode | None = None,
    backbone: str = "",
) -> DataCheck:
    """Find mistakes in labelled samples.

    Parameters
    ----------
    train : Samples
        Training samples, or all samples.
    test : Samples, optional
        Test samples.
    encode : callable, optional
        Maps items to features and the rows of readable items. Without it, features are
        compared only if the samples are feature vectors.
    backbone : str
        Name of the backbone, for the report.

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
    findings = _Findings(parts)
    groups, unread = _group_by_content(parts)
    repeated = 0
    for first, *others in groups:
        for row in others:
            if findings.is_mistake(first, row):
                findings.add_pair(first, row, 1.0, exact=True)
            else:
                repeated += 1
    notes: list[str] = []
    if encode is not None or train.kind == "features":
        X, rows, unencoded, notes = _features(parts, encode)
        unread |= unencoded
        n_train = int((rows < len(train)).sum())  # encoded ones, which come first
        neighbors = dict(_neighbors(X, rows, n_train))
        _compare_neighbors(findings, neighbors, SIMILAR[train.kind])
        _find_misplaced(findings, neighbors, rows[:n_train])
    return DataCheck(
        findings.ordered(),
        len(findings.labels),
        0 if test is None else len(test),
        repeated,
        backbone,
        tuple(findings.names[row] for row in sorted(unread)),
        tuple(notes),
    )


def find_double_labels(samples: Samples) -> tuple[Finding, ...]:
    """Find samples with identical content and two labels.

    Unlike :func:`check_samples`, nothing is encoded, so this is fast enough for every
    training run.

    Parameters
    ----------
    samples : Samples
        Labelled samples.

    Examples
    --------
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data.inputs import read_labelled
    >>> from evergrow.tools.data_check import find_double_labels
    >>> mail = (Texts(("buy now", "see you", "buy now")), ["spam", "ham", "ham"])
    >>> [found.labels for found in find_double_labels(read_labelled(mail, "train"))]
    [('spam', 'ham')]
    """
    findings = _Findings((samples,))
    groups, _ = _group_by_content((samples,))
    for first, *others in groups:
        for row in others:
            if findings.is_mistake(first, row):
                findings.add_pair(first, row, 1.0, exact=True)
    return findings.ordered()


class _Findings:
    """Collects findings about samples. Later findings about the same two are ignored.

    Rows count through all parts.

    Parameters
    ----------
    parts : tuple of Samples
        Training samples, and test samples if there are any.
    """

    def __init__(self, parts: tuple[Samples, ...]) -> None:
        self.labels = [
            label for part in parts for label in part.required_labels().tolist()
        ]
        self.names = [name for part in parts for name in part.names()]
        self._n_train = len(parts[0])
        self._found: dict[tuple[int, int, bool], Finding] = {}

    def part(self, row: int) -> str:
        """Return the part of a sample."""
        return "training" if row < self._n_train else "test"

    def is_mistake(self, first: int, second: int) -> bool:
        """Return whether two equal samples differ in label or part."""
        if self.labels[first] != self.labels[second]:
            return True
        return self.part(first) != self.part(second)

    def add_pair(
        self, first: int, second: int, similarity: float, *, exact: bool
    ) -> None:
        """Add two equal or nearly equal samples that differ in label or part."""
        first, second = sorted((first, second))
        kind: FindingKind = "training and test"
        if self.labels[first] != self.labels[second]:
            kind = "two labels"
        self._add(kind, first, second, similarity, exact=exact)

    def add_misplaced(self, row: int, neighbor: int, similarity: float) -> None:
        """Add a misplaced sample and a neighbour."""
        self._add("misplaced", row, neighbor, similarity, exact=False)

    def _add(
        self,
        kind: FindingKind,
        first: int,
        second: int,
        similarity: float,
        *,
        exact: bool,
    ) -> None:
        finding = Finding(
            kind,
            (first, second),
            (self.names[first], self.names[second]),
            (self.labels[first], self.labels[second]),
            (self.part(first), self.part(second)),
            similarity,
            exact,
        )
        self._found.setdefault((first, second, kind == "misplaced"), finding)

    def ordered(self) -> tuple[Finding, ...]:
        """Return identical samples first, then by descending similarity."""
        found = sorted(
            self._found.values(),
            key=lambda finding: (not finding.exact, -finding.similarity, finding.rows),
        )
        return tuple(found)


def _compare_neighbors(
    findings: _Findings,
    neighbors: dict[int, list[tuple[int, float]]],
    min_similarity: float,
) -> None:
    """Add pairs of nearly identical samples that differ in label or part."""
    for row, near in neighbors.items():
        for other, similarity in near:
            if similarity >= min_similarity and findings.is_mistake(row, other):
                findings.add_pair(row, other, similarity, exact=False)


def _find_misplaced(
    findings: _Findings,
    neighbors: dict[int, list[tuple[int, float]]],
    train_rows: NDArray[np.int64],
) -> None:
    """Add samples whose neighbours all have other classes and mostly agree."""
    labels = findings.labels
    class_sizes = Counter(labels[row] for row in train_rows)
    for row, near in neighbors.items():
        votes = Counter(labels[other] for other, _ in near)
        if votes[labels[row]] or class_sizes[labels[row]] < _MIN_CLASS_SIZE:
            continue
        winner, n_votes = max(votes.items(), key=lambda entry: (entry[1], entry[0]))
        if n_votes < _MIN_AGREEING:
            continue
        nearest = [(other, value) for other, value in near if labels[other] == winner]
        findings.add_misplaced(row, *nearest[0])


def _group_by_content(parts: tuple[Samples, ...]) -> tuple[list[list[int]], set[int]]:
    """Return the rows of every distinct content, and the unreadable rows.

    Rows count through all parts.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    unread: set[int] = set()
    contents = chain.from_iterable(map(content_digests, parts))
    for number, content in enumerate(contents):
        if content is None:
            unread.add(number)
        else:
            groups[content].append(number)
    return list(groups.values()), unread


def content_digests(samples: Samples) -> Iterator[bytes | None]:
    """Yield a digest of 16 bytes per sample; None for an unreadable one.

    Texts that differ in case and blanks only have the same digest.

    Examples
    --------
    >>> from evergrow.data.items import Samples, Texts
    >>> from evergrow.tools.data_check import content_digests
    >>> texts = Samples("text", Texts(("Buy  now", "buy now", "see you")))
    >>> first, second, third = content_digests(texts)
    >>> first == second, first == third
    (True, False)
    """
    for row in range(len(samples)):
        content = None
        with suppress(ImageError, OSError):
            content = _content_digest(samples, row)
        yield content


def _content_digest(samples: Samples, row: int) -> bytes:
    """Return a digest of a sample. Texts are compared without case and extra blanks."""
    digest = hashlib.blake2b(digest_size=16)
    if samples.features is not None:
        raw = samples.features[row]
    else:
        raw = samples.raw_items().raw(row)
    if isinstance(raw, str) and samples.kind == "text":
        folded = unicodedata.normalize("NFKC", raw).casefold()
        text = " ".join(folded.split())
        digest.update(text.encode("utf-8", "surrogatepass"))
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
    return digest.digest()


def _features(
    parts: tuple[Samples, ...], encode: Encode | None
) -> tuple[NDArray[Any], NDArray[np.int64], set[int], list[str]]:
    """Return features of the samples of all parts, or of some samples of large parts.

    Rows are numbered through all parts.

    Parameters
    ----------
    parts : tuple of Samples
        At most :data:`MAX_COMPARED` samples of each part are used.
    encode : callable or None
        Computes features. If None, the samples must be feature vectors.

    Returns
    -------
    X : ndarray of shape (n, d)
        Features of the readable samples.
    rows : ndarray of shape (n,)
        Their rows.
    unreadable : set of int
        Rows of samples that could not be encoded.
    notes : list of str
        One sentence per part of which some samples were left out.
    """
    blocks = []
    rows = []
    notes = []
    chosen_rows: set[int] = set()
    start = 0
    for part in parts:
        chosen: NDArray[np.int64] = np.arange(len(part))
        if len(part) > MAX_COMPARED:
            chosen = np.linspace(0, len(part) - 1, MAX_COMPARED).astype(np.int64)
            notes.append(
                f"{MAX_COMPARED:,} of {len(part):,} samples were compared by features"
            )
        subset = part.take(chosen)
        if encode is None:
            X: Any = subset.features
            readable: NDArray[np.int64] = np.arange(len(subset))
        else:
            X, readable = encode(subset.raw_items())
        blocks.append(np.asarray(X, dtype=np.float32))
        rows.append(start + chosen[readable])
        chosen_rows.update((start + chosen).tolist())
        start += len(part)
    encoded_rows = np.concatenate(rows)
    unreadable = chosen_rows - set(encoded_rows.tolist())
    return np.concatenate(blocks), encoded_rows, unreadable, notes


def _neighbors(
    X: NDArray[Any], rows: NDArray[np.int64], n_train: int
) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield every row with its nearest training rows and their cosines."""
    from sklearn.neighbors import NearestNeighbors

    k = min(N_NEIGHBORS, n_train - 1)
    if k < 1:
        return
    search = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute")
    search.fit(X[:n_train])
    # Without an argument kneighbors searches for the training rows, without themselves.
    queries = [(rows[:n_train], search.kneighbors())]
    if n_train < len(X):
        queries.append((rows[n_train:], search.kneighbors(X[n_train:])))
    for query_rows, (distances, indices) in queries:
        cosines = (1.0 - distances.astype(np.float64)).tolist()
        neighbors = rows[indices].tolist()
        for row, near, values in zip(
            query_rows.tolist(), neighbors, cosines, strict=True
        ):
            yield row, list(zip(near, values, strict=True))
