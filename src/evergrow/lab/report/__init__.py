"""Tables, figures and a page from records, with the paper's published results."""

from evergrow.lab.report.build import Report, build_report
from evergrow.lab.report.published import load_published

__all__ = ["Report", "build_report", "load_published"]
