"""State changes: learn unlabelled samples, remove them, and fade."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from evergrow.core.errors import InputError
from evergrow.learner.calibration import FALSE_ALARM
from evergrow.learner.learning import LabelledRows, gathered
from evergrow.learner.snapshot import Change, Snapshot

if TYPE_CHECKING:
    from evergrow.head.pseudo_labels import PseudoLabelReport


def with_unlabelled(
    now: Snapshot, blocks: Iterable[LabelledRows]
) -> tuple[Snapshot, PseudoLabelReport]:
    """Learn unlabelled samples as their predicted class.

    Parameters
    ----------
    now : Snapshot
        The current state.
    blocks : iterable of LabelledRows
        Feature vectors without labels. Each block of a stream is labelled by the model
        that learned the blocks before it.

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

    head = now.head.branch()
    report = PseudoLabelReport()
    if now.calibration.n:
        threshold = now.calibration.threshold(FALSE_ALARM)
    else:
        threshold = None
    for block in gathered(blocks):
        report = report.plus(head.learn_unlabelled(block.X, threshold=threshold))
    if not report.used:
        raise InputError(
            f"none of the {report.unknown:,} samples without labels looks like a "
            "class that was learned, so nothing was learned from them: group_unknown() "
            "sorts them into groups that can be named"
        )
    note = ""
    if report.unknown:
        note = f"{report.unknown:,} left out as unknown"
    head.settle(cheap_only=True)
    return now.after(
        Change.now("unlabelled", report.used, note=note), head=head
    ), report


def without_unlabelled(now: Snapshot) -> Snapshot:
    """Remove everything that was learned without labels."""
    head = now.head.branch()
    change = Change.now("forget-unlabelled", getattr(head, "n_pseudo_labels_", 0))
    return now.after(change, head=head.forget_unlabelled())


def faded(now: Snapshot, factor: float) -> Snapshot:
    """Multiply the weight of everything learned so far by a factor."""
    head = now.head.branch().fade(factor).settle(cheap_only=True)
    change = Change.now("fade", sum(now.counts.values()), note=f"times {factor:g}")
    return now.after(change, head=head, calibration=now.calibration.applied(head))
