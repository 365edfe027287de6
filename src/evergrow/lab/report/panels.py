"""Panels: one small drawing as SVG and PDF, with text as text and the same bytes every time.

A figure is a list of panels, so that a wide screen shows them side by side and a phone one below the other.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

from evergrow.core.optional import require
from evergrow.lab.report.fonts import figure_fonts
from evergrow.lab.report.styles import GRID, INK, MUTED, Style, colour_variables

FONT = 8.5
"""Size of text in points; panels are 4.8 inches wide, so it is read at about this size."""

_LINE = FONT * 1.28 / 72.0
_FONTS = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # TrueType: journals refuse the other kind
    "font.size": FONT,
    "axes.titlesize": FONT + 1,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "path.simplify": True,
    "text.parse_math": False,  # a dollar sign in somebody's name is a dollar sign
}


@dataclass(frozen=True)
class Panel:
    """One drawn panel.

    Parameters
    ----------
    name : str
        File name without ending.
    title : str
        Heading; also its text for readers who cannot see it.
    svg : str
        A whole SVG file.
    pdf : bytes
        A whole PDF file.
    """

    name: str
    title: str
    svg: str
    pdf: bytes


def slug(*parts: str) -> str:
    """Return a file name from titles.

    Examples
    --------
    >>> from evergrow.lab.report.panels import slug
    >>> slug("CUB-200", "B-0 Inc-10 (a=1)")
    'cub-200--b-0-inc-10-a-1'
    """
    words = [re.sub(r"[^a-z0-9.]+", "-", part.lower().replace("λ", "ridge").replace("ξ", "xi")) for part in parts]
    return "--".join(word.strip("-.") for word in words if word.strip("-."))


@contextmanager
def surface(width: float, height: float) -> Iterator[Any]:
    """Yield an empty figure of this size in inches, under the settings that all figures share."""
    matplotlib = require("matplotlib", extra="report", purpose="drawing figures")
    figure = require("matplotlib.figure", extra="report", purpose="drawing figures")
    settings = {**matplotlib.rcParamsDefault, "backend": matplotlib.rcParams["backend"], **_SETTINGS}
    with matplotlib.rc_context({**settings, "font.family": figure_fonts()}):
        yield figure.Figure(figsize=(width, height))


def finish(figure: Any, name: str, title: str) -> Panel:
    """Save a figure in both formats; to be called inside of :func:`surface`."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = name
    svg, pdf = io.BytesIO(), io.BytesIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(svg, format="svg", transparent=True, metadata=nothing)
    figure.savefig(pdf, format="pdf", transparent=True, metadata={"CreationDate": None, "Creator": None})
    text = (
        svg.getvalue()
        .decode("utf-8")
        .replace(", ".join(f"'{family}'" for family in figure_fonts()), _FONTS)
        .replace("\r\n", "\n")
    )
    return Panel(name, title, re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S), pdf.getvalue())


def inline(panel: Panel) -> str:
    """Return a panel's SVG for a page: ids of its own, colours that follow the page, no fixed size."""
    svg = panel.svg[panel.svg.index("<svg") :]
    prefix = f"{panel.name}-"
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', svg)
    svg = re.sub(r'(href="|url\()#', rf"\g<1>#{prefix}", svg)
    for variable, light, _ in colour_variables():
        svg = svg.replace(light, f"var({variable}, {light})")
    head, body = svg.split(">", 1)
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(panel.title)}" class="figure">{body}'


