"""Classifiers that keep learning new classes, without old data or forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names
from evergrow.core.version import __version__

if TYPE_CHECKING:
    from evergrow.head import Classifier, SCLClassifier
    from evergrow.learner import Learner

__all__ = ["Classifier", "Learner", "SCLClassifier", "__version__"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Classifier": "evergrow.head",
        "Learner": "evergrow.learner",
        "SCLClassifier": "evergrow.head",
    },
)
