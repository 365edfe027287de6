"""Reading the records that a report is made from, and naming the files that could not be used."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evergrow.core.errors import FileFormatError, InputError
from evergrow.core.escaping import printable
from evergrow.lab.records import AnalysisRecord, OtherKindError, RunRecord, read_analysis, read_record, scrub
from evergrow.lab.report.styles import style_of
from evergrow.lab.tables import Record, dataset_label, one_per_run, unfinished_notes


@dataclass(frozen=True)
class LeftOut:
    """A file that could not be used.

    Parameters
    ----------
    file : str
        Its path, from the folder that was given.
    reason : str
        The fault.
    """

    file: str
    reason: str


@dataclass(frozen=True)
class RunFolder:
    """The runs of one folder of records, which are compared with each other.

    Parameters
    ----------
    name : str
        Name of the folder.
    runs : list of RunRecord
        Of any status, one per run, in the order of tables.
    command : str
        Fills the folder.
    """

    name: str
    runs: list[RunRecord]
    command: str

    @property
    def finished(self) -> list[RunRecord]:
        """The runs that enter means."""
        return [run for run in self.runs if run.status == "ok"]


@dataclass(frozen=True)
class RecordSet:
    """All records that a report is made from.

    Parameters
    ----------
    folders : list of RunFolder
        Runs by folder.
    analyses : list of AnalysisRecord
        Finished analyses, one per run.
    left_out : list of LeftOut
        Files that are no usable record.
    notes : list of str
        Copies, failed runs and whatever else a reader must know.
    """

    folders: list[RunFolder]
    analyses: list[AnalysisRecord]
    left_out: list[LeftOut] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[RunRecord]:
        """All finished runs."""
        return [run for folder in self.folders for run in folder.finished]

    def analysed(self, *names: str) -> list[AnalysisRecord]:
        """Return the analyses of these names."""
        return [record for record in self.analyses if record.analysis in names]


def collect(paths: Sequence[str | os.PathLike[str]]) -> RecordSet:
    """Read every record of files and folders, going on past whatever is not one.

    Parameters
    ----------
    paths : sequence of path-like
        Record files, or folders that are searched at any depth.

    Returns
    -------
    RecordSet

    Raises
    ------
    InputError
        If there is no usable record at all.
    """
    runs: dict[Path, list[RunRecord]] = {}
    analyses: list[AnalysisRecord] = []
    left_out: list[LeftOut] = []
    seen: set[Path] = set()
    for given in map(Path, paths):
        for path in _files(given, left_out):
            resolved = path.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            try:
                found = _read(path)
            except (FileFormatError, OSError) as error:
                left_out.append(LeftOut(_relative(path, given), _plain_reason(path, error)))
                continue
            if isinstance(found, RunRecord):
                runs.setdefault(resolved.parent, []).append(found)
            else:
                analyses.append(found)
    if not runs and not analyses:
        raise InputError(
            f"RUNS must hold at least one record, got none in {', '.join(map(str, paths))}"
            + (
                f" ({len(left_out)} files could not be used, the first because {left_out[0].reason})"
                if left_out
                else ""
            )
        )
    return _record_set(runs, analyses, left_out)


def _read(path: Path) -> RunRecord | AnalysisRecord:
    try:
        return read_record(path)
    except OtherKindError:
        return read_analysis(path)


_UNREADABLE = {
    ".*.json.*.part": "it is half-written: its writer was stopped",
    "*.jsonl": "JSON lines are not read: every record is a file of its own",
}


def _files(given: Path, left_out: list[LeftOut]) -> list[Path]:
    """Return the files to read below a path; leftovers and other formats are named at once."""
    if not given.exists():
        left_out.append(LeftOut(given.name, "there is no such file or folder"))
        return []
    if not given.is_dir():
        return [given]
    for pattern, reason in _UNREADABLE.items():
        left_out.extend(LeftOut(_relative(path, given), reason) for path in sorted(given.rglob(pattern)))
    return sorted(given.rglob("*.json"))


def _relative(path: Path, given: Path) -> str:
    return path.name if path == given else path.relative_to(given.parent if given.name else given).as_posix()


def _plain_reason(path: Path, error: Exception) -> str:
    """Return the fault of a file, without the machine's path to it."""
    text = str(error).replace(f"{path} ", "the file ").replace(str(path), path.name)
    return scrub(text)


