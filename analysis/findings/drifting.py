"""Windows that their verdicts call drifting: the last third differs from the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings.finding import ReportFinding
from analysis.runs.placed import Run
from analysis.runs.quantities import percent
from bench.records.verdict.drift import Drift

KIND = "drifting"


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine with windows that drifted."""
    machines: dict[str, list[tuple[Run, Drift]]] = {}
    for run in runs:
        drift = run.drift
        if drift is not None:
            machines.setdefault(run.env, []).append((run, drift))
    for env, found in machines.items():
        tested = sum(run.env == env and bool(run.iteration_times_s) for run in runs)
        slower = sum(drift.change > 0 for _, drift in found)
        yield ReportFinding(
            kind=KIND,
            headline=(
                f"{env}: {len(found)} of {tested} windows were not in steady state; "
                f"{slower} became slower, {len(found) - slower} faster."
            ),
            evidence=tuple(_line(run, drift) for run, drift in found),
            runs=tuple(run.name for run, _ in found),
            advice=(
                "A window that becomes faster needs more warm-up iterations, one that becomes "
                "slower was heated or disturbed; intervals of these windows mean little."
            ),
        )


def _line(run: Run, drift: Drift) -> str:
    word = "slower" if drift.change > 0 else "faster"
    return (
        f"{run.label}: the last third {percent(abs(drift.change))} {word} than the first, "
        f"most of it after iteration {drift.changed_at} of {len(run.iteration_times_s)}"
    )
