"""What holds a step back, data, launches or its roof, and which settings are to be tried next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from analysis.findings.batches import curve_row
from analysis.findings.differences import in_fp32
from analysis.findings.knobs import (
    MEASURED,
    MIN_GAIN,
    faster,
    knobs_for,
    loader_keeps_up,
    loader_rate,
    synthetic_pairs,
)
from analysis.runs.bounds import INPUT_SHARE
from analysis.runs.frame import Row
from analysis.runs.groups import Configurations, Group, fastest, names_of
from analysis.runs.points import RooflinePoint
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION
from analysis.statistics import estimate_ratio
from analysis.words import percent, three_digits, times
from bench.config import FAKEDATA


def input_rows(runs: Configurations) -> Iterator[Row]:
    """Yield each configuration that its input holds back.

    Beside it stands what was measured without the wait, the step on synthetic data and the loader
    alone; and what is not on yet and was not measured to fail.
    """
    groups = runs.groups
    counterparts = {group.names: other for group, other in synthetic_pairs(groups)}
    for group in groups:
        shares = [run.metrics["data_wait_share"] for run in group.runs if _waits(run)]
        synthetic = counterparts.get(group.names)
        if not shares or (synthetic is not None and not faster(synthetic, group)):
            continue  # where synthetic data is no faster, the wait costs nothing
        share, alone, beside = max(shares), loader_rate(group, runs), ""
        if synthetic is not None:
            ratio = estimate_ratio(synthetic.repeats(), group.repeats())
            beside = f" Synthetic data: {synthetic.rate}, {ratio.words} of {group.rate}."
        if alone is not None:
            beside += f" The loader alone: {three_digits(alone)} images/s."
        advice = [*knobs_for(group, ("workers",), runs).values()]
        if loader_keeps_up(group, runs):
            advice.append(
                "batches that are ready earlier, as the loader alone is faster than the step: "
                "cores that the step does not take from it, prefetch_factor, non_blocking"
            )
        elif group.first.settings.get("data") != FAKEDATA:
            advice.append("a faster disk")
        without = f", so {three_digits(1 / (1 - share))}x at most without it" if share < 1 else ""
        yield {
            "machine": group.env,
            "label": group.label,
            "share": percent(share),
            "gain": without,
            "beside": beside,
            "advice": f" Try {' or '.join(advice)}." if advice else "",
            "runs": names_of([group, *([synthetic] if synthetic else [])]),
        }


def _waits(run: Run) -> bool:
    """By the bound where the run has a place under the roof, else by the share that waits."""
    if run.point is not None:
        return run.point.bound == "input"
    return run.metrics.get("data_wait_share", 0.0) > INPUT_SHARE


#: With so many times the samples, a step that grows by less than this pays per launch.
_MORE_SAMPLES = 1.9
_SAME_STEP = 1.15
#: A smaller step for more samples is no launch cost but a fault.
_MIN_GROWTH = 0.9
#: These modes of torch.compile use CUDA graphs.
_CAPTURING = ("reduce-overhead", "max-autotune")


def launch_rows(runs: Configurations) -> Iterator[Row]:
    """Yield each accelerator's curve with a flat step time or a starved device."""
    for curve in runs.curves:
        first, settings = curve[0], curve[0].first.settings
        captured = settings.get("cuda_graphs") == "true" or settings.get("compile") in _CAPTURING
        if first.backend == "cpu" or captured:  # where one launch starts the whole step
            continue
        flat = [pair for pair in pairwise(curve) if _flat(*pair)]
        runs_of_curve = [run for group in curve for run in group.runs]
        starved = {run.name: why for run in runs_of_curve if (why := _why_starved(run))}
        if not flat and not starved:
            continue
        last, what, advice = curve[-1], [*starved.values()][:1], []
        names: tuple[str, ...] = ("batch_size", "cuda_graphs", "compile")
        if flat:
            small, last = flat[-1]
            small_ms, last_ms = (three_digits(1e3 * group.step_s) for group in flat[-1])
            what.insert(0, f"the step takes {small_ms} ms at batch {small.batch_size} and "
                           f"{last_ms} ms at batch {last.batch_size}")  # fmt: skip
            advice, names = [f"a batch of {last.batch_size} or more"], names[1:]
        advice += knobs_for(last, names, runs).values()
        found = (*names_of(group for pair in flat for group in pair), *starved)
        yield {
            **curve_row(curve),
            "what": "; ".join(what),
            "advice": f" Fewer launches for the work: {', '.join(advice)}." if advice else "",
            "runs": tuple(dict.fromkeys(found)),
        }


