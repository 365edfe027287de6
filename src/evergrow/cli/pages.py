"""The pages of ``evaluate --report`` and ``data --check --html``: one HTML file each, of bounded size."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.cli.console import percent, plural, share
from evergrow.core.errors import ImageError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.data.datacheck import ClassOverlap, DataCheck, Misplaced, SamplePair
    from evergrow.data.items import Samples
    from evergrow.learner.evaluation import ClassScore, Evaluation, OpenWorld, SampleAnswers

Array = NDArray[np.float64]

SHOWN = 240
"""Wrong answers on a page at most, which bounds its size; each cell of the matrix has one before any has two."""
MOST_SHOWN = 60
"""Findings of each kind that the page of a check shows; it says how many more there are."""

_LETTERS = 300  # characters of any text on a page at most
_QUOTED = 280  # characters of a sample's text or name
_SIDE = 128  # pixels of a thumbnail
_LARGEST = 12_000  # bytes of one
_ALL_THUMBNAILS = 4 * 2**20  # characters of all thumbnails of a check together
_NAMED = 60  # classes up to which the matrix has room for their names
_LONGEST = 28  # characters of a name that are shown beside the matrix
_CELLS = 4000  # cells of the matrix that are drawn at most, those with most samples first
_ROWS = 1000  # classes in the table at most, the worst first
_WIDTH, _HEIGHT = 420, 300  # of a chart
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 44
_BINS = 10
_NOVELTY_BINS = 32
_CAPTION = (
    "Rows are true classes, columns are answers. A cell is the stronger the larger its share of its row; right answers "
    "lie on the diagonal. Point at a cell to read it."
)
_LEADS = " A wrong one leads to its samples below."
_SORTED = "Class by class, the most certain first: those are labels to check, or classes that look alike to the model."


def write_page(path: Path, page: str) -> None:
    """Write a page in one step."""
    from evergrow.core.files import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _filled(template: str, **parts: str) -> str:
    return Template(files("evergrow.cli").joinpath(template).read_text(encoding="utf-8")).substitute(parts)


def _text(text: str, most: int = _LETTERS) -> str:
    """Return a text that is safe between tags and inside attributes, and no longer than a page can bear."""
    shown = printable(text)
    return escape(shown if len(shown) <= most else f"{shown[: most - 1]}…", quote=True)


def _html_table(columns: Sequence[str], rows: str, attributes: str = "") -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f"<table{attributes}><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"


def _image(image: Any, name: str = "") -> str:
    """Return a small copy of an image as a tag that holds it; empty where it cannot be read any more."""
    from evergrow.features.images import decode_image

    try:
        small = decode_image(image)
    except (ImageError, OSError):
        return ""
    small.thumbnail((_SIDE, _SIDE))
    for quality in (80, 50, 20):
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=quality)
        if buffer.tell() <= _LARGEST:
            break
    body, shown = base64.b64encode(buffer.getvalue()).decode(), _text(name)
    return f'<img src="data:image/jpeg;base64,{body}" alt="{shown}" title="{shown}">'


# -- the page of an evaluation ---------------------------------------------------------------------------------


def evaluation_page(evaluation: Evaluation, *, title: str, lead: str = "") -> str:
    """Return the page of an evaluation.

    Parameters
    ----------
    evaluation : Evaluation
        What was found.
    title, lead : str
        Heading, and a sentence below it.

    Examples
    --------
    >>> from evergrow.cli.pages import evaluation_page
    >>> from evergrow.learner.evaluation import evaluate_predictions
    >>> result = evaluate_predictions(["<cat>", "dog", "dog"], ["<cat>", "dog", "<cat>"], ["<cat>", "dog"])
    >>> page = evaluation_page(result, title="Pets & co")
    >>> "Pets &amp; co" in page, "<cat>" in page, page.count('class="miss"')
    (True, False, 1)
    """
    samples, classes = evaluation.samples, evaluation.classes
    mistakes = [] if samples is None else all_mistakes(samples, classes)
    shown = chosen_mistakes(mistakes)
    linked = {(mistake.true, mistake.predicted) for mistake in shown}
    gallery = "" if samples is None or not shown else mistake_gallery(samples, classes, mistakes, shown)
    return _filled(
        "evaluation_page.html",
        title=_text(title),
        lead=_text(lead),
        facts=_facts(_figures(evaluation)),
        unknown=_unknown(evaluation.unknown),
        charts=_charts(evaluation),
        pairs=_pair_table(evaluation, linked),
        matrix=_heat_map(evaluation, linked),
        caption=_text(_CAPTION + (_LEADS if linked else "")),
        mistakes=f"<section>\n<h2>Wrong answers</h2>\n<p>{_text(_SORTED)}</p>\n{gallery}\n</section>"
        if gallery
        else "",
        classes=_class_table(evaluation.per_class),
    )


def _figures(evaluation: Evaluation) -> list[tuple[str, str]]:
    pairs = [
        ("accuracy", share(evaluation.accuracy)),
        ("mean over classes", share(evaluation.balanced_accuracy)),
        ("samples", f"{evaluation.n_known:,}"),
        ("classes", f"{len(evaluation.classes):,}"),
    ]
    if evaluation.unknown_classes:
        pairs.append(("samples of classes never learned", f"{evaluation.n_unknown:,}"))
    if evaluation.left_out:
        pairs.append(("could not be read", f"{len(evaluation.left_out):,}"))
    return pairs


def _facts(pairs: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"<div><dt>{_text(label)}</dt><dd>{_text(value)}</dd></div>" for label, value in pairs)


def _unknown(found: OpenWorld | None) -> str:
    if found is None:
        return ""
    pairs = [
        ("AUROC", share(found.auroc)),
        ("unknown samples found", share(found.detection_rate)),
        (f"false alarms, {share(found.false_alarm)} aimed at", share(found.false_alarm_rate)),
        ("unknown samples", f"{found.n_unknown:,}"),
    ]
    return f"<section>\n<h2>Unknown classes</h2>\n<dl>\n{_facts(pairs)}\n</dl>\n</section>"


def _charts(evaluation: Evaluation) -> str:
    """Return the reliability diagram and the histogram of novelty, where there are numbers for them."""
    samples, figures = evaluation.samples, []
    if samples is None:
        return ""
    known = np.isin(samples.true, evaluation.classes)
    if samples.certainty is not None and known.any():
        bins, gap = reliability(samples.certainty[known], (samples.true == samples.predicted)[known])
        said = (
            "Share of right answers by certainty: the line is where both agree, stronger bars stand for more answers. "
            f"On average they are {percent(gap)} apart (expected calibration error)."
        )
        figures.append(_chart("How far certainty can be trusted", reliability_chart(bins), said))
    if samples.novelty is not None and samples.threshold is not None:
        strange = np.concatenate([samples.novelty[~known], samples.strange])
        said = f"Samples above {samples.threshold:.4g}, the dashed line, are called unknown. Blue: known classes"
        said += ", red: never learned." if len(strange) else "; the data hold none that were never learned."
        chart = novelty_chart(samples.novelty[known], strange, samples.threshold)
        figures.append(_chart("Novelty", chart, said))
    return f'<section class="charts">\n{"".join(figures)}\n</section>' if figures else ""


def _chart(heading: str, chart: str, caption: str) -> str:
    return f"<figure><h2>{_text(heading)}</h2>\n{chart}\n<figcaption>{_text(caption)}</figcaption></figure>\n"


def _pair_table(evaluation: Evaluation, linked: Collection[tuple[int, int]]) -> str:
    pairs, places = evaluation.confused, {name: place for place, name in enumerate(evaluation.classes)}
    if not pairs:
        return "<p>None: every answer was right.</p>"
    rows = "\n".join(
        f"<tr><td>{_text(pair.true)}</td><td>{_text(pair.predicted)}</td>"
        f"<td>{_link(str(pair.n), (places[pair.true], places[pair.predicted]), linked)}</td>"
        f"<td>{share(pair.share)}</td></tr>"
        for pair in pairs
    )
    return _html_table(("true class", "answer", "samples", "of the class"), rows, ' class="pairs"')


def _link(inner: str, cell: tuple[int, int], linked: Collection[tuple[int, int]]) -> str:
    """Return something that leads to the samples of a cell, where any are shown."""
    return f'<a href="#{cell_anchor(*cell)}">{inner}</a>' if cell in linked else inner


def _class_table(scores: Sequence[ClassScore]) -> str:
    """Return the table of all classes, the worst first, so that nobody has to look for them."""
    rows = [
        f"<tr><td>{_text(row.name)}</td><td>{row.n}</td><td>{_bar(row.recall)}</td><td>{share(row.precision)}</td></tr>"
        for row in worst_first(scores)[:_ROWS]
    ]
    if len(scores) > _ROWS:
        rows.append(f'<tr><td colspan="4">and {plural(len(scores) - _ROWS, "more class", "more classes")}</td></tr>')
    return _html_table(("class", "samples", "recall", "precision"), "\n".join(rows))


def worst_first(scores: Sequence[ClassScore]) -> list[ClassScore]:
    """Return classes by the share of their samples that was found; those without samples come last."""
    return sorted(scores, key=lambda row: (not row.n, row.recall if row.n else 0.0, row.name))


def _bar(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return (
        f'<span class="bar"><i style="width:{100 * value:.1f}%"></i></span><span class="number">{percent(value)}</span>'
    )


def _heat_map(evaluation: Evaluation, linked: Collection[tuple[int, int]]) -> str:
    """Return the matrix as SVG with one rectangle per cell that is not zero."""
    names, confusion = [printable(name) for name in evaluation.classes], evaluation.confusion
    n, named = len(names), len(names) <= _NAMED
    cell = 28 if n <= 20 else 18 if named else max(2, 900 // n)
    margin = 12 + (7 * min(max(map(len, names), default=0), _LONGEST) if named else 0)
    side = margin + n * cell + 1
    parts = [
        f'<svg viewBox="0 0 {side} {side}" style="min-width:{min(side, 560)}px;max-width:{side}px" role="img" '
        'aria-label="Confusion matrix">',
        f'<rect class="frame" x="{margin}" y="{margin}" width="{n * cell}" height="{n * cell}"/>',
    ]
    if named:
        parts += _labels(names, cell, margin)
    totals = confusion.sum(axis=1)
    filled = np.flatnonzero(confusion)
    if len(filled) > _CELLS:
        filled = np.sort(filled[np.argsort(-confusion.ravel()[filled], kind="stable")[:_CELLS]])
    for row, column in (divmod(place, n) for place in filled.tolist()):
        count, total = int(confusion[row, column]), int(totals[row])
        kind = "hit" if row == column else "miss"
        # The eye finds single errors only if the smallest share is well off the background.
        opacity = 0.15 + 0.85 * math.sqrt(count / total)
        words = _text(f"{names[row]} answered as {names[column]}: {count} of {total}")
        rectangle = (
            f'<rect class="{kind}" x="{margin + column * cell}" y="{margin + row * cell}" width="{cell}" '
            f'height="{cell}" fill-opacity="{opacity:.2f}"><title>{words}</title></rect>'
        )
        parts.append(_link(rectangle, (row, column), linked))
    return "\n".join([*parts, "</svg>"])


def _labels(names: Sequence[str], cell: int, margin: int) -> list[str]:
    lines = []
    for index, name in enumerate(names):
        shown = escape(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
        middle = margin + index * cell + cell // 2 + 4
        lines.append(f'<text x="{margin - 6}" y="{middle}" text-anchor="end">{shown}</text>')
        lines.append(f'<text transform="translate({middle},{margin - 6}) rotate(-90)">{shown}</text>')
    return lines


# -- its charts ------------------------------------------------------------------------------------------------


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
    >>> from evergrow.cli.pages import reliability
    >>> bins, gap = reliability(np.array([0.95, 0.95, 0.55, 0.55]), np.array([True, True, True, False]))
    >>> [(entry.n, entry.accuracy) for entry in bins if entry.n], round(gap, 3)
    ([(2, 0.5), (2, 1.0)], 0.05)
    """
    places = np.clip((certainty * _BINS).astype(int), 0, _BINS - 1)
    bins, gap = [], 0.0
    for place in range(_BINS):
        inside = places == place
        n = int(inside.sum())
        mean, accuracy = (float(values[inside].mean()) if n else math.nan for values in (certainty, right))
        bins.append(ReliabilityBin(place / _BINS, (place + 1) / _BINS, n, mean, accuracy))
        gap += abs(mean - accuracy) * n / len(certainty) if n else 0.0
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
    top = max(float(max(bars.max() for bars in shares)), 1e-9)
    axes = _Axes((float(edges[0]), float(edges[-1])), (0.0, top * 1.08))
    ticks = [value for value in _ticks(float(edges[0]), float(edges[-1])) if edges[0] <= value <= edges[-1]]
    heights = [value for value in _ticks(0.0, top, 4) if value <= top * 1.08]
    parts = [axes.grid(ticks, heights, "novelty")]
    for bars, kind, name in zip(shares, ("hit", "miss"), ("known", "never learned"), strict=True):
        for place in np.flatnonzero(bars).tolist():
            span = float(edges[place]), float(edges[place + 1])
            words = f"{name}: {100 * bars[place]:.1f} % from {span[0]:.3g} to {span[1]:.3g}"
            parts.append(axes.bar(span, float(bars[place]), kind, words, 0.6))
    parts.append(axes.line((threshold, 0.0), (threshold, top * 1.08), "rule"))
    return _svg("Novelty of known and of never learned samples", parts)


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
            parts.append(
                f'<text x="{_LEFT - 5}" y="{self.up(value) + 4:.1f}" text-anchor="end">{100 * value:.3g} %</text>'
            )
        for value in xs:
            place = f'x="{self.across(value):.1f}" y="{_HEIGHT - _BOTTOM + 16}"'
            parts.append(f'<text {place} text-anchor="middle">{value:.4g}</text>')
        parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{below}</text>')
        return "\n".join(parts)


