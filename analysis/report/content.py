"""What a report says, before it is put into Markdown or HTML."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from analysis.profile_results import ProfileResult
from analysis.report import profile_tables, tables
from analysis.report.environments import environments_table
from analysis.report.profile_content import ProfileContent, profile_contents
from analysis.report.reproduce import run_command
from analysis.report.table import Table
from analysis.results import RunResult


@dataclass(frozen=True)
class Problem:
    """A run whose numbers a reader must not take as they stand, and why."""

    subject: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Content:
    """Everything but the figures."""

    title: str
    written: str
    summary: str
    problems: tuple[Problem, ...]
    runs: Table
    measurements: Table
    bounds: Table
    intensities: Table
    profile_tables: tuple[Table, ...]  # of all profiles; none without any
    profiles: tuple[ProfileContent, ...]
    ceilings: Table
    environments: Table
    commands: tuple[tuple[str, str], ...]
    limits: tuple[str, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables in the order of their numbers."""
        of_profiles = (table for profile in self.profiles for table in profile.tables)
        first = (self.runs, self.measurements, self.bounds, self.intensities)
        return (*first, *self.profile_tables, *of_profiles, self.ceilings, self.environments)


def make_content(
    results: Sequence[RunResult],
    profiles: Sequence[ProfileResult],
    run_ids: Mapping[str, str],
    unreadable: Sequence[str],
    written: datetime,
) -> Content:
    """Return a report's words and tables; `unreadable` names runs without a readable record."""
    problems = [Problem("record not read", (line,)) for line in unreadable]
    problems += [
        Problem(f"Run {result.number}, {result.label}", result.problems)
        for result in results
        if result.problems
    ]
    problems += [
        Problem(f"Profile {profile.number}, {profile.label}", profile.problems)
        for profile in profiles
        if profile.problems
    ]
    numbers = itertools.count(1)
    return Content(
        title="Training steps under their roofs",
        written=tables.utc(written),
        summary=_summary(results, profiles),
        problems=tuple(problems),
        runs=tables.runs_table(next(numbers), results),
        measurements=tables.measurements_table(next(numbers), results),
        bounds=tables.bounds_table(next(numbers), results),
        intensities=profile_tables.intensities_table(next(numbers), results),
        profile_tables=_profile_tables(profiles, numbers),
        profiles=profile_contents(profiles, numbers),
        ceilings=tables.ceilings_table(next(numbers), _used_ceilings(results, run_ids)),
        environments=environments_table(next(numbers), results),
        commands=_commands(results),
        limits=tuple(_limits(results)),
    )


def _profile_tables(profiles: Sequence[ProfileResult], numbers: Iterator[int]) -> tuple[Table, ...]:
    if not profiles:
        return ()
    return (
        profile_tables.profiles_table(next(numbers), profiles),
        profile_tables.copies_table(next(numbers), profiles),
        profile_tables.cpu_counters_table(next(numbers), profiles),
    )


def _summary(results: Sequence[RunResult], profiles: Sequence[ProfileResult]) -> str:
    machines = {result.env for result in results}
    failed = sum(result.record.outcome != "ok" for result in results)
    first = min(result.record.created for result in results)
    last = max(result.record.created for result in results)
    without = f" ({failed} without a result)" if failed else ""
    when = f"on {tables.utc(first)}"
    if first != last:
        when = f"between {tables.utc(first)} and {tables.utc(last)}"
    what = f"{_count(len(results), 'run')}{without} on {_count(len(machines), 'machine')}"
    profiled = f", and {_count(len(profiles), 'profile')}" if profiles else ""
    return f"{what}, {when}{profiled}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _used_ceilings(
    results: Sequence[RunResult], run_ids: Mapping[str, str]
) -> list[tables.ReportedCeiling]:
    used: dict[tuple[str, ...], tables.ReportedCeiling] = {}
    for point in (result.point for result in results if result.point):
        record_id = point.ceiling_record_id
        run = None if record_id is None else run_ids.get(record_id, record_id)
        key = (point.device, point.math_mode, run or "", point.ceiling.source)
        used[key] = tables.ReportedCeiling(
            point.ceiling, run, point.roof.peak_flops_per_s, point.roof.peak_bytes_per_s
        )
    return [used[key] for key in sorted(used)]


def _commands(results: Sequence[RunResult]) -> tuple[tuple[str, str], ...]:
    """Each command once, with the numbers of the runs that it repeats."""
    numbers: dict[str, list[int]] = {}
    for result in results:
        numbers.setdefault(run_command(result.record.config), []).append(result.number)
    return tuple(
        (f"run {', '.join(map(str, those))}", command) for command, those in numbers.items()
    )


def _limits(results: Sequence[RunResult]) -> Iterator[str]:
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
            f"{_count(datasheet, 'run')} stand under a datasheet's roof, which no program reaches: "
            "the fraction of the roof reads low."
        )
    if any(result.record.config.reads_images for result in results):
        yield (
            "Waiting for data is the host's time inside the loader. Where the step runs on the "
            "processor, loader processes also take cores from it, which this does not show."
        )
    yield "Each run is one window of one process; the spread between repeats is not judged here."
