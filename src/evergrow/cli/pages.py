"""The page of ``evaluate --report``: one HTML file of bounded size."""

from __future__ import annotations

import base64
import io
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from evergrow.cli.console import percent, plural, share
from evergrow.core.errors import ImageError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.data.items import Items
    from evergrow.learner.evaluation import ClassScore, Evaluation, SampleAnswers

SHOWN = 240
"""Wrong answers on a page at most, which bounds its size."""

_LETTERS = 300  # characters of any text on a page at most
_SIDE = 128  # pixels of a thumbnail
_LARGEST = 12_000  # bytes of one
_NAMED = 60  # classes up to which the matrix has room for their names
_LONGEST = 28  # characters of a name that are shown beside the matrix
_CELLS = 4000  # cells of the matrix that are drawn at most, those with most samples first
_ROWS = 1000  # classes in the table at most, the worst first


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
    scores = worst_first(evaluation.per_class)
    places = {name: place for place, name in enumerate(evaluation.classes)}
    pages = Environment(
        loader=PackageLoader("evergrow.cli", ""),
        autoescape=True,
        finalize=lambda value: _short(value) if type(value) is str else value,  # every text printable and not too long
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {"share": share, "percent": percent, "plural": plural}
    return pages.get_template("evaluation_page.html").render(
        title=title,
        lead=lead,
        found=evaluation,
        places=places,
        matrix=_matrix(evaluation),
        **_wrong_answers(evaluation.samples, places),
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


# -- its wrong answers -----------------------------------------------------------------------------------------


def _wrong_answers(samples: SampleAnswers | None, places: dict[str, int]) -> dict[str, Any]:
    """Return the most certain wrong answers by class, the cells that have one to link to, and how many are left out."""
    if samples is None:
        return {"groups": [], "linked": set(), "left": 0}
    certainty = [None] * len(samples.true) if samples.certainty is None else samples.certainty.tolist()
    wrong = [
        (sure or 0.0, row, (places[true], places[predicted]))
        for row, (sure, true, predicted) in enumerate(zip(certainty, samples.true, samples.predicted, strict=True))
        if true != predicted and true in places
    ]
    wrong.sort(key=lambda mistake: -mistake[0])
    counts = Counter(cell[0] for _, _, cell in wrong)
    names, items = list(places), samples.items
    groups: dict[int, list[dict[str, Any]]] = {}
    linked: set[tuple[int, int]] = set()
    for _, place, cell in wrong[:SHOWN]:
        row = int(samples.rows[place])
        groups.setdefault(cell[0], []).append(
            {
                "anchor": "" if cell in linked else "mistake-{}-{}".format(*cell),
                "sample": _sample(items, row),
                "name": f"row {row}" if items is None else items.name(row),
                "answer": names[cell[1]],
                "certainty": certainty[place],
            }
        )
        linked.add(cell)
    shown = [(names[place], counts[place], groups[place]) for place, _ in counts.most_common() if place in groups]
    return {"groups": shown, "linked": linked, "left": len(wrong) - SHOWN}
