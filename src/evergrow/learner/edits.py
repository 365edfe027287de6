"""State changes: edit classes, unlearn and relabel samples, merge two models."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    LabelError,
    MergeError,
    NothingLeftError,
    NumericalError,
    UnlearnError,
)
from evergrow.data import DataOptions
from evergrow.data.inputs import as_names, read_items, read_unknown
from evergrow.data.items import Samples
from evergrow.features.backbone import BackboneSpec
from evergrow.learner.calibration import Calibration
from evergrow.learner.label_types import require_known
from evergrow.learner.learning import LabelledRows
from evergrow.learner.measuring import before_new_classes, calibrated
from evergrow.learner.snapshot import (
    Change,
    Snapshot,
    counted,
    fingerprint,
    learned_data,
    summed,
)


def _class_name(value: Any) -> str:
    return str(as_names([value], 1)[0])


def renamed(now: Snapshot, names: Mapping[Any, Any]) -> Snapshot:
    """Rename classes, all at once.

    Parameters
    ----------
    now : Snapshot
        The current state.
    names : mapping of str to str
        New names by old names.

    Raises
    ------
    LabelError
        If a class was never learned, or a new name belongs to another class.
    """
    mapping = {str(old): _class_name(new) for old, new in names.items()}
    if mapping and all(old == new for old, new in mapping.items()):
        raise LabelError(
            "new name must be another than the old one, "
            f"got {next(iter(mapping))!r} for both"
        )
    head = now.head.branch().rename_classes(mapping)
    mapping = {old: new for old, new in mapping.items() if new != old}
    change = Change.now(
        "rename",
        sum(now.counts[old] for old in mapping),
        sorted(mapping.values()),
        names=mapping,
    )
    counts = dict(
        sorted((mapping.get(name, name), n) for name, n in now.counts.items())
    )
    calibration = now.calibration.renamed(mapping)
    return now.after(change, head=head, counts=counts, calibration=calibration)


def with_merged_classes(now: Snapshot, names: Iterable[Any], into: Any) -> Snapshot:
    """Merge several classes into one.

    Parameters
    ----------
    now : Snapshot
        The current state.
    names : iterable of str
        Classes to merge.
    into : str
        Name of the merged class: a new name, or that of a class, which is then merged
        too.

    Raises
    ------
    LabelError
        If a class was never learned, or there are fewer than two.
    """
    if isinstance(names, str):
        given = {names}
    else:
        given = {str(name) for name in names}
    target = _class_name(into)
    gone = sorted(given | ({target} & now.counts.keys()))
    head = now.head.branch().merge_classes(gone, target).settle(cheap_only=True)
    mapping = {name: target for name in gone if name != target}
    change = Change.now(
        "merge-classes",
        sum(now.counts[name] for name in mapping),
        [target],
        names=mapping,
    )
    counts = {name: n for name, n in now.counts.items() if name not in gone}
    counts[target] = sum(now.counts[name] for name in gone)
    calibration = replace(now.calibration.renamed(mapping), n_classes=len(counts))
    return now.after(
        change,
        head=head,
        counts=dict(sorted(counts.items())),
        calibration=calibration,
    )


def forgotten(now: Snapshot, names: Iterable[Any]) -> Snapshot:
    """Remove whole classes; without the last one the state is empty.

    Held-out rows of these classes are removed from the calibration too.

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
    forget = now.head.branch().forget_classes  # raises an error if unsupported
    change = Change.now("forget", sum(now.counts[name] for name in gone), gone)
    calibration = now.calibration.without_classes(gone)
    return _with_left(now, change, forget(gone) if left else None, left, calibration)


