"""Phrases that make technical English hard to read, and a counter for them.

Each phrase refers to a thing by a pronoun or a clause instead of its name. One of them
is harmless; many of them make a text a riddle.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

PATTERNS = {
    "clause in place of a noun": r"what (?:is|are|was|were|has|had|it|they|all|others?)",
    "pronoun in place of a noun": r"those (?:of|that|which|who)|that which",
    "pronoun after a preposition": r"(?:of|than) (?:that|those|these)",
    "vague quantity": r"(?:as|so) (?:many|much|few)",
    "where in place of if": r"where (?:it|they|this|that|there|one)",
    "verb of speech without a speaker": r"(?:is|are|be) (?:told|asked|said|meant)",
    "pronoun for anything": r"(?:what|which|who)ever",
    "empty subject": r"nothing (?:of|that|else)|there (?:is|are) none",
    "rare word": r"anew|beside|hence|likewise|thereof|whence",
}
PHRASE = re.compile(rf"\b(?:{'|'.join(PATTERNS.values())})\b", re.IGNORECASE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def phrases(text: str) -> list[str]:
    """Return the hard phrases of a text."""
    return [match[0] for match in PHRASE.finditer(" ".join(text.split()))]


def prose_of_source(path: Path) -> Iterator[str]:
    """Yield the docstrings, without examples, and the comments of a module."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        docstring = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if docstring:
            yield re.sub(r"^\s*(?:>>>|\.\.\. ).*$", "", docstring, flags=re.MULTILINE)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def prose_of_page(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a Markdown page, without blocks of code."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from text.split("\n\n")
