"""Draw the figure of the first page, with ``python -m website.landing_figure``.

The upper half shows the path of a batch. The lower half shows the accuracy on all
classes so far while 200 species of birds arrive ten at a time: the mean of the class
orders in ``experiments/records/recommended``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "experiments" / "records" / "recommended"
FIGURE = ROOT / "docs" / "landing.svg"

WIDTH = 620
HEIGHT = 500
LEFT = 46
RIGHT = 408
TOP = 205
BOTTOM = 455
CLASSES = 10
LOWEST = 0.60
HIGHEST = 1.00
GAP = 19
"""Vertical distance between two names next to the curves, in pixels."""

BOLD = ' font-weight="600"'


@dataclass(frozen=True)
class Curve:
    """A method, by its label in the records, and the style of its curve."""

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
    """Return the accuracies after every task by label, as means over seeds."""
    runs: dict[str, list[list[float]]] = {}
    for path in sorted(RECORDS.glob("*--cub200_efficientnet_lite0--*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        runs.setdefault(record["label"], []).append(record["results"]["by_samples"])
    return {
        label: [sum(task) / len(task) for task in zip(*found)]
        for label, found in runs.items()
    }


def draw() -> str:
    """Return the figure as SVG."""
    found = accuracy_curves()
    curves = {curve: found[curve.label] for curve in CURVES}
    last = {curve: values[-1] for curve, values in curves.items()}
    told = "; ".join(f"{curve.name} {value:.1%}" for curve, value in last.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="t d" '
        'font-family="system-ui, sans-serif" font-size="15" fill="#1f2328">',
        '<title id="t">Classes arrive, sums grow, samples are discarded</title>',
        f'<desc id="d">Accuracy on 200 species of birds after they arrived ten at a time: {told}.</desc>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_pipeline(),
        *_axes(),
        *(_line(curve, values) for curve, values in reversed(curves.items())),
        *_names(last),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "middle",
    size: float = 13,
    style: str = "",
) -> str:
    return f'<text x="{x}" y="{round(y, 1)}" text-anchor="{anchor}" font-size="{size}"{style}>{words}</text>'


def _box(x: float, width: float, head: str, small: str, style: str) -> list[str]:
    return [
        f'<rect x="{x}" y="22" width="{width}" height="72" rx="8" {style} stroke-width="1.5"/>',
        _text(x + width / 2, 54, head, size=15, style=BOLD),
        _text(x + width / 2, 76, small),
    ]


def _pipeline() -> list[str]:
    behind = 'width="110" height="72" rx="8" fill="#ffffff" stroke="#9aa0a6"'
    arrow = 'stroke="#444c56" stroke-width="1.5" marker-end="url(#tip)"'
    title = "200 species of birds, ten at a time: accuracy on all classes so far"
    return [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#444c56"/></marker></defs>',
        *(
            f'<rect x="{12 + shift}" y="{22 - shift}" {behind}/>' for shift in (10, 5)
        ),  # batches still to come
        *_box(12, 110, "new classes", "in batches", 'fill="#ffffff" stroke="#444c56"'),
        *_box(170, 122, "network", "frozen", 'fill="#e8f1fb" stroke="#0b62a4"'),
        *_box(334, 122, "sums", "are stored", 'fill="#e0f2ef" stroke="#00796b"'),
        *_box(
            498, 112, "predictions", "on all classes", 'fill="#ffffff" stroke="#444c56"'
        ),
        *(
            f'<path d="M{start} 58H{end}" {arrow}/>'
            for start, end in ((134, 168), (294, 332), (458, 496))
        ),
        f'<path d="M231 96V122" stroke-dasharray="4 3" {arrow}/>',
        _text(231, 140, "samples are discarded", style=' fill="#5b636d"'),
        _text(LEFT, 176, title, anchor="start", size=15, style=BOLD),
    ]


def _x(classes: float) -> float:
    return round(LEFT + (classes - CLASSES) / (200 - CLASSES) * (RIGHT - LEFT), 1)


def _y(accuracy: float) -> float:
    return round(BOTTOM - (accuracy - LOWEST) / (HIGHEST - LOWEST) * (BOTTOM - TOP), 1)


def _axes() -> list[str]:
    percents = range(60, 101, 10)
    return [
        *(
            f'<path d="M{LEFT} {_y(percent / 100)}H{RIGHT}" stroke="#d8dee4"/>'
            for percent in percents
        ),
        *(
            _text(LEFT - 8, _y(percent / 100) + 5, str(percent), anchor="end")
            for percent in percents
        ),
        *(
            _text(_x(classes), BOTTOM + 20, str(classes))
            for classes in (10, 50, 100, 150, 200)
        ),
        _text((LEFT + RIGHT) / 2, BOTTOM + 40, "classes so far"),
        _text(LEFT - 8, TOP - 10, "%", anchor="end"),
    ]


def _line(curve: Curve, values: list[float]) -> str:
    points = " ".join(
        f"{_x(CLASSES * task)},{_y(value)}" for task, value in enumerate(values, 1)
    )
    if curve.dash:
        dash = f' stroke-dasharray="{curve.dash}"'
    else:
        dash = ""
    return f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="{curve.width}"{dash}/>'


def _names(last: dict[Curve, float]) -> list[str]:
    """Return the names beside the ends of the curves, evenly spaced in the order of accuracy."""
    parts = []
    highest = _y(sum(last.values()) / len(last)) - GAP * (len(last) - 1) / 2
    for place, curve in enumerate(sorted(last, key=lambda curve: -last[curve])):
        y = round(highest + GAP * place, 1)
        style = f' fill="{curve.colour}"' + (BOLD if curve.width > 2 else "")
        words = f"{curve.name} {100 * last[curve]:.1f}"
        parts.append(
            f'<path d="M{RIGHT} {_y(last[curve])}L{RIGHT + 12} {y}" stroke="{curve.colour}"/>'
        )
        parts.append(
            _text(RIGHT + 16, y + 5, words, anchor="start", size=13.5, style=style)
        )
    return parts


if __name__ == "__main__":
    FIGURE.write_text(draw(), encoding="utf-8")
