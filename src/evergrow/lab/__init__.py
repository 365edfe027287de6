"""The laboratory: rivals, streams, grids, records, tables, figures and conformance checks.

Nothing outside imports it. Its heads, layers and tuners are found by name because the
package is a plugin of evergrow (see :mod:`evergrow.core.registry`), and its commands
stand under ``evergrow lab``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names

if TYPE_CHECKING:
    from evergrow.lab.methods import create_method, list_methods

__all__ = ["create_method", "list_methods"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"create_method": "evergrow.lab.methods", "list_methods": "evergrow.lab.methods"},
)
