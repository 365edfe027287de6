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
    "blame",
    "sort",
    "share",
    "demo",
    "data",
    "features",
    "backbones",
    "receipts",
)
"""Modules that define commands, in the order of ``evergrow --help``."""
