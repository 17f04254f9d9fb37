"""What a report says, before it is put into Markdown or HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from analysis.comparison.machines.across import AcrossMachines
from analysis.findings import ReportFinding, find_all
from analysis.report import sentences
from analysis.report.front_matter import FrontMatter
from analysis.report.opening import opening
from analysis.report.report_folder import file_names
from analysis.report.tables import (
    batch_tables,
    group_tables,
    profile_tables,
    roof_tables,
    run_tables,
    trace_tables,
)
from analysis.report.tables.machines import machine_tables, speed_up_tables
from analysis.report.tables.run_columns import utc
from analysis.report.tables.summary_table import summary_table
from analysis.report.trace_sentences import trace_opening, trace_sentences
from analysis.runs.imported import ImportedRun, imported
from analysis.runs.placed import PlacedRun, doubtful_roofs, recorded
from analysis.runs.placed_profiles import PlacedProfile
from analysis.runs.run import Run
from analysis.table import RunNumbers, Table
from analysis.traces.compare import TraceComparison, compare_two
from analysis.traces.placed import PlacedTrace


@dataclass(frozen=True)
class Problem:
    """A run whose numbers a reader must not take as they stand, and why."""

    subject: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class ProfileSection:
    """One profile's heading and sentences; its tables and figures carry its number."""

    number: int
    heading: str
    sentences: tuple[str, ...]
    tables: tuple[str, ...]  # their names, of those without a row too


@dataclass(frozen=True)
class TraceSection:
    """One trace's heading and sentences; `table` is the name of that of its ops."""

    number: int
    heading: str
    sentences: tuple[str, ...]
    table: str


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything but the figures. `tables` are by name, in the order of their numbers."""

    front: FrontMatter
    written: str
    summary: str
    problems: tuple[Problem, ...]
    opening: tuple[str, ...]
    tables: Mapping[str, Table]
    across: tuple[str, ...]  # sentences about several machines
    profiles: tuple[ProfileSection, ...]
    traces: tuple[TraceSection, ...]
    findings: tuple[ReportFinding, ...]
    run_words: Callable[[Iterable[str]], str]  # numbers of the runs of these names
    commands: Mapping[str, str]  # by the runs that they repeat
    has_runs: bool  # a trace may be alone
    limits: tuple[str, ...]
    references: tuple[str, ...]


def _without_runs(
    profiles: Sequence[PlacedProfile], traces: Sequence[PlacedTrace]
) -> tuple[str, ...]:
    alone = "No timed run is here: a profile shows where a step's time goes, and no throughput."
    return (*trace_opening(traces), *[alone] * bool(profiles))


def make_content(
    runs: Sequence[Run],
    profiles: Sequence[PlacedProfile],
    traces: Sequence[PlacedTrace],
    run_ids: Mapping[str, str],
    unreadable: Sequence[str],
    written: datetime,
    run_numbers: RunNumbers,
    front: FrontMatter,
    across: AcrossMachines,
) -> Content:
    """Return a report's words and tables; `unreadable` names runs without a readable record."""
    placed = recorded(runs)
    of_profiles = [
        (
            profile_tables.ops_table(profile, f"ops-{name}"),
            profile_tables.kernels_table(profile, f"kernels-{name}"),
        )
        for profile, name in named_profiles(profiles)
    ]
    of_traces = [
        trace_tables.trace_ops_table(trace, f"ops-{name}") for trace, name in named_traces(traces)
    ]
    shown = [
        table
        for table in (
            *_of_runs(runs, placed, run_ids, run_numbers, across),
            *_inside(profiles, of_profiles, traces, of_traces),
            *_behind(runs, placed, run_numbers),
        )
        if table.rows
    ]
    return Content(
        front=front,
        written=utc(written),
        summary=sentences.summary(runs, profiles, traces),
        problems=_problems(runs, profiles, unreadable, run_numbers),
        opening=opening(runs) if runs else _without_runs(profiles, traces),
        tables={table.name: replace(table, number=n) for n, table in enumerate(shown, start=1)},
        profiles=tuple(
            ProfileSection(
                profile.number,
                f"Profile {profile.number}: {profile.label}",
                tuple(sentences.profile_sentences(profile)),
                tuple(table.name for table in tables),
            )
            for profile, tables in zip(profiles, of_profiles, strict=True)
        ),
        traces=tuple(
            TraceSection(
                trace.number,
                f"Trace {trace.number}: {trace.label}",
                tuple(trace_sentences(trace)),
                table.name,
            )
            for trace, table in zip(traces, of_traces, strict=True)
        ),
        across=tuple(across.sentences),
        findings=tuple(find_all(runs, across.prices)),
        run_words=run_numbers.words,
        commands=sentences.commands(placed),
        has_runs=bool(runs),
        limits=tuple(sentences.limits(runs)),
        references=sentences.REFERENCES,
    )


