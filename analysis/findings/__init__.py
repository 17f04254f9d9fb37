"""What the runs of a report show, in words, the gravest first."""

from analysis.findings.all_findings import KINDS, find_all
from analysis.findings.report_finding import ReportFinding

__all__ = ["KINDS", "ReportFinding", "find_all"]
