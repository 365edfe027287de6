"""The kinds of panel that figures are made of: lines with their names, dots on stems, heat maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evergrow.lab.report.panels import (
    FONT,
    Panel,
    draw_marks,
    dress,
    finish,
    log_axis,
    log_ticks,
    short,
    spread,
    surface,
    text_height,
    text_width,
    with_error,
    wrapped,
)
from evergrow.lab.report.styles import GRID, INK, MUTED, Style

WIDTH = 4.8
_TOP, _BOTTOM = 0.32, 0.42


@dataclass(frozen=True)
class Series:
    """One line.

    Parameters
    ----------
    label : str
        Its name, written beside it.
    style : Style
        Of its method.
    x, y : sequence of float
        Points.
    error : sequence of float or None
        Standard error at every point; None for a single run.
    """

    label: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None


@dataclass(frozen=True)
class Axes:
    """The axes around lines: titles with units, and whether they are logarithmic."""

    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    steps: bool = False


def line_panel(name: str, title: str, axes: Axes, series: Sequence[Series]) -> Panel:
    """Draw lines whose names stand at their right ends.

    Parameters
    ----------
    name : str
        File name without ending.
    title : str
        Heading.
    axes : Axes
        Titles and scales.
    series : sequence of Series
        Lines to draw.

    Returns
    -------
    Panel
    """
    return stacked_panel(name, title, [axes], [series])


def stacked_panel(name: str, title: str, axes: Sequence[Axes], rows: Sequence[Sequence[Series]]) -> Panel:
    """Draw several sets of lines above each other over one horizontal axis; the first has the names."""
    labels = [wrapped(item.label) for item in rows[0]]
    right = text_width(labels) + 0.4
    needed = sum(map(text_height, labels)) + 0.1
    heights = [max(2.45 if len(rows) == 1 else 1.9, needed)] + [1.15] * (len(rows) - 1)
    left = 0.8 if any(item.log_y for item in axes) else 0.62  # powers of ten are longer
    gap = 0.42
    height = _TOP + _BOTTOM + sum(heights) + gap * (len(rows) - 1)
    with surface(WIDTH, height) as figure:
        top = height - _TOP
        for index, (setting, lines) in enumerate(zip(axes, rows)):
            box = (left / WIDTH, (top - heights[index]) / height, (WIDTH - left - right) / WIDTH)
            area = figure.add_axes((*box, heights[index] / height))
            top -= heights[index] + gap
            for item in lines:
                _draw_line(area, item, setting)
            _scale(area, setting, rows)
            last = index == len(rows) - 1
            dress(area, title="" if index else title, x=setting.x if last else "", y=setting.y)
            if index == 0:
                _name_lines(area, lines, labels, heights[0])
        return finish(figure, name, title)


def _draw_line(area: Any, item: Series, setting: Axes) -> None:
    x, y = np.asarray(item.x, dtype=float), np.asarray(item.y, dtype=float)
    every = max(1, len(x) // 8)
    step = {"drawstyle": "steps-pre"} if setting.steps else {}
    area.plot(x, y, markevery=every, zorder=3, **draw_marks(item.style), **step)
    if item.error is None:
        return
    error = np.asarray(item.error, dtype=float)
    if len(x) > 6:
        area.fill_between(x, y - error, y + error, color=item.style.light, alpha=0.18, linewidth=0, zorder=2)
    else:
        area.errorbar(x, y, yerr=error, fmt="none", ecolor=item.style.light, elinewidth=1.0, capsize=2.0, zorder=3)


def _scale(area: Any, setting: Axes, rows: Sequence[Sequence[Series]]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    xs = np.concatenate([np.asarray(item.x, dtype=float) for lines in rows for item in lines])
    if setting.log_x:
        log_axis(area.xaxis)
        area.set_xlim(xs.min() / 1.12, xs.max() * 1.04)
        log_ticks(area.xaxis)
        ticks = sorted(set(xs.tolist()))
        if len(ticks) <= 6:
            area.set_xticks(ticks)
    else:
        pad = 0.02 * (xs.max() - xs.min() or 1.0)
        area.set_xlim(xs.min() - pad, xs.max() + pad)
        area.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        area.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if setting.log_y:
        log_axis(area.yaxis)
        log_ticks(area.yaxis)
    else:
        area.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "−")))


def _name_lines(area: Any, lines: Sequence[Series], labels: Sequence[str], height: float) -> None:
    """Write names in the right margin, each with a sample of its line and a thread to the line's end."""
    inverse = area.transAxes.inverted()
    ends = [inverse.transform(area.transData.transform((item.x[-1], item.y[-1]))) for item in lines]
    heights = [text_height(label) / height for label in labels]
    places = spread([float(np.clip(end[1], 0.0, 1.0)) for end in ends], heights, -0.03, 1.05)
    unit = 1.0 / (area.get_position().width * WIDTH)  # an inch along the horizontal axis
    for item, label, end, place in zip(lines, labels, ends, places):
        colour = item.style.light
        thread = ([float(end[0]), 1 + 0.06 * unit, 1 + 0.1 * unit], [float(end[1]), place, place])
        far = end[0] < 0.9
        area.plot(
            *thread,
            transform=area.transAxes,
            color=colour,
            linewidth=0.5,
            linestyle=(0, (1, 2)) if far else "-",
            clip_on=False,
            zorder=1,
        )
        marks = {**draw_marks(item.style), "markevery": [1]}
        sample = [1 + (0.1 + part * 0.1) * unit for part in range(3)]
        area.plot(sample, [place] * 3, transform=area.transAxes, clip_on=False, **marks)
        area.text(
            1 + 0.34 * unit, place, label, transform=area.transAxes, va="center", ha="left", linespacing=1.15, color=INK
        )


