"""evergrow: classifiers that keep learning new classes, without old data and without forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.lazy import lazy_names
from evergrow.core.version import __version__

if TYPE_CHECKING:
    from evergrow.heads import SCLClassifier
    from evergrow.learner import Learner
    from evergrow.methods import create_method, list_methods

__all__ = ["Learner", "SCLClassifier", "__version__", "create_method", "list_methods"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Learner": "evergrow.learner",
        "SCLClassifier": "evergrow.heads",
        "create_method": "evergrow.methods",
        "list_methods": "evergrow.methods",
    },
)
