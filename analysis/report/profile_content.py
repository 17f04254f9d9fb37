"""What a report says of each profile, before it is put into Markdown or HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.figures.profile_scenes import missing_levels
from analysis.profiles.op_places import OpPlaces
from analysis.report.inside_tables import kernels_table, ops_table
from analysis.report.table import Table
from analysis.roofs.ceilings import UsedCeiling
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.quantities import bytes_rate, percent, three_digits
from bench.records import Counters, OpProfile

#: Ops that a sentence names.
_NAMED = 5


@dataclass(frozen=True)
class ProfileContent:
    """One profile's heading, sentences and tables; its figures carry its number."""

    number: int
    heading: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...]


def profile_contents(
    profiles: Sequence[PlacedProfile], numbers: Iterator[int]
) -> tuple[ProfileContent, ...]:
    """Return what is said of each profile; `numbers` gives the tables theirs."""
    return tuple(_content(profile, numbers) for profile in profiles)


def _content(profile: PlacedProfile, numbers: Iterator[int]) -> ProfileContent:
    tables = []
    if profile.ops is not None:
        tables.append(ops_table(next(numbers), profile))
    if profile.kernels is not None:
        tables.append(kernels_table(next(numbers), profile))
    return ProfileContent(
        number=profile.number,
        heading=f"Profile {profile.number}: {profile.label}",
        sentences=tuple(_sentences(profile)),
        tables=tuple(tables),
    )


def _sentences(profile: PlacedProfile) -> Iterator[str]:
    record = profile.record
    runs = ", ".join(str(result.number) for result in profile.runs)
    yield f"Explains run {runs}." if runs else "Explains no run of this report."
    if record.outcome != "ok":
        yield _ended(f"Outcome {record.outcome}: {record.reason or 'no reason recorded'}")
    if record.ops is None or profile.ops is None:
        yield _ended(f"No times of ops: {record.missing.get('ops', 'no reason recorded')}")
    else:
        yield from _of_ops(record.ops, profile.ops)
    if record.counters is None:
        yield _ended(f"No device counters: {record.missing.get('counters', 'no reason recorded')}")
    else:
        yield from _of_counters(record.counters, profile.used)
    if record.cpu_counters is None:
        why = record.missing.get("cpu_counters", "no reason recorded")
        yield _ended(f"No processor counters: {why}")
    else:
        for name, why in record.cpu_counters.missing.items():
            yield _ended(f"Processor counters without {name}: {why}")
    for finding in profile.findings:
        if finding.level == "note":
            yield _ended(f"{finding.message[:1].upper()}{finding.message[1:]}")


def _ended(sentence: str) -> str:
    """A reason may be a paragraph with its own full stop."""
    return sentence if sentence.endswith(".") else f"{sentence}."


def _of_ops(ops: OpProfile, places: OpPlaces) -> Iterator[str]:
    share = f", {percent(ops.ops_time_s / ops.step_time_s)} of it in ops" if ops.step_time_s else ""
    yield (
        f"Times of ops by {ops.method}, over {ops.iterations} steps: a profiled step took "
        f"{three_digits(1e3 * ops.step_time_s)} ms{share}."
    )
    if ops.device_busy_share is None:
        yield _ended(f"The device's busy share is not known: {ops.missing['device_busy_share']}")
    else:
        gap = ops.launch_gap_s
        gaps = "" if gap is None else f", {three_digits(1e3 * gap)} ms idle between kernels"
        yield f"The device was busy {percent(ops.device_busy_share)} of the step{gaps}."
    if ops.copies is None:
        yield _ended(f"Copies are not known: {ops.missing['copies']}")
    if places.unmatched:
        named = ", ".join(f"{op.name} {percent(op.share)}" for op in places.unmatched[:_NAMED])
        rest = len(places.unmatched) - _NAMED
        more = f" and {rest} more" if rest > 0 else ""
        yield (
            f"Not in the cost model, {percent(places.unmatched_share)} of the ops' time: "
            f"{named}{more}."
        )
    if unseen := ops.missing.get("unseen"):
        yield _ended(f"Of the cost model: {unseen}")


def _of_counters(counters: Counters, used: UsedCeiling | None) -> Iterator[str]:
    chip = f" on {counters.chip}" if counters.chip else ""
    yield (
        f"Counters by {counters.source}{chip}: {counters.kernels} launches, "
        f"{len(counters.per_kernel)} kernel names. Their durations are those of one kernel "
        "at a time with emptied caches, and not the training's."
    )
    for name, reason in counters.missing.items():
        yield _ended(f"Not counted, {name}: {reason}")
    for cache in used.cache_roofs if used else ():
        if cache.peak_bytes_per_s is not None:
            yield f"{cache.level}: {bytes_rate(cache.peak_bytes_per_s)} by {cache.source}."
    for reason in missing_levels(used):
        yield _ended(f"No slope for {reason}")
