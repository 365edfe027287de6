"""The command line: parse, call one function, print.

A command is a function under :func:`evergrow.cli.registry.command` in a module of this
room; :data:`MODULES` lists the modules in the order in which people meet their
commands.
"""

MODULES = ("fit", "predict", "inspect", "change", "tools", "sort", "share", "data")
"""Modules that hold commands."""
