"""A report of measurements: Markdown, one self-contained HTML file, figures and tables."""

from analysis.report.write import print_pdf, write_report

__all__ = ["print_pdf", "write_report"]