def named_profiles(profiles: Sequence[PlacedProfile]) -> list[tuple[PlacedProfile, str]]:
    """Return each profile with what the names of its figures and tables have of it."""
    return list(zip(profiles, file_names(profile.label for profile in profiles), strict=True))


def named_traces(traces: Sequence[PlacedTrace]) -> list[tuple[PlacedTrace, str]]:
    """Return each trace with what the names of its figure and table have of it."""
    return list(zip(traces, file_names(f"trace {one.label}" for one in traces), strict=True))


def _of_runs(
    runs: Sequence[Run],
    placed: Sequence[PlacedRun],
    run_ids: Mapping[str, str],
    numbers: RunNumbers,
    across: AcrossMachines,
) -> list[Table]:
    """What the runs show, in the order of the report."""
    return [
        summary_table(runs, numbers),
        speed_up_tables.against_table(across, numbers),
        speed_up_tables.prices_table(across),
        speed_up_tables.speed_up_table(across.pairs, numbers),
        group_tables.uplift_table(runs, numbers),
        batch_tables.gains_table(runs, numbers),
        group_tables.scatter_table(runs, numbers),
        group_tables.scaling_table(runs, numbers),
        batch_tables.predictions_table(runs, numbers),
        roof_tables.points_table(runs, numbers),
        roof_tables.intensities_table(placed),
        roof_tables.ceilings_table(runs, run_ids),
    ]


def _inside(
    profiles: Sequence[PlacedProfile],
    of_profiles: Sequence[Sequence[Table]],
    traces: Sequence[PlacedTrace],
    of_traces: Sequence[Table],
) -> list[Table]:
    """What is inside a step, by profiles and traces."""
    compared = compare_two([trace.record for trace in traces])
    return [
        profile_tables.profiles_table(profiles),
        profile_tables.copies_table(profiles),
        profile_tables.cpu_counters_table(profiles),
        *chain.from_iterable(of_profiles),
        trace_tables.steps_table(traces),
        trace_tables.idle_table(traces),
        *(
            [trace_tables.comparison_table(compared)]
            if isinstance(compared, TraceComparison)
            else []
        ),
        *of_traces,
    ]


def _behind(runs: Sequence[Run], placed: Sequence[PlacedRun], numbers: RunNumbers) -> list[Table]:
    """What was measured, with which settings, where."""
    return [
        run_tables.runs_table(placed),
        group_tables.matrix_table(runs, numbers),
        run_tables.imported_table(runs, numbers),
        run_tables.measurements_table(placed),
        run_tables.phases_table(placed),
        machine_tables.processes_table(placed),
        machine_tables.telemetry_table(placed),
        group_tables.complexity_table(runs, numbers),
        machine_tables.environments_table(placed),
    ]


def _problems(
    runs: Sequence[Run],
    profiles: Sequence[PlacedProfile],
    unreadable: Sequence[str],
    numbers: RunNumbers,
) -> tuple[Problem, ...]:
    return (
        *(Problem("record not read", (line,)) for line in unreadable),
        *(
            Problem(f"Run {run.number}, {run.label}", run.problems)
            for run in recorded(runs)
            if run.problems
        ),
        *_of_roofs(runs, numbers),
        *_of_imported(imported(runs), numbers),
        *(
            Problem(f"Profile {profile.number}, {profile.label}", profile.problems)
            for profile in profiles
            if profile.problems
        ),
    )


def _of_roofs(runs: Sequence[Run], numbers: RunNumbers) -> Iterator[Problem]:
    """One problem for each roof, however many runs stand under it."""
    for under, why in doubtful_roofs(runs):
        names = numbers.words(run.name for run in under)
        word = "run" if len(under) == 1 else "runs"
        yield Problem(f"Roof of {under[0].env}, over {word} {names}", (why,))


def _of_imported(runs: Sequence[ImportedRun], numbers: RunNumbers) -> Iterator[Problem]:
    """What is doubtful of each, and once each reason for which some have no place."""
    for run in runs:
        doubts = tuple(f"{f.level}: {f.message}" for f in run.findings if f.level != "note")
        if doubts:
            yield Problem(f"Run {numbers.by_name[run.name]}, {run.label}, imported", doubts)
    for reason in dict.fromkeys(run.refusal for run in runs if run.refusal):
        of_reason = [run.name for run in runs if run.refusal == reason]
        words = f"{'Run' if len(of_reason) == 1 else 'Runs'} {numbers.words(of_reason)}, imported"
        yield Problem(words, (f"not placed: {reason}",))
