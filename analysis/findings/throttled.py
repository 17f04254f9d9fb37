"""Devices that held themselves back: heat, power or a limit, by their own account."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings.finding import ReportFinding, own_by_machine
from analysis.runs.placed import Run

KIND = "throttled"


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine whose device reported a throttle reason in over 5 %."""
    for env, found in own_by_machine(runs, "throttled").items():
        names = tuple(dict.fromkeys(run.name for run, _ in found))
        measured = sum(run.env == env for run in runs)
        yield ReportFinding(
            kind=KIND,
            headline=f"{env}: the device throttled itself in {len(names)} of {measured} runs.",
            evidence=tuple(f"{run.label}: {message}" for run, message in found),
            runs=names,
            advice="Mend cooling or power, or fix the clock: these rates are the limit's.",
        )
