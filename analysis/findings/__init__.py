"""What the runs of a report show, in words: one module per kind, the gravest first."""

from analysis.findings.every import KINDS, find_all
from analysis.findings.finding import ReportFinding

__all__ = ["KINDS", "ReportFinding", "find_all"]
