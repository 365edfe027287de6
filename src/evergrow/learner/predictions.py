"""The result of `Learner.predictions`: labels, probabilities and novelty of samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evergrow.core.imports import import_extra
from evergrow.core.validation import check_choice, check_integer
from evergrow.data.inputs import as_labels


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for samples, one row per readable sample.

    Parameters
    ----------
    classes : ndarray of str of shape (C,)
        Class names, the columns of ``values``.
    values : ndarray of shape (n, C)
        Probabilities, or scores if the method has no probabilities. With a single
        class, which has nothing to compare with, familiarities: the fraction of known
        samples that are at least as novel.
    measure : {"probability", "familiarity", "score"}
        What ``values`` are.
    rows : ndarray of int of shape (n,)
        Row number of each sample in the data; unreadable samples are missing.
    failures : tuple of (str, str)
        Name and error of each unreadable item.
    novelty : ndarray of shape (n,) or None
        Novelty scores, if requested.
    unknown : ndarray of bool of shape (n,) or None
        Whether each sample looks like none of the learned classes, if requested.
    threshold : ndarray of shape (n,) or None
        Novelty score above which each sample is unknown, if requested.
    label_kind : {"name", "integer", "boolean"}
        Type of the labels.
    index : pandas.Index or None
        Index of the data frame with the samples, if there was one.

    Examples
    --------
    >>> import numpy as np, pandas
    >>> from evergrow import Learner
    >>> y = np.arange(40) % 2
    >>> columns = {"a": 3.0 * y, "b": np.linspace(0, 1, 40)}
    >>> frame = pandas.DataFrame(columns, index=[f"s{n}" for n in range(40)])
    >>> learner = Learner(None, options={"n_units": 20}).fit(frame, y)
    >>> predictions = learner.predictions(frame)
    >>> predictions.to_frame()["class"].loc[["s0", "s1"]].tolist()
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
        """Class labels in the type passed to `fit`, one per column of ``values``."""
        return as_labels(self.classes.tolist(), self.label_kind)

    def ranked(self, top: int) -> NDArray[np.int64]:
        """Return the columns of the `top` most likely classes per row, best first."""
        return (-self.values).argsort(axis=1, kind="stable")[:, :top]

    def part(self, rows: slice) -> Predictions:
        """Return a slice of the predictions, with rows from 0 on and no failures."""
        names = ("values", "novelty", "unknown", "threshold", "index")
        selected = {
            name: getattr(self, name)[rows]
            for name in names
            if getattr(self, name) is not None
        }
        n = len(selected["values"])
        return replace(self, rows=np.arange(n), failures=(), **selected)

    def to_frame(self, library: str = "pandas", *, top: int = 1) -> Any:
        """Return a data frame with one row per readable sample.

        Parameters
        ----------
        library : {"pandas", "polars"}
            Library of the data frame.
        top : int
            Number of classes per sample.

        Returns
        -------
        DataFrame
            Columns ``class`` and ``probability`` (or another ``measure``); with ``top``
            also ``class_2``, ``probability_2`` and so on. If novelty was requested,
            also ``novelty``, ``threshold``, ``unknown``, ``nearest_class`` and
            ``nearest_probability``; unknown samples then have a nearest class, but
            neither class nor probability. In pandas the index is that of the data, or
            the row numbers; in polars the column ``row`` has the row numbers.
        """
        check_choice("library", library, ("pandas", "polars"))
        check_integer("top", top)
        module: Any = import_extra(
            library, extra=library, purpose=f"predictions as a frame of {library}"
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
        """Return a column with the label of each sample; missing for unknown samples.

        Parameters
        ----------
        module : module
            The imported pandas or polars.
        library : {"pandas", "polars"}
            Which of them it is.
        """
        assert self.unknown is not None
        nearest = self.labels[self.ranked(1)[:, 0]].tolist()
        labels = [
            None if unknown else label
            for label, unknown in zip(nearest, self.unknown.tolist(), strict=True)
        ]
        if library == "polars":
            types = {"name": "String", "integer": "Int64", "boolean": "Boolean"}
            return module.Series(labels, dtype=getattr(module, types[self.label_kind]))
        # These types of pandas can be missing.
        types = {"name": "object", "integer": "Int64", "boolean": "boolean"}
        return module.array(labels, dtype=types[self.label_kind])
