"""What a ridge head works out from its statistics and keeps until they change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from evergrow.head.denoised import Choice
from evergrow.head.linalg import ShapeScores, SolvedScatter
from evergrow.head.novelty import NoveltyScorer
from evergrow.head.novelty_pool import NoveltyStandard
from evergrow.head.novelty_terms import NoveltyTerms
from evergrow.head.readout import Readout


@dataclass
class Derived:
    """What follows from the statistics and is worked out when first asked for.

    Parameters
    ----------
    last_alpha : float or None
        The ridge that was chosen before the last change, where the next choice begins.
    settled : bool
        Whether ridge and strength were chosen for just these statistics.
    """

    last_alpha: float | None = None
    readout: Readout | None = None
    temperature: float | None = None
    novelty: NoveltyScorer | None = None
    choice: Choice | None = None
    scatter: SolvedScatter | None = None
    shapes: ShapeScores | None = None
    settled: bool = False
    spread: float | None = None
    terms: NoveltyTerms | None = None
    expected: NoveltyStandard | None = None

    def reordered(self, order: list[int]) -> Derived:
        """Return what follows from the same statistics with classes in another order; the rest is worked out anew."""
        solved, scatter = self.readout, self.scatter
        if solved is not None:
            solved = replace(solved, weights=solved.weights[:, order], offset=solved.offset[order])
        return Derived(
            last_alpha=self.last_alpha,
            readout=solved,
            temperature=self.temperature,
            choice=self.choice,
            scatter=None if scatter is None else scatter.select(order),
            settled=self.settled,
            spread=self.spread,
            expected=self.expected,
        )

    def hint(self) -> float | None:
        """Return the latest choice."""
        return self.readout.minimiser if self.readout is not None else self.last_alpha
