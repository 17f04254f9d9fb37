"""A report of measurements: Markdown, one self-contained HTML file, figures and tables."""

from analysis.report.front_matter import FrontMatter, front_matter
from analysis.report.write import print_pdf, write_report

__all__ = ["FrontMatter", "front_matter", "print_pdf", "write_report"]
