"""What a model knows after an edit: classes renamed, merged or forgotten, samples moved, another model merged in."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import LabelError, MergeError, NothingLeftError, UnlearnError
from evergrow.core.registry import nearest
from evergrow.data import DataOptions
from evergrow.data.intake import as_names, read_items, read_unknown
from evergrow.data.items import Samples
from evergrow.features.base import BackboneSpec
from evergrow.learner.calibration import Calibration
from evergrow.learner.learning import Block
from evergrow.learner.snapshot import Change, Snapshot, counted, fingerprint, fingerprints, learned_data, summed


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


def forgotten(now: Snapshot, names: Iterable[Any]) -> Snapshot:
    """Return what is known without whole classes; without the last one the model is empty again.

    Raises
    ------
    LabelError
        If a class was never learned.
    """
    gone = sorted({str(name) for name in names})
    if not gone:
        raise LabelError("names must name at least one class to forget, got none")
    require_known(gone, now.counts)
    left = {name: n for name, n in now.counts.items() if name not in gone}
    change = Change.now("forget", sum(now.counts[name] for name in gone), gone)
    forget = now.head.branch().forget_classes  # a head that cannot says so, also of its last class
    return now.after(change, head=forget(gone), counts=left) if left else emptied(now, change)


def emptied(now: Snapshot, change: Change) -> Snapshot:
    """Return a model that has learned nothing, after a change that took the last class out of it."""
    return now.after(change, head=None, counts={}, calibration=Calibration(), widths=(), columns=())


def unlearned(now: Snapshot, blocks: Iterable[Block]) -> Snapshot:
    """Return what is known without samples, as if they had never been learned.

    Raises
    ------
    UnlearnError
        If they were never learned, or with other weights.
    """
    head, counts = now.head.branch(), dict(now.counts)
    fingerprinted: list[str] = []
    samples = 0
    for block in blocks:
        require_known(block.labels.tolist(), now.counts)
        counts = _less(counts, block.labels)
        with suppress(NothingLeftError):  # the last ones; the head stays as it is, and is not used any more
            head.unlearn(block.X, block.labels, sample_weight=block.weights)
        fingerprinted += fingerprints(block.X, block.labels, now.history, block.weights)
        samples += len(block.labels)
    gone = sorted(name for name, n in counts.items() if n == 0)
    change = Change.now("unlearn", samples, gone, data=tuple(fingerprinted))
    left = {name: n for name, n in counts.items() if n}
    return now.after(change, head=head, counts=left) if left else emptied(now, change)


def _less(counts: dict[str, int], labels: NDArray[np.str_]) -> dict[str, int]:
    """Return counts without samples, or raise :class:`UnlearnError` where there were not as many."""
    left = {name: n - int((labels == name).sum()) for name, n in counts.items()}
    short = sorted(name for name, n in left.items() if n < 0)
    if short:
        raise UnlearnError(
            f"no more samples of a class can be unlearned than were learned, got {-left[short[0]]} too many of "
            f"{short[0]!r}"
        )
    return left


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
            f"data must hold samples labelled {source!r}, got labels "
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
        data=(fingerprint(X, after),),
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


# -- two models become one ----------------------------------------------------------------------------------


def merged(mine: Snapshot, theirs: Snapshot, base: Snapshot | None) -> Snapshot:
    """Return what both know; what they have from a common base counts once.

    Raises
    ------
    MergeError
        If they do not go together, or samples would be counted twice.
    """
    for other in (theirs, base):
        if other is not None:
            _check_same(mine, other)
    _check_separate(mine, theirs, base)
    known = base.counts if base is not None else {}
    counts = summed(mine.counts, theirs.counts, known)
    head = mine.head.branch().merge(theirs.head, None if base is None else base.head).settle(cheap_only=True)
    calibration = mine.calibration.merged(theirs.calibration, None if base is None else base.calibration)
    calibration.apply(head)
    change = Change.now(
        "merge",
        sum(theirs.counts.values()) - sum(known.values()),
        sorted(set(theirs.counts) - set(mine.counts)),
        data=tuple(sorted(learned_data(theirs.history) - learned_data(() if base is None else base.history))),
    )
    kind = mine.label_kind if len(mine.classes) else theirs.label_kind
    announced = None if mine.announced is None else tuple(sorted({*mine.announced, *counts}))
    return mine.after(
        change,
        head=head,
        counts=counts,
        calibration=calibration,
        label_kind=kind,
        announced=announced,
    )


def _check_same(mine: Snapshot, other: Snapshot) -> None:
    if type(mine.head) is not type(other.head):
        raise MergeError(
            f"learners to merge must be of one method, got {type(mine.head).__name__} and {type(other.head).__name__}"
        )
    found = backbone_differences(mine.spec, other.spec)
    if found:
        raise MergeError(f"learners to merge must have one backbone, got two: {'; '.join(found)}")
    if len(mine.classes) and len(other.classes) and mine.label_kind != other.label_kind:
        raise MergeError(
            f"learners to merge must have labels of one kind, got {mine.label_kind} and {other.label_kind}"
        )
    widths = mine.head.n_features_in_, other.head.n_features_in_
    if widths[0] != widths[1]:
        raise MergeError(f"learners to merge must have features of one width, got {widths[0]} and {widths[1]}")


def backbone_differences(a: BackboneSpec | None, b: BackboneSpec | None) -> list[str]:
    """Return how two backbones differ; where their weights were found plays no part."""
    if a is None or b is None:
        names = ["none" if spec is None else spec.name for spec in (a, b)]
        return [] if a is b else [f"backbone {names[0]} and {names[1]}"]
    mine, theirs = a.to_dict(), b.to_dict()
    return [
        f"{name} {mine.get(name)!r} and {theirs.get(name)!r}"
        for name in {**mine, **theirs}
        if name not in ("weights", "options") and mine.get(name) != theirs.get(name)
    ]


def _check_separate(mine: Snapshot, theirs: Snapshot, base: Snapshot | None) -> None:
    """Refuse what would be counted twice, as far as fingerprints of whole batches tell."""
    shared = learned_data(mine.history) & learned_data(theirs.history)
    if base is None:
        if shared:
            raise MergeError(
                f"learners to merge must have learned separately, but {len(shared)} batches are in both and would be "
                f"counted twice: give the model that both began as (base=), or let one start from "
                f"spawn()"
            )
        return
    for name, side in (("the first", mine), ("the second", theirs)):
        if _events(side.history[: len(base.history)]) != _events(base.history):
            raise MergeError(f"base must be what both learners began as, but {name} has another history")
        edits = sorted({change.what for change in side.history[len(base.history) :]} - {"update", "merge", "answering"})
        if edits:
            raise MergeError(
                f"learners may only have learned or merged since their base, but {name} has {', '.join(edits)} in its "
                f"history; undo that first (rollback) and do it after the merge"
            )
    twice = shared - learned_data(base.history)
    if twice:
        raise MergeError(f"learners must have learned different data since their base, but {len(twice)} are in both")


def _events(history: Sequence[Change]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return what happened, when and with which data; numbers and notes may differ between files."""
    return [(change.what, change.when, change.data) for change in history]