def unlearned(now: Snapshot, blocks: Iterable[LabelledRows]) -> Snapshot:
    """Remove samples, as if they had never been learned.

    Their held-out rows are removed from the calibration. Remaining rows that were
    measured while the samples were learned stay as they are; the change says how many.

    Raises
    ------
    UnlearnError
        If they were never learned, or with other weights.
    """
    head = now.head.branch()
    counts = Counter(now.counts)
    calibration = now.calibration
    influenced = 0
    data: list[str] = []
    for block in blocks:
        require_known(block.labels.tolist(), now.counts)
        counts.subtract(block.labels.tolist())
        name, n = min(counts.items(), key=lambda entry: entry[1])
        if n < 0:
            raise UnlearnError(
                "no more samples of a class can be unlearned than were learned, "
                f"got {-n} too many of {name!r}"
            )
        with suppress(NothingLeftError):  # the last samples: the head is not used again
            head.unlearn(block.X, block.labels, sample_weight=block.weights)
        data.append(fingerprint(block.X, block.weights))
        calibration, found = calibration.without_samples(block.X, block.labels, counts)
        influenced = max(influenced, found)
    left = {name: n for name, n in counts.items() if n}
    samples = sum(now.counts.values()) - sum(left.values())
    gone = sorted(now.counts.keys() - left.keys())
    calibration = calibration.without_classes(gone)
    change = Change.now(
        "unlearn",
        samples,
        gone,
        data=tuple(data),
        influenced_scores=min(influenced, calibration.n_rows),
    )
    try:
        return _with_left(now, change, head, left, calibration)
    except NumericalError as error:
        raise UnlearnError(
            "samples to unlearn must have the labels that they were learned with: "
            "removing these leaves statistics that no samples can have"
        ) from error


def _with_left(
    now: Snapshot,
    change: Change,
    head: Any,
    left: dict[str, int],
    calibration: Calibration,
) -> Snapshot:
    """Return the state after samples were removed; empty without the last one."""
    if left:
        head = head.settle(cheap_only=True)
        calibration = calibration.applied(head)
        return now.after(change, head=head, counts=left, calibration=calibration)
    return now.after(
        change, head=None, counts={}, calibration=Calibration(), widths=(), columns=()
    )


def read_movable(
    data: Any, kind: str | None, options: DataOptions | None = None
) -> Samples:
    """Return samples, with labels if the data has them."""
    if isinstance(data, (str, os.PathLike)) and os.path.splitext(data)[1].lower() in (
        ".txt",
        ".npy",
    ):
        return read_items(data, kind)
    return read_unknown(data, kind, "train", options)


def moving(now: Snapshot, source: Any, target: Any) -> tuple[str, str]:
    """Return the names of both classes, or raise an error if they are not valid."""
    _ = now.head.unlearn  # raises an error if unsupported
    names = str(source), _class_name(target)
    require_known(names[:1], now.counts)
    if names[0] == names[1]:
        raise LabelError(
            f"Samples of {names[0]!r} cannot move to the same class; name another."
        )
    return names


def samples_to_move(samples: Samples, source: str) -> Samples:
    """Return the samples to move: those of the class, or all if there are no labels.

    Raises
    ------
    LabelError
        If no sample has this label.
    """
    if samples.labels is None:
        return samples
    rows = np.flatnonzero(samples.labels == source)
    if not len(rows):
        there = ", ".join(map(repr, np.unique(samples.labels).tolist()[:5]))
        raise LabelError(
            f"No sample in the data is labelled {source!r}; labels there are {there}. "
            "Without labels, all samples are moved."
        )
    return samples.take(rows)


def relabelled(now: Snapshot, X: NDArray[Any], source: str, target: str) -> Snapshot:
    """Move rows from one class to another, as if they had been learned so.

    Parameters
    ----------
    now : Snapshot
        The current state.
    X : ndarray of shape (n, d)
        Features of the samples.
    source, target : str
        The class they were learned as, and the class to move them to, which may be new.

    Raises
    ------
    UnlearnError
        If they were not learned as `source`.
    """
    left = now.counts[source] - len(X)
    if not left and len(now.counts) == 1:
        return renamed(now, {source: target})
    before, after = (
        np.array([name] * len(X), dtype=np.str_) for name in (source, target)
    )
    remaining = {name: n for name, n in {**now.counts, source: left}.items() if n}
    head = now.head.branch().unlearn(X, before)
    calibration, influenced = now.calibration.without_samples(X, before, remaining)
    if not left:
        calibration = calibration.without_classes([source])
    calibration = calibration.applied(head.settle(cheap_only=True))
    block = LabelledRows(X, after)
    calibration = before_new_classes(calibration, head, block, remaining, now.seed)
    head = head.partial_fit(X, after).settle(cheap_only=True)
    counts = counted(remaining, after)
    calibration = calibrated(calibration, head, block, counts, now.seed)
    change = Change.now(
        "relabel",
        len(X),
        [] if target in now.counts else [target],
        data=(fingerprint(X),),
        names={source: target},
        influenced_scores=influenced,
    )
    return now.after(change, head=head, counts=counts, calibration=calibration)