def _svg(label: str, parts: Sequence[str]) -> str:
    head = f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    return "\n".join([head, *parts, "</svg>"])


# -- its wrong answers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A wrong answer.

    Parameters
    ----------
    row : int
        The sample, in the order of the answers.
    true, predicted : int
        The class and the answer, as positions among the classes.
    certainty : float or None
        Probability of the answer, where the method has one.
    """

    row: int
    true: int
    predicted: int
    certainty: float | None


def cell_anchor(true: int, predicted: int) -> str:
    """Return where the mistakes of a cell of the matrix stand on the page."""
    return f"mistake-{true}-{predicted}"


def all_mistakes(samples: SampleAnswers, classes: Sequence[str]) -> list[Mistake]:
    """Return every wrong answer about samples of known classes, the most certain first."""
    places = {name: place for place, name in enumerate(classes)}
    found = []
    for row, (true, predicted) in enumerate(zip(samples.true.tolist(), samples.predicted.tolist(), strict=True)):
        if true != predicted and true in places:
            certainty = None if samples.certainty is None else float(samples.certainty[row])
            found.append(Mistake(row, places[true], places[predicted], certainty))
    return sorted(found, key=lambda mistake: (-(mistake.certainty or 0.0), mistake.row))


def chosen_mistakes(mistakes: Sequence[Mistake], most: int = SHOWN) -> list[Mistake]:
    """Return those that are shown: of every cell the most certain one, then of every cell the next, up to so many.

    Examples
    --------
    >>> from evergrow.cli.pages import Mistake, chosen_mistakes
    >>> mistakes = [Mistake(0, 0, 1, 0.9), Mistake(1, 0, 1, 0.8), Mistake(2, 1, 0, 0.5)]
    >>> [mistake.row for mistake in chosen_mistakes(mistakes, most=2)]
    [0, 2]
    """
    seen: Counter[tuple[int, int]] = Counter()
    ranked = []
    for order, mistake in enumerate(mistakes):
        cell = mistake.true, mistake.predicted
        ranked.append((seen[cell], order))
        seen[cell] += 1
    return [mistakes[order] for order in sorted(order for _, order in sorted(ranked)[:most])]


def mistake_gallery(
    samples: SampleAnswers, classes: Sequence[str], mistakes: Sequence[Mistake], shown: Sequence[Mistake]
) -> str:
    """Return the wrong answers class by class, those with most of them first.

    Parameters
    ----------
    samples : SampleAnswers
        What was answered.
    classes : sequence of str
        Names of the classes.
    mistakes, shown : sequence of Mistake
        All of them, and those that are shown, both the most certain first.
    """
    counts = Counter(mistake.true for mistake in mistakes)
    by_class: dict[int, list[Mistake]] = defaultdict(list)
    for mistake in shown:
        by_class[mistake.true].append(mistake)
    anchored: set[str] = set()
    sections = []
    for true in sorted(by_class, key=lambda place: (-counts[place], place)):
        group = by_class[true]
        figures = "\n".join(_mistake_figure(samples, classes, mistake, anchored) for mistake in group)
        more = counts[true] - len(group)
        said = plural(counts[true], "wrong answer") + (f", the {len(group)} most telling shown" if more else "")
        heading = f"<h3>{_text(classes[true])} <small>{said}</small></h3>"
        sections.append(f'<section class="group">\n{heading}\n<div class="gallery">\n{figures}\n</div>\n</section>')
    left = len(mistakes) - len(shown)
    rest = f"\n<p>{plural(left, 'more wrong answer')} not shown: a page holds {SHOWN}.</p>" if left else ""
    return '<div class="groups">\n' + "\n".join(sections) + f"\n</div>{rest}"


def _mistake_figure(samples: SampleAnswers, classes: Sequence[str], mistake: Mistake, anchored: set[str]) -> str:
    anchor = cell_anchor(mistake.true, mistake.predicted)
    place = "" if anchor in anchored else f' id="{anchor}"'
    anchored.add(anchor)
    sure = "" if mistake.certainty is None else f" <b>{percent(mistake.certainty)}</b>"
    caption = f"<figcaption>answered {_text(classes[mistake.predicted])}{sure}</figcaption>"
    return f'<figure class="mistake"{place}>{_sample(samples, mistake.row)}{caption}</figure>'


def _sample(samples: SampleAnswers, answered: int) -> str:
    """Return a sample for people: an image, a text, or the number of its row."""
    row = int(samples.rows[answered])
    if samples.items is None:
        return f"<p>row {row}</p>"
    if samples.items.kind == "text":
        return f"<blockquote>{_text(str(samples.items.raw(row)), _QUOTED)}</blockquote>"
    name = samples.items.name(row)
    return _image(samples.items.raw(row), name) or f"<p>{_text(name)}</p>"


# -- the page of a check ---------------------------------------------------------------------------------------


def check_page(check: DataCheck, samples: tuple[Samples, ...], *, title: str, lead: str = "") -> str:
    """Return the page of a check.

    Parameters
    ----------
    check : DataCheck
        What was found.
    samples : tuple of Samples
        The training samples, and the test samples where there are some.
    title, lead : str
        Heading, and a sentence below it.

    Examples
    --------
    >>> from evergrow.cli.pages import check_page
    >>> from evergrow.data.items import Texts
    >>> from evergrow.data.datacheck import check_samples
    >>> from evergrow.data.intake import read_labelled
    >>> mail = read_labelled((Texts(("<b>hi</b>", "<b>hi</b>")), ["ham", "spam"]), "train")
    >>> page = check_page(check_samples(mail), (mail,), title="Mail & co")
    >>> "Mail &amp; co" in page, "<b>hi" in page, "&lt;b&gt;hi" in page
    (True, False, True)
    """
    thumbnails = _Thumbnails(samples, _ALL_THUMBNAILS)
    sections = [
        _pair_section("The same under two labels", check.of_kind("two labels"), thumbnails),
        _pair_section("The same in training and test", check.of_kind("training and test"), thumbnails),
        _misplaced(check.misplaced, thumbnails),
        _overlaps(check.overlaps),
        _unread(check.unread),
    ]
    found = "\n".join(section for section in sections if section) or "<p>Nothing was found.</p>"
    return _filled("check_page.html", title=_text(title), lead=_text(lead), sections=found)


@dataclass
class _Thumbnails:
    """Samples as a page shows them: small images within a budget, or the beginning of texts."""

    samples: tuple[Samples, ...]
    room: int
    made: dict[int, str] = field(default_factory=dict)

    def show(self, row: int) -> str:
        """Return an image or a text as HTML; empty where there is nothing to show, or no room."""
        if row not in self.made:
            shown = self._made(row)
            self.made[row] = shown if len(shown) <= self.room else ""
        shown = self.made[row] if len(self.made[row]) <= self.room else ""
        self.room -= len(shown)
        return shown

    def _made(self, row: int) -> str:
        part = self.samples[0]
        if row >= len(part):
            part, row = self.samples[1], row - len(part)
        if part.kind == "features":
            return ""
        raw = part.raw_items().raw(row)
        return f"<blockquote>{_text(str(raw), _QUOTED)}</blockquote>" if part.kind == "text" else _image(raw)


def _figure(shown: str, label: str, name: str, part: str) -> str:
    return (
        f"<figure>{shown}<figcaption><b>{_text(label)}</b>{_text(name, _QUOTED)} "
        f"<span>({_text(part)})</span></figcaption></figure>"
    )


def _section(heading: str, entries: list[str], more: int) -> str:
    rest = f"<p>{more:,} more are not shown.</p>" if more > 0 else ""
    body = "\n".join(entries)
    return f"<section>\n<h2>{_text(heading)}</h2>\n<ol>\n{body}\n</ol>\n{rest}</section>" if entries else ""


def _pair_section(heading: str, pairs: list[SamplePair], thumbnails: _Thumbnails) -> str:
    entries = []
    for pair in pairs[:MOST_SHOWN]:
        figures = "".join(
            _figure(thumbnails.show(row), pair.labels[side], pair.names[side], pair.parts[side])
            for side, row in enumerate((pair.first, pair.second))
        )
        how = "the same content" if pair.exact else f"similarity {pair.similarity:.3f}"
        entries.append(f"<li>{figures}<small>{how}</small></li>")
    return _section(f"{heading}: {len(pairs):,}", entries, len(pairs) - MOST_SHOWN)


def _misplaced(found: tuple[Misplaced, ...], thumbnails: _Thumbnails) -> str:
    entries = []
    for entry in found[:MOST_SHOWN]:
        left = _figure(thumbnails.show(entry.row), entry.label, entry.name, entry.part)
        right = _figure(thumbnails.show(entry.neighbour), entry.looks_like, "nearest of that class", "training")
        entries.append(f"<li>{left}{right}<small>similarity {entry.similarity:.3f}</small></li>")
    return _section(f"Perhaps of another class: {len(found):,}", entries, len(found) - MOST_SHOWN)


def _overlaps(overlaps: tuple[ClassOverlap, ...]) -> str:
    if not overlaps:
        return ""
    rows = "\n".join(
        f"<tr><td>{_text(entry.label)}</td><td>{_text(entry.other)}</td><td>{entry.n} of {entry.of}</td></tr>"
        for entry in overlaps[:MOST_SHOWN]
    )
    found = _html_table(("class", "holds samples of", "how many"), rows)
    return f"<section>\n<h2>Classes with another's samples: {len(overlaps):,}</h2>\n{found}\n</section>"


def _unread(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    shown = ", ".join(_text(name, _QUOTED) for name in names[:MOST_SHOWN])
    more = f" and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else ""
    return f"<section>\n<h2>Cannot be read: {len(names):,}</h2>\n<p>{shown}{more}</p>\n</section>"
