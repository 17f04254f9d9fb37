"""What a report says, before it is put into Markdown or HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from analysis.findings import ReportFinding, find_all
from analysis.report import sentences
from analysis.report.tables import batch_tables, group_tables, profile_tables, run_tables
from analysis.report.tables.numbered_table import RunNumbers, Table
from analysis.runs.placed import PlacedRun, Run, recorded
from analysis.runs.placed_profiles import PlacedProfile

#: Tables that a report leaves out where they have no row; others say that there is nothing to show.
_LEFT_OUT_IF_EMPTY = frozenset(
    {"imported", "uplift", "speed-ups", "batch-gains", "scatter", "scaling", "predictions"}
)


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


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything but the figures. `tables` are by name, in the order of their numbers."""

    title: str
    written: str
    summary: str
    problems: tuple[Problem, ...]
    abstract: tuple[str, ...]
    questions: tuple[str, ...]
    tables: Mapping[str, Table]
    profiles: tuple[ProfileSection, ...]
    findings: tuple[ReportFinding, ...]
    run_words: Callable[[Iterable[str]], str]  # numbers of the runs of these names
    commands: Mapping[str, str]  # by the runs that they repeat
    limits: tuple[str, ...]
    references: tuple[str, ...]


def make_content(
    runs: Sequence[Run],
    profiles: Sequence[PlacedProfile],
    run_ids: Mapping[str, str],
    unreadable: Sequence[str],
    written: datetime,
    run_numbers: RunNumbers,
) -> Content:
    """Return a report's words and tables; `unreadable` names runs without a readable record."""
    placed = recorded(runs)
    findings = tuple(find_all(runs))
    summary = sentences.summary(runs, profiles)
    shown = [
        table
        for table in _tables(runs, placed, profiles, run_ids, run_numbers)
        if table.rows or (placed and table.name not in _LEFT_OUT_IF_EMPTY)
    ]
    return Content(
        title="Training steps under their roofs",
        written=run_tables.utc(written),
        summary=summary,
        problems=_problems(placed, profiles, unreadable),
        abstract=sentences.abstract(summary, runs, findings),
        questions=sentences.QUESTIONS,
        tables={table.name: replace(table, number=n) for n, table in enumerate(shown, start=1)},
        profiles=tuple(
            ProfileSection(
                profile.number,
                f"Profile {profile.number}: {profile.label}",
                tuple(sentences.profile_sentences(profile)),
            )
            for profile in profiles
        ),
        findings=findings,
        run_words=run_numbers.words,
        commands=sentences.commands(placed),
        limits=tuple(sentences.limits(runs)),
        references=sentences.REFERENCES,
    )


def _tables(
    runs: Sequence[Run],
    placed: Sequence[PlacedRun],
    profiles: Sequence[PlacedProfile],
    run_ids: Mapping[str, str],
    numbers: RunNumbers,
) -> list[Table]:
    """All tables in the order of the report."""
    tables = [
        run_tables.runs_table(placed),
        group_tables.matrix_table(runs, numbers),
        run_tables.imported_table(runs, numbers),
        group_tables.complexity_table(placed, numbers),
        run_tables.measurements_table(placed),
        group_tables.repeats_table(runs, numbers),
        run_tables.points_table(placed),
        run_tables.bounds_table(placed),
        run_tables.intensities_table(placed),
        run_tables.ceilings_table(placed, run_ids),
    ]
    if profiles:
        tables += [
            profile_tables.profiles_table(profiles),
            profile_tables.copies_table(profiles),
            profile_tables.cpu_counters_table(profiles),
        ]
    for profile in profiles:
        if profile.ops is not None:
            tables.append(profile_tables.ops_table(profile))
        if profile.kernels is not None:
            tables.append(profile_tables.kernels_table(profile))
    return [
        *tables,
        group_tables.uplift_table(runs, numbers),
        group_tables.speed_up_table(runs, numbers),
        batch_tables.gains_table(runs, numbers),
        group_tables.scatter_table(runs, numbers),
        group_tables.scaling_table(runs, numbers),
        batch_tables.predictions_table(runs, numbers),
        run_tables.environments_table(placed),
    ]


def _problems(
    runs: Sequence[PlacedRun], profiles: Sequence[PlacedProfile], unreadable: Sequence[str]
) -> tuple[Problem, ...]:
    return (
        *(Problem("record not read", (line,)) for line in unreadable),
        *(Problem(f"Run {run.number}, {run.label}", run.problems) for run in runs if run.problems),
        *(
            Problem(f"Profile {profile.number}, {profile.label}", profile.problems)
            for profile in profiles
            if profile.problems
        ),
    )
