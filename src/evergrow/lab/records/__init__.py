"""Records: one self-describing JSON file per run, written in one step, read with suspicion.

There are two kinds, told apart by the ``schema`` entry: a :class:`RunRecord` holds the accuracies of one run of a
comparison, an :class:`AnalysisRecord` what an analysis of a mechanism measured. Neither reader takes the other kind.

A record never holds a machine path, a host name or a user name, so it can be committed and compared.
"""

from evergrow.lab.records.files import (
    OtherKindError,
    RecordProblem,
    read_analyses,
    read_analysis,
    read_record,
    read_records,
    remove_partial,
    write_record,
)
from evergrow.lab.records.record import (
    ANALYSIS_SCHEMA,
    ANALYSIS_VERSION,
    SCHEMA,
    SCHEMA_VERSION,
    STATUSES,
    AnalysisRecord,
    RecordT,
    RunRecord,
    figures_text,
    plain,
)
from evergrow.lab.records.stamps import environment, error_entry, scrub, utc_now, versions

__all__ = [
    "ANALYSIS_SCHEMA",
    "ANALYSIS_VERSION",
    "SCHEMA",
    "SCHEMA_VERSION",
    "STATUSES",
    "AnalysisRecord",
    "OtherKindError",
    "RecordProblem",
    "RecordT",
    "RunRecord",
    "environment",
    "error_entry",
    "figures_text",
    "plain",
    "read_analyses",
    "read_analysis",
    "read_record",
    "read_records",
    "remove_partial",
    "scrub",
    "utc_now",
    "versions",
    "write_record",
]
