"""A data set that is learned shard by shard: a layer from a sample, statistics of each shard, and their sum.

What a shard teaches is an ordinary learner, empty but for what it learned, and nothing
of it depends on when or where it was made: the same samples give the same file. What is
calibrated on single samples (temperature, novelty) waits for the sum: a shard alone
would be calibrated against the little that it knows. The whole is then calibrated on
the sample, whose rows are scored as if they had not been learned, as those of any batch
are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from evergrow.core.errors import MergeError, ParameterError
from evergrow.data.items import Samples
from evergrow.learner.calibration import Calibration
from evergrow.learner.encoder import Encoder
from evergrow.learner.label_types import common_kind, warn_alike
from evergrow.learner.learner import Learner, check_width
from evergrow.learner.learning import LabelledRows, learned
from evergrow.learner.measuring import before_new_classes, calibrated
from evergrow.learner.snapshot import (
    Change,
    Snapshot,
    counted,
    fingerprint,
    summed,
    with_widths,
)

NO_TIME = "1970-01-01T00:00:00.000+00:00"
"""When a shard was learned: one that is learned again must give the same file."""


def encoder_for(
    learner: Learner,
    kind: str,
    widths: tuple[int, ...] = (),
    first: Callable[[], Samples] | None = None,
) -> Encoder:
    """Return what turns samples of a kind into features when this learner begins with them.

    Parameters
    ----------
    learner : Learner
        Settings; not changed.
    kind : {"image", "text", "features"}
        What the samples are.
    widths : tuple of int
        Columns of each block, where samples are features of several.
    first : callable, optional
        Returns the first samples; images are looked at to choose their views.
    """
    if kind == "image" and first is not None:
        samples = first()
    else:
        samples = Samples(kind, widths=widths)
    return learner._open_encoder().begun(samples)


def check_mergeable(learner: Learner, *, fresh: bool) -> None:
    """Raise unless a learner can learn by shards: its method adds up, and nothing of its backbone is to be trained.

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
            f"adapt must be left out with an engine, got {learner.adapt!r}: adapt a model to some of the images "
            "without it, and update that model with it"
        )
    if fresh:
        head = learner._new_head()
    else:
        head = learner._state().head
    for method in ("spawn", "merge"):
        getattr(head, method)  # raises where there is none


def deciding_settings(learner: Learner) -> dict[str, Any]:
    """Return the settings that decide what a learner makes of features, as plain values."""
    recipe = learner._recipe().plain()
    return {"method": recipe.method, "options": recipe.options, "seed": learner._seed()}


def adopt(learner: Learner, other: Learner) -> Learner:
    """Make a learner know what another one knows, and nothing else."""
    learner._begun = other._encoder
    learner._snapshot = dataclasses.replace(
        other.state_, origin=learner._blank(other._encoder).origin
    )
    return learner


def with_layer(learner: Learner, encoder: Encoder, sample: LabelledRows) -> Learner:
    """Return an empty learner whose layer was grown on a sample, for :func:`learn_shard`.

    Parameters
    ----------
    learner : Learner
        Settings; not changed.
    encoder : Encoder
        What computed the features.
    sample : LabelledRows
        Labelled features.
    """
    head = with_widths(learner._new_head(), encoder.widths)
    warn_alike(np.empty(0, dtype=np.str_), sample.labels)
    head.fit(sample.X, sample.labels)
    grown = type(learner)(**learner.get_params())
    grown._begun = encoder
    grown._snapshot = dataclasses.replace(learner._blank(encoder), head=head.spawn())
    return grown


def learn_shard(
    template: Learner, block: LabelledRows, number: int | None = None
) -> Learner:
    """Return what a shard of the data teaches: the statistics of its rows, by the layer of a template.

    Parameters
    ----------
    template : Learner
        An empty learner with the layer: from :func:`with_layer`, or from
        :func:`~evergrow.learner.learner.empty_copy`.
    block : LabelledRows
        Labelled features.
    number : int, optional
        Which shard it is. Shards of the same content are summed only if they have
        numbers of their own.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner import empty_copy
    >>> from evergrow.learner.learning import LabelledRows
    >>> from evergrow.learner.sharded_fit import learn_shard
    >>> X, y = np.random.default_rng(0).normal(size=(40, 5)), np.array(list("abcd") * 10)
    >>> template = empty_copy(Learner(options={"n_units": 20}).fit((X, y)))
    >>> learn_shard(template, LabelledRows(X[:8], y[:8])).state_.counts
    {'a': 2, 'b': 2, 'c': 2, 'd': 2}
    """
    now = template._state()
    check_width(block.X, now.head.n_features_in_)
    common_kind(now.label_kind, block.label_kind, block.labels, now.classes)
    head = now.head.spawn()
    head.partial_fit(block.X, block.labels)
    if number is not None:
        head.with_shard_id(number)
    return _shard(
        template,
        head,
        counted({}, block.labels),
        len(block.labels),
        (fingerprint(block.X),),
    )


