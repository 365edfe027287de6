"""Records of one data set under one protocol, by method: the unit that panels and tables are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from evergrow.lab.records import AnalysisRecord
from evergrow.lab.report.contents import plain_label
from evergrow.lab.report.styles import Style, style_of
from evergrow.lab.tables import Record, grouped
from evergrow.lab.tables.selection import R


@dataclass(frozen=True)
class ProtocolGroup(Generic[R]):
    """Records of one data set under one protocol.

    Parameters
    ----------
    title : str
        Data set and protocol.
    rows : dict
        Records over seeds by the title of their method, in the order of tables.
    """

    title: str
    rows: dict[str, list[R]]

    @property
    def styles(self) -> dict[str, Style]:
        """A style per title: a method's own colour, and dashes for further settings of it."""
        seen: Counter[str] = Counter()
        styles = {}
        for title, records in self.rows.items():
            method = _drawn_as(records[0])
            styles[title] = style_of(method, seen[method])
            seen[method] += 1
        return styles


def _drawn_as(record: Record) -> str:
    """Return the method whose colour a record has; unguided units of the guided method count as random."""
    unguided = isinstance(record, AnalysisRecord) and record.options.get("projection") == "gaussian"
    return "ri" if unguided else record.method


def protocol_groups(records: Sequence[R]) -> list[ProtocolGroup[R]]:
    """Return records by data set and protocol.

    Parameters
    ----------
    records : sequence of RunRecord or AnalysisRecord
        Finished ones.
    """
    methods, datasets, protocols, groups = grouped(records)
    found: list[ProtocolGroup[R]] = []
    for d, dataset in datasets.items():
        for p, protocol in protocols.items():
            rows = {plain_label(title): groups[m, d, p] for m, title in methods.items() if (m, d, p) in groups}
            if rows:
                found.append(ProtocolGroup(f"{dataset}, {protocol}", rows))
    return found
