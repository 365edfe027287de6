"""Pseudo-labels: unlabelled rows, learned as their predicted class.

A row with the predicted class c, of calibrated probability p, is learned with the
weight ``p / sqrt(n_c)``, if the class has n_c labelled samples. A pseudo-label counts
almost as much as a sample if the class has one sample, and less and less as more labels
come. The first pass predicts from labelled samples alone, the second pass also from the
first pseudo-labels. Rows that look novel are left out: compared with the labelled
samples in the first pass, and with all rows in the second.

The statistics of pseudo-labels are kept apart, so that they can be removed exactly. The
readout, its ridge and the block weights are solved from samples and pseudo-labels
together. Counts, class shapes, calibration and novelty use labelled samples alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor

from evergrow.core.errors import MergeError
from evergrow.core.record import Spec, record, require
from evergrow.head.base import finite_scores
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.head.ridge_model import RidgeModel

if TYPE_CHECKING:
    from evergrow.head.novelty.score import NoveltyStandard
    from evergrow.head.solved_cache import ClassifierState, SolvedCache

N_PASSES = 2
"""Passes over the unlabelled rows. A third pass changes little."""

EXPECTED_REJECTS = 0.05
"""Fraction of known rows that may be left out as novel without a calibrated
threshold."""

COLD_TEMPERATURE = 0.2
"""Temperature of the first pass, relative to the standard deviation of all scores, if
every class has one sample. Values from 0.1 to 0.4 work alike."""


@dataclass(frozen=True)
class PseudoLabelReport:
    """Counts of used and left-out unlabelled rows.

    Parameters
    ----------
    used : int, default=0
        Rows learned with a pseudo-label.
    unknown : int, default=0
        Rows left out because they look like no learned class.
    repeated : int, default=0
        Rows left out because they are copies of others.
    classes : dict of label to int
        Number of used rows per predicted class, the largest first.
    """

    used: int = 0
    unknown: int = 0
    repeated: int = 0
    classes: dict[Any, int] = field(default_factory=dict)

    def plus(self, other: PseudoLabelReport) -> PseudoLabelReport:
        """Return the sum of two reports."""
        classes = Counter(self.classes) + Counter(other.classes)
        return PseudoLabelReport(
            self.used + other.used,
            self.unknown + other.unknown,
            self.repeated + other.repeated,
            dict(classes.most_common()),
        )


@record("guesses")
@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Statistics of rows with pseudo-labels, and a fingerprint of each row.

    The fingerprints find a row again when its label comes. Every method returns new
    pseudo-labels. Pseudo-labels of no rows are falsy.

    Parameters
    ----------
    state : RidgeStatistics
        Statistics of the weighted rows.
    marks : Tensor of shape (n,)
        Fingerprints of the rows, 8 bytes each, all different. They do not allow to
        reconstruct a row.
    codes : Tensor of shape (n,)
        Predicted classes.
    weights : Tensor of shape (n,)
        Weights of the rows, above 0 and at most 1.
    """

    state: RidgeStatistics
    marks: Annotated[Tensor, Spec(("n",), dtype="int64")]
    codes: Annotated[Tensor, Spec(("n",), dtype="int64")]
    weights: Annotated[Tensor, Spec(("n",))]

    @classmethod
    def none(cls, model: RidgeModel) -> PseudoLabels:
        """Return pseudo-labels of no rows, with the layer and classes of a model."""
        marks = torch.zeros(0, dtype=torch.int64, device=model.state.device)
        return cls(model.state.empty_like(), marks, marks, marks.to(torch.float64))

    def __len__(self) -> int:
        return len(self.marks)

    def as_model(self, base: RidgeModel) -> RidgeModel:
        """Return a model with the layer of `base` that learned only these rows."""
        n_classes = self.state.n_targets
        return replace(
            base,
            state=self.state,
            counts=torch.bincount(self.codes, minlength=n_classes),
            masses=torch.bincount(self.codes, self.weights, minlength=n_classes),
            shapes=None,
        )

    def blended(self, base: RidgeModel) -> RidgeModel:
        """Return a model that learned the labelled samples `base` and these rows.

        Its counts and class shapes are those of the labelled samples.
        """
        masses = base.masses + self.as_model(base).masses
        return replace(base, state=base.state.merge(self.state), masses=masses)

    def added(
        self, base: RidgeModel, Z: Tensor, codes: Tensor, weights: Tensor
    ) -> PseudoLabels:
        """Return the pseudo-labels with more rows.

        Parameters
        ----------
        base : RidgeModel
            A model with the layer.
        Z : Tensor of shape (n, d)
            Features of rows that have no pseudo-label yet.
        codes, weights : Tensor of shape (n,)
            Their predicted classes and weights.
        """
        batches = base.batches(Z, codes, self.state.n_targets, weights)
        state = self.state.accumulate(batches)
        return self._joined(state, PseudoLabels(state, row_marks(Z), codes, weights))

    def without(self, base: RidgeModel, Z: Tensor) -> PseudoLabels:
        """Return a copy without the pseudo-labels of rows Z (n, d).

        Rows without a pseudo-label are ignored. The sums are as if the
        rows had never been learned.

        Parameters
        ----------
        base : RidgeModel
            A model with the layer.
        Z : Tensor of shape (n, d)
            Features.
        """
        # `own` and `given` are the indices of the same rows here and in Z.
        _, own, given = np.intersect1d(
            self.marks.cpu().numpy(), row_marks(Z).cpu().numpy(), return_indices=True
        )
        if not len(own):
            return self
        if len(own) == len(self):
            return self.none(base)
        removed = torch.from_numpy(own).to(self.marks.device)
        rows = Z[torch.from_numpy(given).to(Z.device)]
        batches = base.batches(
            rows, self.codes[removed], self.state.n_targets, self.weights[removed]
        )
        state = self.state.accumulate(batches, sign=-1)
        is_kept = torch.ones_like(self.marks, dtype=torch.bool)
        is_kept[removed] = False
        return self._selected(state, is_kept)

    def group(self, groups: Sequence[Sequence[int]]) -> PseudoLabels:
        """Return the pseudo-labels with merged, reordered or new columns.

        Parameters
        ----------
        groups : sequence of sequences of int
            ``groups[c]`` are the old columns that become column c. It is empty for a
            class without rows. Every old column must be in one group.
        """
        device = self.codes.device
        columns = torch.zeros(self.state.n_targets, dtype=torch.int64, device=device)
        for column, group in enumerate(groups):
            columns[list(group)] = column
        state = self.state.group_targets(groups)
        return replace(self, state=state, codes=columns[self.codes])

    def keep(self, base: RidgeModel, kept: Sequence[int]) -> PseudoLabels:
        """Return the pseudo-labels of some classes.

        The spread of the other classes stays in the statistics, as in
        :meth:`RidgeModel.keep`.

        Parameters
        ----------
        base : RidgeModel
            A model with the layer.
        kept : sequence of int
            Classes to keep, in their new order.
        """
        device = self.codes.device
        columns = torch.full((self.state.n_targets,), -1, device=device)
        columns[list(kept)] = torch.arange(len(kept), device=device)
        codes = columns[self.codes]
        state = self.as_model(base).keep(kept).state
        return replace(self, codes=codes)._selected(state, codes >= 0)

    def faded(self, factor: float) -> PseudoLabels:
        """Return the pseudo-labels with all weights multiplied by a factor."""
        weights = factor * self.weights
        return replace(self, state=self.state.faded(factor), weights=weights)

    def merged(
        self, other: PseudoLabels, base: PseudoLabels | None = None
    ) -> PseudoLabels:
        """Return the pseudo-labels of both sides, counting a common base once.

        Parameters
        ----------
        other : PseudoLabels
            The other side, with the same classes.
        base : PseudoLabels, optional
            Pseudo-labels that both sides had when they parted.

        Raises
        ------
        MergeError
            If one side no longer has all pseudo-labels of the base. Their sums cannot
            be separated then.
        """
        state = self.state.merge(other.state)
        if not base:
            return self._joined(state, other)
        if not base._rows() <= self._rows() & other._rows():
            raise MergeError(
                "labels came for rows that had a pseudo-label before the learners "
                "parted, so their pseudo-labels cannot be separated: forget the "
                "unlabelled samples of both and of the base, merge, and learn them "
                "again"
            )
        is_new = ~torch.isin(other.marks, base.marks.to(other.marks.device))
        return self._joined(
            state.merge(base.state, -1), other._selected(other.state, is_new)
        )

    def _rows(self) -> set[tuple[Any, ...]]:
        """Return fingerprint, class and weight of each row."""
        return set(zip(self.marks.tolist(), self.codes.tolist(), self.weights.tolist()))

    def _joined(self, state: RidgeStatistics, other: PseudoLabels) -> PseudoLabels:
        """Return the rows of both, with the given statistics."""
        device = self.marks.device
        return PseudoLabels(
            state,
            torch.cat([self.marks, other.marks.to(device)]),
            torch.cat([self.codes, other.codes.to(device)]),
            torch.cat([self.weights, other.weights.to(device)]),
        )

    def _selected(self, state: RidgeStatistics, is_kept: Tensor) -> PseudoLabels:
        """Return the rows of a mask, with the given statistics."""
        return PseudoLabels(
            state, self.marks[is_kept], self.codes[is_kept], self.weights[is_kept]
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` if the contents of a file are impossible."""
        require(len(self) > 0, "it has pseudo-labels of no rows")
        is_class = (self.codes >= 0) & (self.codes < self.state.n_targets)
        require(bool(is_class.all()), "a pseudo-label is of no class")
        is_weight = (self.weights > 0.0) & (self.weights <= 1.0)
        require(bool(is_weight.all()), "the weight of a pseudo-label is out of range")
        total = float(self.weights.sum())
        require(
            abs(self.state.sq_targets - total) <= 1e-6 * max(total, 1.0),
            "the sums of its pseudo-labels are of other weights",
        )
        require(
            len(self) <= self.state.count,
            "it has more pseudo-labels than rows in their sums",
        )


def merge_pseudo_labels(
    sides: Sequence[PseudoLabels | None], model: RidgeModel
) -> PseudoLabels | None:
    """Merge the pseudo-labels of two classifiers, counting their base once.

    Parameters
    ----------
    sides : sequence of PseudoLabels or None
        Pseudo-labels of this classifier, of the other one, and of the base if there is
        one, all with the merged classes. None for no rows.
    model : RidgeModel
        A model with the layer and the merged classes.

    Returns
    -------
    PseudoLabels or None
        None if no row has a pseudo-label.

    Raises
    ------
    MergeError
        See :meth:`PseudoLabels.merged`.
    """
    if not any(sides):
        return None
    mine, *others = [side or PseudoLabels.none(model) for side in sides]
    return mine.merged(*others)


def row_marks(Z: Tensor) -> Tensor:
    """Return a fingerprint (n,), int64, of every row of Z (n, d) in float32."""
    rows = np.ascontiguousarray(Z.detach().cpu().numpy(), dtype=np.float32)
    digests = [hashlib.blake2b(row.data, digest_size=8).digest() for row in rows]
    marks = np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)
    return torch.from_numpy(marks).to(Z.device)


def pseudo_label_rows(
    state: ClassifierState,
    Z: Tensor,
    *,
    temperature: float | None,
    standard: NoveltyStandard | None,
    threshold: float | None,
) -> tuple[PseudoLabels, PseudoLabelReport]:
    """Label rows with their predicted class and add them to the pseudo-labels.

    Parameters
    ----------
    state : ClassifierState
        The classifier, which is not changed. Rows that already have a pseudo-label are
        labelled again.
    Z : Tensor of shape (n, d)
        Features.
    temperature : float or None
        Calibrated softmax temperature. None estimates it from the statistics.
    standard : NoveltyStandard or None
        Calibrated novelty score. None estimates it from the statistics.
    threshold : float or None
        Rows with a larger novelty are left out. None computes it from the statistics.

    Returns
    -------
    pseudo_labels : PseudoLabels
        The old pseudo-labels and the new ones.
    report : PseudoLabelReport
        Counts of used and left-out rows. Its classes are column indices.
    """
    model = state.model
    distinct = _distinct_rows(Z)
    rows = Z[distinct]
    # False if every class has one sample. Nothing tells then which rows are novel.
    is_spread_known = state.solved.means.scatter.noise_energy() > 0.0
    if is_spread_known:
        if standard is None:
            standard = state.solved.standard
        rows = rows[_looks_known(state.solved, standard, rows, threshold)]
    others = state.pseudo_labels or PseudoLabels.none(model)
    others = others.without(model, rows)
    found = others  # if all rows look novel
    state = state.with_pseudo_labels(others)
    codes = distinct[:0]  # of no rows
    for turn in range(N_PASSES if len(rows) else 0):
        scores = finite_scores(state.class_scores(rows))
        if turn == 0 and not is_spread_known:
            divisor = COLD_TEMPERATURE * float(scores.std())
        else:
            divisor = state.temperature(temperature)
        probabilities = torch.softmax(scores / max(divisor, 1e-12), dim=1)
        largest, codes = probabilities.max(dim=1)
        weights = largest / model.counts.to(Z)[codes].sqrt()  # p / sqrt(n_c)
        if turn > 0:
            # Compare with the pseudo-labels of the first pass, too.
            blended = state.answering
            is_kept = _looks_known(blended, blended.standard, rows, None)
            rows = rows[is_kept]
            codes = codes[is_kept]
            weights = weights[is_kept]
        found = others.added(model, rows, codes, weights)
        state = state.with_pseudo_labels(found)
    classes = dict(Counter(codes.tolist()).most_common())
    report = PseudoLabelReport(
        used=len(rows),
        unknown=len(distinct) - len(rows),
        repeated=len(Z) - len(distinct),
        classes=classes,
    )
    return found, report


def _distinct_rows(Z: Tensor) -> Tensor:
    """Return the indices of the first copy of every row."""
    _, first = np.unique(row_marks(Z).cpu().numpy(), return_index=True)
    return torch.from_numpy(np.sort(first)).to(Z.device)


def _looks_known(
    solved: SolvedCache, standard: NoveltyStandard, Z: Tensor, threshold: float | None
) -> Tensor:
    """Return a mask (n,) of features Z (n, d) whose novelty is at most a threshold.

    `solved` gives the terms of novelty, which `standard` combines into one score. If
    `threshold` is None, it is the novelty that the fraction :data:`EXPECTED_REJECTS` of
    the rows of known classes is expected to exceed.
    """
    if threshold is None:
        known_novelty = standard.score(solved.expected_terms)
        threshold = float(np.quantile(known_novelty, 1.0 - EXPECTED_REJECTS))
    novelty = standard.score(solved.novelty_terms(Z).cpu().numpy())
    return torch.from_numpy(novelty <= threshold).to(Z.device)
