"""Tables from records: mean and standard error over seeds, as text in several formats."""

from evergrow.tables.compare import Cell, Column, Comparison, compare, grouped
from evergrow.tables.metric import METRICS, Metric, Record
from evergrow.tables.render import escape_latex, number, render

__all__ = [
    "METRICS",
    "Cell",
    "Column",
    "Comparison",
    "Metric",
    "Record",
    "compare",
    "escape_latex",
    "grouped",
    "number",
    "render",
]
