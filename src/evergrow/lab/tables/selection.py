"""Which records count: one per run, and a note about each that did not finish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from evergrow.lab.tables.metric import Record

R = TypeVar("R", bound=Record)
"""One kind of record."""

JOINT = ("joint-lp", "joint-ft")
"""Methods that see all data at once: references, not rivals."""


def dataset_label(record: Record) -> str:
    """Return the name for people of a record's data set."""
    return str(record.dataset.get("label", record.dataset["name"]))


def one_per_run(records: Iterable[R]) -> tuple[list[R], int]:
    """Return one record per run, a finished one if there is any and then the latest, and how many copies there were."""
    best: dict[str, R] = {}
    total = 0
    for record in records:
        total += 1
        rival = best.get(record.run_id)
        if rival is None or (record.status == "ok", record.ended) > (rival.status == "ok", rival.ended):
            best[record.run_id] = record
    return list(best.values()), total - len(best)


def unfinished_notes(records: Iterable[Record], absent: str) -> list[str]:
    """Return a note about every run that did not finish.

    Parameters
    ----------
    records : iterable of RunRecord or AnalysisRecord
        Of any status.
    absent : str
        Where they are missing, for the note.
    """
    notes = []
    for record in records:
        if record.status != "ok":
            run = f"{record.label}, {dataset_label(record)}, {record.protocol['name']}, seed {record.seed}"
            why = f" ({record.error.get('type')}: {record.error.get('message', '')})" if record.error else ""
            notes.append(f"{record.status}, {absent}: {run}{why}")
    return notes
