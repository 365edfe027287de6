"""A data set that is learned in parts, by several workers: a layer from a sample, statistics of each part, their sum.

A part is an ordinary learner, empty but for what it learned, and nothing of it depends on when or where it was made:
the same samples give the same file. What is calibrated on single samples (temperature, novelty) waits for the sum: a
part alone would be calibrated against the little that it knows. The whole is then calibrated on the sample, whose rows
are scored as if they had not been learned, as those of any batch are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from evergrow.core.errors import MergeError, ParameterError
from evergrow.core.wording import setting
from evergrow.data.intake import Samples
from evergrow.head.base import IncrementalClassifier
from evergrow.learner.calibration import Calibration, with_new_classes
from evergrow.learner.changes import Change, fingerprint
from evergrow.learner.class_warnings import warn_alike, warn_few
from evergrow.learner.encoder import Encoder
from evergrow.learner.labels import check_announced, settled_kind
from evergrow.learner.learner import NOTHING, Learner
from evergrow.learner.learner_base import check_width
from evergrow.learner.learning import Block, calibrated_on
from evergrow.learner.snapshot import Snapshot, counted

NO_TIME = "1970-01-01T00:00:00.000+00:00"
"""When a part was learned: a part that is learned again must be the same file."""


def encoder_for(learner: Learner, kind: str, widths: tuple[int, ...] = ()) -> Encoder:
    """Return what turns samples of a kind into features when this learner begins with them.

    Parameters
    ----------
    learner : Learner
        Settings; not changed.
    kind : {"image", "text", "features"}
        What the samples are.
    widths : tuple of int
        Columns of each block, where samples are features of several.
    """
    return learner._open_encoder().begun(Samples(kind, widths=widths))


def check_divisible(learner: Learner, *, fresh: bool) -> None:
    """Raise unless a learner can learn in parts: its method adds up, and nothing of its backbone is to be trained.

    Parameters
    ----------
    learner : Learner
        What is to learn.
    fresh : bool
        Whether it forgets everything first.

    Raises
    ------
    UnsupportedError
        If learners of this method cannot be merged.
    ParameterError
        If a backbone is to be adapted, which takes all images at once.
    """
    if fresh and learner.adapt is not None:
        raise ParameterError(
            f"{setting('adapt')} must be left out with {setting('engine')}, got {learner.adapt!r}: adapt a model to "
            "some of the images without it, and update that model with it"
        )
    head = learner._new_head() if fresh else learner._state().head
    for method in ("spawn", "merge"):
        getattr(head, method)  # raises where the method cannot


def seed_of(learner: Learner) -> int:
    """Return the seed of a learner's layer."""
    return learner._seed()


def deciding_settings(learner: Learner) -> dict[str, Any]:
    """Return the settings that decide what a learner makes of features, as plain values."""
    recipe = learner._recipe()
    return {
        "method": recipe.method,
        "options": recipe.plain_options(),
        "seed": learner._seed(),
    }


def adopt(learner: Learner, other: Learner) -> Learner:
    """Make a learner know what another one knows, and nothing else."""
    learner._encoder, learner._snapshot = other._encoder, other._state()
    return learner


def with_layer(learner: Learner, encoder: Encoder, sample: Block) -> Learner:
    """Return an empty learner whose layer was grown on a sample, for :func:`learned_part`.

    Parameters
    ----------
    learner : Learner
        Settings; not changed.
    encoder : Encoder
        What computed the features.
    sample : Block
        Labelled features.

    """
    head = learner._new_head(encoder.widths)
    warn_alike(NOTHING, sample.labels)
    head.fit(sample.X, sample.labels)
    grown = type(learner)(**learner.get_params())
    grown._encoder = encoder
    grown._snapshot = Snapshot(
        head.spawn(),
        encoder.spec,
        {},
        reason=encoder.reason,
        seed=learner._seed(),
        adaptation=encoder.adaptation,
        widths=encoder.widths if encoder.spec is None else (),
    )
    return grown


def expecting(template: Learner, rows: int) -> Learner:
    """Let an empty learner know how many samples its parts will have in all, and return it."""
    template._state().head.expecting(rows)
    return template


def learned_part(template: Learner, block: Block, place: int | None = None) -> Learner:
    """Return what a part of the data teaches: the statistics of its rows, by the layer of a template.

    Parameters
    ----------
    template : Learner
        An empty learner with the layer: from :func:`with_layer`, or from :meth:`Learner.spawn`.
    block : Block
        Labelled features.
    place : int, optional
        Which part it is. Parts of the same content are summed only if they have places of their own.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner.learning import Block
    >>> from evergrow.learner.parts import learned_part
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.array(list("abcd") * 10)
    >>> template = Learner(options={"n_units": 20}).fit((X, y)).spawn()
    >>> learned_part(template, Block(X[:8], y[:8])).samples_by_name_
    {'a': 2, 'b': 2, 'c': 2, 'd': 2}
    """
    now = template._state()
    check_width(block.X, now.head.n_features_in_)
    check_announced(now.announced, block.labels)
    settled_kind(now.label_kind, block.label_kind, block.labels, now.classes)
    head = now.head.spawn()
    head.partial_fit(block.X, block.labels)
    if place is not None:
        head.numbered(place)
    change = Change(
        "update",
        NO_TIME,
        len(block.labels),
        tuple(np.unique(block.labels).tolist()),
        revision=1,
        data=(fingerprint(block.X, block.labels),),
    )
    return _twin(template, _part(now, head, counted({}, block.labels), change))


