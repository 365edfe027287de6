"""What a learner answers, all of it at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.optional import require as import_extra
from evergrow.core.validation import check_choice, check_number
from evergrow.learner.label_types import as_labels


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers about items, one row for each that could be read.

    Parameters
    ----------
    classes : ndarray of str of shape (C,)
        The columns of ``values``.
    values : ndarray of shape (n, C)
        Probabilities, or scores where the method has none.
    measure : {"probability", "score"}
        Which of the two.
    rows : ndarray of int of shape (n,)
        The items that the rows belong to: all, unless some could not be read and were
        skipped.
    failures : tuple of (str, str)
        Name of every item left out, and why.
    novelty : ndarray of shape (n,) or None
        How unlike anything learned each is, where that was asked for.
    unknown : ndarray of bool of shape (n,) or None
        Which belong to no class that was learned, where that was asked for.
    threshold : ndarray of shape (n,) or None
        The novelty above which each is unknown, where that was asked for.
    label_kind : {"name", "integer", "boolean"}
        What the labels are that were learned.
    index : pandas.Index or None
        Index of the frame that the items came in, where they did.

    Examples
    --------
    >>> import numpy as np, pandas
    >>> from evergrow import Learner
    >>> y = np.arange(40) % 2
    >>> frame = pandas.DataFrame({"a": 3.0 * y, "b": np.linspace(0, 1, 40)}, index=[f"s{n}" for n in range(40)])
    >>> answers = Learner(None, options={"n_units": 20}).fit(frame, y).ask(frame)
    >>> answers.to_frame()["class"].loc[["s0", "s1"]].tolist()
    [0, 1]
    """

    classes: NDArray[np.str_]
    values: NDArray[np.float64]
    measure: str
    rows: NDArray[np.int64]
    failures: tuple[tuple[str, str], ...] = ()
    novelty: NDArray[np.float64] | None = None
    unknown: NDArray[np.bool_] | None = None
    threshold: NDArray[np.float64] | None = None
    label_kind: str = "name"
    index: Any = None

    @property
    def labels(self) -> NDArray[Any]:
        """The classes as labels of the kind that was learned, one per column of ``values``."""
        return as_labels(self.classes.tolist(), self.label_kind)

    def ranked(self, top: int) -> NDArray[np.int64]:
        """Return the columns of the likeliest classes of each row, the answer first."""
        return (-self.values).argsort(axis=1, kind="stable")[:, :top]

    def part(self, rows: slice) -> Answers:
        """Return the answers of some rows, numbered anew; of failures nothing is said."""
        names = ("values", "novelty", "unknown", "threshold", "index")
        cut = {
            name: getattr(self, name)[rows]
            for name in names
            if getattr(self, name) is not None
        }
        return replace(self, rows=np.arange(len(cut["values"])), failures=(), **cut)

    def to_frame(self, library: str = "pandas", *, top: int = 1) -> Any:
        """Return the answers as a data frame, one row for each item that could be read.

        Parameters
        ----------
        library : {"pandas", "polars"}
            Whose frame it is.
        top : int
            How many classes to give of each item.

        Returns
        -------
        DataFrame
            Columns ``class`` and ``probability`` (or ``score``); with ``top`` also
            ``class_2``, ``probability_2`` and so on. If novelty was asked for, also
            ``novelty``, ``threshold``, ``unknown``, ``nearest_class`` and
            ``nearest_probability``; unknown items then have a nearest class, and
            neither a class nor a probability. The index in pandas is that of the
            frame that was asked about, or the numbers of the items; in polars they
            are in the column ``row``.
        """
        check_choice("library", library, ("pandas", "polars"))
        check_number("top", top, low=1, integer=True)
        module: Any = import_extra(
            library, extra=library, purpose=f"answers as a frame of {library}"
        )
        ranked = self.ranked(top)
        values = np.take_along_axis(self.values, ranked, axis=1)
        columns: dict[str, Any] = {}
        for rank in range(ranked.shape[1]):
            ending = f"_{rank + 1}" if rank else ""
            columns[f"class{ending}"] = self.labels[ranked[:, rank]]
            columns[f"{self.measure}{ending}"] = values[:, rank]
        for name in ("novelty", "threshold", "unknown"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        if self.unknown is not None:
            columns["nearest_class"] = columns["class"]
            columns[f"nearest_{self.measure}"] = columns[self.measure]
            columns["class"] = self._known_labels(module, library)
            columns[self.measure] = np.where(self.unknown, np.nan, values[:, 0])
        if library == "polars":
            return module.DataFrame({"row": self.rows, **columns})
        return module.DataFrame(
            columns, index=self.rows if self.index is None else self.index[self.rows]
        )

    def _known_labels(self, module: Any, library: str) -> Any:
        """Return the label of each item as a column; unknown items have none."""
        assert self.unknown is not None
        found = self.labels[self.ranked(1)[:, 0]].tolist()
        known = [
            None if unknown else label
            for label, unknown in zip(found, self.unknown.tolist(), strict=True)
        ]
        kinds = {"name": "object", "integer": "Int64", "boolean": "boolean"}
        if library == "polars":
            types = {
                "name": module.String,
                "integer": module.Int64,
                "boolean": module.Boolean,
            }
            return module.Series(known, dtype=types[self.label_kind])
        return module.array(known, dtype=kinds[self.label_kind])
