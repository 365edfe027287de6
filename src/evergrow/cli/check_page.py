"""The page of a check of data: findings with thumbnails, in one HTML file of bounded size."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from evergrow.core.errors import ImageError
from evergrow.core.escaping import printable

if TYPE_CHECKING:
    from evergrow.data.datacheck import ClassOverlap, DataCheck, Misplaced, SamplePair
    from evergrow.data.intake import Samples

MOST_SHOWN = 60
"""Findings of each kind that a page shows; it says how many more there are."""

_SIDE, _QUALITY = 144, 72
_LARGEST = 4 * 2**20  # characters of all thumbnails together
_LONGEST = 240  # characters of a text that are shown


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
    >>> from evergrow.cli.check_page import check_page
    >>> from evergrow.core.items import Texts
    >>> from evergrow.data.datacheck import check_samples
    >>> from evergrow.data.intake import read_labelled
    >>> mail = read_labelled((Texts(("<b>hi</b>", "<b>hi</b>")), ["ham", "spam"]), "train")
    >>> page = check_page(check_samples(mail), (mail,), title="Mail & co")
    >>> "Mail &amp; co" in page, "<b>hi" in page, "&lt;b&gt;hi" in page
    (True, False, True)
    """
    thumbnails = _Thumbnails(samples, _LARGEST)
    sections = [
        _pairs("The same under two labels", check.of_kind("two labels"), thumbnails),
        _pairs("The same in training and test", check.of_kind("training and test"), thumbnails),
        _misplaced(check.misplaced, thumbnails),
        _overlaps(check.overlaps),
        _unread(check.unread),
    ]
    found = "\n".join(section for section in sections if section) or "<p>Nothing was found.</p>"
    template = Template(files("evergrow.cli").joinpath("check_page.html").read_text(encoding="utf-8"))
    return template.substitute(title=_text(title), lead=_text(lead), sections=found)


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
        if part.kind == "text":
            text = str(raw)
            return f"<blockquote>{_text(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…')}</blockquote>"
        try:
            return _thumbnail(raw)
        except (ImageError, OSError):
            return ""


def _thumbnail(raw: object) -> str:
    from evergrow.features.images import decode_image

    image = decode_image(raw)
    image.thumbnail((_SIDE, _SIDE))
    target = io.BytesIO()
    image.save(target, "JPEG", quality=_QUALITY)
    body = base64.b64encode(target.getvalue()).decode("ascii")
    return f'<img alt="" width="{image.width}" height="{image.height}" src="data:image/jpeg;base64,{body}">'


def _text(text: str) -> str:
    """Return a text that is safe between tags and inside attributes."""
    return escape(printable(text), quote=True)


def _figure(shown: str, label: str, name: str, part: str) -> str:
    return (
        f"<figure>{shown}<figcaption><b>{_text(label)}</b>{_text(name[:_LONGEST])} "
        f"<span>({_text(part)})</span></figcaption></figure>"
    )


def _section(heading: str, entries: list[str], more: int) -> str:
    rest = f"<p>{more:,} more are not shown.</p>" if more > 0 else ""
    body = "\n".join(entries)
    return f"<section>\n<h2>{_text(heading)}</h2>\n<ol>\n{body}\n</ol>\n{rest}</section>" if entries else ""


def _pairs(heading: str, pairs: list[SamplePair], thumbnails: _Thumbnails) -> str:
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
    head = "<tr><th>class</th><th>holds samples of</th><th>how many</th></tr>"
    return (
        f"<section>\n<h2>Classes with another's samples: {len(overlaps):,}</h2>\n"
        f"<table><thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table>\n</section>"
    )


def _unread(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    shown = ", ".join(_text(name[:_LONGEST]) for name in names[:MOST_SHOWN])
    more = f" and {len(names) - MOST_SHOWN:,} more" if len(names) > MOST_SHOWN else ""
    return f"<section>\n<h2>Cannot be read: {len(names):,}</h2>\n<p>{shown}{more}</p>\n</section>"