def _flat(small: Group, large: Group) -> bool:
    """Whether a step takes as long for more samples, and neither roof nor input explains it.

    A step that reads its weights each time may be flat by the roof.
    """
    more = (large.batch_size or 0) / (small.batch_size or 1)
    explained = any(point.bound != "overhead" for point in (*small.points, *large.points))
    grows = large.step_s / small.step_s
    return more >= _MORE_SAMPLES and _MIN_GROWTH <= grows < _SAME_STEP and not explained


def _why_starved(run: Run) -> str | None:
    """What a profile saw of a device that was idle, if neither roof nor input explains the step."""
    point = run.point
    if point is None or point.bound != "overhead" or point.times.device_busy_s is None:
        return None
    busy = point.times.device_busy_s / point.times.measured_s
    words = f"the device was at work {percent(busy)} of the step at batch {run.batch_size}"
    return f"{words}; {point.bound_because}" if busy < 1 / 2 else None


_KNOBS_OF: Mapping[str, tuple[str, ...]] = {
    "input": ("workers",),
    "memory": ("precision", "channels_last", "fused_optimizer", "compile"),
    "overhead": ("batch_size", "cuda_graphs", "compile", "fused_optimizer"),
    "compute": ("channels_last", "batch_size", "compile", "precision"),
    # a processor launches nothing; its overhead is of small kernels and idle cores
    "overhead on a CPU": ("threads", "channels_last", "fused_optimizer", "batch_size", "compile"),
}


def next_knob_rows(runs: Configurations) -> Iterator[Row]:
    """Yield the fastest batch of each machine, model and precision that has a place under its roof.

    Not where every knob of its bound is on or was measured to gain nothing, where fp32 was measured
    to be faster, and where waiting for data was measured to cost nothing.
    """
    no_gain = {real.names for real, same in synthetic_pairs(runs.groups) if not faster(same, real)}
    full, points = in_fp32(runs.groups), {}
    for group in runs.groups:
        if possible := [point for point in group.points if point.level != "invalid"]:
            points[group.names] = possible[0]
    for group in fastest(group for group in runs.groups if group.names in points).values():
        point, in_full = points[group.names], full.get(group.identity.key(OF_PRECISION))
        bound, on_cpu = point.bound, group.backend == "cpu"
        if (
            group.first.imported  # what is on already is not known
            or most_gain(point) < MIN_GAIN
            or (in_full is not None and in_full.samples_per_s > group.samples_per_s)
            or (bound == "input" and group.names in no_gain)
        ):
            continue
        names = _KNOBS_OF["overhead on a CPU" if bound == "overhead" and on_cpu else bound]
        if knobs := knobs_for(group, names, runs):
            says = _advice([*knobs.values()], point)
            if bound == "overhead" and not on_cpu and point.times.device_busy_s is None:
                says += (
                    " Whether launches, slow kernels, copies or the host take the time, a trace "
                    "says: mlproject profile, then mlproject trace on its trace.json.gz."
                )
            yield {
                "machine": group.env,
                "label": group.label,
                "bound": f"{bound}{'' if point.bound_sure else ', perhaps'}",
                "says": says,
                "runs": group.names,
            }


def _advice(knobs: Sequence[str], point: RooflinePoint) -> str:
    """The knobs, and how far the roof of this precision is: none promises to reach it."""
    tried, gain = any(MEASURED in words for words in knobs), times(most_gain(point))
    said = f"Next{'' if tried else ', not tried here'}: {', '.join(knobs)}."
    if point.bound == "input":
        return f"{said} Without the wait for data at most {gain}."
    by_memory = point.times.memory_min_s > point.times.compute_s
    roof = f"memory roof ({point.times.traffic})" if by_memory else "compute roof of this precision"
    return f"{said} The {roof} is at {gain} this speed; how near a setting comes is not known."


def most_gain(point: RooflinePoint) -> float:
    """Return how many times faster the step could be at most by its roof and its bound.

    Input: without the wait, but no faster than the roof. All else: as long as the larger of
    arithmetic and fused (or counted) traffic takes at the roof.
    """
    step = point.times
    least_s = max(step.compute_s, step.memory_min_s)
    if point.bound == "input":
        least_s = max(least_s, step.measured_s - (step.data_wait_s or 0.0))
    return max(step.measured_s / least_s, 1.0)
