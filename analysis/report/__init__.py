"""A report of measurements: Markdown, one self-contained HTML file, figures and tables."""

from analysis.report.pdf import print_pdf
from analysis.report.write import write_report

__all__ = ["print_pdf", "write_report"]
