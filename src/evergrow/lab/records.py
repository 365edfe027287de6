"""Records of runs and analyses: one self-describing JSON file each.

A record contains no machine path, host name or user name, so it can be committed and
compared. Records are written atomically and validated on reading.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.files import atomic_path, remove_leftovers
from evergrow.core.record import Between, from_values, to_json_values
from evergrow.core.version import __version__

RUN_SCHEMA = "evergrow-run"
ANALYSIS_SCHEMA = "evergrow-analysis"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Record:
    """Complete description of one run, or of one analysis of a mechanism.

    Parameters
    ----------
    run_id : str
        Hash of the resolved settings.
    method : str
        Registered name.
    label : str
        Name in tables.
    options : dict
        All options of the method, including defaults.
    dataset : dict
        ``name``, ``label``, ``fingerprint`` and sizes.
    protocol : dict
        ``name`` and all settings of the stream.
    seed : int
        Seed of the class order and of the method.
    status : {"ok", "failed", "cancelled"}
        Outcome.
    started, ended : str
        UTC, ISO 8601.
    versions : dict
        evergrow, torch, numpy, python.
    environment : dict
        ``device``, ``device_name``, ``threads``, ``platform``.
    results : dict
        For a run: ``matrix`` (a[t][j], null for j > t), ``counts`` (test samples per
        task), ``by_samples`` and ``by_tasks`` (accuracy after every session in both
        conventions), ``a_last``, ``a_avg``, ``f_avg``, ``a_last_tasks``,
        ``a_avg_tasks``, as fractions. Empty if no session finished. Methods with scores
        may add ``a_last_within`` and ``within_tasks``, the accuracy within tasks after
        the last session, overall and per task; see
        :func:`evergrow.lab.metrics.within_tasks`. For an analysis: its measurements.
        Single values at the top level are the key figures.
    times : dict
        Seconds of a run: ``fit`` (first task), ``update`` (every later task),
        ``predict`` (every evaluation).
    memory : dict
        ``peak_rss_bytes``, its ``rss_scope`` (``"run"``, or ``"process"`` if the system
        cannot reset the peak) and ``peak_cuda_bytes`` (null without CUDA). For an
        analysis also ``start_rss_bytes``.
    error : dict or None
        ``type``, ``message`` and ``traceback`` of a failed run.
    warnings : list of str
        Warnings during the run.
    extra : dict
        Diagnostics of the method.
    analysis : str
        Name of the analysis. Empty for a run.
    settings : dict
        Settings of the analysis, including defaults.
    """

    run_id: str
    method: str
    label: str
    options: dict[str, Any]
    dataset: dict[str, Any]
    protocol: dict[str, Any]
    seed: Annotated[int, Between(-(2**53), 2**53)]
    status: Literal["ok", "failed", "cancelled"]
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
    analysis: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as JSON text. NaN and infinity become null."""
        body = to_json_values(self)
        schema = RUN_SCHEMA
        analysis = {"analysis": body.pop("analysis"), "settings": body.pop("settings")}
        if self.analysis:
            schema = ANALYSIS_SCHEMA
            del body["times"], body["extra"]
            body = {"run_id": body.pop("run_id"), **analysis, **body}
        header = {"schema": schema, "schema_version": SCHEMA_VERSION}
        return _dump({**header, **body}) + "\n"

    @property
    def dataset_label(self) -> str:
        """Display name of the dataset."""
        return str(self.dataset.get("label", self.dataset["name"]))

    @property
    def figures(self) -> dict[str, Any]:
        """Key figures: accuracies of a run in percent, or single values."""
        if self.analysis:
            return {
                name: value
                for name, value in self.results.items()
                if isinstance(value, (int, float, str))
            }
        named = {
            "A_last": self.results.get("a_last"),
            "A_avg": self.results.get("a_avg"),
        }
        return {name: 100 * value for name, value in named.items() if value is not None}

    @property
    def summary(self) -> str:
        """Key figures in one line, or the first line of the error."""
        if self.status == "ok":
            return ", ".join(
                f"{key} {value:.4g}" if type(value) is float else f"{key} {value}"
                for key, value in self.figures.items()
            )
        if self.error is None:
            return self.status
        first_line = str(self.error.get("message", "")).partition("\n")[0]
        return f"{self.error.get('type', 'error')}: {first_line}"


