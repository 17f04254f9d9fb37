"""Runs faster than the roof that they stand under: one of the two is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings.finding import ReportFinding, own_findings
from analysis.runs.placed import Run

KIND = "above the roof"
_CODES = ("above-compute-roof", "above-memory-roof")


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding over all runs that outrun a ceiling by more than 3 %."""
    found = [(run, one) for run in runs for one in own_findings(run, *_CODES)]
    if found:
        above = list(dict.fromkeys(run.name for run, _ in found))
        yield ReportFinding(
            kind=KIND,
            headline=f"{len(above)} runs are faster than their roof allows; do not use them.",
            evidence=tuple(f"{run.label}: {one.message}" for run, one in found),
            runs=tuple(above),
            advice="Measure the ceilings of that machine again, idle, and compare the work counts.",
        )
