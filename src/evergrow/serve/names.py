"""Names of models: data from strangers that become part of a file's name, and nothing else of a path."""

from __future__ import annotations

import re
import unicodedata

from evergrow.core.errors import ParameterError

SUFFIX = ".evg"
PATTERN = r"^\w[\w .\-]{0,63}$"
_NAME = re.compile(PATTERN)
_BYTES = 200  # file systems count bytes, and the history adds an ending


def is_model_name(name: str) -> bool:
    r"""Return whether a model may have this name.

    Examples
    --------
    >>> from evergrow.serve.names import is_model_name
    >>> [is_model_name(name) for name in ("birds", "Vögel 2", "../birds", "a/b", ".hidden", "birds.evg", "a\n")]
    [True, True, False, False, False, False, False]
    """
    return (
        bool(_NAME.fullmatch(name))
        and unicodedata.is_normalized("NFC", name)
        and name.isprintable()
        and name == name.strip()
        and not name.endswith(".")  # dropped from file names on some systems
        and not name.casefold().endswith((SUFFIX, f"{SUFFIX}.history", ".draft"))
        and len(name.encode("utf-8", "surrogatepass")) <= _BYTES
    )


def check_model_name(name: str) -> str:
    """Return a name that a model may have, or raise :class:`ParameterError`."""
    if not is_model_name(name):
        raise ParameterError(
            "name must be 1 to 64 letters, digits, blanks, dots, dashes or underscores, begin with no blank, dot or "
            f"dash and not end in {SUFFIX!r}, got {name[:80]!r}"
        )
    return name
