"""The command line: parse the arguments, call one function, print the answer.

A command is a function decorated with :func:`evergrow.cli.registry.command`.
"""

MODULES = (
    "fit",
    "adapt",
    "predict",
    "evaluate",
    "inspect",
    "change",
    "tools",
    "sort",
    "share",
    "data",
    "features",
    "backbones",
)
"""Modules that define commands, in the order of ``evergrow --help``."""
