"""Two learners become one: what must agree, and what the result knows."""

from __future__ import annotations

from collections.abc import Sequence

from evergrow.core.errors import MergeError
from evergrow.core.wording import action, hint, setting
from evergrow.features.base import BackboneSpec
from evergrow.head.base import IncrementalClassifier
from evergrow.learner.changes import Change, learned_data
from evergrow.learner.snapshot import Snapshot


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
    counts = dict(mine.counts)
    for name, count in theirs.counts.items():
        counts[name] = counts.get(name, 0) + count - known.get(name, 0)
    head = _merged_head(mine.head, theirs.head, None if base is None else base.head).settle(cheap_only=True)
    calibration = mine.calibration.merged(theirs.calibration, None if base is None else base.calibration)
    calibration.apply(head)
    change = Change.now(
        "merge",
        sum(theirs.counts.values()) - sum(known.values()),
        sorted(set(theirs.counts) - set(mine.counts)),
        data=sorted(learned_data(theirs.history) - (learned_data(base.history) if base is not None else frozenset())),
    )
    kind = mine.label_kind if len(mine.classes) else theirs.label_kind
    announced = None if mine.announced is None else tuple(sorted({*mine.announced, *counts}))
    return mine.after(
        change,
        head=head,
        counts=dict(sorted(counts.items())),
        calibration=calibration,
        label_kind=kind,
        announced=announced,
    )


def _merged_head(
    mine: IncrementalClassifier, theirs: IncrementalClassifier, base: IncrementalClassifier | None
) -> IncrementalClassifier:
    merged: IncrementalClassifier = mine.branch().merge(theirs, base)
    return merged


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
                f"counted twice: give the model that both began as{hint('base', ' ({})')}, or let one start from "
                f"{action('spawn')}"
            )
        return
    for name, side in (("the first", mine), ("the second", theirs)):
        if _events(side.history[: len(base.history)]) != _events(base.history):
            raise MergeError(f"{setting('base')} must be what both learners began as, but {name} has another history")
        edits = sorted({change.what for change in side.history[len(base.history) :]} - {"update", "merge", "answering"})
        if edits:
            raise MergeError(
                f"learners may only have learned or merged since their base, but {name} has {', '.join(edits)} in its "
                f"history; undo that first ({action('rollback')}) and do it after the merge"
            )
    twice = shared - learned_data(base.history)
    if twice:
        raise MergeError(f"learners must have learned different data since their base, but {len(twice)} are in both")


def _events(history: Sequence[Change]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return what happened, when and with which data; numbers and notes may differ between files."""
    return [(change.what, change.when, change.data) for change in history]
