"""Incremental classifiers on feature vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.head.base import HEADS, IncrementalClassifier
    from evergrow.head.classifier import Classifier
    from evergrow.head.scl import SCLClassifier

__all__ = ["HEADS", "Classifier", "IncrementalClassifier", "SCLClassifier"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "HEADS": "evergrow.head.base",
        "Classifier": "evergrow.head.classifier",
        "IncrementalClassifier": "evergrow.head.base",
        "SCLClassifier": "evergrow.head.scl",
    },
)