def summed(parts: Iterable[Learner]) -> Learner:
    """Return one part that knows what all of these know; they are added in their order, one at a time.

    Parameters
    ----------
    parts : iterable of Learner
        From :func:`learned_part` or this function, all of one template. Only two are held at a time.
    """
    total: Learner | None = None
    for learner in parts:
        total = learner if total is None else _added(total, learner)
    if total is None:
        raise MergeError("parts must be at least one, got none")
    return total


def _added(total: Learner, more: Learner) -> Learner:
    mine, theirs = total._state(), more._state()
    head = mine.head.branch().merge(theirs.head)
    counts = dict(mine.counts)
    for name, count in theirs.counts.items():
        counts[name] = counts.get(name, 0) + count
    first, second = mine.history[-1], theirs.history[-1]
    change = Change(
        "update",
        NO_TIME,
        first.samples + second.samples,
        tuple(sorted(counts)),
        revision=1,
        data=(*first.data, *second.data),
    )
    return _twin(total, _part(mine, head, dict(sorted(counts.items())), change))


def complete_fit(learner: Learner, total: Learner, sample: Block) -> Learner:
    """Make a learner know what the parts of a data set sum up to, as if it had been fitted on all of it.

    Parameters
    ----------
    learner : Learner
        Forgets what it knew.
    total : Learner
        The sum of all parts, each learned with the layer of one :func:`with_layer`.
    sample : Block
        Rows that are among those learned, to calibrate on; its fingerprint stands for the data where it is all of them.
    """
    known = total._state()
    before = learner._snapshot_or_none()
    warn_few({}, known.counts)
    head = known.head.branch().settle()
    change = Change.now("fit", known.history[-1].samples, known.counts, data=_data(known, sample))
    learner._encoder = total._encoder
    learner._snapshot = Snapshot(
        head,
        known.spec,
        known.counts,
        calibrated_on(Calibration(), head, sample, learner._seed()),
        (change.numbered(1 if before is None else before.revision + 1),),
        reason=known.reason,
        seed=learner._seed(),
        adaptation=known.adaptation,
        label_kind=known.label_kind,
        widths=known.widths,
    )
    return learner


def complete_update(learner: Learner, total: Learner, sample: Block) -> Learner:
    """Add what the parts of a data set sum up to, as if a learner had learned all of it in one batch.

    Parameters
    ----------
    learner : Learner
        A learner that knows something.
    total : Learner
        The sum of all parts, each learned with a :meth:`Learner.spawn` of it.
    sample : Block
        Rows that are among those learned, to calibrate on.
    """
    now, more = learner._state(), total._state()
    new = sorted(set(more.counts) - set(now.counts))
    warn_alike(now.classes, np.array(sorted(more.counts), dtype=np.str_))
    calibration = with_new_classes(now.calibration, now.head, sample.X, sample.labels)
    if len(now.classes) == 1 and new:
        calibration = Calibration()  # with one class novelty is a distance, which says nothing of it with several
    counts = dict(now.counts)
    for name, count in more.counts.items():
        counts[name] = counts.get(name, 0) + count
    warn_few(now.counts, counts)
    head = now.head.branch().merge(more.head).settle(cheap_only=True)
    learner._snapshot = now.after(
        Change.now("update", more.history[-1].samples, new, data=_data(more, sample)),
        head=head,
        counts=dict(sorted(counts.items())),
        calibration=calibrated_on(calibration, head, sample, learner._seed()),
    )
    return learner


def _data(total: Snapshot, sample: Block) -> tuple[str, ...]:
    """Return the fingerprints of what was learned: one of all rows where the sample is all, else those of the parts."""
    change = total.history[-1]
    whole = len(sample.labels) == change.samples
    return (fingerprint(sample.X, sample.labels),) if whole else tuple(dict.fromkeys(change.data))


def _part(now: Snapshot, head: IncrementalClassifier, counts: dict[str, int], change: Change) -> Snapshot:
    return Snapshot(
        head,
        now.spec,
        counts,
        history=(change,),
        reason=now.reason,
        seed=now.seed,
        adaptation=now.adaptation,
        label_kind=now.label_kind,
        announced=now.announced,
        widths=now.widths,
    )


def _twin(learner: Learner, snapshot: Snapshot) -> Learner:
    twin = learner._twin()
    twin._snapshot = snapshot
    return twin