@dataclass(frozen=True)
class Dot:
    """One value with its error.

    Parameters
    ----------
    label : str
        Name at its left.
    style : Style
        Of its method.
    value : float
        The value.
    error : float or None
        Standard error; None for a single run.
    faint : bool
        Whether it is drawn light, as the lesser of a pair.
    note : str
        Text after the value.
    """

    label: str
    style: Style
    value: float
    error: float | None = None
    faint: bool = False
    note: str = ""


@dataclass(frozen=True)
class DotAxis:
    """The horizontal axis of dots: title with unit, scale, text of values and the place where stems begin."""

    title: str
    log: bool = False
    origin: float | None = 0.0  # None: an axis without zero, on which stems would mislead
    text: Callable[[float], str] = short


def dot_panel(name: str, title: str, axis: DotAxis, dots: Sequence[Dot]) -> Panel:
    """Draw values as dots on stems, one below the other, with error bars and the value written beside.

    Parameters
    ----------
    name : str
        File name without ending.
    title : str
        Heading.
    axis : DotAxis
        Title and scale.
    dots : sequence of Dot
        From top to bottom.

    Returns
    -------
    Panel
    """
    labels = [wrapped(dot.label, 26) for dot in dots]
    texts = [with_error(dot.value, dot.error, axis.text) + dot.note for dot in dots]
    left, right = text_width(labels) + 0.14, text_width(texts) + 0.16
    rows = [max(0.235, text_height(label) + 0.05) for label in labels]
    height = _TOP + _BOTTOM + sum(rows) + 0.08
    middles = [sum(rows[index:]) - rows[index] / 2.0 + 0.04 for index in range(len(rows))]
    with surface(WIDTH, height) as figure:
        box = (left / WIDTH, _BOTTOM / height, (WIDTH - left - right) / WIDTH, (sum(rows) + 0.08) / height)
        area = figure.add_axes(box)
        low = _dot_limits(area, axis, dots)
        for dot, middle, text in zip(dots, middles, texts):
            _draw_dot(area, dot, middle, low if axis.log or axis.origin is not None else None)
            area.text(
                1 + 0.08 / (box[2] * WIDTH),
                middle,
                text,
                transform=area.get_yaxis_transform(),
                va="center",
                ha="left",
                color=INK,
                fontsize=FONT - 0.5,
            )
        area.set_ylim(0.0, sum(rows) + 0.08)
        area.set_yticks(middles, labels, linespacing=1.1, multialignment="right")
        dress(area, x=axis.title, grid="x")
        area.tick_params(axis="y", length=0)
        area.spines["left"].set_visible(False)
        figure.text(0.1 / WIDTH, 1 - 0.2 / height, title, fontsize=FONT + 1, fontweight="bold", va="center", color=INK)
        return finish(figure, name, title)


def _draw_dot(area: Any, dot: Dot, middle: float, low: float | None) -> None:
    style, alpha = dot.style, 0.5 if dot.faint else 1.0
    if low is None:
        area.axhline(middle, color=GRID, linewidth=0.6, zorder=1)
    else:
        area.plot([low, dot.value], [middle] * 2, color=style.light, linewidth=3.0, alpha=0.28 * alpha, zorder=2)
    marks = {**draw_marks(style), "linestyle": "none", "alpha": alpha, "markersize": 5.4}
    area.plot([dot.value], [middle], zorder=4, **marks)
    if dot.error:
        area.errorbar(
            [dot.value],
            [middle],
            xerr=[dot.error],
            fmt="none",
            ecolor=style.light,
            elinewidth=1.1,
            capsize=2.2,
            zorder=3,
        )


