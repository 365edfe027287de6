"""Escape untrusted names for terminals, spreadsheets and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet interpret a cell as a formula."""

_MARKDOWN = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        **{character: f"\\{character}" for character in "\\`*[]|"},
    }
)


def printable(text: str) -> str:
    r"""Escape control characters and bytes that are not UTF-8.

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
    r"""Return a message as one line without control characters.

    Examples
    --------
    >>> from evergrow.core.escaping import one_line
    >>> one_line("first\n  second \x1b[2J")
    'first second \\x1b[2J'
    """
    return printable(" ".join(text.split()))


def csv_text(text: str) -> str:
    r"""Return a text for a CSV cell that spreadsheets do not interpret as a formula.

    Control characters are escaped. Texts that begin with ``=``, ``+``, ``-``, ``@``, a
    tab or a carriage return get a leading single quote, as OWASP recommends.

    Examples
    --------
    >>> from evergrow.core.escaping import csv_text
    >>> csv_text("=1+1"), csv_text("cat"), csv_text("\tcat")
    ("'=1+1", 'cat', "'\\tcat")
    """
    guard = "'" if text.startswith(_FORMULA) else ""
    return guard + printable(text)


# A backslash and what it escapes: a backslash, or a code of 2, 4 or 8 hexadecimal
# digits. The last group matches anything else, which is an error.
_ESCAPE = re.compile(
    r"\\(?:(\\)|x([0-9a-f]{2})|u([0-9a-f]{4})|U(00(?:0[0-9a-f]|10)[0-9a-f]{4})|(.?))",
    re.DOTALL,
)


def csv_exact(text: str) -> str:
    r"""Escape a text for a CSV cell so that :func:`exact_text` gives it back unchanged.

    Backslashes, control characters, line ends and bytes that are not UTF-8 are written
    as escapes. A single quote goes before a text that a spreadsheet could take for a
    formula.

    Examples
    --------
    >>> from evergrow.core.escaping import csv_exact
    >>> print(csv_exact("a\\b\n\udce9.png"), csv_exact("=1+1"))
    a\\b\x0a\udce9.png '=1+1
    """
    guard = "'" if text.startswith((*_FORMULA, "'")) else ""
    return guard + "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    """Return a character, or the escape that stands for it."""
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def exact_text(cell: str) -> str:
    r"""Return the text that :func:`csv_exact` wrote to a cell.

    Raises
    ------
    ValueError
        If a backslash begins no escape.

    Examples
    --------
    >>> from evergrow.core.escaping import csv_exact, exact_text
    >>> exact_text(csv_exact("a\\b\n\udce9.png")) == "a\\b\n\udce9.png"
    True
    """

    def character(found: re.Match[str]) -> str:
        """Return the character that an escape stands for."""
        backslash, *codes, _ = found.groups()
        if backslash:
            return "\\"
        for code in codes:
            if code:
                return chr(int(code, 16))
        raise ValueError(f"{found[0]!r} is not an escape")

    return _ESCAPE.sub(character, cell.removeprefix("'"))


def markdown_text(text: str) -> str:
    r"""Escape a text for Markdown, also in tables: no tags, links, code or cells.

    Examples
    --------
    >>> from evergrow.core.escaping import markdown_text
    >>> markdown_text("<b>a|b</b>"), markdown_text("n_units=5")
    ('&lt;b&gt;a\\|b&lt;/b&gt;', 'n_units=5')
    """
    return one_line(text).translate(_MARKDOWN)


def quote_names(names: Iterable[str], most: int = 5) -> str:
    """Return the first names in quotes, and the number of the others.

    Examples
    --------
    >>> from evergrow.core.escaping import quote_names
    >>> quote_names(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    quoted = [repr(name) for name in names]
    shown = ", ".join(quoted[:most])
    if len(quoted) > most:
        return f"{shown} and {len(quoted) - most} more"
    return shown
