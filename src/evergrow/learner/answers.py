"""What a learner answers, all of it at once, and how answers follow from probabilities.

With calibrated probabilities p, the prior q that they assume and another prior r, Bayes' rule gives

    p'_c = p_c (r_c / q_c) / sum_k p_k (r_k / q_k)

and the answer is the likeliest class. A class with a threshold is answered where p' reaches it, whatever else is
likely, and nowhere else. None of it touches what was learned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import FileFormatError, InputError, ParameterError
from evergrow.core.optional import require as import_extra
from evergrow.core.record import UNKNOWN, Between, from_values, require
from evergrow.core.validation import check_choice, check_number
from evergrow.head.estimator import plain_value
from evergrow.learner.labels import as_labels, require_known

PRIORS = ("uniform", "counts")
"""Priors that have a name: all classes alike, or as common as among the samples that were learned."""

LEARNED = "learned"
"""The prior that probabilities assume as they are."""

LARGEST = 1e12
"""No weight is larger, and no weight or threshold smaller than its inverse: products stay numbers."""


@dataclass(frozen=True)
class Answering:
    """How answers follow from probabilities.

    Parameters
    ----------
    prior : {"uniform", "counts"}, dict of str to float or None
        How common classes are among what is asked about: a name, or weights of classes; those that it does not name
        have the mean of the others. None leaves what the probabilities assume.
    thresholds : dict of str to float
        Probability from which a class is the answer, whatever is likelier, and below which it is not. Of several that
        are reached the one that is exceeded most, as a ratio, is the answer; where all classes have one and none is
        reached, the one that is missed least.
    extra : dict
        Optional fields of a later evergrow, kept as they were read.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.answers import Answering
    >>> classes, likely = ["fire", "fog"], np.array([[0.05, 0.95], [0.01, 0.99]])
    >>> Answering(thresholds={"fire": 0.02}).choose(likely, classes).tolist()
    [0, 1]
    >>> Answering(prior={"fire": 3.0, "fog": 1.0}).probabilities(likely, classes, [1, 1], "uniform").round(3).tolist()
    [[0.136, 0.864], [0.029, 0.971]]
    """

    prior: Literal["uniform", "counts"] | dict[str, Annotated[float, Between(1 / LARGEST, LARGEST)]] | None = None
    thresholds: dict[str, Annotated[float, Between(1 / LARGEST, 1)]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict, metadata=UNKNOWN)

    def check(self) -> None:
        """Raise :class:`FileFormatError` where a prior has no weights."""
        require(self.prior != {}, "its prior gives no class a weight")

    def named(self) -> set[str]:
        """Return the classes that it names."""
        return {*(self.prior if isinstance(self.prior, dict) else ()), *self.thresholds}

    # -- checking ---------------------------------------------------------------------------------------------

    @classmethod
    def checked(cls, classes: Collection[str], prior: Any = None, thresholds: Any = None) -> Answering:
        """Return settings that fit a model of some classes, or raise a typed error that says what is wrong.

        Raises
        ------
        LabelError
            If a class is named that the model does not know.
        ParameterError
            If a prior or a threshold is out of range.
        """
        if isinstance(prior, str):
            check_choice("prior", prior, (LEARNED, *PRIORS))
        elif prior == {}:
            raise ParameterError("prior must give a weight to at least one class, got none")
        given = {"prior": None if prior == LEARNED else prior, "thresholds": thresholds or {}}
        try:
            made = from_values(cls, plain_value("answering", given), "answering")
        except (FileFormatError, InputError) as error:
            raise ParameterError(str(error)) from error
        require_known(sorted(made.named()), classes)
        return made

    # -- answers ----------------------------------------------------------------------------------------------

    def probabilities(
        self, likely: NDArray[np.float64], classes: Iterable[str], counts: Iterable[int], assumed: str
    ) -> NDArray[np.float64]:
        """Return probabilities under the prior.

        Parameters
        ----------
        likely : ndarray of shape (n, C)
            Calibrated probabilities.
        classes, counts : iterables of length C
            Names of the columns, and samples learned of each.
        assumed : {"uniform", "counts"}
            The prior that the probabilities are for.
        """
        if self.prior is None:
            return likely
        learned = np.asarray(list(counts), dtype=np.float64)
        if isinstance(self.prior, dict):
            usual = float(np.mean(list(self.prior.values())))
            wanted = np.array([self.prior.get(name, usual) for name in classes])
        else:
            wanted = learned if self.prior == "counts" else np.ones(len(learned))
        wanted = wanted / (learned if assumed == "counts" else 1.0)
        weighed = likely * (wanted / wanted.max())
        return np.asarray(weighed / weighed.sum(axis=1, keepdims=True))

    def choose(self, likely: NDArray[np.float64], classes: Iterable[str]) -> NDArray[np.int64]:
        """Return the column of the answer to every row of probabilities, which are under the prior already."""
        limits = np.array([self.thresholds.get(name, math.nan) for name in classes])
        limited = ~np.isnan(limits)
        if not limited.any():
            return np.asarray(likely.argmax(axis=1))
        ratios = likely[:, limited] / limits[limited]
        best = np.flatnonzero(limited)[ratios.argmax(axis=1)]
        if limited.all():
            return np.asarray(best)
        others = np.flatnonzero(~limited)
        return np.asarray(np.where(ratios.max(axis=1) >= 1.0, best, others[likely[:, others].argmax(axis=1)]))

    # -- classes change ---------------------------------------------------------------------------------------

    def mapped(self, names: Mapping[str, str]) -> Answering:
        """Return the settings with new names of classes, by their old ones; other classes are left out."""
        prior = self.prior
        if isinstance(prior, dict):
            prior = {names[name]: weight for name, weight in prior.items() if name in names} or None
        limits = {names[name]: limit for name, limit in self.thresholds.items() if name in names}
        return replace(self, prior=prior, thresholds=limits)

    def merged(self, gone: Collection[str], into: str) -> Answering:
        """Return the settings after classes became one: its weight is the sum of theirs.

        Thresholds of the others cannot be added up; that of the name of the new class stays.
        """
        lost = set(gone) - {into}
        kept = self.mapped({name: name for name in self.named() - lost})
        if not isinstance(self.prior, dict) or not lost & set(self.prior):
            return kept
        usual = float(np.mean(list(self.prior.values())))
        weight = sum(self.prior.get(name, usual) for name in gone)
        return replace(kept, prior={**(kept.prior if isinstance(kept.prior, dict) else {}), into: weight})

    # -- words ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for people: the prior by its name, and its weights where it has some."""
        weights = dict(self.prior) if isinstance(self.prior, dict) else {}
        return {
            **self.extra,
            "prior": "weights" if weights else self.prior or LEARNED,
            "weights": weights,
            "thresholds": dict(self.thresholds),
        }

    def summary(self) -> str:
        """Return the settings in a few words."""
        parts = []
        if self.prior is not None:
            parts.append(f"prior {self.prior if isinstance(self.prior, str) else _listed(self.prior)}")
        if self.thresholds:
            parts.append(f"thresholds {_listed(self.thresholds)}")
        return ", ".join(parts) or "the likeliest class"


