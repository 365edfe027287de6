"""The page of ``evaluate --report``: one HTML file of bounded size."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from evergrow.cli.console import percent, plural
from evergrow.core.errors import ImageError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.data.items import Items
    from evergrow.learner.evaluation import ClassScore, Evaluation, SampleAnswers

SHOWN = 240
"""Wrong answers on a page at most, which bounds its size."""

_LETTERS = 300  # characters of any text on a page at most
_SIDE = 128  # pixels of a thumbnail
_NAMED = (
    60  # classes up to which the matrix is shown; beyond, the confused pairs say more
)
_ROWS = 1000  # classes in the table at most, the worst first


def _short(text: str) -> str:
    shown = printable(text)
    if len(shown) <= _LETTERS:
        return shown
    return f"{shown[: _LETTERS - 1]}…"


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
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=60)
    body = base64.b64encode(buffer.getvalue()).decode()
    name = _short(items.name(row))
    return Markup('<img src="data:image/jpeg;base64,{}" alt="{}" title="{}">').format(
        body, name, name
    )


# -- the page of an evaluation ---------------------------------------------------------


def evaluation_page(
    evaluation: Evaluation, *, title: str, lead: str = "", picture: str = ""
) -> str:
    """Return the page of an evaluation.

    Parameters
    ----------
    evaluation : Evaluation
        What was found.
    title, lead : str
        Heading, and a sentence below it.
    picture : str
        An SVG image of the learning curve.

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
        finalize=lambda value: (
            _short(value) if type(value) is str else value
        ),  # every text printable and not too long
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals |= {"percent": percent, "plural": plural}
    return pages.get_template(
        "evaluation_page.html"
    ).render(
        title=title,
        lead=lead,
        picture=Markup(picture),  # made here, of numbers alone
        found=evaluation,
        places=places,
        matrix=evaluation.confusion.tolist() if len(places) <= _NAMED else [],
        **_wrong_answers(evaluation.samples, places),
        shown=SHOWN,
        scores=scores[:_ROWS],
        more_classes=len(scores) - _ROWS,
    )


def worst_first(scores: Sequence[ClassScore]) -> list[ClassScore]:
    """Return classes by the share of their samples that was found; those without samples come last."""
    return sorted(
        scores, key=lambda row: (not row.n, row.recall if row.n else 0.0, row.name)
    )


# -- its wrong answers -----------------------------------------------------------------


def _wrong_answers(
    samples: SampleAnswers | None, places: dict[str, int]
) -> dict[str, Any]:
    """Return the most certain wrong answers by class, the cells that have one to link to, and how many are left out."""
    if samples is None:
        return {"groups": [], "linked": set(), "left": 0}
    if samples.certainty is None:
        certainty = [None] * len(samples.true)
    else:
        certainty = samples.certainty.tolist()
    wrong = [
        (sure or 0.0, row, (places[true], places[predicted]))
        for row, (sure, true, predicted) in enumerate(
            zip(certainty, samples.true, samples.predicted, strict=True)
        )
        if true != predicted and true in places
    ]
    wrong.sort(key=lambda mistake: -mistake[0])
    counts = Counter(cell[0] for _, _, cell in wrong)
    names = list(places)
    items = samples.items
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
    shown = [
        (names[place], counts[place], groups[place])
        for place, _ in counts.most_common()
        if place in groups
    ]
    return {"groups": shown, "linked": linked, "left": len(wrong) - SHOWN}
