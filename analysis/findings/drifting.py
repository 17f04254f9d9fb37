"""Windows that were not in steady state: their last third differs from their first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings.finding import ReportFinding
from analysis.runs.placed import Run
from analysis.runs.quantities import percent
from analysis.statistics import SteadyState, steady_state

KIND = "drifting"


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine with windows that drifted."""
    machines: dict[str, list[tuple[Run, SteadyState]]] = {}
    for run in runs:
        state = steady_state(run.iteration_times_s)
        if state is not None and state.drifting:
            machines.setdefault(run.env, []).append((run, state))
    for env, found in machines.items():
        tested = sum(run.env == env and bool(run.iteration_times_s) for run in runs)
        slower = sum(state.change > 0 for _, state in found)
        yield ReportFinding(
            kind=KIND,
            headline=(
                f"{env}: {len(found)} of {tested} windows were not in steady state; "
                f"{slower} became slower, {len(found) - slower} faster."
            ),
            evidence=tuple(_line(run, state) for run, state in found),
            runs=tuple(run.name for run, _ in found),
            advice=(
                "A window that becomes faster needs more warm-up iterations, one that becomes "
                "slower was heated or disturbed; intervals of these windows mean little."
            ),
        )


def _line(run: Run, state: SteadyState) -> str:
    word = "slower" if state.change > 0 else "faster"
    chance = "p < 0.0001" if state.p_value < 1e-4 else f"p = {state.p_value:.2g}"
    return (
        f"{run.label}: the last third {percent(abs(state.change))} {word} than the first "
        f"({chance}), most of it after iteration {state.changed_at} of "
        f"{len(run.iteration_times_s)}"
    )
