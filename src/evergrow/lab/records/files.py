"""Records on disk: one JSON file per run, written in one step, read with suspicion."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evergrow.core.archive import Kind
from evergrow.core.documents import open_document, parse_json
from evergrow.core.errors import FileFormatError
from evergrow.core.fields import Fields
from evergrow.core.files import PARTIAL, atomic_path
from evergrow.lab.records.record import ANALYSIS, RUN, STATUSES, AnalysisRecord, RecordT, RunRecord


class OtherKindError(FileFormatError):
    """A sound record, but of the other kind."""


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
    >>> from evergrow.lab.records import RunRecord, environment, read_records, utc_now, versions, write_record
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


# -- reading one ----------------------------------------------------------------------------------------------


def read_record(path: str | os.PathLike[str]) -> RunRecord:
    """Read one record.

    Raises
    ------
    FileFormatError
        If the file is half-written, or no run record, or contradicts the schema.
    NewerSchemaError
        If a newer evergrow wrote it.
    """
    record = _read(path, RunRecord, RUN, "run")
    _check_results(Fields(record.results, {}, {}, f"{path}: results"), finished=record.status == "ok")
    times = Fields(record.times, {}, {}, f"{path}: times")
    times.optional_number("fit")
    for key in ("update", "predict"):
        if times.has(key):
            _check_numbers(times, key)
    return record


def read_analysis(path: str | os.PathLike[str]) -> AnalysisRecord:
    """Read one record of an analysis; raises like :func:`read_record`."""
    return _read(path, AnalysisRecord, ANALYSIS, "analysis")


def _read(path: str | os.PathLike[str], kind: type[RecordT], schema: Kind, noun: str) -> RecordT:
    """Return a record of this kind whose entries all have the right type."""
    body = parse_json(Path(path).read_bytes(), os.fspath(path))
    stated = body.get("schema") if isinstance(body, dict) else None
    if stated in (RUN.name, ANALYSIS.name) and stated != schema.name:
        raise OtherKindError(f"{path} must be an evergrow {noun} record, got one of kind {stated!r}")
    if stated != schema.name:
        raise FileFormatError(f"{path} must be an evergrow {noun} record, got other JSON")
    contents = {key: value for key, value in body.items() if key not in ("schema", "schema_version")}
    given = open_document(
        contents, schema, os.fspath(path), version=body.get("schema_version"), writer=_writer(contents)
    )
    values = {item.name: _entry(given, item.name) for item in fields(kind) if item.name != "unknown"}
    for part in ("dataset", "protocol"):
        given.fields(part).text("name")
    return kind(**values, unknown=given.unknown())


def _writer(body: dict[str, Any]) -> Any:
    versions = body.get("versions")
    return versions.get("evergrow") if isinstance(versions, dict) else None


_TEXTS = ("run_id", "analysis", "method", "label", "started", "ended")
_REQUIRED_RESULTS = ("matrix", "counts", "by_samples", "by_tasks", "a_last", "a_avg")


def _entry(given: Fields, name: str) -> Any:
    """Return an entry of a record, which must be there and of the right type."""
    if name in _TEXTS:
        return given.text(name)
    if name == "status":
        return given.text(name, choices=STATUSES)
    if name == "seed":
        return given.integer(name, low=-(2**53))
    if name == "warnings":
        return given.texts(name)
    if name == "error":
        return given.mapping(name, default=None)
    return given.mapping(name)


def _check_results(results: Fields, *, finished: bool) -> None:
    """Raise unless the results that tables and figures look at are numbers, and all there on a finished run."""
    lacking = [key for key in _REQUIRED_RESULTS if finished and key not in results.names()]
    results.require(not lacking, f"a finished run lacks {lacking}")
    for key in ("a_last", "a_avg", "f_avg", "a_last_within", "a_last_tasks", "a_avg_tasks"):
        results.optional_number(key)
    for key in ("counts", "by_samples", "by_tasks", "within_tasks"):
        if results.has(key):
            _check_numbers(results, key)
    if results.has("matrix"):
        rows = results.values("matrix")
        good = all(isinstance(row, list) and all(map(_is_number, row)) for row in rows)
        results.require(good, "matrix is not made of rows of numbers")


def _check_numbers(given: Fields, key: str) -> None:
    given.require(all(map(_is_number, given.values(key))), f"{key} is not a list of numbers")


def _is_number(value: Any) -> bool:
    """Return whether a value is null or a number that floats can hold."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 2**1000 and math.isfinite(value)


# -- reading many ---------------------------------------------------------------------------------------------


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
            outcome = _record_or_problem(path, read)
            if not isinstance(outcome, RecordProblem):
                records.append(outcome)
            elif path == given or not outcome.other_kind:
                problems.append(outcome)
    return records, problems


def _record_or_problem(path: Path, read: Callable[[Path], RecordT]) -> RecordT | RecordProblem:
    try:
        return read(path)
    except (FileFormatError, OSError) as error:
        return RecordProblem(path, str(error), isinstance(error, OtherKindError))
