"""`Learner`, its model file and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.learner.learner import Learner, empty_copy, settle

__all__ = ["Learner", "empty_copy", "settle"]

__getattr__, __dir__ = lazy_names(
    __name__,
    dict.fromkeys(("Learner", "empty_copy", "settle"), "evergrow.learner.learner"),
)
