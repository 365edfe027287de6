"""State changes: edit classes, unlearn, relabel, pseudo-label, fade, and merge models.

Every function returns a new state; the given one is not changed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import (
    InputError,
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
from evergrow.learner.learning import LabelledRows, join_rows, require_known
from evergrow.learner.snapshot import (
    Change,
    Erased,
    Snapshot,
    add_counts,
    add_labels,
    fingerprint,
    learned_data,
)

if TYPE_CHECKING:
    from evergrow.head.pseudo_labels import PseudoLabelReport


# -- classes ---------------------------------------------------------------------------


def _class_name(label: Any) -> str:
    return str(as_names([label], 1)[0])


def renamed(state: Snapshot, names: Mapping[Any, Any]) -> Snapshot:
    """Rename classes, all at once.

    Parameters
    ----------
    state : Snapshot
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
    head = state.head.branch().rename_classes(mapping)
    mapping = {old: new for old, new in mapping.items() if new != old}
    change = Change.now(
        "rename",
        sum(state.counts[old] for old in mapping),
        sorted(mapping.values()),
        names=mapping,
    )
    counts = {mapping.get(name, name): n for name, n in state.counts.items()}
    return state.after(
        change,
        head=head,
        counts=dict(sorted(counts.items())),
        calibration=state.calibration.renamed(mapping),
    )


