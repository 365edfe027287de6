"""Panels of figures: lines, dots with error bars, and heat maps."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from evergrow.core.imports import import_extra

METHODS = {
    "joint-lp": "*",
    "joint-ft": "h",
    "coda-prompt": "<",
    "sd-lora": ">",
    "simplecil": "p",
    "ease": "H",
    "apt": "8",
    "klda": "P",
    "ranpac": "D",
    "acil": "v",
    "g-acil": "d",
    "loranpac": "X",
    "anacp": "*",
    "ri": "^",
    "scsm": "s",
    "scl-mgsm": "o",
    "scl-discriminant": "o",
    "evergrow": "o",
}
"""Markers by method, in the order of tables. Other methods come last."""

FSA = "+fsa"
"""Suffix of a method on a backbone adapted in the first session."""

_SETTINGS: dict[str, Any] = {
    "font.size": 8.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text
    "pdf.fonttype": 42,  # TrueType, which journals require
    "text.parse_math": False,  # names may contain dollar signs
}


@dataclass(frozen=True)
class Panel:
    """One drawing.

    Parameters
    ----------
    name : str
        File name without ending.
    title : str
        Heading, and alternative text.
    svg, pdf : bytes
        Contents of the files.
    """

    name: str
    title: str
    svg: bytes
    pdf: bytes


@dataclass(frozen=True)
class Line:
    """A line in the style of its method; ``error`` is None for a single run."""

    label: str
    style: dict[str, Any]
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


@dataclass(frozen=True)
class Dot:
    """A value in the style of its method, followed by ``note``."""

    label: str
    style: dict[str, Any]
    value: float
    error: float | None = None
    note: str = ""


def rank_of(method: str) -> int:
    """Return the index of a method in tables and colours."""
    names = list(METHODS)
    base = method.removesuffix(FSA)
    return names.index(base) if base in names else len(names)


def style_of(method: str, variant: int = 0) -> dict[str, Any]:
    """Return matplotlib's style of a method: equal colour and marker in all figures.

    Parameters
    ----------
    method : str
        Registered name. The suffix ``+fsa`` does not change the style.
    variant : int
        Index of the setting of the method. It changes dashes and fill.

    Examples
    --------
    >>> from evergrow.lab.report.plots import style_of
    >>> style_of("ranpac+fsa") == style_of("ranpac"), style_of("ranpac", 1)["linestyle"]
    (True, '--')
    """
    matplotlib = import_extra("matplotlib", extra="lab", purpose="drawing figures")
    # Every second colour of tab20 is light. The last methods, which are drawn most
    # often, get the dark ones.
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    colours = matplotlib.colormaps["tab20"].colors
    colour = matplotlib.colors.to_hex(
        colours[order[len(METHODS) - 1 - rank_of(method)]]
    )
    return {
        "color": colour,
        "marker": METHODS.get(method.removesuffix(FSA), "."),
        "markerfacecolor": "none" if variant % 2 else colour,
        "linestyle": ("-", "--", ":", "-.")[variant % 4],
    }


def slug(*parts: str) -> str:
    """Return a file name made of titles.

    Examples
    --------
    >>> from evergrow.lab.report.plots import slug
    >>> slug("CUB-200", "B-0 Inc-10 (a=1)")
    'cub-200--b-0-inc-10-a-1'
    """
    words = []
    for part in parts:
        text = part.lower().replace("λ", "ridge").replace("ξ", "xi")
        words.append(re.sub(r"[^a-z0-9.]+", "-", text).strip("-."))
    return "--".join(word for word in words if word)


def short(value: float) -> str:
    """Format a number with three digits.

    Examples
    --------
    >>> from evergrow.lab.report.plots import short
    >>> short(0.0812), short(66.74), short(1995.6), short(960767000000.0)
    ('0.0812', '66.7', '1,996', '9.61e+11')
    """
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@contextmanager
def _drawing(height: float, width: float = 4.8) -> Iterator[Any]:
    """Yield an empty figure with the shared settings."""
    matplotlib = import_extra("matplotlib", extra="lab", purpose="drawing figures")
    figure = import_extra("matplotlib.figure", extra="lab", purpose="drawing figures")
    defaults = {**matplotlib.rcParamsDefault, "backend": matplotlib.rcParams["backend"]}
    with matplotlib.rc_context({**defaults, **_SETTINGS}):
        yield figure.Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Any, name: str, title: str) -> Panel:
    """Return a figure in both formats, with equal bytes for equal drawings."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = name
    svg = io.BytesIO()
    pdf = io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.set_layout_engine("none")  # keep the layout of the first format
    figure.savefig(pdf, format="pdf", metadata={"CreationDate": None, "Creator": None})
    return Panel(name, title, svg.getvalue(), pdf.getvalue())


