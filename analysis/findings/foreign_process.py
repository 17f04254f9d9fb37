"""Others on the device, or on the processor that ran the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings.finding import ReportFinding, own_by_machine
from analysis.runs.placed import Run

KIND = "foreign process"


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine that was not alone with its measurement."""
    for env, found in own_by_machine(runs, "foreign-process", "busy-host").items():
        names = tuple(dict.fromkeys(run.name for run, _ in found))
        yield ReportFinding(
            kind=KIND,
            headline=f"{env}: other programs ran beside {len(names)} of the measurements.",
            evidence=tuple(f"{run.label}: {message}" for run, message in found),
            runs=names,
            advice="Measure these again on an idle machine before comparing them.",
        )