def with_merged_classes(state: Snapshot, names: Iterable[Any], into: Any) -> Snapshot:
    """Merge several classes into one.

    Parameters
    ----------
    state : Snapshot
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
    target = _class_name(into)
    given = {names} if isinstance(names, str) else {str(name) for name in names}
    merged_names = sorted(given | ({target} & state.counts.keys()))
    head = state.head.branch().merge_classes(merged_names, target)
    head.settle(cheap_only=True)
    mapping = {name: target for name in merged_names if name != target}
    change = Change.now(
        "merge-classes",
        sum(state.counts[name] for name in mapping),
        [target],
        names=mapping,
    )
    counts = {name: n for name, n in state.counts.items() if name not in merged_names}
    counts[target] = sum(state.counts[name] for name in merged_names)
    # The head keeps its temperature and novelty score.
    calibration = replace(state.calibration.renamed(mapping), n_classes=len(counts))
    return state.after(
        change,
        head=head,
        counts=dict(sorted(counts.items())),
        calibration=calibration,
    )


def forgotten(state: Snapshot, names: Iterable[Any]) -> Snapshot:
    """Remove whole classes, with their held-out rows.

    If no class remains, the new state is empty and can be trained again.

    Parameters
    ----------
    state : Snapshot
        The current state.
    names : iterable of str
        Classes to remove.

    Raises
    ------
    LabelError
        If there are no names, or a class was never learned.
    UnsupportedError
        If the head cannot forget classes.
    """
    removed = sorted({str(name) for name in names})
    if not removed:
        raise LabelError("names must name at least one class to forget, got none")
    require_known(removed, state.counts)
    counts = {name: n for name, n in state.counts.items() if name not in removed}
    head = state.head.branch()
    forget_classes = head.forget_classes  # raises an error if unsupported
    if counts:
        head = forget_classes(removed)
    change = Change.now("forget", sum(state.counts[name] for name in removed), removed)
    calibration = state.calibration.without_classes(removed)
    return _after_removal(state, change, head, counts, calibration)


# -- samples ---------------------------------------------------------------------------


def unlearned(
    state: Snapshot, blocks: Iterable[LabelledRows], *, for_good: bool = False
) -> Snapshot:
    """Remove samples, as if they had never been learned.

    Their held-out rows are removed from the calibration. Remaining rows that were
    measured while the samples were learned stay as they are; the change says how many.

    Parameters
    ----------
    state : Snapshot
        The current state.
    blocks : iterable of LabelledRows
        The samples.
    for_good : bool, default=False
        Also remove the directions that only these samples occupied.

    Raises
    ------
    UnlearnError
        If they were never learned, or with other weights.
    """
    head = state.head.branch()
    counts = Counter(state.counts)
    calibration = state.calibration
    influenced = 0
    fingerprints: list[str] = []
    for block in blocks:
        require_known(block.labels.tolist(), state.counts)
        counts.subtract(block.labels.tolist())
        rarest, n = min(counts.items(), key=lambda entry: entry[1])
        if n < 0:
            raise UnlearnError(
                "no more samples of a class can be unlearned than were learned, "
                f"got {-n} too many of {rarest!r}"
            )
        with suppress(NothingLeftError):  # the last samples: the head is not used again
            head.unlearn(block.X, block.labels, sample_weight=block.weights)
        fingerprints.append(fingerprint(block.X, block.weights))
        calibration, n_influenced = calibration.without_samples(
            block.X, block.labels, counts
        )
        influenced = max(influenced, n_influenced)
    if for_good:
        head.drop_unused_directions()
    remaining = {name: n for name, n in counts.items() if n}
    removed = sorted(state.counts.keys() - remaining.keys())
    calibration = calibration.without_classes(removed)
    change = Change.now(
        "unlearn",
        sum(state.counts.values()) - sum(remaining.values()),
        removed,
        data=tuple(fingerprints),
        influenced_scores=min(influenced, calibration.n_rows),
    )
    try:
        return _after_removal(state, change, head, remaining, calibration)
    except NumericalError as error:
        raise UnlearnError(
            "samples to unlearn must have the labels that they were learned with: "
            "removing these leaves statistics that no samples can have"
        ) from error


def marked_erased(state: Snapshot, removals: Iterable[Erased]) -> Snapshot:
    """Mark the latest change as one for good, so that commits keep no earlier revision.

    Parameters
    ----------
    state : Snapshot
        The state after the change.
    removals : iterable of Erased
        What was removed from the cache, for each part of the samples.
    """
    parts = list(removals)
    erased = Erased(
        sum(part.cache_files for part in parts),
        max((part.unsearched_entries for part in parts), default=0),
    )
    last = replace(state.history[-1], erased=erased)
    return replace(state, history=(*state.history[:-1], last))


def _after_removal(
    state: Snapshot,
    change: Change,
    head: Any,
    counts: dict[str, int],
    calibration: Calibration,
) -> Snapshot:
    """Return the state after samples were removed; empty without counts.

    The head, which is not used if the state is empty, is solved and calibrated in
    place.
    """
    if counts:
        head = head.settle(cheap_only=True)
        calibration = calibration.calibrate_head(head)
        return state.after(change, head=head, counts=counts, calibration=calibration)
    return state.after(
        change, head=None, counts={}, calibration=Calibration(), widths=(), columns=()
    )


def read_movable(
    data: Any, kind: str | None, options: DataOptions | None = None
) -> Samples:
    """Return the samples of a call of `relabel`, with labels if the data has them."""
    if isinstance(data, (str, os.PathLike)) and os.path.splitext(data)[1].lower() in (
        ".txt",
        ".npy",
    ):
        return read_items(data, kind)
    return read_unknown(data, kind, "train", options)


def check_move(state: Snapshot, source: Any, target: Any) -> tuple[str, str]:
    """Return the names of both classes if samples can move from `source` to `target`.

    Raises
    ------
    UnsupportedError
        If the method cannot unlearn.
    LabelError
        If `source` was never learned, or both are the same class.
    """
    _ = state.head.unlearn  # raises an error if unsupported
    names = str(source), _class_name(target)
    require_known(names[:1], state.counts)
    if names[0] == names[1]:
        raise LabelError(
            f"Samples of {names[0]!r} cannot move to the same class; name another."
        )
    return names


def samples_to_move(samples: Samples, source: str) -> Samples:
    """Return the samples of a class, or all samples if they have no labels.

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


