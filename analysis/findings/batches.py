"""What a batch curve shows: where memory spills, and where a larger batch stops paying."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.findings.report_finding import ReportFinding, names_of, rate_of, ratio_of
from analysis.runs.groups import (
    CLIFF,
    Group,
    agree,
    batch_curves,
    before_cliff,
    beside,
    cliff_of,
    group_runs,
    settings_key,
)
from analysis.runs.quantities import percent, three_digits
from analysis.runs.run import Run
from analysis.runs.what_ran import OF_PRECISION
from analysis.statistics import estimate_ratio

#: Peak memory from this share of the device's on leaves no room for the driver's own.
_FULL = 0.9


def least_failed_batch(group: Group, runs: Sequence[Run], above: int) -> tuple[int, Run] | None:
    """Return the least batch above `above` at which the group's configuration ran out of memory.

    With the run, or None. A run that ended before its device was known counts where no other
    machine ran its configuration.
    """
    found = [
        (run.batch_size, run)
        for run in runs
        if run.outcome == "oom"
        and run.batch_size is not None
        and run.batch_size > above
        and _but_for_batch(group, run)
        and ("device" in run.settings or not _ran_elsewhere(group, run, runs))
    ]
    return min(found, key=lambda one: one[0], default=None)


def _but_for_batch(group: Group, run: Run) -> bool:
    return agree(group, Group((run,)), ("batch_size",), as_asked=True)


def _ran_elsewhere(group: Group, run: Run, runs: Sequence[Run]) -> bool:
    """Whether a machine other than the group's ran the configuration of `run`."""
    machine = (group.env, group.first.device)
    return any(
        (other.env, other.device) != machine and _but_for_batch(Group((other,)), run)
        for other in runs
        if other.arch == group.arch and "device" in other.settings
    )


def why_no_larger_batch(group: Group, runs: Sequence[Run]) -> str | None:
    """Return why memory does not hold a larger batch, as far as `runs` show it, else None."""
    if failed := least_failed_batch(group, runs, group.batch_size or 0):
        return f"batch {failed[0]} ran out of memory"
    for curve in batch_curves(beside(group, runs)):
        place = cliff_of(curve)
        if place is not None and group.names in [one.names for one in curve[:place]]:
            return f"batch {curve[place].batch_size} spilled"
    share = _memory_share(group)
    if share is not None and share >= _FULL and group.backend != "cpu":
        return f"its peak is {percent(share)} of the device's memory"
    return None


