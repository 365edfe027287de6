"""Packages that add heads, tuners, kinds of files or commands: found by their entry points, loaded when needed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

GROUP = "evergrow.plugins"
"""Entry points that register what a package adds. Importing the module is all that happens."""


@cache
def load_plugins(group: str = GROUP) -> tuple[str, ...]:
    """Import every plugin of a group once and return their names.

    Registries call it when a name is not there, so that what no plugin is needed for costs no import.

    Parameters
    ----------
    group : str
        The group of entry points.

    Examples
    --------
    >>> from evergrow.core.plugins import load_plugins
    >>> "lab" in load_plugins()
    True
    """
    found = sorted(entry_points(group=group), key=lambda entry: entry.name)
    for entry in found:
        entry.load()
    return tuple(entry.name for entry in found)
