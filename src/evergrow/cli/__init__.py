"""The command line: parse, call one function, print.

A command is a function under :func:`evergrow.cli.registry.command` in a module of this room; :data:`MODULES` lists the
modules in the order in which people meet their commands.
"""

MODULES = (
    "fit",
    "predict",
    "evaluate",
    "inspect",
    "diff",
    "change",
    "answering",
    "watch",
    "share",
    "export",
    "serve",
    "demo",
    "data",
    "features",
    "engine",
    "cache",
)
"""Modules that hold commands."""
