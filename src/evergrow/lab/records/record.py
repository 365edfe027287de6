"""The two kinds of records as they are in memory, and as JSON text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from evergrow.core.archive import register_kind

SCHEMA = "evergrow-run"
SCHEMA_VERSION = 1
ANALYSIS_SCHEMA = "evergrow-analysis"
ANALYSIS_VERSION = 1
STATUSES = ("ok", "failed", "cancelled")

RUN = register_kind(SCHEMA, SCHEMA_VERSION, since="0.1")
ANALYSIS = register_kind(ANALYSIS_SCHEMA, ANALYSIS_VERSION, since="0.1")


@dataclass(frozen=True)
class RunRecord:
    """Everything there is to know about one run.

    Parameters
    ----------
    run_id : str
        Hash of the resolved settings.
    method : str
        Registered name.
    label : str
        Name in tables.
    options : dict
        Every option of the method, defaults included.
    dataset : dict
        ``name``, ``label``, ``fingerprint`` and sizes.
    protocol : dict
        ``name`` and every setting of the stream.
    seed : int
        Seed of the class order and of the method.
    status : {"ok", "failed", "cancelled"}
        How it ended.
    started, ended : str
        UTC, ISO 8601.
    versions : dict
        evergrow, torch, numpy, python.
    environment : dict
        ``device``, ``device_name``, ``threads``, ``platform``.
    results : dict
        ``matrix`` (a[t][j], null for j > t), ``counts`` (test samples per task), ``by_samples`` and
        ``by_tasks`` (accuracy after every session in both conventions), ``a_last``, ``a_avg``, ``f_avg``,
        ``a_last_tasks``, ``a_avg_tasks``. Fractions. Empty unless a session was finished. Optional, on
        finished runs of methods that give scores: ``a_last_within`` (accuracy after the last session where every
        answer is taken among the classes of the sample's own task, over all samples) and ``within_tasks`` (the same
        for each task, null without test samples), see :func:`evergrow.lab.metrics.within_tasks`.
    times : dict
        Seconds: ``fit`` (first task), ``update`` (every later task), ``predict`` (every evaluation).
    memory : dict
        ``peak_rss_bytes``, its ``rss_scope`` (``"run"``, or ``"process"`` where the system cannot reset the
        mark) and ``peak_cuda_bytes`` (null without CUDA).
    error : dict or None
        ``type``, ``message`` and ``traceback`` of a failed run.
    warnings : list of str
        What was warned about during the run.
    extra : dict
        Room for a method's own diagnostics.
    unknown : dict
        Optional entries that a later evergrow wrote, kept to be written again.
    """

    run_id: str
    method: str
    label: str
    options: dict[str, Any]
    dataset: dict[str, Any]
    protocol: dict[str, Any]
    seed: int
    status: str
    started: str
    ended: str
    versions: dict[str, Any]
    environment: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)
    times: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as JSON text; NaN and infinity become null."""
        return _json(self, SCHEMA, SCHEMA_VERSION)

    @property
    def figures(self) -> dict[str, float]:
        """The key figures of a finished run, in per cent."""
        named = {"A_last": self.results.get("a_last"), "A_avg": self.results.get("a_avg")}
        return {name: 100 * value for name, value in named.items() if value is not None}

    @property
    def summary(self) -> str:
        """How it ended, in a few words."""
        return _summary(self, " ".join(f"{name} {value:.2f}" for name, value in self.figures.items()))


@dataclass(frozen=True)
class AnalysisRecord:
    """The measurements of one analysis of a mechanism on one layer, data set, protocol and seed.

    Not a :class:`RunRecord`, because most analyses have no accuracy matrix to show; fields of the same name mean
    the same.

    Parameters
    ----------
    run_id : str
        Hash of the resolved settings.
    analysis : str
        Registered name of the analysis.
    settings : dict
        Its settings, defaults included.
    method, label, options, dataset, protocol, seed
        What was analysed.
    status, started, ended, versions, environment, memory, error, warnings
        As in a run record; ``memory`` also has ``start_rss_bytes``, what was resident before.
    results : dict
        What was measured, see the analysis; numbers at its top level are the key figures. Empty unless ``"ok"``.
    unknown : dict
        Optional entries that a later evergrow wrote, kept to be written again.
    """

    run_id: str
    analysis: str
    settings: dict[str, Any]
    method: str
    label: str
    options: dict[str, Any]
    dataset: dict[str, Any]
    protocol: dict[str, Any]
    seed: int
    status: str
    started: str
    ended: str
    versions: dict[str, Any]
    environment: dict[str, Any]
    results: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    unknown: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as JSON text; NaN and infinity become null."""
        return _json(self, ANALYSIS_SCHEMA, ANALYSIS_VERSION)

    @property
    def figures(self) -> dict[str, int | float | str]:
        """The key figures of a finished analysis: single values at the top level of its results."""
        return {name: value for name, value in self.results.items() if isinstance(value, (int, float, str))}

    @property
    def summary(self) -> str:
        """How it ended, in a few words."""
        return _summary(self, figures_text(self.figures))


RecordT = TypeVar("RecordT", RunRecord, AnalysisRecord)


def figures_text(figures: Mapping[str, Any]) -> str:
    """Return key figures in one line, numbers to four digits.

    Examples
    --------
    >>> from evergrow.lab.records import figures_text
    >>> figures_text({"n_units": 12, "condition_number": 31.41592, "status": "drawn"})
    'n_units 12, condition_number 31.42, status drawn'
    """
    return ", ".join(
        f"{name} {value:.4g}" if type(value) is float else f"{name} {value}" for name, value in figures.items()
    )


def _summary(record: RunRecord | AnalysisRecord, results: str) -> str:
    """Return how a run ended in a few words: its results, or the first line of what went wrong."""
    if record.status == "ok":
        return results
    if record.error:
        message = str(record.error.get("message", "")).partition("\n")[0]
        return f"{record.error.get('type', 'error')}: {message}"
    return record.status


def plain(value: Any) -> Any:
    """Return ``value`` as what JSON can hold: numpy becomes lists and numbers, NaN becomes None.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.lab.records import plain
    >>> plain({"a": np.array([1.0, np.nan]), "b": (np.int16(3),)})
    {'a': [1.0, None], 'b': [3]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _json(record: RunRecord | AnalysisRecord, schema: str, version: int) -> str:
    body = plain(asdict(record))
    unknown = body.pop("unknown")
    return _dump({"schema": schema, "schema_version": version, **body, **unknown}) + "\n"


def _dump(value: Any, indent: str = "") -> str:
    """Return JSON with one key or matrix row per line, which is how people and diffs read it."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        items = [f"{inner}{json.dumps(key)}: {_dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (list, dict, str)) for item in value):
        return "[\n" + ",\n".join(inner + _dump(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)
