"""Calibrate probabilities and novelty with samples that the scoring model had not learned.

Every time a model learns a batch, it scores rows of the batch as if their fold had not
been learned. This is exact and takes no second model. New classes are also measured
before they are learned. The temperature of probabilities, the weights of the novelty
terms and the threshold for a stated share of false alarms are computed from these rows.
Terms are kept in units of what the statistics of the scoring model expect of known
rows, so that they stay comparable while the model grows.

No sample is kept. A held-out row consists of six terms, log losses, its class and a
mark: four fixed random projections of its feature vector. The mark finds the row again
when its sample is unlearned, and is then removed with it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import InputError, NotFittedError
from evergrow.core.record import Between, Spec, record, require
from evergrow.core.seeding import derive_seed
from evergrow.core.validation import check_number
from evergrow.head.novelty import N_COLUMNS, STEPS_PER_OCTAVE, TEMPERATURES
from evergrow.learner.novelty_pool import (
    LARGEST_TERM,
    NoveltyPool,
    UnknownRows,
    ageing_weights,
    from_units,
    term_units,
    to_units,
)

if TYPE_CHECKING:
    from evergrow.head.base import IncrementalClassifier
    from evergrow.head.readout import HeldOutScores
    from evergrow.learner.learning import LabelledRows

FALSE_ALARM = 0.05
"""Default share of known things that may be called unknown."""

FOLDS = 10
"""Folds of a batch, unless it is so large that they would exceed FOLD_ROWS."""

FOLD_ROWS = 500
"""Most rows of a fold: taking out more costs time and moves the model further."""

ENOUGH = 1000
"""Scores of a batch that suffice; further folds are not scored."""

MOST_EXPECTED = 256
"""Most rows drawn from the statistics in place of samples that were never scored."""

GUESS_LOSS = 0.05
"""Loss, in nats a batch, of a temperature that is off the guess by a factor of e. It
decides only where rows do not: if all rows are recognised without doubt, the log loss
has no minimum."""

EASY_CLASS = 2.0
"""How fast the weight of a class in the threshold falls with the mean novelty of its
held-out rows below that of other classes."""

MARK_LENGTH = 4
"""Random projections that identify a row."""

MARK_TOLERANCE = 1e-4
"""Largest difference of the marks of one sample, in units of its length. Features of
one image differ by about 1e-6 if it passes a network in another batch."""

_LARGEST_LOSS = 1e30
"""Bound of stored losses; larger ones overflow when they are pooled."""


@dataclass(frozen=True)
class Measurement:
    """How the rows of one batch were measured.

    Parameters
    ----------
    size : int
        Samples that the measuring model had learned.
    n_classes : int
        Classes that it knew.
    guess : float
        Temperature that its statistics suggested.
    expected : int
        Rows drawn from the statistics that stand in for samples never scored.
    """

    size: Annotated[int, Between(1, 2**53)]
    n_classes: Annotated[int, Between(1, 2**53)]
    guess: Annotated[float, Between(1e-12, 1e12)] = 1.0
    expected: Annotated[int, Between(0, MOST_EXPECTED)] = 0


@record("held-out-rows")
@dataclass(frozen=True, eq=False)
class Rows:
    """Rows measured by models that had not learned them.

    Parameters
    ----------
    measurement : ndarray of shape (n,)
        The measurement of each row, by index.
    codes : ndarray of shape (n,)
        Its class, as an index into the names of the calibration.
    marks : ndarray of shape (n, 4)
        Random projections of its features; see :func:`sample_marks`.
    terms : ndarray of shape (n, 6)
        Terms of novelty in units of the measuring model, and 1 / count of the nearest
        class.
    losses : ndarray of shape (n, 29), optional
        Log loss at every temperature of the grid, if probabilities are calibrated.
    """

    measurement: Annotated[NDArray[np.int64], Spec(("n",), dtype="int64")]
    codes: Annotated[NDArray[np.int64], Spec(("n",), dtype="int64")]
    marks: Annotated[NDArray[np.float32], Spec(("n", MARK_LENGTH), dtype="float32")]
    terms: Annotated[NDArray[np.float64], Spec(("n", N_COLUMNS), largest=LARGEST_TERM)]
    losses: (
        Annotated[
            NDArray[np.float32],
            Spec(("n", len(TEMPERATURES)), dtype="float32", largest=_LARGEST_LOSS),
        ]
        | None
    ) = None

    @classmethod
    def none(cls) -> Rows:
        """Return a table without rows."""
        return cls(
            np.empty(0, dtype=np.int64),
            np.empty(0, dtype=np.int64),
            np.empty((0, MARK_LENGTH), dtype=np.float32),
            np.empty((0, N_COLUMNS)),
        )

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: NDArray[np.bool_]) -> Rows:
        """Return the rows of a mask."""
        return Rows(
            self.measurement[rows],
            self.codes[rows],
            self.marks[rows],
            self.terms[rows],
            None if self.losses is None else self.losses[rows],
        )

    def joined(self, other: Rows) -> Rows:
        """Return the rows of both tables."""
        if not len(self):
            return other
        if not len(other):
            return self
        losses = None
        if self.losses is not None or other.losses is not None:
            # A loss that is the same at all temperatures decides nothing.
            parts = [
                np.zeros((len(part), len(TEMPERATURES)), dtype=np.float32)
                if part.losses is None
                else part.losses
                for part in (self, other)
            ]
            losses = np.concatenate(parts)
        return Rows(
            np.concatenate([self.measurement, other.measurement]),
            np.concatenate([self.codes, other.codes]),
            np.concatenate([self.marks, other.marks]),
            np.concatenate([self.terms, other.terms]),
            losses,
        )

    def digest(self, measurement: int) -> str:
        """Return a checksum of the rows of one measurement."""
        rows = self.take(self.measurement == measurement)
        found = hashlib.blake2b(rows.marks.tobytes(), digest_size=12)
        found.update(rows.terms.tobytes())
        return found.hexdigest()


@record("calibration")
@dataclass(frozen=True, eq=False)
class Calibration:
    """Held-out rows of known classes, and rows of new classes before they were learned.

    Parameters
    ----------
    measurements : tuple of Measurement
        How the rows were measured, in the order of learning.
    classes : tuple of str
        Names of the classes of rows.
    known : Rows
        Rows scored as if their fold had not been learned.
    unknown : Rows
        Rows of new classes, measured before they were learned.
    expected : ndarray of shape (m, 6)
        Terms that stand in for samples that were never scored, as the statistics of the
        present model expect them.
    n_classes : int
        Classes that the model knows. Novelty of a single class is a plain distance, so
        rows measured with one class and with several are never used together.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow import Learner
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(400) % 4
    >>> X = rng.normal(size=(400, 6)) + 4 * np.eye(6)[y]
    >>> learner = Learner(None, options={"n_units": 20}).fit(X[:300], y[:300])
    >>> learner.state_.describe()["novelty"]["calibrated_on"]
    300
    >>> bool(learner.is_unknown(X[300:]).mean() < 0.2)
    True
    """

    measurements: tuple[Measurement, ...] = ()
    classes: tuple[str, ...] = ()
    known: Rows = field(default_factory=Rows.none)
    unknown: Rows = field(default_factory=Rows.none)
    expected: Annotated[
        NDArray[np.float64], Spec((None, N_COLUMNS), largest=LARGEST_TERM)
    ] = field(default_factory=lambda: np.empty((0, N_COLUMNS)))
    n_classes: int = 0

    def check(self) -> None:
        """Raise :class:`FileFormatError` if the tables do not fit each other."""
        for name, rows in (("known", self.known), ("unknown", self.unknown)):
            for column, least_above in (
                (rows.measurement, len(self.measurements)),
                (rows.codes, len(self.classes)),
            ):
                fits = not len(column) or (
                    column.min() >= 0 and column.max() < least_above
                )
                require(fits, f"its {name} rows are of no measurement or class")
        require(
            len(self.expected) <= MOST_EXPECTED,
            f"it has {len(self.expected)} rows that were drawn from statistics",
        )

    # -- results ----------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of held-out rows in use."""
        return int(self._in_use.sum())

    @property
    def n_rows(self) -> int:
        """Number of all rows, in use or not."""
        return len(self.known) + len(self.unknown)

    @cached_property
    def _in_use(self) -> NDArray[np.bool_]:
        """Mask of the known rows that were measured with as many classes as needed."""
        is_single = np.array([m.n_classes == 1 for m in self.measurements], dtype=bool)
        return np.asarray(is_single[self.known.measurement] == (self.n_classes == 1))

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        """Weight of each known row in use; rows of smaller models count less."""
        used = self.known.measurement[self._in_use]
        found, numbers = np.unique(used, return_counts=True)
        if not len(found):
            return np.empty(0)
        entries = [self.measurements[index] for index in found.tolist()]
        rows = [
            number + entry.expected
            for number, entry in zip(numbers.tolist(), entries, strict=True)
        ]
        ageing = ageing_weights(rows, [entry.size for entry in entries])
        return np.asarray(ageing[np.searchsorted(found, used)])

    @cached_property
    def _n_expected(self) -> int:
        """Rows drawn from the statistics that are needed."""
        used = np.unique(self.known.measurement[self._in_use]).tolist()
        wanted: int = sum(self.measurements[index].expected for index in used)
        return min(wanted, MOST_EXPECTED)

    @cached_property
    def _terms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Terms of known rows and of rows that stand in, and their weights."""
        weights = self._weights
        drawn = self.expected[: self._n_expected]
        # Rows that stand in count as much as the oldest rows do.
        share = 1.0
        if len(weights):
            share = float(weights.min())
        terms = np.concatenate([self.known.terms[self._in_use], drawn])
        return terms, np.concatenate([weights, np.full(len(drawn), share)])

    @cached_property
    def pool(self) -> NoveltyPool:
        """Terms from which the novelty score is computed."""
        terms, weights = self._terms
        unknown = []
        if self.n_classes != 1:
            for index in np.unique(self.unknown.measurement).tolist():
                rows = self.unknown.terms[self.unknown.measurement == index]
                unknown.append(UnknownRows(self.measurements[index].size, rows))
        # Rows that stand in belong to no class: each is one of its own.
        drawn = len(self.classes) + np.arange(len(terms) - self.n)
        classes = np.concatenate([self.known.codes[self._in_use], drawn])
        return NoveltyPool(terms, weights / weights.sum(), tuple(unknown), classes)

    @cached_property
    def _scores(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Novelty of known rows by the present score, ascending, and their weights."""
        terms, weights = self._terms
        scores = self.pool.standard().score(terms)
        measured = slice(0, self.n)
        weights = weights.copy()
        weights[measured] *= class_shares(
            scores[measured], self.known.codes[self._in_use], weights[measured]
        )
        order = np.argsort(scores, kind="stable")
        return scores[order], weights[order]

    @property
    def scores(self) -> NDArray[np.float64]:
        """Novelty of known rows by the present score, ascending."""
        if self.n:
            return self._scores[0]
        return np.empty(0)

    def temperature(self) -> float | None:
        """Return the temperature at which held-out rows are likeliest; None without."""
        if self.known.losses is None or not self.n:
            return None
        total = self._weights @ self.known.losses[self._in_use].astype(np.float64)
        used = self.known.measurement[self._in_use]
        for index in np.unique(used).tolist():
            weight = self._weights[used == index][0]
            total = total + weight * guess_losses(self.measurements[index].guess)
        return best_temperature(total / self._weights.sum())

    def threshold(self, false_alarm: float = FALSE_ALARM) -> float:
        """Return the smallest score that at most this share of known things exceeds.

        Parameters
        ----------
        false_alarm : float
            Between 0 and 1. Shares below one by the number of scores cannot be told
            apart: the largest score is returned.

        Raises
        ------
        NotFittedError
            If there are no scores: no class ever came with two samples at once.
        """
        check_number(
            "false_alarm", false_alarm, low=0, high=1, low_open=True, high_open=True
        )
        if not self.n:
            raise NotFittedError(
                "the novelty of known things must be calibrated first: learn at least "
                "two samples of a class at once"
            )
        scores, weights = self._scores
        reached = np.cumsum(weights)
        # One more thing, of the latest model, is as likely in any place among the
        # scores: it counts as one of them.
        total = reached[-1] + weights.max()
        wanted = (1.0 - false_alarm) * total * (1.0 - 1e-12)
        place = int(np.searchsorted(reached, wanted))
        return float(scores[min(place, len(scores) - 1)])

    def applied(self, head: IncrementalClassifier) -> Calibration:
        """Calibrate a head, and return the calibration of its present statistics.

        Nothing happens for heads that are not calibrated this way.

        Parameters
        ----------
        head : IncrementalClassifier
            Its probabilities and novelty are calibrated in place.
        """
        if not hasattr(head, "calibrate"):
            return self
        after = replace(self, n_classes=len(head.classes_))
        if not after.n:
            head.calibrate(temperature=None, novelty=None)
            return after
        found = head.expected_terms()
        units = term_units(found)
        spots = np.linspace(0, len(found) - 1, after._n_expected).astype(np.int64)
        after = replace(after, expected=to_units(found[spots], units))
        head.calibrate(
            temperature=after.temperature(),
            novelty=from_units(after.pool.standard(), units),
        )
        return after

    # -- changes ----------------------------------------------------------------------

    def with_rows(
        self,
        X: NDArray[np.floating],
        labels: NDArray[np.str_],
        measurement: Measurement,
        terms: NDArray[np.float64],
        losses: NDArray[np.float64] | None = None,
        *,
        known: bool,
    ) -> Calibration:
        """Return the calibration with one more measurement.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Features of the rows.
        labels : ndarray of shape (n,)
            Their classes.
        measurement : Measurement
            How they were measured.
        terms : ndarray of shape (n, 6)
            Their terms, in units of the measuring model.
        losses : ndarray of shape (n, 29), optional
            Their log losses.
        known : bool
            Whether the class was learned, without the fold of the row.
        """
        classes = tuple(dict.fromkeys([*self.classes, *np.unique(labels).tolist()]))
        places = {name: place for place, name in enumerate(classes)}
        kept = None
        if losses is not None:
            bounded = np.nan_to_num(losses, nan=_LARGEST_LOSS, posinf=_LARGEST_LOSS)
            kept = np.minimum(bounded, 0.99 * _LARGEST_LOSS).astype(np.float32)
        rows = Rows(
            np.full(len(labels), len(self.measurements), dtype=np.int64),
            np.array([places[name] for name in labels.tolist()], dtype=np.int64),
            sample_marks(X),
            terms,
            kept,
        )
        after = replace(
            self, measurements=(*self.measurements, measurement), classes=classes
        )
        if known:
            return replace(after, known=self.known.joined(rows))
        return replace(after, unknown=self.unknown.joined(rows))

    def without_samples(
        self,
        X: NDArray[np.floating],
        labels: NDArray[np.str_],
        counts: Mapping[str, int],
    ) -> tuple[Calibration, int]:
        """Return the calibration without the rows of some samples.

        No class keeps more rows than samples: if a mark is not found although all
        samples of the class have rows, the nearest row is removed.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Features of the samples.
        labels : ndarray of shape (n,)
            Their classes.
        counts : mapping of str to int
            Samples of each class that remain.

        Returns
        -------
        calibration : Calibration
            Without any row of the samples.
        influenced : int
            Largest number of remaining rows that were measured while one of the samples
            was learned. They cannot be measured again without their own samples.
        """
        if not self.measurements or not len(labels):
            return self, 0
        marks = sample_marks(X)
        lengths = np.linalg.norm(bounded_features(X), axis=1)
        within = MARK_TOLERANCE * lengths / math.sqrt(X.shape[1])
        places = {name: place for place, name in enumerate(self.classes)}
        codes = np.array([places.get(name, -1) for name in labels.tolist()])
        left = np.array([counts.get(name, 0) for name in self.classes], dtype=np.int64)
        known = matching_rows(self.known, marks, codes, within, left)
        unknown = matching_rows(self.unknown, marks, codes, within, left)
        # A sample was in the model from the measurement on in which its class was
        # learned. Without a row of it, this may have been the first.
        first = np.zeros(len(labels), dtype=np.int64)
        has_unknown = unknown >= 0
        first[has_unknown] = self.unknown.measurement[unknown[has_unknown]] + 1
        has_known = known >= 0
        first[has_known] = self.known.measurement[known[has_known]]
        is_kept = np.ones(len(self.known), dtype=bool)
        is_kept[known[has_known]] = False
        is_left = np.ones(len(self.unknown), dtype=bool)
        is_left[unknown[has_unknown]] = False
        influenced = int((self.known.measurement[is_kept] >= first.min()).sum())
        influenced += int((self.unknown.measurement[is_left] >= first.min()).sum())
        return self._with_kept(is_kept, is_left), influenced

    def without_classes(self, names: Collection[str]) -> Calibration:
        """Return the calibration without the rows of whole classes."""
        gone = np.array([name in names for name in self.classes], dtype=bool)
        if not gone.any():
            return self
        return self._with_kept(~gone[self.known.codes], ~gone[self.unknown.codes])

    def renamed(self, names: Mapping[str, str]) -> Calibration:
        """Return the calibration with other names of classes; two may become one."""
        given = [names.get(name, name) for name in self.classes]
        classes = tuple(dict.fromkeys(given))
        if classes == self.classes:
            return self
        codes = np.array([classes.index(name) for name in given], dtype=np.int64)
        return replace(
            self,
            classes=classes,
            known=replace(self.known, codes=codes[self.known.codes]),
            unknown=replace(self.unknown, codes=codes[self.unknown.codes]),
        )

    def merged(
        self, other: Calibration, base: Calibration | None = None
    ) -> Calibration:
        """Return the rows of both; rows of a common ancestor count once."""
        if base is None:
            common = set()
        else:
            common = set(base._digests())
        classes = tuple(dict.fromkeys([*self.classes, *other.classes]))
        codes = np.array([classes.index(name) for name in other.classes], dtype=int)
        is_new = np.array([name not in common for name in other._digests()], dtype=bool)
        places = len(self.measurements) + np.cumsum(is_new) - 1
        entries = zip(other.measurements, is_new.tolist(), strict=True)
        added = tuple(entry for entry, new in entries if new)
        tables = []
        for mine, theirs in ((self.known, other.known), (self.unknown, other.unknown)):
            rows = theirs.take(is_new[theirs.measurement])
            rows = replace(
                rows,
                measurement=places[rows.measurement].astype(np.int64),
                codes=codes[rows.codes].astype(np.int64),
            )
            tables.append(mine.joined(rows))
        return replace(
            self,
            measurements=(*self.measurements, *added),
            classes=classes,
            known=tables[0],
            unknown=tables[1],
        )

    def _digests(self) -> list[str]:
        """Return a checksum of every measurement."""
        return [
            f"{entry.size} {self.known.digest(index)} {self.unknown.digest(index)}"
            for index, entry in enumerate(self.measurements)
        ]

    def _with_kept(
        self, known: NDArray[np.bool_], unknown: NDArray[np.bool_]
    ) -> Calibration:
        """Return the rows of two masks, without measurements and names not used."""
        tables = [self.known.take(known), self.unknown.take(unknown)]
        used = np.unique(np.concatenate([rows.measurement for rows in tables]))
        named = np.unique(np.concatenate([rows.codes for rows in tables]))
        tables = [
            replace(
                rows,
                measurement=np.searchsorted(used, rows.measurement),
                codes=np.searchsorted(named, rows.codes),
            )
            for rows in tables
        ]
        return replace(
            self,
            measurements=tuple(self.measurements[index] for index in used.tolist()),
            classes=tuple(self.classes[code] for code in named.tolist()),
            known=tables[0] if len(tables[0]) else Rows.none(),
            unknown=tables[1] if len(tables[1]) else Rows.none(),
        )


