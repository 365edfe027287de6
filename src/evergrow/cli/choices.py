"""Commands as typer runs them: names listed in the help, options named in messages, arguments checked early."""

from __future__ import annotations

import importlib
import re
from typing import Any

from typer.core import TyperCommand

_MARK = re.compile(r"\{([\w.]+):(\w+)\}")


def registered_names(registry: str) -> str:
    """Return the mark that a help text has in place of the names in a registry.

    Parameters
    ----------
    registry : str
        The registry, or a function that lists names, as ``module:name``.

    Examples
    --------
    >>> from evergrow.cli.choices import filled_in, registered_names
    >>> filled_in(f"Layout: {registered_names('evergrow.data:list_readers')}.")[-36:]
    'tables, single-table, class-folders.'
    """
    return f"{{{registry}}}"


def filled_in(text: str) -> str:
    """Return a help text with the names that its marks stand for."""

    def names(mark: re.Match[str]) -> str:
        registry: Any = getattr(importlib.import_module(mark[1]), mark[2])
        return ", ".join(registry() if callable(registry) else sorted(registry))

    return _MARK.sub(names, text)


class NamesListingCommand(TyperCommand):
    """A command whose help lists what is registered by the time it is shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        for parameter in self.params:
            text = getattr(parameter, "help", None)
            if text:
                parameter.help = filled_in(text)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what takes a model opens it first, so that data are looked for before."""
        for each in self.params:
            if each.name in ("model", "models") and each.metavar in ("MODEL", "MODEL MODEL..."):
                _check_there(ctx.params[each.name], ctx.params.get("data"))
        return super().invoke(ctx)


def _check_there(models: Any, data: Any) -> None:
    """Refuse models and data that are not there, before anything heavy is imported or computed."""
    from evergrow.core.files import existing_model

    for path in models if isinstance(models, (list, tuple)) else [models]:
        existing_model(path)
    if data is not None:
        from evergrow.data.load import check_source

        for source in data if isinstance(data, (list, tuple)) else [data]:
            check_source(source)
