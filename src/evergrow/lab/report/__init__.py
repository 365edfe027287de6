"""Images and tables: records -> tables, figures and one HTML page, beside the paper's published results."""

from evergrow.lab.report.build import Report, build_report
from evergrow.lab.report.published import Published, load_published

__all__ = ["Published", "Report", "build_report", "load_published"]