def merge_shards(shards: Iterable[Learner]) -> Learner:
    """Return one learner that knows what all of these know; they are added in their order, one at a time.

    Parameters
    ----------
    shards : iterable of Learner
        From :func:`learn_shard` or this function, all of one template. Only two are
        held at a time.
    """
    total: Learner | None = None
    for shard in shards:
        if total is None:
            total = shard
            continue
        mine = total._state()
        theirs = shard._state()
        first = mine.history[-1]
        second = theirs.history[-1]
        head = mine.head.branch().merge(theirs.head)
        counts = summed(mine.counts, theirs.counts)
        total = _shard(
            total,
            head,
            counts,
            first.samples + second.samples,
            (*first.data, *second.data),
        )
    if total is None:
        raise MergeError("shards must be at least one, got none")
    return total


def _shard(
    template: Learner,
    head: Any,
    counts: dict[str, int],
    samples: int,
    data: tuple[str, ...],
) -> Learner:
    change = Change(
        "update", NO_TIME, samples, tuple(sorted(counts)), revision=1, data=data
    )
    twin = template._twin()
    twin._snapshot = dataclasses.replace(
        template._state(), head=head, counts=counts, history=(change,)
    )
    return twin


def complete_fit(learner: Learner, total: Learner, sample: LabelledRows) -> Learner:
    """Make a learner know what the shards of a data set sum up to, as if it had been fitted on all of it.

    Parameters
    ----------
    learner : Learner
        Forgets what it knew.
    total : Learner
        The sum of all shards, each learned with the layer of one :func:`with_layer`.
    sample : LabelledRows
        Rows that are among those learned, to calibrate on; its fingerprint stands for
        the data where it is all of them.
    """
    known = total._state()
    blank = learner._blank(total._encoder)
    head = known.head.branch().settle()
    calibration = calibrated(Calibration(), head, sample, known.counts, learner._seed())
    values: dict[str, Any] = {
        "head": head,
        "calibration": calibration,
        "label_kind": known.label_kind,
    }
    now = learned(blank, "fit", *_record(known, sample), known.counts, **values)
    learner._begun = total._encoder
    learner._snapshot = now
    return learner


def complete_update(learner: Learner, total: Learner, sample: LabelledRows) -> Learner:
    """Add what the shards of a data set sum up to, as if a learner had learned all of it in one batch.

    Parameters
    ----------
    learner : Learner
        A learner that knows something.
    total : Learner
        The sum of all shards, each learned with a :func:`~evergrow.learner.learner.empty_copy` of it.
    sample : LabelledRows
        Rows that are among those learned, to calibrate on.
    """
    now = learner._state()
    more = total._state()
    warn_alike(now.classes, np.array(sorted(more.counts), dtype=np.str_))
    calibration = before_new_classes(
        now.calibration, now.head, sample, now.counts, learner._seed()
    )
    counts = summed(now.counts, more.counts)
    head = now.head.branch().merge(more.head).settle(cheap_only=True)
    calibration = calibrated(calibration, head, sample, counts, now.seed)
    record = _record(more, sample)
    learner._snapshot = learned(
        now, "update", *record, counts, head=head, calibration=calibration
    )
    return learner


def _record(total: Snapshot, sample: LabelledRows) -> tuple[int, tuple[str, ...]]:
    """Return how many samples were learned and their fingerprints: one of all rows where the sample is all of them."""
    change = total.history[-1]
    whole = len(sample.labels) == change.samples
    return change.samples, (fingerprint(sample.X),) if whole else tuple(
        dict.fromkeys(change.data)
    )
