"""``--set NAME=VALUE``: what few people need, by the names that it has in Python."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from evergrow.core.errors import ParameterError, UnknownNameError
from evergrow.core.registry import nearest

SET = "set_"
"""Name of the parameter that holds what ``--set`` was given."""


@dataclass(frozen=True)
class RareOption:
    """Something that ``--set`` can set.

    Parameters
    ----------
    kind : type
        What it must be.
    default : object
        Its value where it is not set.
    help : str
        What it is.
    """

    kind: Any
    default: Any
    help: str


def set_option(rare: Mapping[str, RareOption]) -> Any:
    """Return the type of ``--set`` for typer, with the names that a command knows in its help."""
    names = "; ".join(f"{name}: {option.help}" for name, option in rare.items())
    return Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help=f"What is rarely needed; repeatable. {names}."),
    ]


def settings_of(given: Sequence[str], rare: Mapping[str, RareOption]) -> dict[str, Any]:
    """Return the value of everything that ``--set`` can set.

    Parameters
    ----------
    given : sequence of str
        As typed, ``NAME=VALUE`` each.
    rare : mapping
        What there is to set.

    Examples
    --------
    >>> from evergrow.cli.settings import RareOption, settings_of
    >>> known = {"epochs": RareOption(int, 20, "passes"), "cache": RareOption(bool, True, "keep features")}
    >>> settings_of(["epochs=5"], known)
    {'epochs': 5, 'cache': True}
    >>> settings_of(["epoch=5"], known)
    Traceback (most recent call last):
        ...
    evergrow.core.errors.UnknownNameError: There is nothing called 'epoch' to set. Did you mean 'epochs'?
    """
    values = {name: option.default for name, option in rare.items()}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign:
            raise ParameterError(f"--set takes NAME=VALUE, such as --set {next(iter(rare))}=..., not {text!r}.")
        name = name.strip().replace("-", "_")
        if name not in rare:
            raise UnknownNameError(f"There is nothing called {name!r} to set. Did you mean {nearest(name, rare, 1)}?")
        values[name] = _converted(name, value, rare[name].kind)
    return values


def _converted(name: str, value: str, kind: Any) -> Any:
    """Return a typed value as what a setting must be."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = next(option for option in typing.get_args(kind) if option is not type(None))
    try:
        if kind is bool:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        return kind(value)
    except (KeyError, ValueError) as error:
        choices = [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
        names = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
        wanted = ", ".join(map(str, choices)) or names.get(kind, "something else")
        raise ParameterError(f"{name} is {wanted}, not {value!r}.") from error