def relabelled(state: Snapshot, X: NDArray[Any], source: str, target: str) -> Snapshot:
    """Move rows from one class to another, as if they had been learned so.

    Parameters
    ----------
    state : Snapshot
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
    n_left = state.counts[source] - len(X)
    if not n_left and len(state.counts) == 1:
        return renamed(state, {source: target})
    remaining = {name: n for name, n in {**state.counts, source: n_left}.items() if n}
    old_labels = np.full(len(X), source)
    head = state.head.branch().unlearn(X, old_labels)
    calibration, influenced = state.calibration.without_samples(
        X, old_labels, remaining
    )
    if not n_left:
        calibration = calibration.without_classes([source])
    calibration = calibration.calibrate_head(head.settle(cheap_only=True))

    block = LabelledRows(X, np.full(len(X), target))
    calibration = calibration.with_new_classes(head, block, remaining, state.seed)
    head = head.partial_fit(X, block.labels).settle(cheap_only=True)
    counts = add_labels(remaining, block.labels)
    calibration = calibration.calibrate_after(head, block, counts, state.seed)
    change = Change.now(
        "relabel",
        len(X),
        [] if target in state.counts else [target],
        data=(fingerprint(X),),
        names={source: target},
        influenced_scores=influenced,
    )
    return state.after(change, head=head, counts=counts, calibration=calibration)


# -- unlabelled samples, fading --------------------------------------------------------


def with_unlabelled(
    state: Snapshot, blocks: Iterable[LabelledRows]
) -> tuple[Snapshot, PseudoLabelReport]:
    """Learn unlabelled samples as their predicted class.

    Parameters
    ----------
    state : Snapshot
        The current state.
    blocks : iterable of LabelledRows
        Feature vectors with empty labels. Each block of a stream is labelled by the
        model that learned the blocks before it.

    Returns
    -------
    (Snapshot, PseudoLabelReport)
        The new state, and how many samples were used per class.

    Raises
    ------
    InputError
        If every sample looks unknown.
    LabelError
        If the model knows fewer than two classes.
    """
    from evergrow.head.pseudo_labels import PseudoLabelReport

    head = state.head.branch()
    report = PseudoLabelReport()
    threshold = state.calibration.threshold() if state.calibration.n else None
    for block in join_rows(blocks):
        report = report.plus(head.learn_unlabelled(block.X, threshold=threshold))
    if not report.used:
        raise InputError(
            f"none of the {report.unknown:,} samples without labels looks like a "
            "class that was learned, so nothing was learned from them: evergrow group "
            "(group_unknown in Python) sorts them into groups that can be named"
        )
    note = f"{report.unknown:,} left out as unknown" if report.unknown else ""
    head.settle(cheap_only=True)
    change = Change.now("unlabelled", report.used, note=note)
    return state.after(change, head=head), report


def without_unlabelled(state: Snapshot) -> Snapshot:
    """Remove everything that was learned without labels."""
    head = state.head.branch()
    change = Change.now("forget-unlabelled", getattr(head, "n_pseudo_labels_", 0))
    return state.after(change, head=head.forget_unlabelled())


def faded(state: Snapshot, factor: float) -> Snapshot:
    """Multiply the weight of everything learned so far by a factor."""
    head = state.head.branch().fade(factor).settle(cheap_only=True)
    change = Change.now("fade", sum(state.counts.values()), note=f"times {factor:g}")
    calibration = state.calibration.calibrate_head(head)
    return state.after(change, head=head, calibration=calibration)


# -- merging two models ----------------------------------------------------------------


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
    _check_separate(mine, theirs, base)
    common = Snapshot(mine.recipe, {}) if base is None else base
    counts = add_counts(mine.counts, theirs.counts, common.counts)
    head = mine.head.branch().merge(theirs.head, common.head).settle(cheap_only=True)
    calibration = mine.calibration.merged(theirs.calibration, common.calibration)
    new_data = learned_data(theirs.history) - learned_data(common.history)
    change = Change.now(
        "merge",
        sum(theirs.counts.values()) - sum(common.counts.values()),
        sorted(theirs.counts.keys() - mine.counts.keys()),
        data=tuple(sorted(new_data)),
    )
    return mine.after(
        change,
        head=head,
        counts=counts,
        calibration=calibration.calibrate_head(head),
        label_kind=mine.label_kind if mine.counts else theirs.label_kind,
    )


def backbone_differences(a: BackboneSpec | None, b: BackboneSpec | None) -> list[str]:
    """Return how two backbones differ; the location of the weights does not count.

    An empty list means that both give the same features.
    """
    if a is None or b is None:
        if a is b:
            return []
        names = ["none" if spec is None else spec.name for spec in (a, b)]
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
    n_common = len(base.history)
    for name, side in (("the first", mine), ("the second", theirs)):
        if _identities(side.history[:n_common]) != _identities(base.history):
            raise MergeError(
                "base must be the model that both learners were copied from, but "
                f"{name} has another history"
            )
        later = {change.what for change in side.history[n_common:]}
        edits = sorted(later - {"update", "merge", "unlabelled"})
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


def _identities(changes: Iterable[Change]) -> list[Any]:
    """Return what identifies changes; revisions and notes may differ between files."""
    return [(change.what, change.when, change.data) for change in changes]
