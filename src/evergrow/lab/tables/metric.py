"""The numbers that a table can show: where each stands in a record, and how it is printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evergrow.lab.records import AnalysisRecord, RunRecord

Record: TypeAlias = RunRecord | AnalysisRecord
"""Records that can be compared: of runs, or of analyses that measure the same metrics."""


@dataclass(frozen=True)
class Metric:
    """A number in a record and how to print it.

    Parameters
    ----------
    title : str
        Plain name.
    latex : str
        Name in LaTeX.
    read : callable
        Takes a record, returns the number or None.
    lower_is_better : bool
        Which end is best.
    decimals : int
        Digits after the point; significant digits with the form "g".
    form : {"f", "g"}
        Fixed point, or whatever suits the size.
    ranked : bool
        Whether best and second of a column are marked.
    """

    title: str
    latex: str
    read: Callable[[Any], float | None]
    lower_is_better: bool = False
    decimals: int = 2
    form: str = "f"
    ranked: bool = True

    def text(self, value: float) -> str:
        """Return a value as it is printed.

        Examples
        --------
        >>> from evergrow.lab.tables import METRICS
        >>> METRICS["a_last"].text(72.638), METRICS["n_units"].text(14650.0)
        ('72.64', '14650')
        """
        if self.form == "f":
            return f"{value:.{self.decimals}f}"
        if 1e-3 <= abs(value) < 1e5:
            before = len(str(int(abs(value)))) if abs(value) >= 1 else 0
            return f"{value:.{max(self.decimals - before, 0)}f}"
        mantissa, _, exponent = f"{value:.{self.decimals - 1}e}".partition("e")
        return f"{mantissa}e{int(exponent)}"


def mean_and_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard error (sample deviation over root n); no error for a single value.

    Examples
    --------
    >>> from evergrow.lab.tables import mean_and_error
    >>> mean_and_error([1.0, 3.0]), mean_and_error([2.0])
    ((2.0, 1.0), (2.0, None))
    """
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def _percent(key: str) -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        value = record.results.get(key)
        return None if value is None else 100.0 * float(value)

    return read


def _result(key: str) -> Callable[[Record], float | None]:
    def read(record: Record) -> float | None:
        value = record.results.get(key)
        return None if value is None else float(value)

    return read


def _train_seconds(record: Record) -> float | None:
    if isinstance(record, AnalysisRecord):
        parts = [_result(key)(record) for key in ("fit_s", "update_s")]
        return None if None in parts else sum(part for part in parts if part is not None)
    fit = record.times.get("fit")
    return None if fit is None else float(fit) + sum(record.times.get("update") or [])


def _predict_seconds(record: Record) -> float | None:
    if isinstance(record, AnalysisRecord):
        return _result("predict_s")(record)
    spent = record.times.get("predict")
    return None if spent is None else float(sum(spent))


def _peak_megabytes(record: Record) -> float | None:
    value = record.memory.get("peak_cuda_bytes") or record.memory.get("peak_rss_bytes")
    return None if value is None else float(value) / 2**20


METRICS = {
    "a_last": Metric("A_last", r"$A_{\text{last}}$", _percent("a_last")),
    "a_avg": Metric("A_avg", r"$A_{\text{avg}}$", _percent("a_avg")),
    "f_avg": Metric("F_avg", r"$F_{\text{avg}}$", _percent("f_avg"), lower_is_better=True),
    "a_last_tasks": Metric("A_last (tasks)", r"$A_{\text{last}}^{\text{task}}$", _percent("a_last_tasks")),
    "a_avg_tasks": Metric("A_avg (tasks)", r"$A_{\text{avg}}^{\text{task}}$", _percent("a_avg_tasks")),
    "a_last_within": Metric("A_within", r"$A_{\text{within}}$", _percent("a_last_within"), ranked=False),
    "train_s": Metric("train s", "train (s)", _train_seconds, lower_is_better=True),
    "predict_s": Metric("predict s", "predict (s)", _predict_seconds, lower_is_better=True),
    "peak_mb": Metric("peak MiB", "peak (MiB)", _peak_megabytes, lower_is_better=True),
    "construction_s": Metric("construction s", "construction (s)", _result("construction_s"), lower_is_better=True),
    "n_units": Metric("units", "$L^*$", _result("n_units"), lower_is_better=True, decimals=0, ranked=False),
}
"""Metrics by the name that ``--metric`` takes."""