def _record_set(
    runs: dict[Path, list[RunRecord]], analyses: list[AnalysisRecord], left_out: list[LeftOut]
) -> RecordSet:
    """Return records with copies left out, in the order of tables, and notes on those that enter none."""
    notes: list[str] = []
    names = _folder_names(list(runs))
    folders = []
    for path, found in runs.items():
        unique, copies = one_per_run(found)
        if copies:
            notes.append(f"{names[path]}: {copies} further records of the same runs; the latest of each counts")
        notes += [f"{names[path]}: {note}" for note in unfinished_notes(unique, _ABSENT)]
        folders.append(RunFolder(names[path], sorted(unique, key=_order), spec_command(path, "run")))
    unique_analyses, copies = one_per_run(analyses)
    if copies:
        notes.append(f"{copies} further records of the same analyses; the latest of each counts")
    notes += unfinished_notes(unique_analyses, _ABSENT)
    finished = [record for record in unique_analyses if record.status == "ok"]
    versions = Counter(str(run.versions.get("evergrow")) for folder in folders for run in folder.runs)
    versions += Counter(str(record.versions.get("evergrow")) for record in finished)
    if len(versions) > 1:
        listed = ", ".join(f"{version} ({n})" for version, n in sorted(versions.items()))
        notes.append(f"records of several evergrow versions: {listed}")
    return RecordSet(folders, sorted(finished, key=_order), left_out, notes)


_ABSENT = "in no figure or table"


def _order(record: Record) -> tuple[Any, ...]:
    """Return the place of a record: methods as the paper has them, then widths, data, protocols and seeds."""
    sizes = [record.options.get(key) for key in ("n_units", "block_size", "n_candidates")]
    numbers = [float(size) if isinstance(size, (int, float)) else -1.0 for size in sizes]
    increment = record.protocol.get("increment")
    return (
        style_of(record.method).order,
        record.method,
        record.label.partition(" (")[0],
        numbers,
        record.label,
        dataset_label(record),
        increment if isinstance(increment, (int, float)) else 0,
        record.protocol["name"],
        record.seed,
        json.dumps(record.options, sort_keys=True, default=str),
        record.run_id,
    )


def _folder_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the last part of every folder's path, or the last two where that is not distinct."""
    last = Counter(folder.name for folder in folders)
    return {
        folder: printable(folder.name if last[folder.name] == 1 else f"{folder.parent.name}/{folder.name}")
        for folder in folders
    }


def spec_command(folder: Path, verb: str) -> str:
    """Return the command that fills a folder of records, by the spec whose ``output`` it is.

    Parameters
    ----------
    folder : Path
        Of records.
    verb : {"run", "mechanism"}
        Of ``evergrow lab``.

    Returns
    -------
    str
        With ``SPEC`` in place of a spec that is not found beside the folder or up to two levels above.
    """
    for parent in [folder, *list(folder.parents)[:3]]:
        for spec in sorted(parent.glob("*.toml")):
            output = _output_of(spec)
            if output and (spec.parent / output).resolve() == folder:
                return f"evergrow lab {verb} {spec.parent.name}/{spec.name}"
    return f"evergrow lab {verb} SPEC"


def _output_of(spec: Path) -> str | None:
    """Return the output folder that a spec names; other TOML files have none."""
    try:
        lines = spec.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        if line.startswith("["):
            return None  # tables follow: top-level keys stand before them
        key, sign, value = line.partition("=")
        if sign and key.strip() == "output":
            return value.partition("#")[0].strip().strip("\"'")
    return None
