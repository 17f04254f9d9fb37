"""Steps whose time hardly depends on the batch: the cost is of launching, not of the images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from analysis.findings.finding import ReportFinding, names_of
from analysis.runs.groups import Group, batch_curves
from analysis.runs.placed import Run
from analysis.runs.quantities import percent, three_digits

KIND = "launch-bound"
#: With so many times the images, a step that grows by less than this pays per launch.
_MORE_IMAGES = 1.9
_SAME_STEP = 1.15
#: A smaller step for more images is no launch cost but a fault.
_LEAST = 0.9


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each accelerator's curve with a flat step time or a starved device."""
    for curve in batch_curves(runs):
        if curve[0].first.settings.get("backend") == "cpu" or _is_cpu(curve[0]):
            continue
        flat = [pair for pair in pairwise(curve) if _flat(*pair)]
        starved = [run for group in curve for run in group.runs if _starved(run)]
        if not flat and not starved:
            continue
        groups = [group for pair in flat for group in pair]
        evidence = [
            f"batch {small.batch_size} to {large.batch_size}: the step takes "
            f"{_milliseconds(small)} and {_milliseconds(large)} ms"
            for small, large in flat
        ]
        evidence += [f"{run.label}: {_why(run)}" for run in starved]
        first = curve[0].first
        yield ReportFinding(
            kind=KIND,
            headline=(
                f"{first.env}, {first.arch} {first.precision}: launching the step's kernels, not "
                "their work, sets its time"
                + (f" up to batch {flat[-1][1].batch_size}." if flat else ".")
            ),
            evidence=tuple(evidence),
            runs=tuple(dict.fromkeys([*names_of(groups), *(run.name for run in starved)])),
            advice="A larger batch, CUDA graphs, torch.compile: fewer launches for the work.",
        )


def _is_cpu(group: Group) -> bool:
    record = group.first.record
    return bool(record and record.resolved and record.resolved.backend == "cpu")


def _flat(small: Group, large: Group) -> bool:
    more = (large.batch_size or 0) / (small.batch_size or 1)
    growth = more * small.throughput_images_per_s / large.throughput_images_per_s
    return more >= _MORE_IMAGES and _LEAST <= growth < _SAME_STEP


def _starved(run: Run) -> bool:
    """A device that a profile saw idle in a step that neither roof nor input explains."""
    point = run.point
    busy = point.times.device_busy_s if point else None
    return (
        point is not None
        and busy is not None
        and point.bound == "overhead"
        and busy < point.times.measured_s / 2
    )


def _why(run: Run) -> str:
    point = run.point
    if point is None or point.times.device_busy_s is None:
        return "not profiled"
    busy = percent(point.times.device_busy_s / point.times.measured_s)
    return f"the device was busy {busy} of the step; {point.bound_because}"


def _milliseconds(group: Group) -> str:
    return three_digits(1e3 * (group.batch_size or 0) / group.throughput_images_per_s)
