"""Small charts of an evaluation as SVG: how far certainty can be trusted, and how novelty tells unknown from known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 44
_BINS = 10
_NOVELTY_BINS = 32


@dataclass(frozen=True)
class ReliabilityBin:
    """Answers of about one certainty.

    Parameters
    ----------
    low, high : float
        Between which certainties.
    n : int
        How many.
    certainty, accuracy : float
        Their mean certainty, and the share of right ones; NaN where there are none.
    """

    low: float
    high: float
    n: int
    certainty: float
    accuracy: float


def reliability(certainty: Array, right: NDArray[np.bool_]) -> tuple[list[ReliabilityBin], float]:
    """Return accuracy by certainty, and the expected calibration error: their mean gap, weighted by counts.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.cli.charts import reliability
    >>> bins, gap = reliability(np.array([0.95, 0.95, 0.55, 0.55]), np.array([True, True, True, False]))
    >>> [(entry.n, entry.accuracy) for entry in bins if entry.n], round(gap, 3)
    ([(2, 0.5), (2, 1.0)], 0.05)
    """
    places = np.clip((certainty * _BINS).astype(int), 0, _BINS - 1)
    bins, gap = [], 0.0
    for place in range(_BINS):
        inside = places == place
        n = int(inside.sum())
        mean, share = (float(values[inside].mean()) if n else math.nan for values in (certainty, right))
        bins.append(ReliabilityBin(place / _BINS, (place + 1) / _BINS, n, mean, share))
        gap += abs(mean - share) * n / len(certainty) if n else 0.0
    return bins, gap


def reliability_chart(bins: Sequence[ReliabilityBin]) -> str:
    """Return the share of right answers by certainty; where all is well the bars end on the diagonal."""
    axes = _Axes((0.0, 1.0), (0.0, 1.0))
    most = max((entry.n for entry in bins), default=0)
    parts = [axes.grid((0, 0.25, 0.5, 0.75, 1), (0, 0.25, 0.5, 0.75, 1), "certainty of the answer")]
    for entry in bins:
        if entry.n:
            words = f"certainty {entry.certainty:.2f}: {100 * entry.accuracy:.1f} % of {entry.n:,} right"
            opacity = 0.35 + 0.65 * math.sqrt(entry.n / most)
            parts.append(axes.bar((entry.low, entry.high), entry.accuracy, "hit", words, opacity))
    parts.append(axes.line((0, 0), (1, 1), "rule"))
    return _svg("Reliability diagram", parts)


def novelty_chart(known: Array, strange: Array, threshold: float) -> str:
    """Return histograms of the novelty of known and of never learned samples, with the threshold between them."""
    both = np.concatenate([known, strange])
    both = both[np.isfinite(both)]
    low = float(min(np.quantile(both, 0.005), threshold)) if len(both) else threshold
    high = float(max(np.quantile(both, 0.98), threshold)) if len(both) else threshold
    margin = 0.05 * (high - low) or 1.0
    edges = np.linspace(low - margin, high + margin, _NOVELTY_BINS + 1)
    # What lies outside counts in the outermost bars; what is no number is as novel as can be.
    shares = [
        np.histogram(np.nan_to_num(values, nan=edges[-1]).clip(edges[0], edges[-1]), edges)[0] / max(len(values), 1)
        for values in (known, strange)
    ]
    top = max(float(max(share.max() for share in shares)), 1e-9)
    axes = _Axes((float(edges[0]), float(edges[-1])), (0.0, top * 1.08))
    ticks = [value for value in _ticks(float(edges[0]), float(edges[-1])) if edges[0] <= value <= edges[-1]]
    heights = [value for value in _ticks(0.0, top, 4) if value <= top * 1.08]
    parts = [axes.grid(ticks, heights, "novelty")]
    for share, kind, name in zip(shares, ("hit", "miss"), ("known", "never learned"), strict=True):
        for place in np.flatnonzero(share).tolist():
            span = float(edges[place]), float(edges[place + 1])
            words = f"{name}: {100 * share[place]:.1f} % from {span[0]:.3g} to {span[1]:.3g}"
            parts.append(axes.bar(span, float(share[place]), kind, words, 0.6))
    parts.append(axes.line((threshold, 0.0), (threshold, top * 1.08), "rule"))
    return _svg("Novelty of known and of never learned samples", parts)


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Return about so many round numbers between two."""
    rough = (high - low) / max(wanted, 1)
    step = 10.0 ** math.floor(math.log10(rough)) if rough > 0 and math.isfinite(rough) else 1.0
    step *= next((factor for factor in (1, 2, 5) if factor * step >= rough), 10)
    first = math.ceil(low / step)
    return [index * step for index in range(first, min(math.floor(high / step), first + 20) + 1)]


@dataclass(frozen=True)
class _Axes:
    """A rectangle of numbers on the canvas."""

    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        return _LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (_WIDTH - _LEFT - _RIGHT)

    def up(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self.y[0]) / (self.y[1] - self.y[0]) * (_HEIGHT - _TOP - _BOTTOM)

    def bar(self, span: tuple[float, float], height: float, kind: str, words: str, opacity: float) -> str:
        left, right, top, base = self.across(span[0]), self.across(span[1]), self.up(height), self.up(0.0)
        return (
            f'<rect class="{kind}" x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(right - left - 1, 0.5):.1f}" '
            f'height="{max(base - top, 0.5):.1f}" fill-opacity="{opacity:.2f}"><title>{words}</title></rect>'
        )

    def line(self, start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
        places = (self.across(start[0]), self.up(start[1]), self.across(end[0]), self.up(end[1]))
        return '<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'.format(kind, *places)

    def grid(self, xs: Sequence[float], ys: Sequence[float], below: str) -> str:
        parts = []
        for value in ys:
            parts.append(self.line((self.x[0], value), (self.x[1], value), "grid"))
            parts.append(f'<text x="{_LEFT - 5}" y="{self.up(value) + 4:.1f}" text-anchor="end">{_share(value)}</text>')
        for value in xs:
            place = f'x="{self.across(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}"'
            parts.append(f'<text {place} text-anchor="middle">{value:.4g}</text>')
        parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{below}</text>')
        return "\n".join(parts)


def _svg(label: str, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return "\n".join([head, *parts, "</svg>"])
