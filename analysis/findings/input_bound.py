"""Steps that wait for their data, by their own clock and against synthetic data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.findings.finding import ReportFinding, names_of, rate_of, ratio_of
from analysis.runs.bounds import INPUT_SHARE
from analysis.runs.groups import Group, group_runs, settings_key
from analysis.runs.placed import Run
from analysis.runs.quantities import percent, three_digits
from analysis.statistics import estimate_ratio
from bench.config import SYNTHETIC

KIND = "input-bound"
#: How data is read and shown is part of the data's cost.
_OF_DATA = ("data", "workers", "decoder", "prefetch_factor", "persistent_workers", "pin_memory",
            "augment", "non_blocking")  # fmt: skip


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each configuration that its input holds back."""
    groups = group_runs(runs)
    counterparts = {group.names: other for group, other in synthetic_pairs(groups)}
    for group in groups:
        waiting = [run for run in group.runs if _waits(run)]
        synthetic = counterparts.get(group.names)
        if not waiting:
            continue
        share = max(run.metrics["data_wait_share"] for run in waiting)
        gain = "" if share >= 1 else f", so {three_digits(1 / (1 - share))}x at most without it"
        evidence = [
            f"run {run.name}: {percent(run.metrics['data_wait_share'])} of the window waiting"
            for run in waiting
        ]
        if synthetic is not None:
            estimate = estimate_ratio(synthetic.repeats(), group.repeats())
            evidence.append(
                f"synthetic data: {rate_of(synthetic)}, {ratio_of(estimate)} of {rate_of(group)}"
            )
        yield ReportFinding(
            kind=KIND,
            headline=f"{group.label}: waiting for data takes {percent(share)} of the step{gain}.",
            evidence=tuple(evidence),
            runs=names_of([group, *([synthetic] if synthetic else [])]),
            advice="More loader workers, smaller or already decoded images, or a faster disk.",
        )


def _waits(run: Run) -> bool:
    """By the bound where the run has a place under the roof, else by the share that waits."""
    point = run.point
    if point is not None:
        return point.bound == "input"
    return run.metrics.get("data_wait_share", 0.0) > INPUT_SHARE


def synthetic_pairs(groups: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Return each group of other data with the one that differs in synthetic data alone."""
    synthetic = {
        settings_key(group.first, _OF_DATA): group
        for group in groups
        if group.first.settings.get("data") == SYNTHETIC
    }
    others = [group for group in groups if group.first.settings.get("data", SYNTHETIC) != SYNTHETIC]
    keyed = ((group, synthetic.get(settings_key(group.first, _OF_DATA))) for group in others)
    return [(group, same) for group, same in keyed if same is not None]
