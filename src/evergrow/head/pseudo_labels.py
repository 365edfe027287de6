"""Rows without labels: what a classifier took them for, as sums of their own that can be taken out again exactly.

A row of the likeliest class c, of calibrated probability p, enters with the weight ``p
/ sqrt(n_c)`` where n_c samples of the class have labels. A guess so counts as much as a
sample where the class has one, and fades out by itself as labels come. The first pass
guesses by the labelled samples alone, the second by these and the first guesses. Rows
that look unknown are left out, to the labelled samples in the first pass, to all in the
second.

Class weights, their ridge and the weights of blocks are solved from samples and guesses
together. Counts, shapes of classes, calibration and novelty are those of samples alone.
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
from evergrow.head.linalg.statistics import RidgeStatistics
from evergrow.head.ridge_model import RidgeModel

if TYPE_CHECKING:
    from evergrow.head.classifier import Classifier
    from evergrow.head.novelty import NoveltyStandard
    from evergrow.head.readout import SolvedCache

PASSES = 2
"""Times that rows without labels are guessed; a third time changes little."""

LEFT_OUT = 0.05
"""Share of known rows that may be left out as unknown, where no calibrated threshold says so."""

COLD_SHARE = 0.2
"""Temperature of the first pass in units of the spread of all scores, where each class has one sample and nothing is
known of their spread. Chosen on species and sentences that no figure is reported on:
0.1 to 0.4 do alike."""


@dataclass(frozen=True)
class PseudoLabelReport:
    """What became of rows without labels.

    Parameters
    ----------
    used : int
        Rows that were learned as guesses.
    unknown : int
        Rows left out because they look like no class that was learned.
    repeated : int
        Rows left out because they are copies of another.
    classes : dict of label to int
        Guessed rows of each class, the most first.
    """

    used: int = 0
    unknown: int = 0
    repeated: int = 0
    classes: dict[Any, int] = field(default_factory=dict)

    def plus(self, other: PseudoLabelReport) -> PseudoLabelReport:
        """Return both together."""
        used = self.used + other.used
        unknown = self.unknown + other.unknown
        classes = dict((Counter(self.classes) + Counter(other.classes)).most_common())
        return PseudoLabelReport(used, unknown, self.repeated + other.repeated, classes)


@record("guesses")
@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Sums over guessed rows, and of each row what is needed to take it out when its label comes.

    Parameters
    ----------
    state : RidgeStatistics
        Statistics of the rows with their weights.
    marks : Tensor of shape (n,)
        Fingerprints of the rows, 8 bytes each, all different; no row can be found from
        them.
    codes : Tensor of shape (n,)
        The classes they were taken for.
    weights : Tensor of shape (n,)
        What each counts for.
    """

    state: RidgeStatistics
    marks: Annotated[Tensor, Spec(("n",), dtype="int64")]
    codes: Annotated[Tensor, Spec(("n",), dtype="int64")]
    weights: Annotated[Tensor, Spec(("n",))]

    @classmethod
    def none(cls, model: RidgeModel) -> PseudoLabels:
        """Return no guesses, for a model."""
        marks = torch.zeros(0, dtype=torch.int64, device=model.state.device)
        return cls(model.state.empty_like(), marks, marks, marks.to(torch.float64))

    def __len__(self) -> int:
        return len(self.marks)

    def as_model(self, base: RidgeModel) -> RidgeModel:
        """Return the guesses as what a model of the same layer learned."""
        counts = torch.bincount(self.codes, minlength=self.state.n_targets)
        masses = torch.bincount(
            self.codes, self.weights, minlength=self.state.n_targets
        )
        return replace(
            base, state=self.state, counts=counts, masses=masses, shapes=None
        )

    def blended(self, base: RidgeModel) -> RidgeModel:
        """Return what labelled samples and guesses say together; counts and shapes are those of samples."""
        masses = self.as_model(base).masses
        return replace(
            base, state=base.state.merge(self.state), masses=base.masses + masses
        )

    def added(
        self, base: RidgeModel, Z: Tensor, codes: Tensor, weights: Tensor
    ) -> PseudoLabels:
        """Return the guesses with rows Z, of classes ``codes``, that are not among them."""
        state = self.state.accumulate(
            base.batches(Z, codes, self.state.n_targets, weights)
        )
        return self._joined(state, PseudoLabels(state, row_marks(Z), codes, weights))

    def without(self, base: RidgeModel, Z: Tensor) -> PseudoLabels:
        """Return the guesses without those about rows Z, as if these had never been guessed."""
        marks, first = np.unique(row_marks(Z).cpu().numpy(), return_index=True)
        _, places, rows = np.intersect1d(
            self.marks.cpu().numpy(), marks, return_indices=True
        )
        if not len(places):
            return self
        if len(places) == len(self):
            return self.none(base)
        gone = torch.from_numpy(places).to(self.marks.device)
        taken = (
            Z[torch.from_numpy(first[rows]).to(Z.device)],
            self.codes[gone],
            self.state.n_targets,
        )
        state = self.state.accumulate(base.batches(*taken, self.weights[gone]), sign=-1)
        kept = torch.ones_like(self.marks, dtype=torch.bool)
        kept[gone] = False
        return self._picked(state, kept)

    def group(self, groups: Sequence[Sequence[int]]) -> PseudoLabels:
        """Return the guesses where each class is several old ones together, or none; every old one is in a group."""
        places = torch.zeros(
            self.state.n_targets, dtype=torch.int64, device=self.codes.device
        )
        for place, group in enumerate(groups):
            places[list(group)] = place
        return replace(
            self, state=self.state.group_targets(groups), codes=places[self.codes]
        )

    def keep(self, base: RidgeModel, columns: Sequence[int]) -> PseudoLabels:
        """Return the guesses of some classes; of others the spread stays, as it does of their samples."""
        places = torch.full(
            (self.state.n_targets,), -1, dtype=torch.int64, device=self.codes.device
        )
        places[list(columns)] = torch.arange(len(columns), device=places.device)
        codes = places[self.codes]
        return replace(self, codes=codes)._picked(
            self.as_model(base).keep(columns).state, codes >= 0
        )

    def faded(self, factor: float) -> PseudoLabels:
        """Return the guesses with every weight multiplied by a factor."""
        return replace(
            self, state=self.state.faded(factor), weights=factor * self.weights
        )

    def merged(
        self, other: PseudoLabels, base: PseudoLabels | None = None
    ) -> PseudoLabels:
        """Return both sides' guesses; those that both have from a common base count once.

        Raises
        ------
        MergeError
            If one side no longer has all guesses of the base, whose sums could then not
            be told apart.
        """
        state = self.state.merge(other.state)
        if not base:
            return self._joined(state, other)
        if not base._rows() <= self._rows() & other._rows():
            raise MergeError(
                "labels came for rows that were guessed before the learners parted, so their guesses cannot be "
                "told apart: call forget_unlabelled() on both and on the base, merge, and learn them again"
            )
        new = ~torch.isin(other.marks, base.marks.to(other.marks.device))
        return self._joined(
            state.merge(base.state, -1), other._picked(other.state, new)
        )

    def _rows(self) -> set[tuple[Any, ...]]:
        """Return what is known of each row."""
        return set(zip(self.marks.tolist(), self.codes.tolist(), self.weights.tolist()))

    def _joined(self, state: RidgeStatistics, other: PseudoLabels) -> PseudoLabels:
        """Return the rows of both, with the sums of both."""
        pairs = (
            (self.marks, other.marks),
            (self.codes, other.codes),
            (self.weights, other.weights),
        )
        return PseudoLabels(
            state,
            *(torch.cat([mine, theirs.to(mine.device)]) for mine, theirs in pairs),
        )

    def _picked(self, state: RidgeStatistics, kept: Tensor) -> PseudoLabels:
        """Return some of the rows, with their sums."""
        return PseudoLabels(
            state, self.marks[kept], self.codes[kept], self.weights[kept]
        )

    def check(self) -> None:
        """Raise :class:`FileFormatError` unless a file holds guesses that can be."""
        require(len(self) > 0, "it has guesses about no rows")
        require(
            bool(((self.codes >= 0) & (self.codes < self.state.n_targets)).all()),
            "a guess is of no class",
        )
        require(
            bool(((self.weights > 0.0) & (self.weights <= 1.0)).all()),
            "a guess counts for nothing or too much",
        )
        off = abs(self.state.sq_targets - float(self.weights.sum()))
        require(
            off <= 1e-6 * max(float(self.weights.sum()), 1.0),
            "the sums of its guesses are of other weights",
        )
        require(len(self) <= self.state.count, "it has more guesses than were added up")


