"""When is something unknown, and how sure is an answer? Calibration by samples that the scoring model had not learned.

Every time a model learns, it scores samples of the batch, each as if the fold of the batch that it is in had not been
learned; this is exact and takes no second model. The scores of all batches are pooled, those of younger models counting
less, and a threshold for a stated share of false alarms is a quantile of them. Terms of novelty are pooled in units of
what the statistics of the scoring model expect of known rows, so that they follow the model as it grows. The
same samples give the temperature of probabilities (of the denoised readout) and, with those of new classes before they
are learned, the weights of the terms of novelty. No sample is kept, only such scores and sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from evergrow.core.errors import InputError, NotFittedError
from evergrow.core.record import Between, require
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number
from evergrow.head.novelty import STEPS_PER_OCTAVE, TEMPERATURES
from evergrow.learner.novelty_pool import (
    KnownTerms,
    NoveltyPool,
    UnknownTerms,
    ageing_weights,
    from_units,
    term_units,
)

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier
    from evergrow.head.readout import HeldOutScores
    from evergrow.learner.learning import LabelledRows

FALSE_ALARM = 0.05
"""Share of known things that may be called unknown, unless another is asked for."""

FOLDS = 10
"""Folds of a batch, unless it is so large that they would exceed FOLD_ROWS."""

FOLD_ROWS = 500
"""Most rows of a fold: taking out more at once costs time and moves the model further."""

ENOUGH = 1000
"""Scores of a batch that suffice; further folds are not scored."""

_LARGEST_LOSS = 1e100
"""No model is that wrong; larger ones overflow when they are pooled."""

MOST_POINTS = 200
"""Scores kept of a batch; larger batches are thinned to their quantiles."""

GUESS_LOSS = 0.05
"""Loss, in nats a batch, of a temperature that is off the guess by a factor of e. It decides only where the rows do
not: on rows that are all recognised without doubt the log loss has no minimum."""


@dataclass(frozen=True)
class Scores:
    """What samples of one batch look like as if they had not been learned.

    Parameters
    ----------
    n : int
        How many samples were scored.
    size : int
        How many samples the scoring model had learned.
    points : tuple of float
        Their novelty, ascending, or as many quantiles of it.
    losses : tuple of 57 floats, optional
        Mean log loss at every temperature, where probabilities are calibrated, with a little for being off a guess.
    terms : KnownTerms, optional
        Moments of the terms of novelty, where their weights are learned.
    """

    n: int
    size: int
    points: tuple[float, ...]
    losses: tuple[Annotated[float, Between(0, _LARGEST_LOSS)], ...] | None = None
    terms: KnownTerms | None = None

    @classmethod
    def of(cls, scores: NDArray[np.float64], size: int) -> Self:
        """Return all scores of a small batch, evenly spaced order statistics of a large one."""
        ordered = np.sort(scores)
        if len(ordered) > MOST_POINTS:
            ordered = ordered[
                ((np.arange(MOST_POINTS) + 0.5) * len(ordered) / MOST_POINTS).astype(
                    np.int64
                )
            ]
        return cls(len(scores), int(size), tuple(float(score) for score in ordered))

    def check(self) -> None:
        """Raise :class:`FileFormatError` where no samples can have such scores."""
        require(
            0 < len(self.points) <= self.n,
            f"it has {len(self.points)} scores of {self.n} samples",
        )
        require(
            list(self.points) == sorted(self.points),
            "its scores are not in ascending order",
        )
        require(self.size > 0, "the scoring model had learned nothing")
        if self.losses is not None:
            require(
                len(self.losses) == len(TEMPERATURES),
                f"it has losses at {len(self.losses)} temperatures",
            )


@dataclass(frozen=True)
class Calibration:
    """Pooled scores of known things, and sums over unknown ones.

    Parameters
    ----------
    parts : tuple of Scores
        One entry per batch that was learned.
    unknown : tuple of UnknownTerms
        One entry per batch that brought new classes, where the weights of novelty are learned.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import Calibration, Scores
    >>> calibration = Calibration((Scores.of(np.arange(100.0), size=500),))
    >>> calibration.threshold(0.05)
    94.0
    """

    parts: tuple[Scores, ...] = ()
    unknown: tuple[UnknownTerms, ...] = ()

    @property
    def n(self) -> int:
        """Samples scored."""
        return sum(part.n for part in self.parts)

    def with_held_out_scores(self, found: HeldOutScores, size: int) -> Calibration:
        """Return the calibration with one more batch, as a model of so many samples sees it that has not learned it.

        Terms are in the units of that model (:func:`~evergrow.learner.novelty_pool.term_units`).
        """
        pool = self.pool()
        terms = KnownTerms.of(found.terms, size)
        novelty = (
            replace(pool, known=(*pool.known, terms)).standard().score(found.terms)
        )
        losses = None
        if found.log_losses is not None:
            losses = tuple(
                (found.log_losses + guess_losses(found.guess) / terms.n).tolist()
            )
        return replace(
            self,
            parts=(
                *self.parts,
                replace(Scores.of(novelty, size), losses=losses, terms=terms),
            ),
        )

    def pool(self) -> NoveltyPool:
        """Return what the weights of novelty are learned from."""
        return NoveltyPool(
            tuple(part.terms for part in self.parts if part.terms is not None),
            self.unknown,
        )

    def temperature(self) -> float | None:
        """Return the temperature at which samples were likeliest as if not learned; None where there are none."""
        parts = [part for part in self.parts if part.losses is not None]
        if not parts:
            return None
        numbers = [part.n for part in parts]
        weights = ageing_weights(numbers, [part.size for part in parts]) * np.array(
            numbers
        )
        return best_temperature(
            weights @ np.array([part.losses for part in parts]) / weights.sum()
        )

    def apply(self, head: IncrementalClassifier) -> None:
        """Let a head give probabilities and novelty as calibrated; nothing for heads that are not calibrated so."""
        if hasattr(head, "calibrate"):
            pool, standard = self.pool(), None
            if pool.known:
                standard = from_units(
                    pool.standard(), term_units(head.expected_terms())
                )
            head.calibrate(temperature=self.temperature(), novelty=standard)

    def merged(
        self, other: Calibration, base: Calibration | None = None
    ) -> Calibration:
        """Return both sides' parts; what both have from a common ancestor counts once."""
        common = base if base is not None else Calibration()
        parts, unknown = set(common.parts), set(common.unknown)
        return Calibration(
            (*self.parts, *(part for part in other.parts if part not in parts)),
            (*self.unknown, *(part for part in other.unknown if part not in unknown)),
        )

    def threshold(self, false_alarm: float = FALSE_ALARM) -> float:
        """Return the smallest score that at most this share of known things exceeds.

        Parameters
        ----------
        false_alarm : float
            Between 0 and 1. Shares below one by the number of scores cannot be told apart: the largest score is
            returned.

        Raises
        ------
        NotFittedError
            If there are no scores: no class ever came with two samples at once.
        """
        check_number(
            "false_alarm", false_alarm, low=0, high=1, low_open=True, high_open=True
        )
        if not self.parts:
            raise NotFittedError(
                "the novelty of known things must be calibrated first: learn at least two samples of a class at once"
            )
        points = np.concatenate([part.points for part in self.parts])
        sizes = np.array([len(part.points) for part in self.parts])
        numbers = np.array([part.n for part in self.parts])
        # Novelty changes while a model learns: scores of smaller models count less.
        ageing = ageing_weights(numbers.tolist(), [part.size for part in self.parts])
        weights = np.repeat(ageing * numbers / sizes, sizes)
        order = np.argsort(points, kind="stable")
        reached = np.cumsum(weights[order])
        # One more thing, of the latest model, is as likely in any place among the scores: it counts as one of them.
        more = (
            float(weights.max())
            if any(part.terms is not None for part in self.parts)
            else 0.0
        )
        place = int(
            np.searchsorted(
                reached, (1.0 - false_alarm) * (reached[-1] + more) * (1.0 - 1e-12)
            )
        )
        return float(points[order][min(place, len(points) - 1)])


