"""Prepare docstrings for the reference.

Roles of Sphinx, such as ``:func:``, become links. Defaults of parameters are those of the
signature: griffe gives all parameters of an entry such as ``a, b : int`` the default of
the first, and parameters with choices the first choice.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj|doc):`(~?)([\w.]+)`")


class PreparedDocstrings(griffe.Extension):
    """Replaces docstrings by :class:`PreparedDocstring`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        docstring = obj.docstring
        if docstring is None:
            return
        text = ROLE.sub(lambda match: _link(match[1], match[2], obj), docstring.value)
        obj.docstring = PreparedDocstring(
            text,
            lineno=docstring.lineno,
            endlineno=docstring.endlineno,
            parent=obj,
            parser=docstring.parser,
            parser_options=docstring.parser_options,
        )


class PreparedDocstring(griffe.Docstring):
    """A docstring whose parameters have the defaults of the signature."""

    def parse(self, *args: Any, **kwargs: Any) -> list[griffe.DocstringSection]:
        """Return the sections of the docstring."""
        sections = super().parse(*args, **kwargs)
        if isinstance(self.parent, (griffe.Function, griffe.Class)):
            signature = self.parent.parameters
            for section in sections:
                if section.kind is griffe.DocstringSectionKind.parameters:
                    _set_defaults(section.value, signature)
        return sections


def _set_defaults(
    described: list[griffe.DocstringParameter], signature: griffe.Parameters
) -> None:
    for parameter in described:
        if parameter.name in signature:
            parameter.value = _shown_default(signature[parameter.name].default)


def _shown_default(default: str | griffe.Expr | None) -> str | griffe.Expr | None:
    """Return a default; of a constant such as ``SHARD_ROWS``, its number or string."""
    if not isinstance(default, griffe.ExprName):
        return default
    try:
        constant = default.resolved
        value = constant.final_target.value if constant.is_alias else constant.value
    except (AttributeError, KeyError, griffe.GriffeError):
        return default
    return value if isinstance(value, str) else default


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
