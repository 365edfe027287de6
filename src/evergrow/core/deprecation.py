"""Names that go: until when they work, what stands in their place, and the warning that says both."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evergrow.core.errors import DeprecatedWarning

DEPRECATIONS: list[Deprecation] = []
"""Everything that is deprecated; a test fails in the version that was to be without an entry and still has it."""


@dataclass(frozen=True)
class Deprecation:
    """Something public that will go, and when.

    Parameters
    ----------
    what : str
        The thing, as users write it.
    since : str
        Version that first warned.
    until : str
        Version that is without it, at least one minor version later.
    instead : str
        What to write in its place.

    Examples
    --------
    >>> from evergrow.core.deprecation import Deprecation
    >>> Deprecation("fit(width=)", since="0.2", until="0.4", instead="fit(n_units=)").message
    'fit(width=) is deprecated since evergrow 0.2 and goes in 0.4: use fit(n_units=)'
    """

    what: str
    since: str
    until: str
    instead: str

    @property
    def message(self) -> str:
        """The sentence that users read."""
        return f"{self.what} is deprecated since evergrow {self.since} and goes in {self.until}: use {self.instead}"

    def warn(self, *, stacklevel: int = 2) -> None:
        """Warn; ``stacklevel`` 2 names the line that called the function which warns."""
        warnings.warn(self.message, DeprecatedWarning, stacklevel=stacklevel + 1)


def deprecate(what: str, *, since: str, until: str, instead: str) -> Deprecation:
    """Put something on the list of what goes, and return the entry whose ``warn`` its users see.

    Examples
    --------
    >>> from evergrow.core.deprecation import DEPRECATIONS, deprecate
    >>> WIDTH = deprecate("fit(width=)", since="0.2", until="99.0", instead="fit(n_units=)")
    >>> DEPRECATIONS.pop() is WIDTH
    True
    """
    entry = Deprecation(what, since, until, instead)
    DEPRECATIONS.append(entry)
    return entry


def moved_names(
    package: str,
    homes: Mapping[str, str],
    *,
    since: str,
    until: str,
    otherwise: Callable[[str], Any] | None = None,
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose former names are found where they are now, with a warning.

    Homes are imported by name and on use: a name may have moved to a room that this one must not know.

    Parameters
    ----------
    package : str
        The module's ``__name__``.
    homes : mapping of str to str
        Module of each name that moved.
    since, until : str
        Version that moved them, and version that finds them no more.
    otherwise : callable, optional
        The ``__getattr__`` to ask for all other names.

    Examples
    --------
    >>> import warnings
    >>> from evergrow.core.deprecation import DEPRECATIONS, moved_names
    >>> find = moved_names("example", {"sqrt": "math"}, since="0.2", until="99.0")
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     print(find("sqrt")(9.0), caught[0].message)
    3.0 example.sqrt is deprecated since evergrow 0.2 and goes in 99.0: use math.sqrt
    >>> _ = DEPRECATIONS.pop()
    """
    entries = {
        name: deprecate(f"{package}.{name}", since=since, until=until, instead=f"{home}.{name}")
        for name, home in homes.items()
    }

    def find(name: str) -> Any:
        if name in entries:
            entries[name].warn(stacklevel=2)
            return getattr(importlib.import_module(homes[name]), name)
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
