"""The wrong answers of an evaluation on its page: thumbnails of images, texts as texts, the most certain ones first."""

from __future__ import annotations

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from evergrow.cli.console import percent, plural
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.learner.evaluation import SampleAnswers

SHOWN = 240
"""Wrong answers on a page at most, which bounds its size; each cell of the matrix has one before any has two."""

_SIDE = 128  # pixels of a thumbnail
_LARGEST = 12_000  # bytes of one
_LETTERS = 280  # characters of a text


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
    >>> from evergrow.cli.mistakes import Mistake, chosen_mistakes
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
        figures = "\n".join(_figure(samples, classes, mistake, anchored) for mistake in group)
        more = counts[true] - len(group)
        said = plural(counts[true], "wrong answer") + (f", the {len(group)} most telling shown" if more else "")
        heading = f"<h3>{_text(classes[true])} <small>{said}</small></h3>"
        sections.append(f'<section class="group">\n{heading}\n<div class="gallery">\n{figures}\n</div>\n</section>')
    left = len(mistakes) - len(shown)
    rest = f"\n<p>{plural(left, 'more wrong answer')} not shown: a page holds {SHOWN}.</p>" if left else ""
    return '<div class="groups">\n' + "\n".join(sections) + f"\n</div>{rest}"


def _figure(samples: SampleAnswers, classes: Sequence[str], mistake: Mistake, anchored: set[str]) -> str:
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
        return f"<blockquote>{_text(str(samples.items.raw(row)), _LETTERS)}</blockquote>"
    name = _text(samples.items.name(row))
    address = thumbnail(samples.items.raw(row))
    return f'<img src="{address}" alt="{name}" title="{name}">' if address else f"<p>{name}</p>"


def thumbnail(image: Any) -> str:
    """Return a small copy of an image as an address that holds it; empty where it cannot be read any more."""
    from evergrow.core.errors import ImageError
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
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _text(text: str, most: int = 120) -> str:
    shown = printable(text)
    return escape(shown if len(shown) <= most else f"{shown[: most - 1]}…", quote=True)
