"""Records: one self-describing JSON file per run, written in one step, read with suspicion.

There are two kinds, told apart by the ``schema`` entry: a :class:`RunRecord` holds the accuracies of one run of a
comparison, an :class:`AnalysisRecord` what an analysis of a mechanism measured. Neither reader takes the other kind.

A record never holds a machine path, a host name or a user name, so it can be committed and compared.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.files import PARTIAL, atomic_path
from evergrow.core.version import __version__

SCHEMA = "evergrow-run"
SCHEMA_VERSION = 1
ANALYSIS_SCHEMA = "evergrow-analysis"
ANALYSIS_VERSION = 1
STATUSES = ("ok", "failed", "cancelled")


class OtherKindError(FileFormatError):
    """A sound record, but of the other kind."""


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
        for each task, null without test samples), see :func:`evergrow.metrics.within_tasks`.
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

    def to_json(self) -> str:
        """Return the record as JSON text; NaN and infinity become null."""
        body = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **plain(asdict(self))}
        return _dump(body) + "\n"

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
    """What one analysis of a mechanism measured on one layer, data set, protocol and seed.

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

    def to_json(self) -> str:
        """Return the record as JSON text; NaN and infinity become null."""
        body = {"schema": ANALYSIS_SCHEMA, "schema_version": ANALYSIS_VERSION, **plain(asdict(self))}
        return _dump(body) + "\n"

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
    >>> from evergrow.records import figures_text
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


@dataclass(frozen=True)
class RecordProblem:
    """A file that could not be taken as a record.

    Parameters
    ----------
    path : Path
        The file.
    reason : str
        What is wrong with it.
    other_kind : bool
        Whether it is a sound record, of a kind that was not asked for.
    """

    path: Path
    reason: str
    other_kind: bool = False


# -- writing --------------------------------------------------------------------------------------------


