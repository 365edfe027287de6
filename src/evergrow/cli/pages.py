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
        chart=None if samples is None else _reliability(samples, np.isin(samples.true, evaluation.classes)),
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


def _reliability(samples: SampleAnswers, known: NDArray[np.bool_]) -> dict[str, Any] | None:
    """Return bars of the share of right answers by certainty; where all is well they end on the diagonal."""
    if samples.certainty is None or not known.any():
        return None
    certainty, right = samples.certainty[known], (samples.true == samples.predicted)[known]
    bins = np.clip((certainty * _BINS).astype(int), 0, _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    bars, gap = [], 0.0
    for place in np.flatnonzero(counts).tolist():
        n, mean, accuracy = int(counts[place]), certainty[bins == place].mean(), right[bins == place].mean()
        gap += abs(mean - accuracy) * n / len(certainty)
        words = f"certainty {mean:.2f}: {100 * accuracy:.1f} % of {n:,} right"
        opacity = 0.35 + 0.65 * math.sqrt(n / counts.max())
        bars.append({"left": place / _BINS, "height": float(accuracy), "opacity": opacity, "words": words})
    return {"bars": bars, "width": 1 / _BINS, "gap": gap}


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
