"""Research tools: comparison methods, streams, grids, records, tables and checks.

No other package imports this one. It is a plugin of evergrow (see
:mod:`evergrow.core.registry`), which finds its heads, layers and tuners by name and
adds its commands under ``evergrow lab``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.lab.methods import create_method, list_methods

__all__ = ["create_method", "list_methods"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"create_method": "evergrow.lab.methods", "list_methods": "evergrow.lab.methods"},
)
