"""Functions of a fitted learner: label, group, monitor and sort samples.

Every tool takes a :class:`evergrow.Learner` and uses its public interface only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evergrow.core.imports import lazy_names

if TYPE_CHECKING:
    from evergrow.tools.blaming import blame
    from evergrow.tools.comparison import compare_learners
    from evergrow.tools.data_check import check_samples
    from evergrow.tools.drift_detection import drift
    from evergrow.tools.feature_levels import try_levels
    from evergrow.tools.grouping import group_unknown
    from evergrow.tools.learning_curves import learning_curve
    from evergrow.tools.mislabelled import suspects
    from evergrow.tools.sorting import (
        estimate_unknown_files,
        plan_sort,
        sort_folder,
        undo_sort,
    )
    from evergrow.tools.strictness import estimate_unknown, expected_rates
    from evergrow.tools.suggestions import suggest

_MODULES = {
    "blame": "blaming",
    "compare_learners": "comparison",
    "check_samples": "data_check",
    "drift": "drift_detection",
    "estimate_unknown": "strictness",
    "estimate_unknown_files": "sorting",
    "expected_rates": "strictness",
    "try_levels": "feature_levels",
    "group_unknown": "grouping",
    "learning_curve": "learning_curves",
    "plan_sort": "sorting",
    "sort_folder": "sorting",
    "undo_sort": "sorting",
    "suggest": "suggestions",
    "suspects": "mislabelled",
}

__all__ = [
    "blame",
    "check_samples",
    "compare_learners",
    "drift",
    "estimate_unknown",
    "estimate_unknown_files",
    "expected_rates",
    "group_unknown",
    "learning_curve",
    "plan_sort",
    "sort_folder",
    "suggest",
    "suspects",
    "try_levels",
    "undo_sort",
]

__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()}
)