# -- numbers as text ------------------------------------------------------------------------------------

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: float) -> str:
    """Return a number to three digits, as people write it.

    Examples
    --------
    >>> from evergrow.lab.report.panels import short
    >>> short(0.0812), short(66.74), short(1995.6), short(960767000000.0), short(0.0)
    ('0.0812', '66.7', '1,996', '9.61×10¹¹', '0')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = math.floor(math.log10(abs(value)))
    if exponent >= 5 or exponent < -4:
        mantissa = f"{value / 10.0**exponent:.2f}".rstrip("0").rstrip(".")
        return f"{mantissa}×{power(exponent)}"
    if exponent >= 3:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - exponent)}f}"


def with_error(value: float, error: float | None, text: Callable[[float], str] = short) -> str:
    """Return a value and its error to the same number of decimals.

    Examples
    --------
    >>> from evergrow.lab.report.panels import with_error
    >>> with_error(0.409, 0.00554), with_error(1995.6, 12.3), with_error(3.41e7, 1.5e5)
    ('0.409 ± 0.006', '1,996 ± 12', '(3.41 ± 0.01)×10⁷')
    """
    shown = text(value)
    if error is None:
        return shown
    if "×" in shown:
        exponent = math.floor(math.log10(abs(value)))
        return f"({value / 10.0**exponent:.2f} ± {error / 10.0**exponent:.2f})×{power(exponent)}"
    return f"{shown} ± {error:,.{len(shown.partition('.')[2])}f}"


def power(exponent: int) -> str:
    """Return a power of ten.

    Examples
    --------
    >>> from evergrow.lab.report.panels import power
    >>> power(-3)
    '10⁻³'
    """
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


# -- axes -----------------------------------------------------------------------------------------------


def dress(axes: Any, *, title: str = "", x: str = "", y: str = "", grid: str = "y") -> None:
    """Put title, labels and a quiet grid on axes."""
    if title:
        axes.set_title(title, pad=7)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis=grid, zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=2.5, width=0.6)


def log_axis(axis: Any) -> None:
    """Make an axis logarithmic with plain text at its ticks."""
    set_scale = axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale
    set_scale("log")
    axis.axes.minorticks_off()


def log_ticks(axis: Any) -> None:
    """Put ticks on a logarithmic axis whose limits are set: about four, whatever its span."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    low, high = sorted(axis.get_view_interval())
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [factor * 10.0**exponent for exponent in range(first, last + 1) for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) > 2:
            break
    axis.set_major_locator(FixedLocator(ticks[:: max(1, math.ceil(len(ticks) / 6))]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    if 0.001 <= value < 100_000:
        return f"{value:,.0f}" if value >= 10 else f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    factor = f"{value / 10.0**exponent:.2g}"
    return power(exponent) if factor == "1" else f"{factor}×{power(exponent)}"


def wrapped(label: str, width: int = 22) -> str:
    """Return a label in lines of at most about ``width`` letters."""
    return "\n".join(textwrap.wrap(label, width, break_long_words=False, break_on_hyphens=False) or [""])


def text_width(labels: Sequence[str]) -> float:
    """Return the width in inches that labels need at most, line by line."""
    return max((_ems(line) for label in labels for line in label.split("\n")), default=0.0) * FONT / 72.0


def _ems(line: str) -> float:
    """Return the width of a line in multiples of the font's size, rather too much than too little."""
    return sum(
        0.8 if letter in "MWmw@%" else 0.7 if letter.isupper() else 0.36 if letter in " ,.il|" else 0.62
        for letter in line
    )


def text_height(label: str) -> float:
    """Return the height of a label in inches."""
    return (label.count("\n") + 1) * _LINE


def spread(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Return places near the wanted ones at which labels of these heights do not overlap.

    Parameters
    ----------
    wanted : sequence of float
        Middles that labels would like to have.
    heights : sequence of float
        Their heights.
    low, high : float
        Ends of the space; if it is too small for all, labels run over its lower end.

    Examples
    --------
    >>> from evergrow.lab.report.panels import spread
    >>> [round(place, 3) for place in spread([0.5, 0.5, 0.9], [0.2, 0.2, 0.2], 0.0, 1.0)]
    [0.4, 0.6, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index))
    # Neighbours that touch move as one block around the mean of what they wanted, as in isotonic regression.
    blocks: list[list[float]] = []  # [sum of wanted lower ends less the offset in the block, members, height]
    for index in order:
        blocks.append([wanted[index] - heights[index] / 2.0, 1.0, heights[index]])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] + blocks[-2][2] > blocks[-1][0] / blocks[-1][1]:
            total, members, height = blocks.pop()
            below = blocks[-1]
            blocks[-1] = [below[0] + total - members * below[2], below[1] + members, below[2] + height]
    ends: list[float] = []
    for total, members, _ in blocks:
        ends += [total / members] * int(members)
    places = _stack([heights[index] for index in order], ends, low, high)
    return [places[order.index(index)] for index in range(len(wanted))]


def _stack(heights: Sequence[float], starts: Sequence[float], low: float, high: float) -> list[float]:
    """Return middles of labels stacked upwards from their block's start, pushed inside of low and high."""
    lower: list[float] = []
    for start in starts:
        floor = lower[-1] + heights[len(lower) - 1] if lower else low
        lower.append(max(start, floor))
    ceiling = high
    for index in range(len(lower) - 1, -1, -1):
        lower[index] = min(lower[index], ceiling - heights[index])
        ceiling = lower[index]
    return [start + height / 2.0 for start, height in zip(lower, heights)]


def draw_marks(style: Style) -> dict[str, Any]:
    """Return the keywords of matplotlib that draw a method's line and markers."""
    hollow = style.variant % 2 == 1
    return {
        "color": style.light,
        "linestyle": style.dashes,
        "marker": style.marker,
        "markersize": 4.6 if style.marker in ("*", "X", "P") else 4.0,
        "markerfacecolor": "none" if hollow else style.light,
        "markeredgecolor": style.light,
        "markeredgewidth": 0.9 if hollow or not isinstance(style.marker, str) else 0.0,
        "linewidth": 2.0 if style.name.startswith("SCL-MGSM") else 1.3,
    }
