"""What holds a step back, data or launches, and which knob to turn next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from analysis.findings.report_finding import ReportFinding, names_of, rate_of, ratio_of
from analysis.runs.bounds import INPUT_SHARE, Bound
from analysis.runs.groups import Group, batch_curves, fastest, group_runs, settings_key
from analysis.runs.placed import Run
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import percent, three_digits
from analysis.runs.what_ran import OF_DATA
from analysis.statistics import estimate_ratio
from bench.config import SYNTHETIC


def find_input_bound(runs: Sequence[Run]) -> Iterator[ReportFinding]:
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
            kind="input-bound",
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
        settings_key(group.first, OF_DATA): group
        for group in groups
        if group.first.settings.get("data") == SYNTHETIC
    }
    others = [group for group in groups if group.first.settings.get("data", SYNTHETIC) != SYNTHETIC]
    keyed = ((group, synthetic.get(settings_key(group.first, OF_DATA))) for group in others)
    return [(group, same) for group, same in keyed if same is not None]


#: With so many times the images, a step that grows by less than this pays per launch.
_MORE_IMAGES = 1.9
_SAME_STEP = 1.15
#: A smaller step for more images is no launch cost but a fault.
_MIN_GROWTH = 0.9


def find_launch_bound(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each accelerator's curve with a flat step time or a starved device."""
    for curve in batch_curves(runs):
        if curve[0].backend == "cpu":
            continue
        flat = [pair for pair in pairwise(curve) if _flat(*pair)]
        runs_of_curve = [run for group in curve for run in group.runs]
        starved = [(run, why) for run in runs_of_curve if (why := _why_starved(run))]
        if not flat and not starved:
            continue
        groups = [group for pair in flat for group in pair]
        evidence = [
            f"batch {small.batch_size} to {large.batch_size}: the step takes "
            f"{_milliseconds(small)} and {_milliseconds(large)} ms"
            for small, large in flat
        ]
        evidence += [f"{run.label}: {why}" for run, why in starved]
        first = curve[0]
        yield ReportFinding(
            kind="launch-bound",
            headline=(
                f"{first.env}, {first.model_label} {first.precision_label}: launching the step's "
                "kernels, not their work, sets its time"
                + (f" up to batch {flat[-1][1].batch_size}." if flat else ".")
            ),
            evidence=tuple(evidence),
            runs=tuple(dict.fromkeys([*names_of(groups), *(run.name for run, _ in starved)])),
            advice="A larger batch, CUDA graphs, torch.compile: fewer launches for the work.",
        )


def _flat(small: Group, large: Group) -> bool:
    more = (large.batch_size or 0) / (small.batch_size or 1)
    growth = more * small.throughput_images_per_s / large.throughput_images_per_s
    return more >= _MORE_IMAGES and _MIN_GROWTH <= growth < _SAME_STEP


def _why_starved(run: Run) -> str | None:
    """What a profile saw of a device that was idle, if neither roof nor input explains the step."""
    point = run.point
    if point is None or point.bound != "overhead" or point.times.device_busy_s is None:
        return None
    busy = point.times.device_busy_s / point.times.measured_s
    words = f"the device was busy {percent(busy)} of the step; {point.bound_because}"
    return words if busy < 1 / 2 else None


def _milliseconds(group: Group) -> str:
    return three_digits(1e3 * (group.batch_size or 0) / group.throughput_images_per_s)


#: A gain that a knob could give at most; below it there is nothing worth turning.
_MIN_GAIN = 1.05
_KNOBS: Mapping[Bound, str] = {
    "input": "the loader: workers, prefetching, already decoded images",
    "memory": "bytes: a lower precision, channels-last, torch.compile to fuse elementwise chains",
    "overhead": "launches: a larger batch, CUDA graphs, torch.compile",
    "compute": "kernels nearer to the roof: channels-last, a larger batch, torch.compile",
}
#: A processor launches nothing; its overhead is of small kernels and idle cores.
_CPU_OVERHEAD = "small or slow kernels: threads, channels-last, a larger batch, torch.compile"
_LOWER_PRECISION = ", or a lower precision, which has a roof of its own"


def find_next_knobs(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for the fastest batch of each machine, model and precision with a point."""
    for group in fastest(group for group in group_runs(runs) if _point(group)).values():
        point = _point(group)
        if point is None or most_gain(point) < _MIN_GAIN:
            continue
        sure = "" if point.bound_sure else ", perhaps"
        yield ReportFinding(
            kind="next knob",
            headline=(
                f"{group.label}: bound by {point.bound}{sure}. Next: {_knob(point)}; at "
                f"most {three_digits(most_gain(point))}x, {_limit(point)}."
            ),
            evidence=(
                f"{rate_of(group)}; {point.bound_because}",
                f"{percent(point.fraction_of_peak)} of the compute roof "
                f"({point.ceiling.kind}: {point.ceiling.source})",
            ),
            runs=names_of([group]),
        )


def _knob(point: RooflinePoint) -> str:
    if point.bound == "overhead" and point.ceiling.backend == "cpu":
        return _CPU_OVERHEAD
    lower = point.bound == "compute" and point.math_mode in ("fp32", "tf32")
    return _KNOBS[point.bound] + (_LOWER_PRECISION if lower else "")


def most_gain(point: RooflinePoint) -> float:
    """Return how many times faster the step could be at most by its roof and its bound.

    Input: without the wait, but no faster than the roof. All else: as long as the larger of
    arithmetic and fused (or counted) traffic takes at the roof.
    """
    times = point.times
    least_s = max(times.compute_s, times.memory_min_s)
    if point.bound == "input":
        least_s = max(least_s, times.measured_s - times.data_wait_s)
    return max(times.measured_s / least_s, 1.0)


def _limit(point: RooflinePoint) -> str:
    times = point.times
    if point.bound == "input":
        return "if nothing waited for data"
    if times.memory_min_s > times.compute_s:
        return f"by the memory roof ({times.traffic})"
    return "by the compute roof of this precision"


def _point(group: Group) -> RooflinePoint | None:
    """The place of its first run that has a possible one."""
    points = (run.point for run in group.runs)
    return next((point for point in points if point and point.level != "invalid"), None)