# -- merging two models --


def merged(mine: Snapshot, theirs: Snapshot, base: Snapshot | None) -> Snapshot:
    """Add two states; what both have from a common base counts once.

    Raises
    ------
    MergeError
        If backbones or label types differ, or samples would be counted twice.
    """
    for other in (theirs, *([] if base is None else [base])):
        different = backbone_differences(mine.spec, other.spec)
        if different:
            raise MergeError(
                "learners to merge must have one backbone, got two: "
                f"{'; '.join(different)}"
            )
        if mine.counts and other.counts and mine.label_kind != other.label_kind:
            kinds = f"{mine.label_kind} and {other.label_kind}"
            raise MergeError(
                f"learners to merge must have labels of one kind, got {kinds}"
            )
    if base is None:
        known = Snapshot(mine.recipe, {})
    else:
        known = base
    _check_separate(mine, theirs, base)
    counts = summed(mine.counts, theirs.counts, known.counts)
    head = mine.head.branch().merge(theirs.head, known.head).settle(cheap_only=True)
    calibration = mine.calibration.merged(theirs.calibration, known.calibration)
    calibration = calibration.applied(head)
    change = Change.now(
        "merge",
        sum(theirs.counts.values()) - sum(known.counts.values()),
        sorted(theirs.counts.keys() - mine.counts.keys()),
        data=tuple(sorted(learned_data(theirs.history) - learned_data(known.history))),
    )
    kind = mine.label_kind if mine.counts else theirs.label_kind
    return mine.after(
        change, head=head, counts=counts, calibration=calibration, label_kind=kind
    )


def backbone_differences(a: BackboneSpec | None, b: BackboneSpec | None) -> list[str]:
    """Return how two backbones differ; the location of the weights does not count."""
    if a is None or b is None:
        names = ["none" if spec is None else spec.name for spec in (a, b)]
        if a is b:
            return []
        return [f"backbone {names[0]} and {names[1]}"]
    mine = a.decisive()
    theirs = b.decisive()
    return [
        f"{name} {mine.get(name)!r} and {theirs.get(name)!r}"
        for name in {**mine, **theirs}
        if name != "options" and mine.get(name) != theirs.get(name)
    ]


def _check_separate(mine: Snapshot, theirs: Snapshot, base: Snapshot | None) -> None:
    """Raise :class:`MergeError` if fingerprints show that batches would count twice."""
    shared = learned_data(mine.history) & learned_data(theirs.history)
    if base is None:
        if shared:
            raise MergeError(
                f"Both models have learned the same data ({len(shared)} of their "
                "batches), which would count twice. If both are copies of one model, "
                "name that as the base; otherwise start one of them with spawn."
            )
        return
    # Numbers and notes may differ between files.
    began = [(change.what, change.when, change.data) for change in base.history]
    for name, side in (("the first", mine), ("the second", theirs)):
        since = side.history[len(began) :]
        if [
            (change.what, change.when, change.data)
            for change in side.history[: len(began)]
        ] != began:
            raise MergeError(
                "base must be the model that both learners were copied from, but "
                f"{name} has another history"
            )
        edits = sorted(
            {change.what for change in since} - {"update", "merge", "unlabelled"}
        )
        if edits:
            raise MergeError(
                "learners may only have learned or merged since their base, but "
                f"{name} has {', '.join(edits)} in its history; undo that first "
                "(rollback) and do it after the merge"
            )
    twice = shared - learned_data(base.history)
    if twice:
        raise MergeError(
            "learners must have learned different data since their base, but "
            f"{len(twice)} are in both"
        )
