"""Tables from records: mean and standard error over seeds, as text in several formats."""

from evergrow.lab.tables.compare import Cell, Column, Comparison, compare, grouped
from evergrow.lab.tables.metric import METRICS, Metric, Record, mean_and_error
from evergrow.lab.tables.render import escape_latex, number, render
from evergrow.lab.tables.selection import JOINT, dataset_label, one_per_run, unfinished_notes

__all__ = [
    "JOINT",
    "METRICS",
    "Cell",
    "Column",
    "Comparison",
    "Metric",
    "Record",
    "compare",
    "dataset_label",
    "escape_latex",
    "grouped",
    "mean_and_error",
    "number",
    "one_per_run",
    "render",
    "unfinished_notes",
]
