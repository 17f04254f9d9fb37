"""Which knob to turn next, and what it could gain at most by the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from analysis.findings.finding import ReportFinding, names_of, rate_of
from analysis.runs.bounds import Bound
from analysis.runs.groups import Group, group_runs
from analysis.runs.placed import Run
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import percent, three_digits

KIND = "next knob"
#: A gain that a knob could give at most; below it there is nothing worth turning.
_LEAST_GAIN = 1.05
_KNOBS: Mapping[Bound, str] = {
    "input": "the loader: workers, prefetching, already decoded images",
    "memory": "bytes: a lower precision, channels-last, torch.compile to fuse elementwise chains",
    "overhead": "launches: a larger batch, CUDA graphs, torch.compile",
    "compute": "kernels nearer to the roof: channels-last, a larger batch, torch.compile",
}
#: A processor launches nothing; its overhead is of small kernels and idle cores.
_CPU_OVERHEAD = "small or slow kernels: threads, channels-last, a larger batch, torch.compile"
_LOWER_PRECISION = ", or a lower precision, which has a roof of its own"


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for the fastest batch of each machine, model and precision with a point."""
    fastest: dict[tuple[str, str, str], tuple[Group, RooflinePoint]] = {}
    for group in group_runs(runs):
        point = next((p for run in group.runs if (p := _point(run)) is not None), None)
        key = (group.first.env, group.first.arch, group.first.precision)
        known = fastest.get(key)
        if point is not None and (
            known is None or group.throughput_images_per_s > known[0].throughput_images_per_s
        ):
            fastest[key] = (group, point)
    for group, point in fastest.values():
        gain = most_gain(point)
        if gain < _LEAST_GAIN:
            continue
        sure = "" if point.bound_sure else ", perhaps"
        yield ReportFinding(
            kind=KIND,
            headline=(
                f"{group.label}: bound by {point.bound}{sure}. Next: {_knob(point)}; at "
                f"most {three_digits(gain)}x, {_limit(point)}."
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


def _point(run: Run) -> RooflinePoint | None:
    point = run.point
    return point if point is not None and point.level != "invalid" else None
