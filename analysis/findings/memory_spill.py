"""A cliff over batch size: the step outgrew the device's memory and pages go over the bus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from analysis.findings.finding import ReportFinding, names_of, rate_of, ratio_of
from analysis.runs.groups import Group, batch_curves, group_runs, settings_key
from analysis.runs.placed import Run
from analysis.runs.quantities import percent, three_digits
from analysis.statistics import estimate_ratio

KIND = "memory spill"
#: A larger batch that loses more than 30 % has not merely passed its best size.
CLIFF = 0.7
#: Peak memory from this share of the device's on leaves no room for the driver's own.
_FULL = 0.9


def cliff_of(curve: Sequence[Group]) -> int | None:
    """Return the place in `curve` (smallest batch first) of the first batch past a cliff.

    None where there is none, and on a CPU, whose memory is the host's.
    """
    for place, (small, large) in enumerate(pairwise(curve), start=1):
        estimate = estimate_ratio(large.repeats(), small.repeats())
        surely = estimate.high if estimate.high is not None else estimate.ratio
        if estimate.ratio < CLIFF and surely < 1 and _backend(large) != "cpu":
            return place
    return None


def before_cliff(curve: Sequence[Group]) -> Sequence[Group]:
    """Return the part of a curve that no spill has touched."""
    return curve[: cliff_of(curve)]


def find(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each batch curve with a cliff."""
    groups = group_runs(runs)
    for curve in batch_curves(runs):
        place = cliff_of(curve)
        if place is None:
            continue
        good, bad, after = curve[place - 1], curve[place], curve[place:]
        estimate = estimate_ratio(bad.repeats(), good.repeats())
        spared = _spared(bad, groups)
        yield ReportFinding(
            kind=KIND,
            headline=(
                f"{good.first.env}, {good.first.arch} {good.first.precision}: from "
                f"{three_digits(good.throughput_images_per_s)} images/s at batch {good.batch_size} "
                f"to {three_digits(bad.throughput_images_per_s)} at batch {bad.batch_size}. "
                f"Likely cause: {_cause(bad)}."
            ),
            evidence=(
                *(f"batch {group.batch_size}: {rate_of(group)}" for group in curve),
                f"batch {bad.batch_size} over {good.batch_size}: {ratio_of(estimate)}",
                *_memory((good, bad)),
                *(
                    f"at batch {other.batch_size} {other.first.precision}, whose activations are "
                    f"smaller, runs at {rate_of(other)}: the size of the data, not the batch "
                    "as such, makes the difference"
                    for other in spared
                ),
            ),
            runs=names_of((good, *after, *spared)),
            advice=(
                f"Stay at batch {good.batch_size} or below, or use a precision with smaller "
                "activations; accumulate gradients for a larger effective batch."
            ),
        )


def _cause(group: Group) -> str:
    where = "device memory spilling to host memory"
    shares = [share for run in group.runs if (share := _memory_share(run)) is not None]
    if shares and max(shares) < _FULL:
        return (
            f"unknown, as its peak was {percent(max(shares))} of the device's memory; "
            f"{where} would need other programs on the device"
        )
    if any(_may_spill(run) for run in group.runs):
        return f"{where}, which Windows' driver (here or below WSL) does silently"
    return f"{where} (drivers on Windows and WSL do so silently)"


def _memory(groups: Sequence[Group]) -> Iterator[str]:
    """Peak memory against the device's, where a record tells; an imported run does not."""
    for group in groups:
        shares = [share for run in group.runs if (share := _memory_share(run)) is not None]
        if shares:
            yield f"batch {group.batch_size}: peak {percent(max(shares))} of the device's memory"
        else:
            yield f"batch {group.batch_size}: how much memory it used is not recorded"
            return


def _memory_share(run: Run) -> float | None:
    record = run.record
    if record is None or record.measurement is None or record.environment is None:
        return None
    total = record.environment.device.memory_bytes
    peaks = (
        record.measurement.peak_memory_reserved_bytes,
        record.measurement.peak_memory_allocated_bytes,
    )
    peak = next((one for one in peaks if one is not None), None)
    return peak / total if peak is not None and total else None


def _may_spill(run: Run) -> bool:
    environment = run.record.environment if run.record else None
    return environment is not None and (
        environment.virtualization == "wsl2" or environment.os.startswith("Windows")
    )


def _backend(group: Group) -> str:
    record = group.first.record
    resolved = record.resolved if record else None
    return resolved.backend if resolved else group.first.settings.get("backend", "unknown")


def _spared(bad: Group, groups: Sequence[Group]) -> list[Group]:
    """Groups that differ in precision alone and did not fall."""
    key = settings_key(bad.first, ("precision",))
    return [
        group
        for group in groups
        if settings_key(group.first, ("precision",)) == key
        and CLIFF * group.throughput_images_per_s > bad.throughput_images_per_s
    ]
