"""Names from strangers' folders, made harmless for terminals, spreadsheets and Markdown."""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet take a cell for a formula."""

_MARKDOWN = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        **{character: f"\\{character}" for character in "\\`*[]|"},
    }
)


def printable(text: str) -> str:
    r"""Return a text with control characters, and bytes that are no UTF-8, written out as escapes.

    Examples
    --------
    >>> from evergrow.core.escaping import printable
    >>> printable("cat\x07"), printable("caf\udce9.png")
    ('cat\\x07', 'caf\\udce9.png')
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else repr(character)[1:-1]
        for character in text
    )


def one_line(text: str) -> str:
    r"""Return a message on one line that a terminal shows as it is.

    Examples
    --------
    >>> from evergrow.core.escaping import one_line
    >>> one_line("first\n  second \x1b[2J")
    'first second \\x1b[2J'
    """
    return printable(" ".join(text.split()))


def csv_text(text: str) -> str:
    r"""Return a text for a cell of a CSV file that no spreadsheet takes for a formula.

    A text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return gets a single quote before it, as
    OWASP advises; control characters are written out.

    Examples
    --------
    >>> from evergrow.core.escaping import csv_text
    >>> csv_text("=1+1"), csv_text("cat"), csv_text("\tcat")
    ("'=1+1", 'cat', "'\\tcat")
    """
    return ("'" if text.startswith(_FORMULA) else "") + printable(text)


def markdown_text(text: str) -> str:
    r"""Return a text that Markdown shows as it is, in a table too: no tags, links, code or further cells.

    Examples
    --------
    >>> from evergrow.core.escaping import markdown_text
    >>> markdown_text("<b>a|b</b>"), markdown_text("n_units=5")
    ('&lt;b&gt;a\\|b&lt;/b&gt;', 'n_units=5')
    """
    return one_line(text).translate(_MARKDOWN)