def write_record(path: str | os.PathLike[str], record: RunRecord | AnalysisRecord) -> None:
    """Write a record so that a crash leaves the old file or the new one, never half.

    Parameters
    ----------
    path : path-like
        Target; its folder must exist.
    record : RunRecord or AnalysisRecord
        What to write.

    Examples
    --------
    >>> import tempfile, torch
    >>> from evergrow.records import RunRecord, environment, read_records, utc_now, versions, write_record
    >>> record = RunRecord(
    ...     run_id="1f", method="ranpac", label="RanPAC", options={"n_units": 10}, seed=1993,
    ...     dataset={"name": "toy"}, protocol={"name": "B-0 Inc-2"}, status="cancelled",
    ...     started=utc_now(), ended=utc_now(), versions=versions(),
    ...     environment=environment(torch.device("cpu")),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_record(f"{folder}/run.json", record)
    ...     records, problems = read_records(folder)
    >>> records == [record], problems
    (True, [])
    """
    text = record.to_json()
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_partial(folder: str | os.PathLike[str]) -> int:
    """Delete what a killed writer left in ``folder`` and return how many files that were."""
    leftovers = list(Path(folder).glob(f".*.json.*{PARTIAL}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


def plain(value: Any) -> Any:
    """Return ``value`` as what JSON can hold: numpy becomes lists and numbers, NaN becomes None.

    Examples
    --------
    >>> import numpy as np
    >>> from evergrow.records import plain
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


def _dump(value: Any, indent: str = "") -> str:
    """Return JSON with one key or matrix row per line, which is how people and diffs read it."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        items = [f"{inner}{json.dumps(key)}: {_dump(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, (list, dict, str)) for item in value):
        return "[\n" + ",\n".join(inner + _dump(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


# -- reading --------------------------------------------------------------------------------------------


def read_record(path: str | os.PathLike[str]) -> RunRecord:
    """Read one record.

    Raises
    ------
    FileFormatError
        If the file is half-written, or no run record, or contradicts the schema.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    return _from_body(path, _read_body(path, "run", SCHEMA, SCHEMA_VERSION))


def read_analysis(path: str | os.PathLike[str]) -> AnalysisRecord:
    """Read one record of an analysis; raises like :func:`read_record`."""
    body = _read_body(path, "analysis", ANALYSIS_SCHEMA, ANALYSIS_VERSION)
    return _checked(path, AnalysisRecord, body)


def _read_body(path: str | os.PathLike[str], kind: str, schema: str, newest: int) -> dict[str, Any]:
    """Return the contents of a record of this schema, of a version that is known."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FileFormatError(f"{path} must be a whole JSON file, got a damaged one: {error}") from error
    found = body.get("schema") if isinstance(body, dict) else None
    if found in (SCHEMA, ANALYSIS_SCHEMA) and found != schema:
        raise OtherKindError(f"{path} must be an evergrow {kind} record, got one of kind {found!r}")
    if found != schema:
        raise FileFormatError(f"{path} must be an evergrow {kind} record, got other JSON")
    version = body.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FileFormatError(f"{path} must carry an integer schema version, got {version!r}")
    if version > newest:
        raise NewerSchemaError(
            f"{path} must have schema version {newest} or older, got {version}: "
            "it was written by a newer evergrow; upgrade with 'pip install -U evergrow'"
        )
    return dict(body)


_TYPES: dict[str, type | tuple[type, ...]] = {"seed": int, "warnings": list, "error": (dict, type(None))}
_TYPES |= dict.fromkeys(("run_id", "analysis", "method", "label", "status", "started", "ended"), str)
_REQUIRED_RESULTS = ("matrix", "counts", "by_samples", "by_tasks", "a_last", "a_avg")
_NUMBERS = ("a_last", "a_avg", "f_avg", "a_last_within")


def _checked(path: str | os.PathLike[str], kind: type[RecordT], body: dict[str, Any]) -> RecordT:
    """Return a record whose entries all have the right type."""
    values = {}
    for item in fields(kind):
        if item.name not in body:
            raise FileFormatError(f"{path} must hold {item.name!r}, but it is missing")
        expected = _TYPES.get(item.name, dict)
        if not isinstance(body[item.name], expected):
            raise FileFormatError(f"{path} must hold a proper {item.name!r}, got {body[item.name]!r:.60}")
        values[item.name] = body[item.name]
    record = kind(**values)
    if record.status not in STATUSES:
        raise FileFormatError(f"{path} must have a status among {STATUSES}, got {record.status!r}")
    for part in ("dataset", "protocol"):
        if not isinstance(getattr(record, part).get("name"), str):
            raise FileFormatError(f"{path} must name its {part}, but it does not")
    return record


def _from_body(path: str | os.PathLike[str], body: dict[str, Any]) -> RunRecord:
    record = _checked(path, RunRecord, body)
    lacking = [key for key in _REQUIRED_RESULTS if key not in record.results]
    if record.status == "ok" and lacking:
        raise FileFormatError(f"{path} must hold the results of a finished run, but it lacks {lacking}")
    if any(not _is_number(record.results.get(key)) for key in _NUMBERS):
        raise FileFormatError(f"{path} must hold numbers as results, but it does not")
    times = [
        record.times.get("fit"),
        *_as_list(record.times.get("update")),
        *_as_list(record.times.get("predict")),
    ]
    if not all(_is_number(value) for value in times):
        raise FileFormatError(f"{path} must hold numbers of seconds as times, but it does not")
    return record


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def read_records(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[RunRecord], list[RecordProblem]]:
    """Read all run records of files and folders, going on past whatever is not one.

    Parameters
    ----------
    paths : path-like or iterable of path-like
        Record files, or folders that are searched for ``*.json`` at any depth. Records of analyses in a folder are
        passed over in silence.

    Returns
    -------
    records : list of RunRecord
        In the order of their file names.
    problems : list of RecordProblem
        Files that are half-written, foreign or from a newer evergrow, and paths that do not exist.
    """
    return _read_all(paths, read_record)


def read_analyses(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[list[AnalysisRecord], list[RecordProblem]]:
    """Read all records of analyses, as :func:`read_records` does those of runs."""
    return _read_all(paths, read_analysis)


def _read_all(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], read: Callable[[Path], RecordT]
) -> tuple[list[RecordT], list[RecordProblem]]:
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    records: list[RecordT] = []
    problems: list[RecordProblem] = []
    for given in map(Path, listed):
        if not given.exists():
            problems.append(RecordProblem(given, f"{given} must exist, but there is no such file or folder"))
            continue
        for path in sorted(given.rglob("*.json")) if given.is_dir() else [given]:
            found = _record_or_problem(path, read)
            if not isinstance(found, RecordProblem):
                records.append(found)
            elif path == given or not found.other_kind:
                problems.append(found)
    return records, problems


def _record_or_problem(path: Path, read: Callable[[Path], RecordT]) -> RecordT | RecordProblem:
    try:
        return read(path)
    except (FileFormatError, OSError) as error:
        return RecordProblem(path, str(error), isinstance(error, OtherKindError))


# -- stamps ---------------------------------------------------------------------------------------------


def utc_now() -> str:
    """Return the time as records hold it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    return {
        "evergrow": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Return where a run took place, without saying whose machine it was."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "platform": platform.system(),
    }


def error_entry(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error, freed of machine paths.

    Examples
    --------
    >>> from evergrow.records import error_entry
    >>> error_entry(OSError("cannot open /home/me/secret/data.npz"))["message"]
    'cannot open .../data.npz'
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {"type": type(error).__name__, "message": scrub(str(error)), "traceback": scrub(text)}


def scrub(text: str) -> str:
    """Shorten absolute paths to what does not tell the machine: a package's path or the last part.

    Examples
    --------
    >>> from evergrow.records import scrub
    >>> scrub('File "/home/me/venv/lib/site-packages/torch/nn/module.py", line 3')
    'File "torch/nn/module.py", line 3'
    """
    # Lazily up to the last package root that Python itself knows, then any other absolute folder.
    for root in sorted((os.path.abspath(entry) for entry in sys.path if entry), key=len, reverse=True):
        if len(root) > 1:
            text = text.replace(root + os.sep, "")
    text = re.sub(r"(?:[A-Za-z]:)?[\\/][^\s\"',:;()<>|]*?site-packages[\\/]", "", text)
    return re.sub(r"(?<![\w.:/\\-])(?:[A-Za-z]:\\|/|~/)(?:[^\s\"',:;()<>|\\/]+[\\/])+", ".../", text)