def find_memory_spills(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each batch curve with a cliff."""
    groups = group_runs(runs)
    for curve in batch_curves(runs):
        place = cliff_of(curve)
        if place is None:
            continue
        good, bad, after = curve[place - 1], curve[place], curve[place:]
        estimate = estimate_ratio(bad.repeats(), good.repeats())
        lower = _in_lower_precision(bad, groups)
        spared = [other for other in lower or () if CLIFF * other.samples_per_s > bad.samples_per_s]
        may_help = lower == [] or spared
        yield ReportFinding(
            kind="memory spill",
            headline=(
                f"{good.env}, {good.model_label} {good.precision_label}: from "
                f"{three_digits(good.samples_per_s)} {good.rate_unit} at batch {good.batch_size} "
                f"to {three_digits(bad.samples_per_s)} at batch {bad.batch_size}. "
                f"Likely cause: {_cause(bad)}."
            ),
            evidence=(
                *(f"batch {group.batch_size}: {rate_of(group)}" for group in curve),
                f"batch {bad.batch_size} over {good.batch_size}: {ratio_of(estimate)}",
                *_memory((good, bad)),
                *(
                    f"at batch {other.batch_size} {other.precision}, whose activations are "
                    f"smaller, runs at {rate_of(other)}: the size of the data, not the batch "
                    "as such, makes the difference"
                    for other in spared
                ),
            ),
            runs=names_of((good, *after, *spared)),
            advice=(
                f"Stay at batch {good.batch_size} or below"
                + (", or use a precision with smaller activations" if may_help else "")
                + "; accumulate gradients for a larger effective batch."
            ),
        )


def _cause(group: Group) -> str:
    where = "device memory spilling to host memory"
    share = _memory_share(group)
    if share is not None and share < _FULL:
        return (
            f"unknown, as its peak was {percent(share)} of the device's memory; "
            f"{where} would need other programs on the device"
        )
    if any(_may_spill(run) for run in group.runs):
        return f"{where}, which Windows' driver (here or below WSL) does silently"
    return f"{where} (drivers on Windows and WSL do so silently)"


def _memory(groups: Sequence[Group]) -> Iterator[str]:
    """Peak memory against the device's, where a record has it; an imported run does not."""
    for group in groups:
        share = _memory_share(group)
        if share is not None:
            yield f"batch {group.batch_size}: peak {percent(share)} of the device's memory"
        else:
            yield f"batch {group.batch_size}: how much memory it used is not recorded"
            return


def _memory_share(group: Group) -> float | None:
    """The highest peak of its runs over the device's memory, where records have both."""
    shares = []
    for record in (run.record for run in group.runs if run.record):
        measured, environment = record.measurement, record.environment
        total = environment.device.memory_bytes if environment else None
        if measured and total:
            reserved = measured.peak_memory_reserved_bytes
            peak = measured.peak_memory_allocated_bytes if reserved is None else reserved
            shares += [peak / total] if peak is not None else []
    return max(shares, default=None)


def _may_spill(run: Run) -> bool:
    environment = run.record.environment if run.record else None
    return environment is not None and (
        environment.virtualization == "wsl2" or environment.os.startswith("Windows")
    )


def _in_lower_precision(bad: Group, groups: Sequence[Group]) -> list[Group] | None:
    """The groups that differ from `bad` in a lower precision alone; None if it has one itself."""
    if bad.precision not in ("fp32", "tf32"):
        return None
    key = settings_key(bad.first, OF_PRECISION)
    return [
        group
        for group in groups
        if group.precision.startswith("amp") and settings_key(group.first, OF_PRECISION) == key
    ]


#: A batch this near to the best has nearly all there is to gain.
NEAR_BEST = 0.95
#: A doubling of the batch can at most double samples/s; more is noise, or another fault.
_MAX_GAIN = 1.05
#: One step is a line; a knee needs a bend.
_MIN_STEPS = 2
#: The least ratio of two batch sizes whose gain is stated.
_LEAST_STEP = 1.5


@dataclass(frozen=True)
class Knee:
    """A batch curve before any spill: its best, its knee, and its steps upwards.

    Without a knee (`knee` None) the largest batch still gains more than 5 % a doubling.
    """

    curve: tuple[Group, ...]
    best: Group
    knee: Group | None
    steps: tuple[tuple[Group, Group], ...]

    @property
    def gains(self) -> tuple[float, ...]:
        """The gain of each step per doubling of the batch, as shares."""
        return tuple(gain_per_doubling(*step) for step in self.steps)


def knee_of(curve: Sequence[Group]) -> Knee | None:
    """Return the knee of a curve (smallest batch first).

    None for fewer than two steps, and for a curve that no device can have.
    """
    sound = before_cliff(curve)
    steps = steps_of(sound)
    gains = [gain_per_doubling(*step) for step in steps]
    if len(steps) < _MIN_STEPS or max(gains) > _MAX_GAIN:
        return None
    best = max(sound, key=lambda group: group.samples_per_s)
    near = NEAR_BEST * best.samples_per_s
    knee = next(group for group in sound if group.samples_per_s >= near)
    still_rising = best is sound[-1] and gains[-1] > 1 - NEAR_BEST
    return Knee(tuple(sound), best, None if still_rising else knee, tuple(steps))


def steps_of(curve: Sequence[Group]) -> list[tuple[Group, Group]]:
    """Return each batch size with the next smaller one that is far enough from it.

    Between nearer sizes noise would be multiplied: 1 % from batch 127 to 128 is 141 % a doubling.
    """
    found = []
    for place, large in enumerate(curve):
        far = [one for one in curve[:place] if _far(one, large)]
        found += [(far[-1], large)] if far else []
    return found


def _far(small: Group, large: Group) -> bool:
    return (large.batch_size or 0) >= _LEAST_STEP * (small.batch_size or 0)


def gain_per_doubling(small: Group, large: Group) -> float:
    """Return the relative gain in samples/s that each doubling between the two batches gave."""
    ratio = large.samples_per_s / small.samples_per_s
    doublings = math.log2((large.batch_size or 0) / (small.batch_size or 1))
    return float(ratio ** (1 / doublings)) - 1


def find_batch_knees(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each curve of three batch sizes or more that did not spill."""
    for curve in batch_curves(runs):
        knee = knee_of(curve)
        if knee is not None:
            yield ReportFinding(
                kind="batch knee",
                headline=_headline(knee, runs),
                evidence=(
                    *(f"batch {group.batch_size}: {rate_of(group)}" for group in knee.curve),
                    *(
                        f"{small.batch_size} to {large.batch_size}: {percent_change(gain)} "
                        f"{small.rate_unit} a doubling"
                        for (small, large), gain in zip(knee.steps, knee.gains, strict=True)
                    ),
                ),
                runs=names_of(knee.curve),
            )


def percent_change(share: float) -> str:
    """Format a relative change with its sign."""
    return f"{'-' if share < 0 else '+'}{percent(abs(share))}"


def _headline(knee: Knee, runs: Sequence[Run]) -> str:
    first, last = knee.curve[0], knee.curve[-1]
    what = f"{first.env}, {first.model_label} {first.precision_label}"
    if knee.knee is None:
        why_not = why_no_larger_batch(last, runs)
        return (
            f"{what}: no knee up to batch {last.batch_size}; the last doubling still gave "
            f"{percent_change(knee.gains[-1])}, "
            + (f"but {why_not}." if why_not else "so a larger batch is worth a try.")
        )
    if knee.knee is knee.curve[0]:
        return (
            f"{what}: the smallest batch, {knee.knee.batch_size}, is within 5 % of the best "
            f"({three_digits(knee.best.samples_per_s)} {knee.best.rate_unit} at "
            f"{knee.best.batch_size}): a larger one gains less, the knee is at or below it."
        )
    at = knee.knee
    beyond = next((one for one in knee.curve if one is not at and _far(at, one)), None)
    if beyond is not None:
        gives = percent_change(gain_per_doubling(at, beyond))
        return f"{what}: the knee is at batch {at.batch_size}; beyond it a doubling gives {gives}."
    largest = f"the largest batch, {last.batch_size}"
    return f"{what}: the knee is at " + (
        f"{largest}." if at is last else f"batch {at.batch_size}, near {largest}."
    )