def class_shares(
    scores: NDArray[np.float64],
    codes: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the weight of each held-out row in the threshold, by its class.

    A class of another kind, whose rows all look more familiar than those of the others,
    would loosen the threshold for them. Its rows count less. Class means are shrunk by
    their noise. If classes differ, the threshold leans towards the harder ones.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        Novelty of rows.
    codes : ndarray of shape (n,)
        Their classes.
    weights : ndarray of shape (n,)
        Their weights otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import class_shares
    >>> scores = np.random.default_rng(0).normal(size=90)
    >>> scores[80:] -= 6.0
    >>> codes = np.arange(90) // 10
    >>> shares = class_shares(scores, codes, np.ones(90))
    >>> bool(shares[:80].mean() > 0.7), bool(shares[80] < 0.01)
    (True, True)
    """
    _, codes = np.unique(codes, return_inverse=True)
    totals = np.bincount(codes, weights)
    levels = np.bincount(codes, weights * scores) / totals
    effective = totals**2 / np.bincount(codes, weights**2)
    freedom = max(len(codes) - len(totals), 1)
    within = float(((scores - levels[codes]) ** 2).sum()) / freedom
    noise = max(within, 1e-12) / effective
    between = max(float(np.var(levels) - noise.mean()), 0.0)
    shrunk = (levels - np.median(levels)) * between / (between + noise)
    return np.asarray(np.exp(EASY_CLASS * np.minimum(shrunk, 0.0))[codes])


# -- marks of samples -----------------------------------------------------------------


def sample_marks(X: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return random projections (n, 4) of rows, the same in every model.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Features.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import sample_marks
    >>> X = np.random.default_rng(0).normal(size=(3, 50))
    >>> bool(np.allclose(sample_marks(X)[1], sample_marks(X[1:2])[0], atol=1e-6))
    True
    """
    rows = bounded_features(X)
    source = np.random.default_rng(derive_seed(0, "marks", rows.shape[1]))
    directions = source.normal(size=(rows.shape[1], MARK_LENGTH))
    marks = rows @ directions / math.sqrt(rows.shape[1])
    largest = float(np.finfo(np.float32).max)
    return np.asarray(np.clip(marks, -largest, largest), dtype=np.float32)


def bounded_features(X: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return features as float64 with the precision and the range of float32."""
    largest = float(np.finfo(np.float32).max)
    bounded = np.clip(X, -largest, largest).astype(np.float32)
    return np.asarray(bounded, dtype=np.float64)


def matching_rows(
    rows: Rows,
    marks: NDArray[np.float32],
    codes: NDArray[np.int64],
    within: NDArray[np.float64],
    left: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the row of each sample, or -1; no row is returned twice.

    Of several rows of one sample the one measured last is returned first. If more rows
    of a class than ``left`` would remain, the nearest ones are returned too.

    Parameters
    ----------
    rows : Rows
        Rows to search.
    marks : ndarray of shape (n, 4)
        Marks of the samples.
    codes : ndarray of shape (n,)
        Their classes; -1 for a class without rows.
    within : ndarray of shape (n,)
        Largest difference of marks of the same sample.
    left : ndarray of shape (C,)
        Samples of each class that remain.
    """
    from scipy.spatial import cKDTree

    found = np.full(len(marks), -1, dtype=np.int64)
    for code in np.unique(codes[codes >= 0]).tolist():
        places = np.flatnonzero(rows.codes == code)
        if not len(places):
            continue
        # The latest rows come first.
        places = places[np.argsort(-rows.measurement[places], kind="stable")]
        stored = rows.marks[places].astype(np.float64)
        tree = cKDTree(stored)
        is_free = np.ones(len(places), dtype=bool)
        samples = np.flatnonzero(codes == code)
        wanted, copies = np.unique(marks[samples], axis=0, return_inverse=True)
        copies = copies.reshape(-1)
        for copy, mark in enumerate(wanted.astype(np.float64)):
            mine = samples[copies == copy]
            radius = float(within[mine].max()) + 1e-30
            near = np.array(tree.query_ball_point(mark, radius, p=np.inf), dtype=int)
            near = np.sort(near[is_free[near]])
            gaps = np.abs(stored[near] - mark).max(axis=1)
            near = near[np.argsort(gaps, kind="stable")][: len(mine)]
            is_free[near] = False
            found[mine[: len(near)]] = places[near]
        # Features that differ by more than rounding: no class keeps too many rows.
        for sample in samples[found[samples] < 0].tolist():
            if int(is_free.sum()) <= left[code]:
                break
            free = np.flatnonzero(is_free)
            gaps = np.abs(stored[free] - marks[sample]).max(axis=1)
            nearest = int(free[int(gaps.argmin())])
            is_free[nearest] = False
            found[sample] = places[nearest]
    return found


def row_keys(X: NDArray[np.floating], seed: int) -> NDArray[np.uint64]:
    """Return a pseudo-random number for each row that depends on its features only.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Features.
    seed : int
        Other seeds give other numbers.
    """
    start = hashlib.blake2b(str(seed).encode(), digest_size=8)
    keys = np.empty(len(X), dtype=np.uint64)
    for place, row in enumerate(bounded_features(X).astype(np.float32)):
        found = start.copy()
        found.update(row.data)
        keys[place] = int.from_bytes(found.digest(), "little")
    return keys


def assign_folds(
    codes: NDArray[np.int64], counts: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Divide a batch into folds that leave something of every class.

    The order of the rows does not matter.

    Parameters
    ----------
    codes : ndarray of shape (n,)
        Classes of the batch, which has been learned.
    counts : ndarray of shape (C,)
        Samples learned of each class, with the batch.
    keys : ndarray of shape (n,)
        From :func:`row_keys`.

    Returns
    -------
    ndarray of shape (n,)
        The fold of each row; -1 for the only sample of a class, which cannot be left
        out.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.calibration import assign_folds, row_keys
    >>> keys = row_keys(np.arange(21.0)[:, None], seed=0)
    >>> folds = assign_folds(np.array([0] * 20 + [1]), np.array([20, 1]), keys)
    >>> np.bincount(folds[:20]).tolist(), int(folds[20])
    ([2, 2, 2, 2, 2, 2, 2, 2, 2, 2], -1)
    """
    number = max(FOLDS, math.ceil(len(codes) / FOLD_ROWS))
    folds = np.full(len(codes), -1, dtype=np.int64)
    for code in np.unique(codes):
        rows = np.flatnonzero(codes == code)
        if counts[code] > 1:
            order = rows[np.argsort(keys[rows], kind="stable")]
            offset = int(keys[order[0]] % np.uint64(number))
            folds[order] = (np.arange(len(rows)) + offset) % number
    return folds


# -- measuring ------------------------------------------------------------------------


def before_new_classes(
    before: Calibration,
    head: IncrementalClassifier,
    block: LabelledRows,
    counts: Mapping[str, int],
    seed: int = 0,
) -> Calibration:
    """Measure the rows of new classes with a head that has not learned them yet.

    Parameters
    ----------
    before : Calibration
        The calibration without them.
    head : IncrementalClassifier
        Not changed.
    block : LabelledRows
        Samples that will be learned.
    counts : mapping of str to int
        Samples learned of each class so far.
    seed : int
        Seed of the choice of rows.

    Returns
    -------
    Calibration
        The same one if a single class is known, since its novelty is a plain distance.
    """
    new = np.flatnonzero(~np.isin(block.labels, list(counts)))
    known = replace(before, n_classes=len(counts))
    if len(counts) < 2 or not len(new) or not known.n:
        return before
    if not hasattr(head, "novelty_terms"):
        return before
    keys = row_keys(block.X[new], seed)
    rows = np.sort(new[np.argsort(keys, kind="stable")[:ENOUGH]])
    units = term_units(head.expected_terms())
    terms = to_units(head.novelty_terms(block.X[rows]), units)
    measurement = Measurement(sum(counts.values()), len(counts))
    return before.with_rows(
        block.X[rows], block.labels[rows], measurement, terms, known=False
    )


def calibrated(
    before: Calibration,
    head: IncrementalClassifier,
    block: LabelledRows,
    counts: Mapping[str, int],
    seed: int,
) -> Calibration:
    """Measure rows of a block that a head has just learned, and calibrate the head.

    Parameters
    ----------
    before : Calibration
        The calibration without the block.
    head : IncrementalClassifier
        A head without novelty is not calibrated.
    block : LabelledRows
        Samples that were learned.
    counts : mapping of str to int
        Samples learned of each class, with the block.
    seed : int
        Seed of the folds.
    """
    if not hasattr(head, "novelty_score"):
        return before
    names = sorted(counts)
    labels = block.labels
    codes = np.searchsorted(names, labels)
    totals = np.array([counts[name] for name in names])
    folds = assign_folds(codes, totals, row_keys(block.X, seed))
    sizes = np.bincount(folds[folds >= 0], minlength=1)
    # Folds are scored until there are enough rows.
    rows_before = np.cumsum(sizes) - sizes
    rows = np.flatnonzero((folds >= 0) & (rows_before[folds] < ENOUGH))
    if not len(rows):
        return before.applied(head)
    if block.weights is None:
        weights = None
    else:
        weights = block.weights[rows]
    found: HeldOutScores = head.held_out_scores(
        block.X[rows], labels[rows], folds[rows], weights
    )
    size = sum(counts.values())
    # If most samples were never scored, rows drawn from the statistics stand in.
    unscored = 0
    if not replace(before, n_classes=len(counts)).n:
        unscored = min(max(size - len(labels) - len(rows), 0), MOST_EXPECTED)
    measurement = Measurement(
        size, len(counts), float(np.clip(found.guess, 1e-12, 1e12)), unscored
    )
    after = before.with_rows(
        block.X[rows],
        labels[rows],
        measurement,
        to_units(found.terms, term_units(head.expected_terms())),
        found.losses,
        known=True,
    )
    return after.applied(head)


# -- temperatures ---------------------------------------------------------------------


def guess_losses(guess: float) -> NDArray[np.float64]:
    """Return the loss of a batch at every temperature for being off a guess."""
    return np.asarray(GUESS_LOSS * np.log(np.array(TEMPERATURES) / guess) ** 2)


def best_temperature(losses: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the temperature of the smallest loss, between grid points by a parabola.

    Parameters
    ----------
    losses : sequence of 29 floats
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
