"""The pages of ``evaluate --report`` and ``data --check --html``: one HTML file each, of bounded size."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from numpy.typing import NDArray

from evergrow.cli.console import percent, plural, share
from evergrow.core.errors import ImageError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.data.datacheck import DataCheck
    from evergrow.data.items import Items, Samples
    from evergrow.learner.evaluation import ClassScore, Evaluation, SampleAnswers

Array = NDArray[np.float64]

SHOWN = 240
"""Wrong answers on a page at most, which bounds its size; each cell of the matrix has one before any has two."""
MOST_SHOWN = 60
"""Findings of each kind that the page of a check shows; it says how many more there are."""

_LETTERS = 300  # characters of any text on a page at most
_SIDE = 128  # pixels of a thumbnail
_LARGEST = 12_000  # bytes of one
_ALL_THUMBNAILS = 4 * 2**20  # characters of all thumbnails of a check together
_NAMED = 60  # classes up to which the matrix has room for their names
_LONGEST = 28  # characters of a name that are shown beside the matrix
_CELLS = 4000  # cells of the matrix that are drawn at most, those with most samples first
_ROWS = 1000  # classes in the table at most, the worst first
_BINS = 10
_NOVELTY_BINS = 32


def write_page(path: Path, page: str) -> None:
    """Write a page in one step."""
    from evergrow.core.files import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _render(template: str, **values: Any) -> str:
    """Fill a template; every text in it is escaped, printable and no longer than a page can bear."""
    pages = Environment(
        loader=PackageLoader("evergrow.cli", ""),
        autoescape=True,
        finalize=lambda value: _short(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {"share": share, "percent": percent, "plural": plural, "most": MOST_SHOWN}
    return pages.get_template(template).render(values)


def _short(text: str, most: int = _LETTERS) -> str:
    shown = printable(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _sample(items: Items | None, row: int) -> Markup:
    """Return a sample as HTML: a small image, the beginning of a text; empty where neither can be shown."""
    if items is None:
        return Markup()
    raw = items.raw(row)
    if items.kind == "text":
        return Markup("<blockquote>{}</blockquote>").format(_short(str(raw)))
    from evergrow.features.images import decode_image

    try:
        small = decode_image(raw)
    except (ImageError, OSError):
        return Markup()
    small.thumbnail((_SIDE, _SIDE))
    for quality in (80, 50, 20):
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=quality)
        if buffer.tell() <= _LARGEST:
            break
    body, name = base64.b64encode(buffer.getvalue()).decode(), _short(items.name(row))
    return Markup('<img src="data:image/jpeg;base64,{}" alt="{}" title="{}">').format(body, name, name)


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
    samples, scores = evaluation.samples, worst_first(evaluation.per_class)
    places = {name: place for place, name in enumerate(evaluation.classes)}
    return _render(
        "evaluation_page.html",
        title=title,
        lead=lead,
        found=evaluation,
        charts=[] if samples is None else _charts(samples, np.isin(samples.true, evaluation.classes)),
        places=places,
        matrix=_matrix(evaluation),
        **_wrong_answers(samples, places),
        shown=SHOWN,
        scores=scores[:_ROWS],
        more_classes=len(scores) - _ROWS,
    )


def worst_first(scores: Sequence[ClassScore]) -> list[ClassScore]:
    """Return classes by the share of their samples that was found; those without samples come last."""
    return sorted(scores, key=lambda row: (not row.n, row.recall if row.n else 0.0, row.name))


def _matrix(evaluation: Evaluation) -> dict[str, Any]:
    """Return where the cells of the confusion matrix that are not zero lie, and what each of them says."""
    names, confusion = [printable(name) for name in evaluation.classes], evaluation.confusion
    n, named = len(names), len(names) <= _NAMED
    margin = 12 + (7 * min(max(map(len, names), default=0), _LONGEST) if named else 0)
    size = 28 if n <= 20 else 18 if named else max(2, 900 // n)
    totals = confusion.sum(axis=1)
    filled = np.flatnonzero(confusion)
    if len(filled) > _CELLS:
        filled = np.sort(filled[np.argsort(-confusion.ravel()[filled], kind="stable")[:_CELLS]])
    cells = []
    for row, column in (divmod(place, n) for place in filled.tolist()):
        count, total = int(confusion[row, column]), int(totals[row])
        words = f"{names[row]} answered as {names[column]}: {count} of {total}"
        # The eye finds single errors only if the smallest share is well off the background.
        cells.append((row, column, 0.15 + 0.85 * math.sqrt(count / total), words))
    labels = [_short(name, _LONGEST) for name in names] if named else []
    return {"size": size, "margin": margin, "width": n * size, "labels": labels, "cells": cells}


# -- its charts ------------------------------------------------------------------------------------------------


def _charts(samples: SampleAnswers, known: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """Return the reliability diagram and the histogram of novelty, where there are numbers for them."""
    charts = []
    if samples.certainty is not None and known.any():
        charts.append(_reliability(samples.certainty[known], (samples.true == samples.predicted)[known]))
    if samples.novelty is not None and samples.threshold is not None:
        strange = np.concatenate([samples.novelty[~known], samples.strange])
        charts.append(_novelty(samples.novelty[known], strange, samples.threshold))
    return charts


def _chart(x: tuple[float, float], y: tuple[float, float], **parts: Any) -> dict[str, Any]:
    """Return bars over numbers with a dashed line, and how far right and down numbers lie on a canvas of 420 x 300.

    Parameters
    ----------
    x, y : tuple of float
        Smallest and largest number on each axis.
    **parts
        ``heading``, ``below`` and ``caption``; ``ticks``, the numbers to write on each axis; ``rule``, the ends of the
        dashed line as x, y, x, y; and ``bars``.
    """
    return {
        "across": lambda value: 46 + (value - x[0]) / (x[1] - x[0]) * 364,
        "down": lambda value: 256 - (value - y[0]) / (y[1] - y[0]) * 244,
        **parts,
    }


def _bar(low: float, high: float, height: float, kind: str, opacity: float, words: str) -> dict[str, Any]:
    return {"low": low, "high": high, "height": height, "kind": kind, "opacity": opacity, "words": words}


def _reliability(certainty: Array, right: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the share of right answers by certainty; where all is well the bars end on the diagonal."""
    bins = np.clip((certainty * _BINS).astype(int), 0, _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    bars, gap = [], 0.0
    for place in np.flatnonzero(counts).tolist():
        n, mean, accuracy = int(counts[place]), certainty[bins == place].mean(), right[bins == place].mean()
        gap += abs(mean - accuracy) * n / len(certainty)
        words = f"certainty {mean:.2f}: {100 * accuracy:.1f} % of {n:,} right"
        opacity = 0.35 + 0.65 * math.sqrt(n / counts.max())
        bars.append(_bar(place / _BINS, (place + 1) / _BINS, float(accuracy), "hit", opacity, words))
    quarters = [0, 0.25, 0.5, 0.75, 1]
    return _chart(
        (0.0, 1.0),
        (0.0, 1.0),
        heading="How far certainty can be trusted",
        below="certainty of the answer",
        caption="Share of right answers by certainty: the line is where both agree, stronger bars stand for more "
        f"answers. On average they are {percent(gap)} apart (expected calibration error).",
        ticks=(quarters, quarters),
        rule=(0, 0, 1, 1),
        bars=bars,
    )


def _novelty(known: Array, strange: Array, threshold: float) -> dict[str, Any]:
    """Return histograms of the novelty of known and of never learned samples, with the threshold between them."""
    both = np.concatenate([known, strange])
    both = both[np.isfinite(both)]
    low, high = np.quantile(both, [0.005, 0.98]).tolist() if len(both) else (threshold, threshold)
    low, high = min(low, threshold), max(high, threshold)
    margin = 0.05 * (high - low) or 1.0
    edges = np.linspace(low - margin, high + margin, _NOVELTY_BINS + 1)
    bars = []
    for values, kind, name in ((known, "hit", "known"), (strange, "miss", "never learned")):
        # What lies outside counts in the outermost bars; what is no number is as novel as can be.
        inside = np.nan_to_num(values, nan=edges[-1]).clip(edges[0], edges[-1])
        shares = np.histogram(inside, edges)[0] / max(len(values), 1)
        for place in np.flatnonzero(shares).tolist():
            left, right, height = (float(value) for value in (edges[place], edges[place + 1], shares[place]))
            bars.append(
                _bar(left, right, height, kind, 0.6, f"{name}: {100 * height:.1f} % from {left:.3g} to {right:.3g}")
            )
    top = 1.08 * max((bar["height"] for bar in bars), default=1e-9)
    others = ", red: never learned." if len(strange) else "; the data hold none that were never learned."
    span = float(edges[0]), float(edges[-1])
    return _chart(
        span,
        (0.0, top),
        heading="Novelty",
        below="novelty",
        caption=f"Samples above {threshold:.4g}, the dashed line, are called unknown. Blue: known classes{others}",
        ticks=(_ticks(*span, 6), _ticks(0.0, top, 4)),
        rule=(threshold, 0.0, threshold, top),
        bars=bars,
    )


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about so many round numbers between two."""
    rough = (high - low) / wanted
    step = 10.0 ** math.floor(math.log10(rough))
    step *= next((factor for factor in (1, 2, 5) if factor * step >= rough), 10)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


# -- its wrong answers -----------------------------------------------------------------------------------------


def _wrong_answers(samples: SampleAnswers | None, places: dict[str, int]) -> dict[str, Any]:
    """Return the wrong answers class by class, the cells that have one to link to, and how many are not shown.

    Of every cell the most certain is shown, then of every cell the next, up to so many.
    """
    if samples is None:
        return {"groups": [], "linked": set(), "left": 0}
    wrong: list[tuple[float | None, int, tuple[int, int]]] = []  # certainty, row and cell
    for row, (true, predicted) in enumerate(zip(samples.true.tolist(), samples.predicted.tolist(), strict=True)):
        if true != predicted and true in places:
            certainty = None if samples.certainty is None else float(samples.certainty[row])
            wrong.append((certainty, row, (places[true], places[predicted])))
    wrong.sort(key=lambda mistake: -(mistake[0] or 0.0))
    seen: Counter[tuple[int, int]] = Counter()
    ranks = []
    for _, _, cell in wrong:
        ranks.append(seen[cell])
        seen[cell] += 1
    shown = sorted(sorted(range(len(wrong)), key=ranks.__getitem__)[:SHOWN])
    counts = Counter(cell[0] for _, _, cell in wrong)
    names = list(places)
    groups: dict[int, dict[str, Any]] = {}
    for place in sorted({wrong[index][2][0] for index in shown}, key=lambda place: (-counts[place], place)):
        groups[place] = {"name": names[place], "count": counts[place], "mistakes": []}
    linked: set[tuple[int, int]] = set()
    for certainty, row, cell in (wrong[index] for index in shown):
        row, items = int(samples.rows[row]), samples.items
        groups[cell[0]]["mistakes"].append(
            {
                "anchor": "" if cell in linked else "mistake-{}-{}".format(*cell),
                "sample": _sample(items, row),
                "name": f"row {row}" if items is None else items.name(row),
                "answer": names[cell[1]],
                "certainty": certainty,
            }
        )
        linked.add(cell)
    return {"groups": list(groups.values()), "linked": linked, "left": len(wrong) - len(shown)}


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
    room = _ALL_THUMBNAILS

    def show(row: int) -> Markup:
        nonlocal room
        part, row = (samples[0], row) if row < len(samples[0]) else (samples[1], row - len(samples[0]))
        shown = Markup() if part.kind == "features" or room <= 0 else _sample(part.raw_items(), row)
        if len(shown) > room:
            return Markup()
        room -= len(shown)
        return shown

    return _render("check_page.html", title=title, lead=lead, check=check, sample=show)