def _dot_limits(area: Any, axis: DotAxis, dots: Sequence[Dot]) -> float:
    """Set scale and limits; return where stems begin."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ends = [dot.value + sign * (dot.error or 0.0) for dot in dots for sign in (-1, 1)]
    low, high = min(ends), max(ends)
    if axis.log:
        low = min(value for value in ends if value > 0)
        log_axis(area.xaxis)
        # At least two decades, so that the axis has ticks to read.
        start = 10.0 ** np.floor(np.log10(low) - 0.15)
        area.set_xlim(start, max(high * 1.35, start * 30))
        log_ticks(area.xaxis)
        return float(start)
    span = (high - low) or abs(high) or 1.0
    origin = axis.origin
    if origin is None:
        origin = low - 0.25 * span
        area.set_xlim(origin, high + 0.08 * span)
    else:
        area.set_xlim(min(low - 0.06 * span, origin), max(high + 0.06 * span, origin))
        if low < origin < high:
            area.axvline(origin, color=MUTED, linewidth=0.8, zorder=1)
    area.xaxis.set_major_locator(MaxNLocator(5))
    area.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "−")))
    return float(origin)


@dataclass(frozen=True)
class Heat:
    """A square matrix with its range and colours.

    Parameters
    ----------
    matrix : array of shape (n, n)
        Values.
    low, high : float
        Ends of the colour scale; where low is negative, zero is its middle.
    axes : tuple of str
        Titles of the horizontal and of the vertical axis.
    unit : str
        Title of the colour scale.
    subtitle : str
        Second line above the map.
    side : float
        Width and height of the map in inches.
    beside : tuple of str
        Lines of text to the right of the map, under a heading, which is the first.
    """

    matrix: Any
    low: float
    high: float
    axes: tuple[str, str]
    unit: str
    subtitle: str = ""
    side: float = 1.42
    beside: tuple[str, ...] = ()


def heat_panel(name: str, title: str, heat: Heat) -> Panel:
    """Draw a matrix as a heat map with its colour scale.

    Parameters
    ----------
    name : str
        File name without ending.
    title : str
        Heading.
    heat : Heat
        The matrix.

    Returns
    -------
    Panel
    """
    side, bottom, size = heat.side, 0.4, len(heat.matrix)
    left = 0.44 + 0.08 * max(len(str(size)) - 2, 0)
    map_width = left + side + 0.56 + 0.08 * max(len(f"{heat.high:g}") - 1, 0)
    width = map_width + (2.7 if heat.beside else 0.0)
    head = wrapped(title, 32)
    below = wrapped(heat.subtitle, 36)
    top = 0.1 + text_height(head) + (text_height(below) if below else 0.0) + 0.06
    height = top + side + bottom
    with surface(width, height) as figure:
        area = figure.add_axes((left / width, bottom / height, side / width, side / height))
        image = area.imshow(
            np.asarray(heat.matrix, dtype=float),
            vmin=heat.low,
            vmax=heat.high,
            cmap="RdBu_r" if heat.low < 0 else "cividis",
            interpolation="nearest",
            extent=(0.5, size + 0.5, size + 0.5, 0.5),
        )
        dress(area, x=heat.axes[0], y=heat.axes[1], grid="both")
        area.grid(visible=False)
        area.xaxis.labelpad = area.yaxis.labelpad = 1.5
        ticks = sorted({1, size} if size < 5 else {1, (size + 1) // 2, size})
        area.set_xticks(ticks)
        area.set_yticks(ticks)
        bar = figure.add_axes(((left + side + 0.08) / width, bottom / height, 0.09 / width, side / height))
        scale = figure.colorbar(image, cax=bar, ticks=[heat.low, heat.high])
        scale.ax.set_yticklabels([f"{tick:g}".replace("-", "−") for tick in scale.get_ticks()])
        scale.set_label(heat.unit, labelpad=1.5)
        scale.outline.set_visible(False)
        scale.ax.tick_params(length=2.0, width=0.6, pad=1.5)
        for row, line in enumerate(heat.beside):
            place = (map_width + 0.12) / width, 1 - (top + 0.2 * row) / height
            figure.text(*place, line, va="top", color=MUTED if row else INK, fontweight="normal" if row else "bold")
        figure.text(0.05 / width, 1 - 0.05 / height, head, fontweight="bold", va="top", color=INK)
        down = 0.07 + text_height(head)
        figure.text(0.05 / width, 1 - down / height, below, fontsize=FONT - 0.7, va="top", color=MUTED)
        return finish(figure, name, f"{title}, {heat.subtitle}" if heat.subtitle else title)
