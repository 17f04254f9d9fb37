"""What a report says, before it is put into Markdown or HTML."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from analysis.findings import ReportFinding, find_all
from analysis.report import batch_tables, group_tables, profile_tables, tables, work_tables
from analysis.report.environments import environments_table
from analysis.report.limits import limits
from analysis.report.profile_content import ProfileContent, profile_contents
from analysis.report.reproduce import run_command
from analysis.report.run_numbers import RunNumbers
from analysis.report.table import Table
from analysis.report.words import QUESTIONS, REFERENCES, abstract
from analysis.runs.placed import PlacedRun, Run, recorded
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.quantities import counted


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
    abstract: tuple[str, ...]
    questions: tuple[str, ...]
    runs: Table
    matrix: Table
    imported: Table
    complexity: Table
    measurements: Table
    repeats: Table
    points: Table
    bounds: Table
    intensities: Table
    ceilings: Table
    profile_tables: tuple[Table, ...]  # of all profiles; none without any
    profiles: tuple[ProfileContent, ...]
    findings: tuple[ReportFinding, ...]
    analysis_tables: tuple[Table, ...]  # those that have rows
    run_words: Callable[[Iterable[str]], str]  # numbers of the runs of these names
    environments: Table
    commands: tuple[tuple[str, str], ...]
    limits: tuple[str, ...]
    references: tuple[str, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that the report shows, in the order of their numbers."""
        found = (
            *(self.runs, self.matrix, self.imported, self.complexity, self.measurements),
            *(self.repeats, self.points, self.bounds, self.intensities, self.ceilings),
            *self.profile_tables,
            *(table for profile in self.profiles for table in profile.tables),
            *self.analysis_tables,
            self.environments,
        )
        return tuple(table for table in found if table.number)


def make_content(
    runs: Sequence[Run],
    profiles: Sequence[PlacedProfile],
    run_ids: Mapping[str, str],
    unreadable: Sequence[str],
    written: datetime,
    run_numbers: RunNumbers,
) -> Content:
    """Return a report's words and tables; `unreadable` names runs without a readable record."""
    results = recorded(runs)
    findings = tuple(find_all(runs))
    summary = _summary(runs, profiles)
    number = _Numbering(drop_empty=not results)
    return Content(
        title="Training steps under their roofs",
        written=tables.utc(written),
        summary=summary,
        problems=_problems(results, profiles, unreadable),
        abstract=abstract(summary, runs, results, findings),
        questions=QUESTIONS,
        runs=number(tables.runs_table(0, results)),
        matrix=number(group_tables.matrix_table(0, runs, run_numbers)),
        imported=number(group_tables.imported_table(0, runs, run_numbers), optional=True),
        complexity=number(work_tables.complexity_table(0, results, run_numbers)),
        measurements=number(tables.measurements_table(0, results)),
        repeats=number(group_tables.repeats_table(0, runs, run_numbers)),
        points=number(work_tables.points_table(0, results)),
        bounds=number(tables.bounds_table(0, results)),
        intensities=number(profile_tables.intensities_table(0, results)),
        ceilings=number(tables.ceilings_table(0, _used_ceilings(results, run_ids))),
        profile_tables=_profile_tables(profiles, number.numbers),
        profiles=profile_contents(profiles, number.numbers),
        findings=findings,
        analysis_tables=_analysis_tables(runs, number, run_numbers),
        run_words=run_numbers.words,
        environments=number(environments_table(0, results)),
        commands=_commands(results),
        limits=tuple(limits(runs)),
        references=REFERENCES,
    )


class _Numbering:
    """Numbers tables in the order of the report; 0 for one that the report leaves out."""

    def __init__(self, *, drop_empty: bool) -> None:
        self.numbers = itertools.count(1)
        self._drop_empty = drop_empty

    def __call__(self, table: Table, *, optional: bool = False) -> Table:
        if not table.rows and (optional or self._drop_empty):
            return table
        return replace(table, number=next(self.numbers))


def _problems(
    results: Sequence[PlacedRun], profiles: Sequence[PlacedProfile], unreadable: Sequence[str]
) -> tuple[Problem, ...]:
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
    return tuple(problems)


def _analysis_tables(
    runs: Sequence[Run], number: _Numbering, run_numbers: RunNumbers
) -> tuple[Table, ...]:
    """Those of the analysis's tables that have a row, numbered in order."""
    makers = (
        group_tables.uplift_table,
        batch_tables.gains_table,
        group_tables.scatter_table,
        group_tables.scaling_table,
        batch_tables.predictions_table,
    )
    made = (number(make(0, runs, run_numbers), optional=True) for make in makers)
    return tuple(table for table in made if table.number)


def _profile_tables(profiles: Sequence[PlacedProfile], numbers: Iterator[int]) -> tuple[Table, ...]:
    if not profiles:
        return ()
    return (
        profile_tables.profiles_table(next(numbers), profiles),
        profile_tables.copies_table(next(numbers), profiles),
        profile_tables.cpu_counters_table(next(numbers), profiles),
    )


def _summary(runs: Sequence[Run], profiles: Sequence[PlacedProfile]) -> str:
    machines = {run.env for run in runs}
    failed = sum(run.outcome != "ok" for run in runs)
    imported = sum(run.imported_from is not None for run in runs)
    notes = [f"{failed} without a result"] * bool(failed) + [f"{imported} imported"] * bool(
        imported
    )
    remarks = f" ({', '.join(notes)})" if notes else ""
    created = [run.record.created for run in runs if run.record]
    when = ""
    if created:
        first, last = min(created), max(created)
        when = f", on {tables.utc(first)}"
        if first != last:
            when = f", between {tables.utc(first)} and {tables.utc(last)}"
    what = f"{counted(len(runs), 'run')}{remarks} on {counted(len(machines), 'machine')}"
    profiled = f", and {counted(len(profiles), 'profile')}" if profiles else ""
    return f"{what}{when}{profiled}."


def _used_ceilings(
    results: Sequence[PlacedRun], run_ids: Mapping[str, str]
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


def _commands(results: Sequence[PlacedRun]) -> tuple[tuple[str, str], ...]:
    """Each command once, with the numbers of the runs that it repeats."""
    numbers: dict[str, list[int]] = {}
    for result in results:
        numbers.setdefault(run_command(result.record.config), []).append(result.number)
    return tuple(
        (f"run {', '.join(map(str, those))}", command) for command, those in numbers.items()
    )