def merge_pseudo_labels(
    sides: Sequence[PseudoLabels | None],
    groups: Sequence[Sequence[Sequence[int]]],
    model: RidgeModel,
) -> PseudoLabels | None:
    """Return the guesses of two learners, and of their base where there is one, with classes grouped as ``groups`` say.

    Parameters
    ----------
    sides : sequence of PseudoLabels or None
        Of this learner, of the other, and of what both began as.
    groups : sequence of sequences of sequences of int
        For each, the old column of every class of the merged model, none where it is
        new there.
    model : RidgeModel
        With the merged classes.
    """
    if not any(sides):
        return None
    pairs = zip(sides, groups, strict=True)
    placed = [
        PseudoLabels.none(model) if side is None else side.group(own)
        for side, own in pairs
    ]
    return placed[0].merged(*placed[1:]) or None


def row_marks(Z: Tensor) -> Tensor:
    """Return a fingerprint of every row (n,), int64."""
    rows = np.ascontiguousarray(Z.detach().cpu().numpy(), dtype=np.float32)
    digests = b"".join(
        hashlib.blake2b(row.data, digest_size=8).digest() for row in rows
    )
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64)).to(
        Z.device
    )


def pseudo_label_rows(
    head: Classifier, Z: Tensor, threshold: float | None
) -> tuple[PseudoLabels, PseudoLabelReport]:
    """Return the guesses of a classifier with those about rows Z (n, d), and what became of the rows.

    Parameters
    ----------
    head : Classifier
        A branch; it is changed.
    Z : Tensor of shape (n, d)
        Features.
    threshold : float or None
        Novelty to the labelled samples above which a row is left out; None for one that
        the statistics tell.
    """
    model = head._model
    solved = head._solved
    first = torch.from_numpy(
        np.sort(np.unique(row_marks(Z).cpu().numpy(), return_index=True)[1])
    ).to(Z.device)
    rows = Z[first]
    is_spread_known = solved.scatter()[1].noise_energy() > 0.0
    if is_spread_known:
        if head._standard is None:
            standard = solved.standard
        else:
            standard = head._standard
        rows = rows[_looks_known(solved, standard, rows, threshold)]
    rest = (
        PseudoLabels.none(model) if head._guesses is None else head._guesses
    ).without(model, rows)
    head._set_guesses(rest)
    counts = model.counts.to(Z)
    codes = first[:0]
    for turn in range(PASSES if len(rows) else 0):
        scores = torch.from_numpy(head.class_scores(rows)).to(Z)
        is_cold = not is_spread_known and not turn
        if is_cold:
            temperature = COLD_SHARE * float(scores.std())
        else:
            temperature = head.temperature_
        probabilities, codes = torch.softmax(
            scores / max(temperature, 1e-12), dim=1
        ).max(dim=1)
        weights = probabilities / counts[codes].sqrt()
        if turn:
            blend = head._answering
            kept = _looks_known(blend, blend.standard, rows, None)
            rows = rows[kept]
            codes = codes[kept]
            weights = weights[kept]
        head._set_guesses(rest.added(model, rows, codes, weights))
    classes = dict(Counter(head.classes_[codes.cpu().numpy()].tolist()).most_common())
    report = PseudoLabelReport(
        len(rows), len(first) - len(rows), len(Z) - len(first), classes
    )
    return head._guesses or rest, report


def _looks_known(
    solved: SolvedCache, standard: NoveltyStandard, Z: Tensor, threshold: float | None
) -> Tensor:
    """Return which rows (n,) are no more novel than a threshold, or than 19 of 20 known rows are expected to be."""
    if threshold is None:
        threshold = float(
            np.quantile(standard.score(solved.expected_terms), 1.0 - LEFT_OUT)
        )
    return torch.from_numpy(
        standard.score(solved.novelty_terms(Z).cpu().numpy()) <= threshold
    ).to(Z.device)