def assign_folds(
    codes: NDArray[np.int64], counts: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Divide a batch into folds that leave something of every class.

    Parameters
    ----------
    codes : ndarray of shape (n,)
        Classes of the batch, which has been learned.
    counts : ndarray of shape (C,)
        Samples learned of each class, with the batch.
    seed : int
        Seed of the division.

    Returns
    -------
    ndarray of shape (n,)
        The fold of each row; -1 for the only sample of a class, which cannot be left out.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import assign_folds
    >>> folds = assign_folds(np.array([0] * 20 + [1]), np.array([20, 1]), seed=0)
    >>> np.bincount(folds[:20]).tolist(), int(folds[20])
    ([2, 2, 2, 2, 2, 2, 2, 2, 2, 2], -1)
    """
    number = max(FOLDS, math.ceil(len(codes) / FOLD_ROWS))
    folds = np.full(len(codes), -1, dtype=np.int64)
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        if counts[code] > 1:
            rng = np.random.default_rng(
                derive_seed(seed, "calibration", len(rows), int(code))
            )
            folds[rng.permutation(rows)] = (
                np.arange(len(rows)) + rng.integers(number)
            ) % number
    return folds


def before_new_classes(
    before: Calibration,
    head: IncrementalClassifier,
    block: LabelledRows,
    counts: Mapping[str, int],
) -> Calibration:
    """Return the calibration with what a block's new classes look like to a head that has not learned it yet.

    Parameters
    ----------
    before : Calibration
        The calibration without them.
    head : IncrementalClassifier
        Not changed.
    block : LabelledRows
        What is to be learned.
    counts : mapping of str to int
        Samples learned of each class so far.
    """
    new = np.flatnonzero(~np.isin(block.labels, list(counts)))
    if len(counts) == 1 and len(new):
        return (
            Calibration()
        )  # with one class novelty is a distance, which says nothing of it with several
    pool = before.pool()
    if (
        not counts
        or not len(new)
        or not pool.known
        or not hasattr(head, "novelty_terms")
    ):
        return before
    rows = new[np.linspace(0, len(new) - 1, min(len(new), ENOUGH)).astype(np.int64)]
    units = term_units(head.expected_terms())
    found = pool.measured(
        (head.novelty_terms(block.X[rows]) - units[0]) / units[1], sum(counts.values())
    )
    return (
        before if found is None else replace(before, unknown=(*before.unknown, found))
    )


def calibrated(
    before: Calibration,
    head: IncrementalClassifier,
    block: LabelledRows,
    counts: Mapping[str, int],
    seed: int,
) -> Calibration:
    """Return the calibration with a block that a head has just learned, and let the head answer by it.

    Parameters
    ----------
    before : Calibration
        The calibration without it.
    head : IncrementalClassifier
        One that cannot tell novelty is not calibrated.
    block : LabelledRows
        What was learned.
    counts : mapping of str to int
        Samples learned of each class, with the block.
    seed : int
        Seed of the folds.
    """
    if not hasattr(head, "novelty_score"):
        return before
    names, labels = sorted(counts), block.labels
    folds = assign_folds(
        np.searchsorted(names, labels), np.array([counts[name] for name in names]), seed
    )
    sizes = np.bincount(folds[folds >= 0], minlength=1)
    earlier = (
        np.cumsum(sizes) - sizes
    )  # rows in earlier folds; a fold is scored until there are enough
    rows = np.flatnonzero((folds >= 0) & (earlier[folds] < ENOUGH))
    if len(rows):
        weights = None if block.weights is None else block.weights[rows]
        found, expected = (
            head.held_out_scores(block.X[rows], labels[rows], folds[rows], weights),
            head.expected_terms(),
        )
        size, units = sum(counts.values()), term_units(expected)
        unscored = min(size - len(labels) - len(rows), len(expected))
        if not before.parts and unscored > 0:
            # Most of what was learned was never scored: rows as the statistics expect them stand in for the surplus.
            drawn = expected[
                np.linspace(0, len(expected) - 1, unscored).astype(np.int64)
            ]
            before = before.with_held_out_scores(
                replace(found, terms=(drawn - units[0]) / units[1], log_losses=None),
                size,
            )
        before = before.with_held_out_scores(
            replace(found, terms=(found.terms - units[0]) / units[1]), size
        )
    before.apply(head)
    return before


# -- temperatures -------------------------------------------------------------------------------------------------


def guess_losses(guess: float) -> NDArray[np.float64]:
    """Return the loss of a batch at every temperature of the grid for being off a guess."""
    return np.asarray(GUESS_LOSS * np.log(np.array(TEMPERATURES) / guess) ** 2)


def best_temperature(losses: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the temperature with the smallest loss, between the points of the grid by a parabola.

    Parameters
    ----------
    losses : sequence of 57 floats
        Loss at every temperature of the grid.

    Examples
    --------
    >>> import math
    >>> from evergrow.head.novelty import TEMPERATURES
    >>> from evergrow.learner.calibration import best_temperature
    >>> round(best_temperature([math.log(T / 3.0) ** 2 for T in TEMPERATURES]), 6)
    3.0
    """
    values = np.asarray(losses, dtype=np.float64)
    if values.shape != (len(TEMPERATURES),):
        raise InputError(
            f"losses must be {len(TEMPERATURES)} numbers, got shape {values.shape}"
        )
    place = int(values.argmin())
    if 0 < place < len(values) - 1:
        before, here, after = values[place - 1 : place + 2]
        curvature = float(before - 2.0 * here + after)
        if curvature > 0.0:
            step = 0.5 * float(before - after) / curvature
            return TEMPERATURES[place] * float(2.0 ** (step / STEPS_PER_OCTAVE))
    return TEMPERATURES[place]
