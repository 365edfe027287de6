"""evergrow: classifiers that keep learning new classes, without old data and without forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evergrow.core.version import __version__

if TYPE_CHECKING:
    from evergrow.heads import SCLClassifier
    from evergrow.methods import Learner, create_method, list_methods

_LAZY = {
    "Learner": "evergrow.methods",
    "SCLClassifier": "evergrow.heads",
    "create_method": "evergrow.methods",
    "list_methods": "evergrow.methods",
}

__all__ = ["Learner", "SCLClassifier", "__version__", "create_method", "list_methods"]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that ``import evergrow`` costs nothing."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'evergrow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
