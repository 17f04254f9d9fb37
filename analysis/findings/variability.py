"""How much repeats scatter, machine against machine: cloud against local, where that is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scipy import special

from analysis.findings.finding import ReportFinding, names_of
from analysis.runs.groups import Group, group_runs
from analysis.runs.placed import Run
from analysis.runs.quantities import percent, three_digits

KIND = "variability"
_LEVEL = 0.05
#: Degrees of freedom below which a deviation is hardly known.
_FEWEST = 4


@dataclass(frozen=True)
class Scatter:
    """The relative deviation between repeats of a machine, pooled over its configurations."""

    env: str
    place: str  # cloud, local or unknown
    deviation: float
    degrees: int
    groups: tuple[Group, ...]

    @property
    def label(self) -> str:
        """The machine, and where it stands if a record says so."""
        return self.env if self.place == "unknown" else f"{self.env} ({self.place})"


def scatters(runs: Sequence[Run]) -> list[Scatter]:
    """Return each machine's scatter, the steadiest first; machines without repeats are left out."""
    machines: dict[str, list[Group]] = {}
    for group in group_runs(runs):
        if group.repeats().log_variance is not None:
            machines.setdefault(group.first.env, []).append(group)
    found = []
    for env, groups in machines.items():
        repeats = [group.repeats() for group in groups]
        degrees = sum(one.count - 1 for one in repeats)
        squares = sum((one.count - 1) * (one.log_variance or 0.0) for one in repeats)
        deviation = math.sqrt(squares / degrees)
        found.append(Scatter(env, _place(groups[0].first), deviation, degrees, tuple(groups)))
    return sorted(found, key=lambda one: one.deviation)


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding where the least and the most steady machine surely differ.

    By an F-test of the two pooled variances, raised for the number of pairs that could have been
    chosen.
    """
    found = [one for one in scatters(runs) if one.degrees >= _FEWEST]
    if len(found) < 2 or not found[0].deviation:
        return
    steady, wild = found[0], found[-1]
    ratio = (wild.deviation / steady.deviation) ** 2
    pairs = len(found) * (len(found) - 1)
    p_value = pairs * float(special.fdtrc(wild.degrees, steady.degrees, ratio))
    if p_value >= _LEVEL:
        return
    yield ReportFinding(
        kind=KIND,
        headline=(
            f"Repeats scatter {three_digits(math.sqrt(ratio))} times as much on {wild.label} "
            f"({percent(wild.deviation)}) as on {steady.label} ({percent(steady.deviation)})."
        ),
        evidence=tuple(
            f"{one.label}: SD {percent(one.deviation)} between repeats, pooled over "
            f"{len(one.groups)} configurations ({one.degrees} degrees of freedom)"
            for one in found
        ),
        runs=names_of(group for one in (steady, wild) for group in one.groups),
        advice=(
            f"On {wild.label} a difference needs to be larger, or measured more often, to be one."
        ),
    )


def _place(run: Run) -> str:
    environment = run.record.environment if run.record else None
    if environment is None:
        return "unknown"
    if environment.cloud_provider not in (None, "none"):
        return f"cloud, {environment.cloud_provider}"
    return "local" if environment.cloud_provider == "none" else "unknown"