LIKELIEST = Answering()
"""The likeliest class is the answer, and probabilities are as they were learned."""


def _listed(values: Mapping[str, float], most: int = 5) -> str:
    shown = ", ".join(f"{name}={value:g}" for name, value in list(values.items())[:most])
    return f"{shown} and {len(values) - most} more" if len(values) > most else shown


# -- answers ----------------------------------------------------------------------------------------------------


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
        The items that the rows belong to: all, unless some could not be read and were skipped.
    failures : tuple of (str, str)
        Name of every item left out, and why.
    chosen : ndarray of int of shape (n,) or None
        The column of the answer to each, where prior or thresholds decide; None where the largest value does.
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
    chosen: NDArray[np.int64] | None = None
    label_kind: str = "name"
    index: Any = None

    @property
    def labels(self) -> NDArray[Any]:
        """The classes as labels of the kind that was learned, one per column of ``values``."""
        return as_labels(self.classes.tolist(), self.label_kind)

    def ranked(self, top: int) -> NDArray[np.int64]:
        """Return the columns of the likeliest classes of each row, the answer first."""
        order = (-self.values).argsort(axis=1, kind="stable")
        if self.chosen is not None:
            others = order[order != self.chosen[:, None]].reshape(len(order), order.shape[1] - 1)
            order = np.column_stack([self.chosen, others])
        return order[:, :top]

    def part(self, rows: slice) -> Answers:
        """Return the answers of some rows, numbered anew; of failures nothing is said."""
        names = ("values", "novelty", "unknown", "threshold", "chosen", "index")
        cut = {name: getattr(self, name)[rows] for name in names if getattr(self, name) is not None}
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
            Columns ``class`` and ``probability`` (or ``score``), with ``top`` also ``class_2``, ``probability_2`` and
            so on, and where novelty was asked for ``novelty``, ``threshold`` and ``unknown``. In pandas its index is
            that of the frame that was asked about, or the numbers of the items; in polars a column ``row`` has these.
        """
        check_choice("library", library, ("pandas", "polars"))
        check_number("top", top, low=1, integer=True)
        module: Any = import_extra(library, extra=library, purpose=f"answers as a frame of {library}")
        ranked = self.ranked(top)
        values = np.take_along_axis(self.values, ranked, axis=1)
        columns: dict[str, NDArray[Any]] = {}
        for rank in range(ranked.shape[1]):
            ending = f"_{rank + 1}" if rank else ""
            columns[f"class{ending}"] = self.labels[ranked[:, rank]]
            columns[f"{self.measure}{ending}"] = values[:, rank]
        for name in ("novelty", "threshold", "unknown"):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        if library == "polars":
            return module.DataFrame({"row": self.rows, **columns})
        return module.DataFrame(columns, index=self.rows if self.index is None else self.index[self.rows])
