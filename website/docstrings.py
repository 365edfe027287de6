"""Turn roles of Sphinx in docstrings, such as ``:func:``, into links to the reference."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj|doc):`(~?)([\w.]+)`")


class Roles(griffe.Extension):
    """Replaces a role by a link if the reference has the name, otherwise by code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(
                lambda match: _link(match[1], match[2], obj), obj.docstring.value
            )


def _link(short: str, name: str, obj: griffe.Object) -> str:
    if short:
        shown = name.rpartition(".")[2]
    else:
        shown = name.removeprefix(".")
    if name.startswith("evergrow."):
        target = name
    else:
        target = _neighbour(name, obj)
    return f'<autoref identifier="{target}" optional>`{shown}`</autoref>'


def _neighbour(name: str, obj: griffe.Object) -> str:
    """Return the full name of a member of the same class or module."""
    scope: griffe.Object | None = obj
    while scope is not None:
        if name in scope.members:
            return f"{scope.path}.{name}"
        scope = scope.parent
    return name
