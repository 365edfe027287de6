"""Train a learner shard by shard: a layer, statistics per shard, and their sum.

The layer is built from a sample. A trained shard is an ordinary learner that knows only
its own rows. It does not depend on the time or the machine: the same samples give the
same file. Temperature and novelty are not calibrated per shard, because a shard alone
knows too little. The sum is calibrated on the sample, whose rows are scored as held
out, as in every batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from evergrow.core.errors import MergeError, ParameterError
from evergrow.data.items import Samples
from evergrow.learner.adaptation_file import is_adaptation_file
from evergrow.learner.calibration import Calibration
from evergrow.learner.encoder import Encoder, check_width
from evergrow.learner.learner import (
    Learner,
    create_head,
    empty_state,
    encoder_of,
    new_learner,
    replace_model,
    seed_of,
)
from evergrow.learner.learning import (
    LabelledRows,
    after_learning,
    common_kind,
    warn_alike,
)
from evergrow.learner.snapshot import (
    Change,
    HeadRecipe,
    Snapshot,
    add_counts,
    add_labels,
    fingerprint,
    with_widths,
)

NO_TIME = "1970-01-01T00:00:00.000+00:00"
"""Time recorded in a shard, so that training it again gives the same file."""


def encoder_for(
    learner: Learner,
    kind: str,
    widths: tuple[int, ...] = (),
    first: Callable[[], Samples] | None = None,
) -> Encoder:
    """Return the encoder that a fit of this learner would use.

    Parameters
    ----------
    learner : Learner
        Supplies the parameters; not changed.
    kind : {"image", "text", "features"}
        Type of the samples.
    widths : tuple of int
        Columns of each feature block, if samples are feature vectors of several blocks.
    first : callable, optional
        Returns the first samples; called for images only. Their size decides the views.
    """
    if kind == "image" and first is not None:
        samples = first()
    else:
        samples = Samples(kind, widths=widths)
    return Encoder.of(learner).with_backbone_for(samples)


def check_mergeable(learner: Learner, *, fresh: bool) -> None:
    """Raise an error unless the learner can train shard by shard.

    Parameters
    ----------
    learner : Learner
        The learner to train.
    fresh : bool
        Whether it forgets everything first, as `fit` does.

    Raises
    ------
    UnsupportedError
        If learners of this method cannot be merged.
    ParameterError
        If the backbone is to be adapted, which needs all images at once, or was adapted
        by a file that workers do not have.
    """
    if fresh and learner.adapt is not None:
        raise ParameterError(
            f"adapt must be left out with an engine, got {learner.adapt!r}: adapt a "
            "model to some of the images without it, and update that model with it"
        )
    if fresh and is_adaptation_file(learner.weights):
        raise ParameterError(
            "weights must not be a file of evergrow adapt with an engine, got "
            f"{str(learner.weights)!r}: learn some of the images without it, and "
            "update that model with it"
        )
    if fresh:
        head = create_head(learner, seed_of(learner))
    else:
        head = learner.state_.head
    for method in ("spawn", "merge"):
        getattr(head, method)  # raises an error if the head does not have it


def deciding_settings(learner: Learner) -> dict[str, Any]:
    """Return method, options and seed of the next fit, as plain values.

    Trained statistics depend on these settings of a learner only.
    """
    recipe = HeadRecipe.of(learner).plain()
    return {
        "method": recipe.method,
        "options": recipe.options,
        "seed": seed_of(learner),
    }


def adopt(learner: Learner, other: Learner) -> Learner:
    """Give a learner, in place, the encoder and the state of another one; return it."""
    return replace_model(learner, encoder_of(other), other.state_)


def with_layer(learner: Learner, encoder: Encoder, sample: LabelledRows) -> Learner:
    """Return a new, empty learner whose layer was built from a sample.

    It is the template for :func:`learn_shard`.

    Parameters
    ----------
    learner : Learner
        Supplies the parameters; not changed.
    encoder : Encoder
        Computed the features.
    sample : LabelledRows
        Labelled feature vectors.
    """
    seed = seed_of(learner)
    head = with_widths(create_head(learner, seed), encoder.widths)
    warn_alike(np.empty(0, dtype=np.str_), sample.labels)
    head.fit(sample.X, sample.labels)
    state = empty_state(learner, encoder, seed)
    state = dataclasses.replace(state, head=head.spawn())
    return new_learner(learner, encoder, state)


def learn_shard(
    template: Learner, block: LabelledRows, number: int | None = None
) -> Learner:
    """Return a new learner that learned one shard with the layer of a template.

    Parameters
    ----------
    template : Learner
        An empty learner with a layer: from :func:`with_layer`, or from
        :func:`~evergrow.learner.learner.empty_copy`.
    block : LabelledRows
        Labelled feature vectors.
    number : int, optional
        Number of the shard. Shards of equal content can be merged only if they have
        different numbers.

    Raises
    ------
    InputError
        If the number of columns is not that of the layer.
    LabelError
        If the labels are of another type.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> from evergrow.learner import empty_copy
    >>> from evergrow.learner.learning import LabelledRows
    >>> from evergrow.learner.sharded_fit import learn_shard
    >>> X = np.random.default_rng(0).normal(size=(40, 5))
    >>> y = np.array(list("abcd") * 10)
    >>> template = empty_copy(Learner(options={"n_units": 20}).fit((X, y)))
    >>> learn_shard(template, LabelledRows(X[:8], y[:8])).state_.counts
    {'a': 2, 'b': 2, 'c': 2, 'd': 2}
    """
    state = template.state_
    check_width(block.X, state.head.n_features_in_)
    common_kind(state.label_kind, block.label_kind, block.labels, state.classes)
    head = state.head.spawn()
    head.partial_fit(block.X, block.labels)
    if number is not None:
        head.tag_shard(number)
    data = (fingerprint(block.X),)
    counts = add_labels({}, block.labels)
    return _shard(template, head, counts, len(block.labels), data)


def merge_shards(shards: Iterable[Learner]) -> Learner:
    """Return one learner that knows everything these know, added in their order.

    Parameters
    ----------
    shards : iterable of Learner
        From :func:`learn_shard` or this function, all of one template. At most two are
        in memory at a time if they are read one by one. One shard is returned as it is.

    Raises
    ------
    MergeError
        If there are no shards, or two of them are the same.
    """
    total: Learner | None = None
    for shard in shards:
        total = shard if total is None else _merge_two(total, shard)
    if total is None:
        raise MergeError("shards must be at least one, got none")
    return total


def _merge_two(first: Learner, second: Learner) -> Learner:
    """Return the sum of two shards, with the numbers and fingerprints of both."""
    mine = first.state_
    theirs = second.state_
    head = mine.head.branch().merge(theirs.head)
    counts = add_counts(mine.counts, theirs.counts)
    samples = mine.history[-1].samples + theirs.history[-1].samples
    data = (*mine.history[-1].data, *theirs.history[-1].data)
    return _shard(first, head, counts, samples, data)


def _shard(
    template: Learner,
    head: Any,
    counts: dict[str, int],
    samples: int,
    data: tuple[str, ...],
) -> Learner:
    """Return a shard: a learner with one change that has no time."""
    change = Change(
        "update", NO_TIME, samples, tuple(sorted(counts)), revision=1, data=data
    )
    state = dataclasses.replace(
        template.state_, head=head, counts=counts, history=(change,)
    )
    return new_learner(template, encoder_of(template), state)


def complete_fit(learner: Learner, total: Learner, sample: LabelledRows) -> Learner:
    """Give a learner the sum of all shards, as if it had been fitted on all of them.

    Parameters
    ----------
    learner : Learner
        Changed in place and returned. Its current state is replaced.
    total : Learner
        The sum of all shards, each trained with the template of one :func:`with_layer`.
    sample : LabelledRows
        Rows to calibrate on, taken from the training data. If these are all rows, their
        fingerprint stands for the data in the history.
    """
    known = total.state_
    encoder = encoder_of(total)
    seed = seed_of(learner)
    head = known.head.branch().settle()
    calibration = Calibration().calibrate_after(head, sample, known.counts, seed)
    empty = empty_state(learner, encoder, seed)
    samples, data = _learned_data(known, sample)
    state = after_learning(
        empty,
        "fit",
        samples,
        data,
        known.counts,
        head=head,
        calibration=calibration,
        label_kind=known.label_kind,
    )
    return replace_model(learner, encoder, state)


def complete_update(learner: Learner, total: Learner, sample: LabelledRows) -> Learner:
    """Add the sum of all shards to a learner, as if it had learned them in one batch.

    Parameters
    ----------
    learner : Learner
        A fitted learner; changed in place and returned.
    total : Learner
        The sum of all shards, each trained with one
        :func:`~evergrow.learner.learner.empty_copy` of it.
    sample : LabelledRows
        Rows to calibrate on, taken from the training data.
    """
    state = learner.state_
    added = total.state_
    warn_alike(state.classes, np.array(sorted(added.counts), dtype=np.str_))
    calibration = state.calibration.with_new_classes(
        state.head, sample, state.counts, seed_of(learner)
    )
    counts = add_counts(state.counts, added.counts)
    head = state.head.branch().merge(added.head).settle(cheap_only=True)
    calibration = calibration.calibrate_after(head, sample, counts, state.seed)
    samples, data = _learned_data(added, sample)
    learner.state_ = after_learning(
        state, "update", samples, data, counts, head=head, calibration=calibration
    )
    return learner


def _learned_data(total: Snapshot, sample: LabelledRows) -> tuple[int, tuple[str, ...]]:
    """Return the number of samples in a sum of shards, and their fingerprints.

    There is one fingerprint if the sample has all rows, as in a fit without shards,
    otherwise one per distinct shard.
    """
    change = total.history[-1]
    if len(sample.labels) == change.samples:
        return change.samples, (fingerprint(sample.X),)
    return change.samples, tuple(dict.fromkeys(change.data))
