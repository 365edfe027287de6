"""Named recipes: every method that evergrow knows, by the name people use for it, and what wires the rooms below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evergrow.methods.catalog import check_options, create_method, list_methods, method_needs, method_options
    from evergrow.methods.learning.learner import Learner

_LAZY = {
    "Learner": "learning.learner",
    "check_options": "catalog",
    "create_method": "catalog",
    "list_methods": "catalog",
    "method_needs": "catalog",
    "method_options": "catalog",
}

__all__ = ["Learner", "check_options", "create_method", "list_methods", "method_needs", "method_options"]


def __getattr__(name: str) -> Any:
    """Import public names on first use: a model that only answers needs none of the methods."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"evergrow.methods.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'evergrow.methods' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
