"""Answers as data frames of pandas and polars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.optional import require
from evergrow.core.validation import check_choice, check_number

if TYPE_CHECKING:
    from evergrow.learner.answers import Answers

LIBRARIES = ("pandas", "polars")
"""Libraries that answers can be handed over to."""


def answers_frame(answers: Answers, library: str = "pandas", top: int = 1) -> Any:
    """Return answers as a data frame; see :meth:`evergrow.learner.answers.Answers.to_frame`."""
    check_choice("library", library, LIBRARIES)
    check_number("top", top, low=1, integer=True)
    module: Any = require(library, extra=library, purpose=f"answers as a frame of {library}")
    columns = _columns(answers, min(top, len(answers.classes)))
    if library == "polars":
        return module.DataFrame({"row": answers.rows, **columns})
    index = answers.rows if answers.index is None else answers.index[answers.rows]
    return module.DataFrame(columns, index=index)


def _columns(answers: Answers, top: int) -> dict[str, NDArray[Any]]:
    labels, ranked = answers.labels, answers.ranked(top)
    values = np.take_along_axis(answers.values, ranked, axis=1)
    columns: dict[str, NDArray[Any]] = {}
    for rank in range(top):
        ending = f"_{rank + 1}" if rank else ""
        columns[f"class{ending}"] = labels[ranked[:, rank]]
        columns[f"{answers.measure}{ending}"] = values[:, rank]
    for name in ("novelty", "threshold", "unknown"):
        if getattr(answers, name) is not None:
            columns[name] = getattr(answers, name)
    return columns
