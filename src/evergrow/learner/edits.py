"""Classes change their names and borders: what a learner knows after classes were renamed, merged or samples moved."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import LabelError, UnlearnError
from evergrow.core.registry import nearest
from evergrow.core.wording import setting
from evergrow.data import DataOptions
from evergrow.data.intake import Samples, as_names, read_items, read_unknown
from evergrow.learner.changes import Change, fingerprint, fingerprints
from evergrow.learner.snapshot import Snapshot, counted


def require_known(names: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`LabelError` with the nearest names unless all are classes that were learned.

    Examples
    --------
    >>> from evergrow.learner.edits import require_known
    >>> require_known(["crwo"], ["crow", "owl"])
    Traceback (most recent call last):
        ...
    evergrow.core.errors.LabelError: class must be one that was learned, got 'crwo'; nearest: 'crow'
    """
    for name in names:
        if name not in known:
            raise LabelError(f"class must be one that was learned, got {name!r}; nearest: {nearest(name, known)}")


def renamed(now: Snapshot, names: Mapping[Any, Any]) -> Snapshot:
    """Return what is known with other names of classes.

    Parameters
    ----------
    now : Snapshot
        What is known.
    names : mapping of str to str
        New names by old ones, all at once.

    Raises
    ------
    LabelError
        If a class is not known, or a new name is that of another class.
    """
    mapping = {str(old): _class_name(new) for old, new in names.items()}
    if not mapping:
        raise LabelError("names must rename at least one class, got none")
    require_known(mapping, now.counts)
    mapping = {old: new for old, new in mapping.items() if new != old}
    if not mapping:
        raise LabelError(f"new name must be another than the old one, got {str(next(iter(names)))!r} for both")
    taken = {name: name for name in now.counts if name not in mapping}
    for old, new in mapping.items():
        if new in taken:
            raise LabelError(
                f"new name must not be that of another class, got {new!r} for {old!r}; to make {taken[new]!r} and "
                f"{old!r} one class, merge them (merge-classes)"
            )
        taken[new] = old
    change = Change.now("rename", sum(now.counts[old] for old in mapping), sorted(mapping.values()), names=mapping)
    counts = dict(sorted((mapping.get(name, name), n) for name, n in now.counts.items()))
    head, answering = now.head.branch().rename_classes(mapping), now.answering.renamed(mapping)
    reference = None if now.reference is None else now.reference.renamed(mapping)
    return now.after(change, head=head, counts=counts, answering=answering, reference=reference)


def with_merged_classes(now: Snapshot, names: Iterable[Any], into: Any) -> Snapshot:
    """Return what is known with several classes as one.

    Parameters
    ----------
    now : Snapshot
        What is known.
    names : iterable of str
        Classes to merge.
    into : str
        Name of the one that they become: a new one, or that of a class, which then is among those merged.

    Raises
    ------
    LabelError
        If a class is not known, or there are fewer than two.
    """
    given = [names] if isinstance(names, str) else [str(name) for name in names]
    target = _class_name(into)
    require_known(given, now.counts)
    gone = sorted({*given, *({target} & now.counts.keys())})
    if len(gone) < 2:
        raise LabelError(f"classes to merge must be at least two different ones, got {', '.join(map(repr, gone))}")
    mapping = {name: target for name in gone if name != target}
    merged = sum(now.counts[name] for name in gone)
    counts = dict(sorted({**{name: n for name, n in now.counts.items() if name not in gone}, target: merged}.items()))
    head = now.head.branch().merge_classes(gone, target).settle(cheap_only=True)
    moved = sum(now.counts[name] for name in mapping)
    change = Change.now("merge-classes", moved, [target], names=mapping)
    reference = None if now.reference is None else now.reference.renamed(mapping)
    answering = now.answering.merged(gone, target)
    return now.after(change, head=head, counts=counts, answering=answering, reference=reference)


def read_movable(data: Any, kind: str | None, options: DataOptions | None = None) -> Samples:
    """Return samples with labels, of two parts the training part, or those of data that have none."""
    if isinstance(data, (str, os.PathLike)) and os.path.splitext(data)[1].lower() in (".txt", ".npy"):
        return read_items(data, kind)
    return read_unknown(data, kind, "train", options)


def samples_to_move(samples: Samples, source: str) -> Samples:
    """Return the samples that a relabelling moves: of labelled data those of the class, of others all.

    Raises
    ------
    LabelError
        If labelled data have none of the class.
    """
    if samples.labels is None:
        return samples
    rows = np.flatnonzero(samples.labels == source)
    if not len(rows):
        there = np.unique(samples.labels).tolist()
        raise LabelError(
            f"{setting('data')} must hold samples labelled {source!r}, got labels "
            f"{', '.join(map(repr, there[:5]))}; data without "
            "labels are moved whole"
        )
    return samples.take(rows)


def relabelled(now: Snapshot, X: NDArray[Any], source: str, target: str) -> Snapshot:
    """Return what is known with rows of one class moved to another, as if they had been learned so.

    Parameters
    ----------
    now : Snapshot
        What is known.
    X : ndarray of shape (n, d)
        Features of the samples.
    source, target : str
        The class they were learned as, and the one they are of; that may be new.

    Raises
    ------
    UnlearnError
        If they were not learned as the first.
    """
    if len(X) > now.counts[source]:
        raise UnlearnError(
            f"no more samples of a class can be moved than were learned, got {len(X)} where {now.counts[source]} were "
            f"learned of {source!r}"
        )
    before, after = (np.array([name] * len(X), dtype=np.str_) for name in (source, target))
    if len(X) == now.counts[source] and len(now.counts) == 1:
        return renamed(now, {source: target})
    head = now.head.branch().unlearn(X, before).partial_fit(X, after).settle(cheap_only=True)
    left = {**now.counts, source: now.counts[source] - len(X)}
    change = Change.now(
        "relabel",
        len(X),
        [] if target in now.counts else [target],
        data=[fingerprint(X, after)],
        withdrawn=fingerprints(X, before, now.history),
        names={source: target},
    )
    return now.after(change, head=head, counts=counted({name: n for name, n in left.items() if n}, after))


def check_relabelling(now: Snapshot, source: Any, target: Any) -> tuple[str, str]:
    """Return the classes that samples are moved from and to, or raise an error before anything is read."""
    _ = now.head.unlearn  # raises where the method cannot
    names = str(source), _class_name(target)
    require_known(names[:1], now.counts)
    if names[0] == names[1]:
        raise LabelError(f"samples must move to another class, got {names[0]!r} for both")
    return names


def _class_name(value: Any) -> str:
    return str(as_names([value], 1)[0])
