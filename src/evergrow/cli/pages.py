"""The page of an evaluation: one HTML file that needs no other."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from evergrow.cli.console import percent, plural
from evergrow.cli.mistakes import all_mistakes, cell_anchor, chosen_mistakes, mistake_gallery
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.learner.evaluation import ClassScore, Evaluation, OpenWorld

_NAMED = 60  # classes up to which the matrix has room for their names
_LONGEST = 28  # characters of a name that are shown beside the matrix
_CAPTION = (
    "Rows are true classes, columns are answers. A cell is the stronger the larger its share of its row; right answers "
    "lie on the diagonal. Point at a cell to read it."
)
_LEADS = " A wrong one leads to its samples below."
_SORTED = "Class by class, the most certain first: those are labels to check, or classes that look alike to the model."
_CELLS = 4000
"""Cells of the matrix that are drawn at most, those with most samples first."""
_LETTERS = 300
"""Characters of any text on the page at most."""
_ROWS = 1000
"""Classes in the table at most, the worst first."""


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
    template = Template(files("evergrow.cli").joinpath("evaluation_page.html").read_text(encoding="utf-8"))
    return template.substitute(
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


def share(value: float) -> str:
    """Return a share in percent, or a dash where there was nothing to divide by.

    Examples
    --------
    >>> from evergrow.cli.pages import share
    >>> share(0.5), share(float("nan"))
    ('50.0 %', '-')
    """
    return percent(value) if math.isfinite(value) else "-"


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


def _text(text: str) -> str:
    """Return a text that is safe between tags and inside attributes, and no longer than a page can bear."""
    shown = printable(text)
    return escape(shown if len(shown) <= _LETTERS else f"{shown[: _LETTERS - 1]}…", quote=True)


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
    import numpy as np

    from evergrow.cli.charts import novelty_chart, reliability, reliability_chart

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
    head = "<tr><th>true class</th><th>answer</th><th>samples</th><th>of the class</th></tr>"
    return f'<table class="pairs"><thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table>'


def _link(inner: str, cell: tuple[int, int], linked: Collection[tuple[int, int]]) -> str:
    """Return something that leads to the samples of a cell, where any are shown."""
    return f'<a href="#{cell_anchor(*cell)}">{inner}</a>' if cell in linked else inner


def _class_table(scores: Sequence[ClassScore]) -> str:
    """Return the table of all classes, the worst first, so that nobody has to look for them."""
    head = "<tr><th>class</th><th>samples</th><th>recall</th><th>precision</th></tr>"
    rows = [
        f"<tr><td>{_text(row.name)}</td><td>{row.n}</td><td>{_bar(row.recall)}</td><td>{share(row.precision)}</td></tr>"
        for row in worst_first(scores)[:_ROWS]
    ]
    if len(scores) > _ROWS:
        rows.append(f'<tr><td colspan="4">and {plural(len(scores) - _ROWS, "more class", "more classes")}</td></tr>')
    body = "\n".join(rows)
    return f"<table><thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table>"


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
    import numpy as np

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
