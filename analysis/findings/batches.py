"""What a batch curve shows: where a larger batch stops paying, where memory ends, and faults."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from analysis.presentation.columns import Row
from analysis.presentation.words import percent, percent_change
from analysis.runs.groups import (
    CLIFF,
    BatchCurve,
    Group,
    Runs,
    names_of,
)
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION, same_configuration
from bench.statistics.ratios import estimate_ratio

#: Peak memory from this share of the device's on leaves no room for the driver's own.
FULL = 0.9


def least_failed_batch(group: Group, runs: Sequence[Run], above: int) -> Run | None:
    """Return the run of least batch above `above` at which the configuration ran out of memory.

    A run that ended before its device was known counts where no other machine ran its
    configuration.
    """
    machine = (group.env, group.first.device)
    there = [one for one in runs if one.arch == group.arch and "device" in one.settings]
    elsewhere = [one for one in there if (one.env, one.device) != machine]
    failed = [
        run
        for run in runs
        if run.outcome == "oom"
        and (run.batch_size or 0) > above
        and _but_for_batch(group, run)
        and (
            "device" in run.settings
            or not any(_but_for_batch(Group((other,)), run) for other in elsewhere)
        )
    ]
    return min(failed, key=lambda run: run.batch_size or 0, default=None)


def _but_for_batch(group: Group, run: Run) -> bool:
    return same_configuration(group.identity, run.identity, ("batch_size",), by="asked")


def beside(group: Group, runs: Runs) -> Runs:
    """Return the runs of the group's machine, device and model."""
    return Runs(
        run
        for run in runs
        if run.arch == group.arch and run.env == group.env and run.device == group.device
    )


def why_no_larger_batch(group: Group, runs: Runs) -> str | None:
    """Return why memory does not hold a larger batch, as far as `runs` show it, else None."""
    if failed := least_failed_batch(group, runs, group.batch_size or 0):
        return f"batch {failed.batch_size} ran out of memory"
    for curve in beside(group, runs).curves:
        if curve.cliff and group.names in [one.names for one in curve.before_cliff]:
            return f"batch {curve[curve.cliff].batch_size} spilled"
    share = memory_share(group)
    if share is not None and share >= FULL and group.backend != "cpu":
        return f"its peak is {percent(share)} of the device's memory"
    return None


def memory_share(group: Group) -> float | None:
    """Return the highest peak of its runs over the device's memory, where records have both."""
    shares = []
    for record in (run.record for run in group.runs if run.record):
        measured, environment = record.measurement, record.environment
        total = environment.device.memory_bytes if environment else None
        if measured and total:
            reserved = measured.peak_memory_reserved_bytes
            peak = measured.peak_memory_allocated_bytes if reserved is None else reserved
            shares += [peak / total] if peak is not None else []
    return max(shares, default=None)


def curve_row(curve: Sequence[Group]) -> Row:
    """Return the machine of a curve, its name and its runs."""
    first = curve[0]
    series = f"{first.env}, {first.model_label} {first.precision_label}"
    return {"machine": first.env, "series": series, "runs": names_of(curve)}


#: A batch this near to the best has nearly all there is to gain.
NEAR_BEST = 0.95
#: A doubling of the batch can at most double samples/s; more is noise, or another fault.
_MAX_GAIN = 1.05
#: One step is a line; a knee needs a bend.
_MIN_STEPS = 2
#: The least ratio of two batch sizes whose gain is stated.
_LEAST_STEP = 1.5


class Knee(NamedTuple):
    """The batch from which on a larger one gains little, None where the largest still gains.

    Where the last doubling gave over 5 % there is no knee yet: `last_gain`.
    """

    knee: Group | None
    last_gain: float


def knee_of(curve: BatchCurve) -> Knee | None:
    """Return the knee of a curve (smallest batch first).

    None for fewer than two steps, and for a curve that no device can have.
    """
    sound = curve.before_cliff
    gains = [*gains_per_doubling(sound).values()]
    if len(gains) < _MIN_STEPS or max(gains) > _MAX_GAIN:
        return None
    most = max(group.samples_per_s for group in sound)
    still_rising = sound[-1].samples_per_s == most and gains[-1] > 1 - NEAR_BEST
    near = (group for group in sound if group.samples_per_s >= NEAR_BEST * most)
    return Knee(None if still_rising else next(near), gains[-1])


