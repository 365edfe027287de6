"""From probabilities to answers: how common classes are, what mistakes cost, and how sure an answer must be.

With calibrated probabilities p, the prior q that they assume and another prior r, Bayes' rule gives

    p'_c = p_c (r_c / q_c) / sum_k p_k (r_k / q_k)

and the answer is the class a of least expected cost ``sum_c p'_c cost[c, a]``; with cost 0 for right answers and 1 for
others that is the likeliest. A class with a threshold is answered where p' reaches it, whatever else is likely, and
nowhere else. None of it touches what was learned.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from evergrow.core.errors import LabelError, ParameterError
from evergrow.core.record import UNKNOWN, Between, require
from evergrow.core.registry import nearest

PRIORS = ("uniform", "counts")
"""Priors that have a name: all classes alike, or as common as among the samples that were learned."""

LEARNED = "learned"
"""The prior that probabilities assume as they are."""

LARGEST = 1e12
"""No cost and no weight is larger, and no weight or threshold smaller than its inverse: products stay numbers."""


@dataclass(frozen=True)
class Answering:
    """How answers follow from probabilities.

    Parameters
    ----------
    prior : {"uniform", "counts"}, dict of str to float or None
        How common classes are among what is asked about: a name, or weights of classes; those that it does not name
        have the mean of the others. None leaves what the probabilities assume.
    costs : dict of str to dict of str to float
        Cost of an answer (inner key) to something of a class (outer key), where it is neither 0 for the right one nor 1
        for another.
    thresholds : dict of str to float
        Probability from which a class is the answer, whatever is likelier, and below which it is not. Of several that
        are reached the one that is exceeded most, as a ratio, is the answer; where all classes have one and none is
        reached, the one that is missed least.
    extra : dict
        Optional fields of a later evergrow, kept as they were read.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.learner.answering import Answering
    >>> classes, likely = ["fire", "fog"], np.array([[0.05, 0.95], [0.01, 0.99]])
    >>> Answering(thresholds={"fire": 0.02}).choose(likely, classes).tolist()
    [0, 1]
    >>> Answering(costs={"fire": {"fog": 50.0}}).choose(likely, classes).tolist()
    [0, 1]
    >>> Answering(prior={"fire": 3.0, "fog": 1.0}).probabilities(likely, classes, [1, 1], "uniform").round(3).tolist()
    [[0.136, 0.864], [0.029, 0.971]]
    """

    prior: Literal["uniform", "counts"] | dict[str, Annotated[float, Between(1 / LARGEST, LARGEST)]] | None = None
    costs: dict[str, dict[str, Annotated[float, Between(0, LARGEST)]]] = field(default_factory=dict)
    thresholds: dict[str, Annotated[float, Between(1 / LARGEST, 1)]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict, metadata=UNKNOWN)

    def check(self) -> None:
        """Raise :class:`FileFormatError` where a prior has no weights."""
        require(self.prior != {}, "its prior gives no class a weight")

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest class is the answer and probabilities are as they were learned."""
        return self.prior is None and not self.costs and not self.thresholds

    def named(self) -> set[str]:
        """Return the classes that it names."""
        answers = {name for row in self.costs.values() for name in row}
        return set(_weights_of(self.prior)) | set(self.costs) | answers | set(self.thresholds)

    # -- checking ---------------------------------------------------------------------------------------------

    @classmethod
    def checked(
        cls, classes: Collection[str], prior: Any = None, costs: Any = None, thresholds: Any = None
    ) -> Answering:
        """Return settings that fit a model of some classes, or raise a typed error that says what is wrong.

        Raises
        ------
        LabelError
            If a class is named that the model does not know.
        ParameterError
            If a prior, a cost or a threshold is out of range.
        """
        made = cls(
            _checked_prior(prior),
            {str(true): _numbers("costs", row) for true, row in _mapping("costs", costs or {}).items()},
            _numbers("thresholds", thresholds or {}, highest=1.0, positive=True),
        )
        for name in sorted(made.named()):
            if name not in classes:
                raise LabelError(f"class must be one that was learned, got {name!r}; nearest: {nearest(name, classes)}")
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
        wanted = self._weights(list(classes), learned) / (learned if assumed == "counts" else 1.0)
        weighed = likely * (wanted / wanted.max())
        return np.asarray(weighed / weighed.sum(axis=1, keepdims=True))

    def _weights(self, classes: list[str], counts: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.prior == "counts":
            return counts
        if self.prior is None or isinstance(self.prior, str):
            return np.ones(len(classes))
        usual = float(np.mean(list(self.prior.values())))
        return np.array([self.prior.get(name, usual) for name in classes])

    def choose(self, likely: NDArray[np.float64], classes: Iterable[str]) -> NDArray[np.int64]:
        """Return the column of the answer to every row of probabilities, which are under the prior already."""
        names = list(classes)
        limits = np.array([self.thresholds.get(name, math.nan) for name in names])
        limited = ~np.isnan(limits)
        loss = likely @ self._cost_matrix(names) if self.costs else -likely
        if not limited.any():
            return np.asarray(loss.argmin(axis=1))
        ratios = likely[:, limited] / limits[limited]
        best = np.flatnonzero(limited)[ratios.argmax(axis=1)]
        if limited.all():
            return np.asarray(best)
        others = np.flatnonzero(~limited)
        return np.asarray(np.where(ratios.max(axis=1) >= 1.0, best, others[loss[:, others].argmin(axis=1)]))

    def _cost_matrix(self, names: list[str]) -> NDArray[np.float64]:
        """Return what each answer (column) to something of each class (row) costs."""
        costs = 1.0 - np.eye(len(names))
        place = {name: index for index, name in enumerate(names)}
        for true, row in self.costs.items():
            for answer, cost in row.items():
                costs[place[true], place[answer]] = cost
        return costs

    # -- classes change ---------------------------------------------------------------------------------------

    def renamed(self, names: Mapping[str, str]) -> Answering:
        """Return the settings with other names of classes."""
        weighed = self.prior
        if weighed is not None and not isinstance(weighed, str):
            weighed = {names.get(name, name): weight for name, weight in weighed.items()}
        costs = {
            names.get(true, true): {names.get(answer, answer): cost for answer, cost in row.items()}
            for true, row in self.costs.items()
        }
        limits = {names.get(name, name): limit for name, limit in self.thresholds.items()}
        return replace(self, prior=weighed, costs=costs, thresholds=limits)

    def merged(self, gone: Collection[str], into: str) -> Answering:
        """Return the settings after classes became one: its weight is the sum of theirs.

        Costs and thresholds of the others cannot be added up; those that bear the name of the new class stay.
        """
        lost = set(gone) - {into}
        kept = self.limited(self.named() - lost)
        if self.prior is None or isinstance(self.prior, str) or not lost & set(self.prior):
            return kept
        usual = float(np.mean(list(self.prior.values())))
        weight = sum(self.prior.get(name, usual) for name in gone)
        return replace(kept, prior={**(kept.prior if isinstance(kept.prior, dict) else {}), into: weight})

    def limited(self, classes: Collection[str]) -> Answering:
        """Return the settings without classes that are not known any more."""
        if self.named() <= set(classes):
            return self
        weighed = self.prior
        if weighed is not None and not isinstance(weighed, str):
            weighed = {name: weight for name, weight in weighed.items() if name in classes} or None
        rows = {
            true: {answer: cost for answer, cost in row.items() if answer in classes}
            for true, row in self.costs.items()
            if true in classes
        }
        limits = {name: limit for name, limit in self.thresholds.items() if name in classes}
        return replace(self, prior=weighed, costs={true: row for true, row in rows.items() if row}, thresholds=limits)

    # -- words ------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for people: the prior by its name, and its weights where it has some."""
        weights = _weights_of(self.prior)
        return {
            **self.extra,
            "prior": "weights" if weights else self.prior or LEARNED,
            "weights": weights,
            "costs": {true: dict(row) for true, row in self.costs.items()},
            "thresholds": dict(self.thresholds),
        }

    def summary(self) -> str:
        """Return the settings in a few words."""
        parts = []
        if self.prior is not None:
            parts.append(f"prior {self.prior if isinstance(self.prior, str) else _listed(self.prior)}")
        if self.costs:
            parts.append(f"{sum(map(len, self.costs.values()))} costs")
        if self.thresholds:
            parts.append(f"thresholds {_listed(self.thresholds)}")
        return ", ".join(parts) or "the likeliest class"


LIKELIEST = Answering()
"""The likeliest class is the answer, and probabilities are as they were learned."""


def _weights_of(prior: str | dict[str, float] | None) -> dict[str, float]:
    """Return the weights of a prior that names classes; nothing for others."""
    return {} if prior is None or isinstance(prior, str) else dict(prior)


def _checked_prior(prior: Any) -> Any:
    if prior is None or prior == LEARNED:
        return None
    if isinstance(prior, str):
        if prior not in PRIORS:
            raise ParameterError(f"prior must be 'learned', 'uniform', 'counts' or weights of classes, got {prior!r}")
        return prior
    weights = _numbers("prior", prior, positive=True)
    if not weights:
        raise ParameterError("prior must give a weight to at least one class, got none")
    return weights


def _mapping(name: str, values: Any) -> Mapping[Any, Any]:
    if not isinstance(values, Mapping):
        raise ParameterError(f"{name} must be numbers by class, got {type(values).__name__}")
    return values


def _numbers(name: str, values: Any, highest: float = LARGEST, *, positive: bool = False) -> dict[str, float]:
    """Return numbers by class, each in range."""
    found = {}
    for key, value in _mapping(name, values).items():
        numeric = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        number = float(value) if numeric else math.nan
        low = 1.0 / LARGEST if positive else 0.0
        if not low <= number <= highest:
            raise ParameterError(f"{name} must be numbers from {low:g} to {highest:g}, got {value!r} for {str(key)!r}")
        found[str(key)] = number
    return found


def _listed(values: Mapping[str, float], most: int = 5) -> str:
    shown = ", ".join(f"{name}={value:g}" for name, value in list(values.items())[:most])
    return f"{shown} and {len(values) - most} more" if len(values) > most else shown
