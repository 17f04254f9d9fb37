"""How an iteration's time divides among its phases, where a run timed them (`phases=true`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.runs.run import Run
from bench.records.verdict.record_metrics import PHASES


@dataclass(frozen=True)
class PhaseSplit:
    """Mean seconds of one iteration and of its phases, all steps of gradient accumulation together.

    The device is synchronised at the end of each phase, so the iteration may be slower than one of
    a run without `phases`. `phases_s` holds data, forward, backward and optimizer in this order.
    """

    iteration_s: float
    phases_s: Mapping[str, float]

    @property
    def other_s(self) -> float:
        """What no phase holds; not below 0, though clocks differ by microseconds."""
        return max(0.0, self.iteration_s - sum(self.phases_s.values()))

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the iteration, of 1, by phase; `other` is the last."""
        times_s = {**self.phases_s, "other": self.other_s}
        whole_s = sum(times_s.values())
        return {name: time_s / whole_s for name, time_s in times_s.items()}


def phase_split(run: Run) -> PhaseSplit | None:
    """Return how the iterations of `run` divide, or None where its phases were not timed."""
    times_s = {
        phase: run.metrics[f"{phase}_time_s"]
        for phase in PHASES
        if f"{phase}_time_s" in run.metrics
    }
    iteration_ms = run.metrics.get("iteration_time_ms_mean")
    if not times_s or not iteration_ms:
        return None
    return PhaseSplit(iteration_ms / 1e3, times_s)
