"""A report of measurements: Markdown, one self-contained HTML file, figures and tables."""

from analysis.report.write import write_report

__all__ = ["write_report"]