def _log_axis(axis: Any) -> None:
    """Make an axis logarithmic, with plain text instead of mathematical labels."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_formatter(lambda value, _: short(value))
    axis.set_minor_formatter(lambda value, _: "")


def line_panel(
    name: str,
    title: str,
    labels: tuple[str, str],
    lines: Sequence[Line],
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Panel:
    """Draw lines with bands of standard error.

    Parameters
    ----------
    name, title : str
        File name without ending, and heading.
    labels : tuple of str
        Labels of the horizontal and the vertical axis.
    lines : sequence of Line
        The lines.
    log_x, log_y : bool
        Whether an axis is logarithmic.
    """
    with _drawing(max(2.9, 0.17 * len(lines) + 0.5), 6.4) as figure:
        axes = figure.add_subplot(title=title, xlabel=labels[0], ylabel=labels[1])
        for line in lines:
            every = max(1, len(line.x) // 8)
            label = "\n".join(textwrap.wrap(line.label, 30))
            axes.plot(
                line.x,
                line.y,
                label=label,
                markevery=every,
                markersize=4,
                linewidth=1.4,
                **line.style,
            )
            if line.error is not None:
                y = np.asarray(line.y, dtype=float)
                error = np.asarray(line.error, dtype=float)
                axes.fill_between(
                    line.x,
                    y - error,
                    y + error,
                    color=line.style["color"],
                    alpha=0.18,
                    linewidth=0,
                )
        if log_x:
            ticks = sorted({x for line in lines for x in line.x})
            _log_axis(axes.xaxis)
            axes.set_xticks(ticks[:: math.ceil(len(ticks) / 8)])
        else:
            axes.xaxis.get_major_locator().set_params(integer=True)
        if log_y:
            _log_axis(axes.yaxis)
        axes.grid(axis="y")
        figure.legend(loc="outside right upper")
        return _saved(figure, name, title)


def dot_panel(
    name: str,
    title: str,
    label: str,
    dots: Sequence[Dot],
    *,
    log: bool = False,
    text: Callable[[float], str] = short,
) -> Panel:
    """Draw values as dots with error bars in rows, with the values as text.

    Parameters
    ----------
    name, title : str
        File name without ending, and heading.
    label : str
        Label of the axis.
    dots : sequence of Dot
        The dots, from top to bottom.
    log : bool
        Whether the axis is logarithmic.
    text : callable
        Formats a value.
    """
    with _drawing(0.24 * len(dots) + 0.9) as figure:
        axes = figure.add_subplot(xlabel=label)
        figure.suptitle(title, x=0.02, ha="left", fontsize=9.5, fontweight="bold")
        for row, dot in enumerate(dots):
            style = {**dot.style, "linestyle": "none"}
            axes.errorbar(
                [dot.value],
                [row],
                xerr=None if dot.error is None else [dot.error],
                capsize=2,
                **style,
            )
            value = text(dot.value)
            if dot.error is not None:
                value += f" ± {text(dot.error).lstrip('+')}"
            axes.text(
                1.02,
                row,
                value + dot.note,
                transform=axes.get_yaxis_transform(),
                va="center",
            )
        labels = ["\n".join(textwrap.wrap(dot.label, 34)) for dot in dots]
        axes.set_yticks(range(len(dots)), labels)
        axes.set_ylim(len(dots) - 0.5, -0.5)
        if log:
            _log_axis(axes.xaxis)
        axes.grid(axis="both")
        return _saved(figure, name, title)


def heat_panel(
    name: str,
    title: str,
    matrix: Any,
    limits: tuple[float, float],
    labels: tuple[str, str, str],
    beside: str = "",
) -> Panel:
    """Draw a square matrix as a heat map.

    Parameters
    ----------
    name, title : str
        File name without ending, and heading.
    matrix : array of shape (n, n)
        Values.
    limits : tuple of float
        Ends of the colour scale. If the lower one is negative, zero is in the middle.
    labels : tuple of str
        Labels of the horizontal axis, the vertical axis and the colour scale.
    beside : str
        Text to the right of the map.
    """
    size = len(matrix)
    with _drawing(2.9, 6.2 if beside else 3.6) as figure:
        axes, *rest = np.atleast_1d(figure.subplots(1, 2 if beside else 1))
        axes.set(xlabel=labels[0], ylabel=labels[1])
        for side in rest:
            side.axis("off")
            side.text(0.0, 1.0, beside, va="top")
        figure.suptitle(
            "\n".join(textwrap.wrap(title, 48)),
            x=0.02,
            ha="left",
            fontsize=9,
            fontweight="bold",
        )
        image = axes.imshow(
            np.asarray(matrix, dtype=float),
            vmin=limits[0],
            vmax=limits[1],
            cmap="RdBu_r" if limits[0] < 0 else "cividis",
            interpolation="nearest",
            extent=(0.5, size + 0.5, size + 0.5, 0.5),
        )
        figure.colorbar(image, ax=axes, label=labels[2], shrink=0.8)
        return _saved(figure, name, title)
