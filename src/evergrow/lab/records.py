"""Records: one self-describing JSON file per run or analysis, written in one step, read with suspicion.

A record never holds a machine path, a host name or a user name, so it can be committed
and compared.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from evergrow.core.archive import parse_json
from evergrow.core.errors import FileFormatError, NewerSchemaError
from evergrow.core.files import atomic_path, remove_leftovers
from evergrow.core.record import Between, from_values
from evergrow.core.version import __version__

RUN_SCHEMA = "evergrow-run"
ANALYSIS_SCHEMA = "evergrow-analysis"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Record:
    """Everything there is to know about one run, or about one analysis of a mechanism.

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
        Of a run: ``matrix`` (a[t][j], null for j > t), ``counts`` (test samples per
        task), ``by_samples`` and ``by_tasks`` (accuracy after every session in both
        conventions), ``a_last``, ``a_avg``, ``f_avg``, ``a_last_tasks``,
        ``a_avg_tasks``. Fractions. Empty unless a session was finished. Optional, for
        methods that give scores: ``a_last_within`` and ``within_tasks``, the accuracy
        after the last session among the classes of each sample's own task, over all
        samples and for each task; see :func:`evergrow.lab.metrics.within_tasks`. Of an
        analysis: what was measured; single values at its top level are the key figures.
    times : dict
        Seconds of a run: ``fit`` (first task), ``update`` (every later task),
        ``predict`` (every evaluation).
    memory : dict
        ``peak_rss_bytes``, its ``rss_scope`` (``"run"``, or ``"process"`` where the
        system cannot reset the mark) and ``peak_cuda_bytes`` (null without CUDA); of an
        analysis also ``start_rss_bytes``.
    error : dict or None
        ``type``, ``message`` and ``traceback`` of a failed run.
    warnings : list of str
        What was warned about during the run.
    extra : dict
        Diagnostics of a run's method.
    analysis : str
        Name of the analysis; empty for a run.
    settings : dict
        Settings of the analysis, defaults included.
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
        """Return the record as JSON text; NaN and infinity become null."""
        body = plain(asdict(self))
        analysis = {"analysis": body.pop("analysis"), "settings": body.pop("settings")}
        if self.analysis:
            del body["times"], body["extra"]
            body = {"run_id": body.pop("run_id"), **analysis, **body}
        schema = ANALYSIS_SCHEMA if self.analysis else RUN_SCHEMA
        return (
            _dump({"schema": schema, "schema_version": SCHEMA_VERSION, **body}) + "\n"
        )

    @property
    def dataset_label(self) -> str:
        """Name of the data set for people."""
        return str(self.dataset.get("label", self.dataset["name"]))

    @property
    def figures(self) -> dict[str, Any]:
        """The key figures: accuracies of a run in per cent, or the single values that an analysis measured."""
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
        """The key figures in one line, or the first line of what went wrong."""
        if self.status == "ok":
            figures = self.figures.items()
            return ", ".join(
                f"{key} {value:.4g}" if type(value) is float else f"{key} {value}"
                for key, value in figures
            )
        if self.error is None:
            return self.status
        return f"{self.error.get('type', 'error')}: {str(self.error.get('message', '')).partition(chr(10))[0]}"


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
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _dump(value: Any, indent: str = "") -> str:
    """Return JSON with one key or matrix row per line, which is how people and diffs read it."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        items = [
            f"{inner}{json.dumps(key)}: {_dump(item, inner)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(
        isinstance(item, (list, dict, str)) for item in value
    ):
        return (
            "[\n"
            + ",\n".join(inner + _dump(item, inner) for item in value)
            + f"\n{indent}]"
        )
    return json.dumps(value, allow_nan=False)


# -- files -----------------------------------------------------------------------------


def write_record(path: str | os.PathLike[str], record: Record) -> None:
    """Write a record so that a crash leaves the old file or the new one, never half.

    Examples
    --------
    >>> import tempfile, torch
    >>> from evergrow.lab.records import Record, environment, read_records, utc_now, versions, write_record
    >>> record = Record(
    ...     run_id="1f", method="ranpac", label="RanPAC", options={"n_units": 10}, seed=1993,
    ...     dataset={"name": "toy"}, protocol={"name": "B-0 Inc-2"}, status="cancelled",
    ...     started=utc_now(), ended=utc_now(), versions=versions(),
    ...     environment=environment(torch.device("cpu")),
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_record(f"{folder}/run.json", record)
    ...     records, problems = read_records(folder)
    >>> list(records.values()) == [record], problems
    (True, {})
    """
    with atomic_path(path) as temporary:
        temporary.write_text(record.to_json(), encoding="utf-8")


def remove_partial(folder: str | os.PathLike[str]) -> int:
    """Delete what a killed writer left in ``folder`` and return how many files that were."""
    return remove_leftovers(Path(folder), ".*.json.*")


Curve = list[float | None]


@dataclass(frozen=True)
class _Results:
    """The results of a run that tables and figures use."""

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


def read_record(path: str | os.PathLike[str]) -> Record:
    """Read one record.

    Raises
    ------
    FileFormatError
        If the file is half-written, no record, or contradicts the schema.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    name = os.fspath(path)
    body = parse_json(Path(path).read_bytes(), name)
    if not isinstance(body, dict) or body.get("schema") not in (
        RUN_SCHEMA,
        ANALYSIS_SCHEMA,
    ):
        raise FileFormatError(f"{name} is no record of evergrow")
    if body.get("schema_version") != SCHEMA_VERSION:
        made_by = "?"
        if isinstance(body.get("versions"), dict):
            made_by = body["versions"].get("evergrow", "?")
        raise NewerSchemaError(
            f"{name} was written by a newer evergrow ({made_by}): upgrade to read it"
        )
    known = {item.name for item in fields(Record)}
    record = from_values(
        Record, {key: value for key, value in body.items() if key in known}, name
    )
    if not all(
        isinstance(part.get("name"), str) for part in (record.dataset, record.protocol)
    ):
        raise FileFormatError(f"{name} should name its data set and its protocol")
    if bool(record.analysis) != (body["schema"] == ANALYSIS_SCHEMA):
        raise FileFormatError(
            f"{name} should name its analysis if it is a record of one"
        )
    if not record.analysis:
        from_values(_Results, record.results, f"{name}: results")
        from_values(_Times, record.times, f"{name}: times")
        required = ("matrix", "counts", "by_samples", "by_tasks", "a_last", "a_avg")
        lacking = [key for key in required if key not in record.results]
        if record.status == "ok" and lacking:
            raise FileFormatError(
                f"{name}: a finished run should have {', '.join(lacking)}"
            )
    return record


def read_records(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> tuple[dict[Path, Record], dict[Path, str]]:
    """Read all records of files and folders, skipping every file that is none.

    Parameters
    ----------
    paths : path-like or iterable of path-like
        Record files, or folders that are searched for ``*.json`` at any depth.

    Returns
    -------
    records : dict of Path to Record
        By file, each file once.
    problems : dict of Path to str
        Why other files were skipped: half-written, foreign, newer or missing.
    """
    records: dict[Path, Record] = {}
    problems: dict[Path, str] = {}
    for given in map(Path, [paths] if isinstance(paths, (str, os.PathLike)) else paths):
        if not given.exists():
            problems[given] = f"{given} does not exist"
        for path in (
            sorted(given.rglob("*.json"))
            if given.is_dir()
            else [given]
            if given.exists()
            else []
        ):
            try:
                records[path.resolve()] = read_record(path)
            except (FileFormatError, OSError) as error:  # noqa: PERF203
                problems[path] = str(error)
    return records, problems


# -- how a run took place --------------------------------------------------------------


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
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = platform.machine()
    threads = torch.get_num_threads()
    return {
        "device": device.type,
        "device_name": name,
        "threads": threads,
        "platform": platform.system(),
    }


def error_entry(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error, freed of machine paths.

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
    """Shorten absolute paths to what does not tell the machine: a package's path or the last part.

    Examples
    --------
    >>> from evergrow.lab.records import scrub
    >>> scrub('File "/home/me/venv/lib/site-packages/torch/nn/module.py", line 3')
    'File "torch/nn/module.py", line 3'
    """
    # Lazily up to the last package root that Python itself knows, then any other
    # absolute folder.
    for root in sorted(
        (os.path.abspath(entry) for entry in sys.path if entry), key=len, reverse=True
    ):
        if len(root) > 1:
            text = text.replace(root + os.sep, "")
    text = re.sub(r"(?:[A-Za-z]:)?[\\/][^\s\"',:;()<>|]*?site-packages[\\/]", "", text)
    return re.sub(
        r"(?<![\w.:/\\-])(?:[A-Za-z]:\\|/|~/)(?:[^\s\"',:;()<>|\\/]+[\\/])+",
        ".../",
        text,
    )
