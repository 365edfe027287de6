"""The page of ``evaluate --report``: one HTML file of limited size."""

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
    from evergrow.learner.evaluation import ClassScore, EvaluatedSamples, Evaluation

SHOWN = 240
"""Maximum number of wrong answers on a page, which limits its size."""

_MAX_CHARACTERS = 300  # in any text
_THUMBNAIL_PIXELS = 128
_MAX_MATRIX_CLASSES = 60  # with more, the page has no confusion matrix
_MAX_CLASS_ROWS = 1000  # in the table of classes


def _short(text: str) -> str:
    """Return a text without control characters, and cut if it is long."""
    shown = printable(text)
    if len(shown) <= _MAX_CHARACTERS:
        return shown
    return f"{shown[: _MAX_CHARACTERS - 1]}…"


def _sample_html(items: Items | None, row: int) -> Markup:
    """Return an HTML element with a thumbnail or the start of a text.

    The result is empty for feature vectors (no items) and unreadable images.
    """
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
    small.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=60)
    body = base64.b64encode(buffer.getvalue()).decode()
    name = _short(items.name(row))
    return Markup('<img src="data:image/jpeg;base64,{}" alt="{}" title="{}">').format(
        body, name, name
    )


def evaluation_page(
    evaluation: Evaluation, *, title: str, lead: str = "", picture: str = ""
) -> str:
    """Return an evaluation as an HTML page.

    Parameters
    ----------
    evaluation : Evaluation
        The evaluation. The page shows wrong answers if it keeps its samples.
    title : str
        Heading.
    lead : str
        Sentence below the heading.
    picture : str
        SVG image of the learning curve.

    Examples
    --------
    >>> from evergrow.cli.evaluation_page import evaluation_page
    >>> from evergrow.learner.evaluation import evaluate_predictions
    >>> labels, classes = ["<cat>", "dog", "dog"], ["<cat>", "dog"]
    >>> result = evaluate_predictions(labels, ["<cat>", "dog", "<cat>"], classes)
    >>> page = evaluation_page(result, title="Pets & co")
    >>> "Pets &amp; co" in page, "<cat>" in page, page.count('class="miss"')
    (True, False, 1)
    """
    scores = sort_by_recall(evaluation.per_class)
    indices = {name: index for index, name in enumerate(evaluation.classes)}
    matrix = []
    if len(indices) <= _MAX_MATRIX_CLASSES:
        matrix = evaluation.confusion.tolist()
    environment = Environment(
        loader=PackageLoader("evergrow.cli", ""),
        autoescape=True,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"percent": percent, "plural": plural}
    return environment.get_template(
        "evaluation_page.html"
    ).render(
        title=title,
        lead=lead,
        picture=Markup(picture),  # contains only numbers, nothing to escape
        found=evaluation,
        indices=indices,
        matrix=matrix,
        **_wrong_answers(evaluation.samples, indices),
        shown=SHOWN,
        scores=scores[:_MAX_CLASS_ROWS],
        more_classes=len(scores) - _MAX_CLASS_ROWS,
    )


def _finalize(value: Any) -> Any:
    """Make every text on the page printable and short. Markup is left unchanged."""
    return _short(value) if type(value) is str else value


def sort_by_recall(scores: Sequence[ClassScore]) -> list[ClassScore]:
    """Sort classes by recall in ascending order. Classes without samples come last."""
    return sorted(
        scores, key=lambda row: (not row.n, row.recall if row.n else 0.0, row.name)
    )


def _wrong_answers(
    samples: EvaluatedSamples | None, indices: dict[str, int]
) -> dict[str, Any]:
    """Return the template variables of the wrong answers.

    Parameters
    ----------
    samples : EvaluatedSamples or None
        True and predicted classes of the tested samples, if the evaluation kept them.
    indices : dict of str to int
        Rows of the confusion matrix by class.

    Returns
    -------
    dict
        ``groups``: true class, number of its wrong answers, and the most certain of
        them, the class with most wrong answers first. ``linked``: cells (true,
        predicted) of the confusion matrix of which an answer is shown. ``left``: number
        of wrong answers that are not shown; not above 0 if all are.
    """
    if samples is None:
        return {"groups": [], "linked": set(), "left": 0}
    certainty = [None] * len(samples.true)
    if samples.certainty is not None:
        certainty = samples.certainty.tolist()
    wrong = []
    for position, (true, predicted) in enumerate(
        zip(samples.true, samples.predicted, strict=True)
    ):
        if true != predicted and true in indices:
            wrong.append((position, (indices[true], indices[predicted])))
    wrong.sort(key=lambda mistake: -(certainty[mistake[0]] or 0.0))

    names = list(indices)
    items = samples.items
    groups: dict[int, list[dict[str, Any]]] = {}
    linked: set[tuple[int, int]] = set()
    for position, cell in wrong[:SHOWN]:
        true_index, predicted_index = cell
        row = int(samples.rows[position])
        anchor = ""
        if cell not in linked:
            anchor = f"mistake-{true_index}-{predicted_index}"
        linked.add(cell)
        groups.setdefault(true_index, []).append(
            {
                "anchor": anchor,
                "sample": _sample_html(items, row),
                "name": f"row {row}" if items is None else items.name(row),
                "answer": names[predicted_index],
                "certainty": certainty[position],
            }
        )
    counts = Counter(true_index for _, (true_index, _) in wrong)
    shown = [
        (names[index], count, groups[index])
        for index, count in counts.most_common()
        if index in groups
    ]
    return {"groups": shown, "linked": linked, "left": len(wrong) - SHOWN}