def gains_per_doubling(curve: Sequence[Group]) -> dict[int | None, float]:
    """Return by batch size the relative gain in samples/s of each doubling up to it.

    From the next smaller batch that is far enough: between nearer ones noise would be multiplied,
    and 1 % from batch 127 to 128 is 141 % a doubling. Without such a one there is none.
    """
    far = [(large, [small for small in curve if _far(small, large)]) for large in curve]
    return {large.batch_size: _gain(small[-1], large) for large, small in far if small}


def _far(small: Group, large: Group) -> bool:
    return (large.batch_size or 0) >= _LEAST_STEP * (small.batch_size or 0)


def _gain(small: Group, large: Group) -> float:
    ratio = large.samples_per_s / small.samples_per_s
    doublings = math.log2((large.batch_size or 0) / (small.batch_size or 1))
    return float(ratio ** (1 / doublings)) - 1


def knee_rows(runs: Runs) -> Iterator[Row]:
    """Yield each curve of three batch sizes or more, as far as it did not spill."""
    for curve in runs.curves:
        if (found := knee_of(curve)) is None:
            continue
        at, sound = found.knee, curve.before_cliff
        if at is None:
            why_not = why_no_larger_batch(sound[-1], runs)
            says = (
                f"no knee up to batch {sound[-1].batch_size}; the last doubling still gave "
                f"{percent_change(found.last_gain)}, "
                f"{f'but {why_not}' if why_not else 'so a larger batch is worth a try'}."
            )
        else:
            says = f"the knee is {'at or below' if at is sound[0] else 'at'} batch {at.batch_size}"
            if beyond := next((group for group in sound if _far(at, group)), None):
                says += f"; beyond it a doubling gives {percent_change(_gain(at, beyond))}"
            says += "."
        yield curve_row(sound) | {"says": says}


# Curves that must not be compared as they stand

#: Kernels chosen for a larger batch can save a little of the step.
_MIN_SHRINK = 0.9


def shrinking_rows(runs: Runs) -> Iterator[Row]:
    """Yield where a larger batch's whole step is surely shorter than a smaller one's."""
    for small, large in (pair for curve in runs.curves for pair in pairwise(curve)):
        rates = estimate_ratio(large.repeats(), small.repeats())
        surely = rates.interval.low if rates.interval else rates.ratio
        if (large.batch_size or 0) / (small.batch_size or 1) / surely < _MIN_SHRINK:
            pair = {"small": small, "large": large}
            yield {"machine": large.env, "runs": names_of((small, large)), **pair}


def spill_rows(runs: Runs) -> Iterator[Row]:
    """Yield each batch curve with a cliff, and whether amp may stay off it."""
    for curve in (curve for curve in runs.curves if curve.cliff is not None):
        past = curve[len(curve.before_cliff) :]
        good, bad, key = curve.before_cliff[-1], past[0], past[0].identity.key(OF_PRECISION)
        # amp that was measured at this batch stays off it, or is no advice
        lower = [
            group
            for group in runs.groups
            if group.precision.startswith("amp") and group.identity.key(OF_PRECISION) == key
        ]
        spared = all(CLIFF * group.samples_per_s > bad.samples_per_s for group in lower)
        full = bad.precision in ("fp32", "tf32")
        yield curve_row(curve) | {
            "good": good,
            "bad": bad,
            "cause": _cause(bad),
            "instead": ", or use a precision with smaller activations" if full and spared else "",
            "runs": names_of((good, *past)),
        }


def _cause(group: Group) -> str:
    where = "device memory spilling to host memory"
    share = memory_share(group)
    peak = "" if share is None else f"its peak was {percent(share)} of the device's memory"
    if share is not None and share < FULL:
        return f"unknown, as {peak}; {where} would need other programs on the device"
    return f"{where} (Windows' driver does so silently, also below WSL){peak and '; '}{peak}"
