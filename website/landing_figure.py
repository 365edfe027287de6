"""The figure of the first page, drawn from the committed records: ``python -m website.landing_figure`` writes it.

Above, what happens to a batch; below, accuracy on all classes so far while 200 species of birds arrive ten at a time, mean of
the class orders in ``experiments/records/recommended``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "experiments" / "records" / "recommended"
FIGURE = ROOT / "docs" / "landing.svg"

WIDTH, HEIGHT = 620, 500
LEFT, RIGHT, TOP, BOTTOM = 46, 408, 205, 455
CLASSES = 10
LOWEST, HIGHEST = 0.60, 1.00
GAP = 19
"""Distance between two names beside the curves."""


@dataclass(frozen=True)
class Curve:
    """A method of the records, by its label there, and how it is drawn."""

    label: str
    name: str
    colour: str
    width: float = 1.8
    dash: str = ""


CURVES = (
    Curve("Recommended, 3000 units", "evergrow", "#00796b", width=3.2),
    Curve("AnaCP", "AnaCP", "#8e4a9e"),
    Curve("RanPAC", "RanPAC", "#b8500b"),
    Curve("Joint linear probe", "joint linear probe", "#5b636d", dash="5 4"),
    Curve("SimpleCIL", "nearest class mean", "#0b62a4"),
)


def accuracy_curves() -> dict[str, list[float]]:
    """Return accuracy after every task, mean over seeds, by the label of the method."""
    runs: dict[str, list[list[float]]] = {}
    for path in sorted(RECORDS.glob("*--cub200_efficientnet_lite0--*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        runs.setdefault(record["label"], []).append(record["results"]["by_samples"])
    return {label: [sum(task) / len(task) for task in zip(*found)] for label, found in runs.items()}


def draw() -> str:
    """Return the figure as SVG."""
    found = accuracy_curves()
    curves = {curve: found[curve.label] for curve in CURVES}
    last = {curve: values[-1] for curve, values in curves.items()}
    told = "; ".join(f"{curve.name} {value:.1%}" for curve, value in last.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d" '
        'font-family="system-ui, sans-serif" font-size="15" fill="#1f2328">',
        '<title id="t">Classes arrive, sums grow, samples are let go</title>',
        f'<desc id="d">Accuracy on 200 species of birds after they arrived ten at a time: {told}.</desc>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_pipeline(),
        *_axes(),
        *(_line(curve, values) for curve, values in reversed(curves.items())),
        *_names(last),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(x: float, width: float, head: str, small: str, style: str) -> list[str]:
    middle = x + width / 2
    return [
        f'<rect x="{x}" y="22" width="{width}" height="72" rx="8" {style} stroke-width="1.5"/>',
        f'<text x="{middle}" y="54" text-anchor="middle" font-weight="600">{head}</text>',
        f'<text x="{middle}" y="76" text-anchor="middle" font-size="13">{small}</text>',
    ]


def _pipeline() -> list[str]:
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#444c56"/></marker></defs>'
    ]
    for shift in (10, 5):  # the batches that wait behind the first
        parts.append(
            f'<rect x="{12 + shift}" y="{22 - shift}" width="110" height="72" rx="8" fill="#ffffff" stroke="#9aa0a6"/>'
        )
    parts += _box(12, 110, "new classes", "in batches", 'fill="#ffffff" stroke="#444c56"')
    parts += _box(170, 122, "network", "frozen", 'fill="#e8f1fb" stroke="#0b62a4"')
    parts += _box(334, 122, "sums", "are kept", 'fill="#e0f2ef" stroke="#00796b"')
    parts += _box(498, 112, "answers", "on all so far", 'fill="#ffffff" stroke="#444c56"')
    for start, end in ((134, 168), (294, 332), (458, 496)):
        parts.append(f'<path d="M{start} 58H{end}" stroke="#444c56" stroke-width="1.5" marker-end="url(#tip)"/>')
    parts += [
        '<path d="M231 96V122" stroke="#444c56" stroke-width="1.4" stroke-dasharray="4 3" marker-end="url(#tip)"/>',
        '<text x="231" y="140" text-anchor="middle" font-size="13" fill="#5b636d">samples are let go</text>',
        f'<text x="{LEFT}" y="176" font-weight="600">200 species of birds, ten at a time: accuracy on all so far</text>',
    ]
    return parts


def _x(classes: float) -> float:
    return round(LEFT + (classes - CLASSES) / (200 - CLASSES) * (RIGHT - LEFT), 1)


def _y(accuracy: float) -> float:
    return round(BOTTOM - (accuracy - LOWEST) / (HIGHEST - LOWEST) * (BOTTOM - TOP), 1)


def _axes() -> list[str]:
    parts = []
    for percent in range(60, 101, 10):
        y = _y(percent / 100)
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="#d8dee4"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 5}" text-anchor="end" font-size="13">{percent}</text>')
    for classes in (10, 50, 100, 150, 200):
        parts.append(f'<text x="{_x(classes)}" y="{BOTTOM + 20}" text-anchor="middle" font-size="13">{classes}</text>')
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 40}" text-anchor="middle" font-size="13">classes so far</text>')
    return [*parts, f'<text x="{LEFT - 8}" y="{TOP - 10}" text-anchor="end" font-size="13">%</text>']


def _line(curve: Curve, values: list[float]) -> str:
    points = " ".join(f"{_x(CLASSES * task)},{_y(value)}" for task, value in enumerate(values, 1))
    dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
    return f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="{curve.width}"{dash}/>'


def _names(last: dict[Curve, float]) -> list[str]:
    """Return the names beside the ends of the curves, evenly spaced in the order of accuracy."""
    parts = []
    highest = _y(sum(last.values()) / len(last)) - GAP * (len(last) - 1) / 2
    for place, curve in enumerate(sorted(last, key=lambda curve: -last[curve])):
        y = round(highest + GAP * place, 1)
        bold = ' font-weight="600"' if curve.width > 2 else ""
        parts.append(
            f'<path d="M{RIGHT} {_y(last[curve])}L{RIGHT + 12} {y}" stroke="{curve.colour}" stroke-width="1" fill="none"/>'
        )
        parts.append(
            f'<text x="{RIGHT + 16}" y="{round(y + 5, 1)}" font-size="13.5" fill="{curve.colour}"{bold}>'
            f"{curve.name} {100 * last[curve]:.1f}</text>"
        )
    return parts


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
