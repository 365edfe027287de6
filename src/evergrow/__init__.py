"""evergrow: classifiers that keep learning new classes, without old data and without forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from evergrow.heads import SCLClassifier

_LAZY = {"SCLClassifier": "evergrow.heads"}

__all__ = ["SCLClassifier", "__version__"]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that ``import evergrow`` costs nothing."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'evergrow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
