"""What a report's numbers do not say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.runs.groups import group_runs
from analysis.runs.placed import Run, recorded
from analysis.runs.quantities import counted


def limits(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the limits that apply to `runs`."""
    results = recorded(runs)
    points = [result.point for result in results if result.point]
    yield (
        "FLOP are those of the algorithm (convolution, linear, matrix product, attention; a "
        "multiply-add is 2); elementwise work is left out of the rate, not of the time."
    )
    if any(point.intensity_counted is None for point in points):
        yield (
            "Where no bytes were counted they are modelled, at least as if every chain were fused "
            "and at most as if every operation went through memory. So such a run is an interval, "
            "not a point."
        )
    if any(point.intensity_counted is not None for point in points):
        yield (
            "Counted bytes are those of one profiled step, whose kernels ran one after another; "
            "the intensity is the algorithm's FLOP over them. Executed FLOP, with padding and "
            "recomputation, are another quantity and share no column with the algorithm's."
        )
    if any(not point.bound_sure for point in points):
        yield "A bound with a question mark depends on where in that interval the traffic lies."
    if datasheet := sum(point.ceiling.kind == "datasheet" for point in points):
        yield (
            f"{counted(datasheet, 'run')} stand under a datasheet's roof, which no program "
            "reaches: the fraction of the roof reads low."
        )
    if any(result.record.config.reads_images for result in results):
        yield (
            "Waiting for data is the host's time inside the loader. Where the step runs on the "
            "processor, loader processes also take cores from it, which this does not show."
        )
    if any(run.imported_from is not None for run in runs):
        yield (
            "Imported runs are what their sources say. Without a record there is no count of their "
            "work, so they have no place under a roof and no intensity."
        )
    if any(group.repeats().log_variance is None for group in group_runs(runs)):
        yield (
            "A configuration with a single run says nothing of how much repeats differ; its ratios "
            "have no interval."
        )
    yield "Intervals are of repeats on the same machine, and take their logarithms as normal."