def _dump(value: Any, indent: str = "") -> str:
    """Return readable JSON with one key or matrix row per line."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        items = [
            f"{inner}{json.dumps(key)}: {_dump(item, inner)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    nested = (list, dict, str)
    if isinstance(value, list) and any(isinstance(item, nested) for item in value):
        items = [inner + _dump(item, inner) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def save_record(path: str | os.PathLike[str], record: Record) -> None:
    """Write a record atomically: a crash leaves the old file or the new one.

    Examples
    --------
    >>> import tempfile, torch
    >>> from evergrow.lab import records
    >>> from evergrow.lab.records import Record, load_records, save_record
    >>> record = Record(
    ...     run_id="1f",
    ...     method="ranpac",
    ...     label="RanPAC",
    ...     options={"n_units": 10},
    ...     seed=1993,
    ...     dataset={"name": "toy"},
    ...     protocol={"name": "B-0 Inc-2"},
    ...     status="cancelled",
    ...     started=records.utc_now(),
    ...     ended=records.utc_now(),
    ...     versions=records.versions(),
    ...     environment=records.environment(torch.device("cpu")),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_record(f"{folder}/run.json", record)
    ...     found, problems = load_records(folder)
    >>> list(found.values()) == [record], problems
    (True, {})
    """
    with atomic_path(path) as temporary:
        temporary.write_text(record.to_json(), encoding="utf-8")


def remove_partial(folder: str | os.PathLike[str]) -> int:
    """Delete temporary files of killed writers in ``folder``; return their number."""
    return remove_leftovers(Path(folder), ".*.json.*")


Curve = list[float | None]


@dataclass(frozen=True)
class _Results:
    """Results of a run that tables and figures use."""

    matrix: list[Curve] | None = None
    counts: list[int] | None = None
    by_samples: Curve | None = None
    by_tasks: Curve | None = None
    within_tasks: Curve | None = None
    a_last: float | None = None
    a_avg: float | None = None
    f_avg: float | None = None
    a_last_within: float | None = None
    a_last_tasks: float | None = None
    a_avg_tasks: float | None = None


@dataclass(frozen=True)
class _Times:
    fit: float | None = None
    update: list[float] | None = None
    predict: list[float] | None = None


def load_record(path: str | os.PathLike[str]) -> Record:
    """Read one record.

    Raises
    ------
    FileFormatError
        If the file is incomplete, not a record, or violates the schema.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    name = os.fspath(path)
    body = parse_json(Path(path).read_bytes(), name)
    schemas = (RUN_SCHEMA, ANALYSIS_SCHEMA)
    if not isinstance(body, dict) or body.get("schema") not in schemas:
        raise FileFormatError(f"{name} is not a record of evergrow")
    if body.get("schema_version") != SCHEMA_VERSION:
        made_by = "?"
        if isinstance(body.get("versions"), dict):
            made_by = body["versions"].get("evergrow", "?")
        raise NewerSchemaError(
            f"{name} was written by a newer evergrow ({made_by}): upgrade to read it"
        )
    known = {item.name for item in fields(Record)}
    values = {key: value for key, value in body.items() if key in known}
    record = from_values(Record, values, name)
    for part in (record.dataset, record.protocol):
        if not isinstance(part.get("name"), str):
            raise FileFormatError(f"{name} should name its dataset and its protocol")
    if bool(record.analysis) != (body["schema"] == ANALYSIS_SCHEMA):
        raise FileFormatError(
            f"{name} should name its analysis exactly if it is a record of one"
        )
    if not record.analysis:
        _check_results(record, name)
    return record


def _check_results(record: Record, name: str) -> None:
    """Raise :class:`FileFormatError` if the results or times of a run are invalid."""
    from_values(_Results, record.results, f"{name}: results")
    from_values(_Times, record.times, f"{name}: times")
    required = ("matrix", "counts", "by_samples", "by_tasks", "a_last", "a_avg")
    missing = [key for key in required if key not in record.results]
    if record.status == "ok" and missing:
        raise FileFormatError(
            f"{name}: a finished run should have {', '.join(missing)}"
        )


def load_records(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[dict[Path, Record], dict[Path, str]]:
    """Read all records in files and folders, skipping other files.

    Parameters
    ----------
    paths : path-like or iterable of path-like
        Record files, or folders to search for ``*.json`` at any depth.

    Returns
    -------
    records : dict of Path to Record
        Records by file, each file once.
    problems : dict of Path to str
        Reasons for skipped files: incomplete, foreign, newer or missing.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    records: dict[Path, Record] = {}
    problems: dict[Path, str] = {}
    for given in map(Path, paths):
        if not given.exists():
            problems[given] = f"{given} does not exist"
            continue
        files = sorted(given.rglob("*.json")) if given.is_dir() else [given]
        for path in files:
            try:
                records[path.resolve()] = load_record(path)
            except (FileFormatError, OSError) as error:  # noqa: PERF203
                problems[path] = str(error)
    return records, problems


def utc_now() -> str:
    """Return the current time in the format of records."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def versions() -> dict[str, str]:
    """Return the versions that may affect results."""
    return {
        "evergrow": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Return a description of the machine without its name or user."""
    name = platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "device": device.type,
        "device_name": name,
        "threads": torch.get_num_threads(),
        "platform": platform.system(),
    }


def error_entry(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error, without machine paths.

    Examples
    --------
    >>> from evergrow.lab.records import error_entry
    >>> error_entry(OSError("cannot open /home/me/secret/data.npz"))["message"]
    'cannot open .../data.npz'
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "type": type(error).__name__,
        "message": scrub(str(error)),
        "traceback": scrub(text),
    }


def scrub(text: str) -> str:
    """Shorten absolute paths: to the path in a package, or to the last part.

    Examples
    --------
    >>> from evergrow.lab.records import scrub
    >>> scrub('File "/home/me/venv/lib/site-packages/torch/nn/module.py", line 3')
    'File "torch/nn/module.py", line 3'
    """
    # First the package roots on sys.path, longest first, then any absolute folder.
    roots = [os.path.abspath(entry) for entry in sys.path if entry]
    for root in sorted(roots, key=len, reverse=True):
        if len(root) > 1:
            text = text.replace(root + os.sep, "")
    text = re.sub(r"(?:[A-Za-z]:)?[\\/][^\s\"',:;()<>|]*?site-packages[\\/]", "", text)
    return re.sub(
        r"(?<![\w.:/\\-])(?:[A-Za-z]:\\|/|~/)(?:[^\s\"',:;()<>|\\/]+[\\/])+",
        ".../",
        text,
    )
