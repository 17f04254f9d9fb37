"""How many times faster a lower precision is than fp32, configuration by configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.findings.finding import ReportFinding, names_of, rate_of, ratio_of
from analysis.findings.memory_spill import cliff_of
from analysis.runs.groups import Group, batch_curves, settings_key
from analysis.runs.placed import Run
from analysis.runs.quantities import interval
from analysis.statistics import RatioEstimate, estimate_ratio

KIND = "precision uplift"
BASELINE = "fp32"


@dataclass(frozen=True)
class Uplift:
    """A lower precision against fp32 in one configuration; `spilled` if either is past a cliff."""

    low: Group
    full: Group
    estimate: RatioEstimate
    spilled: bool


def uplifts(runs: Sequence[Run]) -> list[Uplift]:
    """Return every configuration that was measured in fp32 and in another precision."""
    spilled: set[tuple[str, ...]] = set()
    groups: list[Group] = []
    for curve in batch_curves(runs):
        groups += curve
        place = cliff_of(curve)
        spilled |= {group.names for group in curve[place:]} if place is not None else set()
    baselines = {
        settings_key(group.first, ("precision",)): group
        for group in groups
        if group.first.precision == BASELINE
    }
    found = []
    for group in groups:
        full = baselines.get(settings_key(group.first, ("precision",)))
        if full is not None and group.first.precision != BASELINE:
            estimate = estimate_ratio(group.repeats(), full.repeats())
            past = group.names in spilled or full.names in spilled
            found.append(Uplift(group, full, estimate, past))
    return found


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield one finding per machine, model and precision, over all its batch sizes."""
    series: dict[tuple[str, str, str], list[Uplift]] = {}
    for one in uplifts(runs):
        first = one.low.first
        series.setdefault((first.env, first.arch, first.precision), []).append(one)
    for (env, arch, precision), found in series.items():
        sound = [one for one in found if not one.spilled]
        if not sound:
            continue
        ratios = [one.estimate.ratio for one in sound]
        spilled = [one for one in found if one.spilled]
        past = ", ".join(f"{one.low.batch_size}" for one in spilled)
        note = f" Left out, as memory spilled there: batch {past}." if spilled else ""
        yield ReportFinding(
            kind=KIND,
            headline=(
                f"{env}, {arch}: {precision} is {interval(min(ratios), max(ratios))} times as fast "
                f"as {BASELINE}.{note}"
            ),
            evidence=tuple(
                f"batch {one.low.batch_size}: {ratio_of(one.estimate)}, {rate_of(one.low)} "
                f"against {rate_of(one.full)}"
                for one in sound
            ),
            runs=names_of(group for one in found for group in (one.low, one.full)),
        )
