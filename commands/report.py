"""`mlproject report` and `mlproject pull`: tracked runs as a report, and as one table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from analysis.presentation.words import counted
from bench.errors import UserError
from commands import NOT_TRACKED
from commands.console.options import (
    File,
    Folder,
    WantedRecords,
    WantedRuns,
    WithPeaks,
    WithPrices,
    note,
    option,
)
from commands.console.output import Answering, Output, table_of, watched, writing
from tracking import schema

if TYPE_CHECKING:
    from analysis.comparison.machines import Prices
    from analysis.runs.groups import Runs
    from analysis.runs.place import PlacedProfile
    from analysis.runs.run import Run

_REFRESH = "read all runs again, so that names and tags changed by hand appear"


class Report(WantedRecords, WithPeaks, WithPrices, Answering):
    """Write tables, rooflines and a report of tracked runs.

    It ends with 1 where it is written, but a run's or a profile's numbers are impossible, and with
    2 where the folder holds an edited report.
    """

    refresh: bool = option(_REFRESH)
    reference: str | None = option(
        "machine that the others are held against; by default the one with most configurations in "
        "common",
        metavar="ENV",
    )
    out: Folder = option(
        "folder of the report; an earlier report there is replaced unless it was edited",
        Path("reports/latest"),
    )
    pdf: bool = option("print it as PDF too; needs Chromium, Chrome, Edge or WeasyPrint")
    logged: bool = option(
        "log the report to the tracking server, and put bound and share of the roof there "
        "for MLflow's pages; on unless --records is given",
        None,
        "--log/--no-log",
    )
    title: str | None = option("title of the report instead of the usual one")
    author: str | None = option("who wrote it, below the title")
    notes: File | None = option("Markdown file with your own text, put in below the results")

    def _result(self) -> Output:
        from analysis import recorded
        from analysis.report.write import front_matter, print_pdf, write_report
        from analysis.runs.place import place_profiles
        from analysis.traces.placed import place_traces
        from commands.console.recorded import log_folder

        front = front_matter(self.title, self.author, self.notes)
        peaks, prices = self.peaks(), self.prices()
        found = self.read_records(refresh=self.refresh, traces=True, watch=watched)
        runs = found.runs(peaks)
        profiles = place_profiles(
            found.profiles, recorded(runs), found.ceilings, run_ids=found.run_ids, peaks=peaks
        )
        path = write_report(
            runs,
            self.out,
            profiles=profiles,
            traces=place_traces(found.traces, found.ceilings, peaks),
            run_ids=found.run_ids,
            unreadable=found.unreadable,
            front=front,
            prices=prices,
            reference=self.reference,
        )
        if self.pdf:
            print_pdf(path)
        run_id = problem = filled = None
        if not self.folders if self.logged is None else self.logged:
            tags = {schema.NOTE: f"Of {counted(len(runs), 'run')}: open report/report.html."}
            tags |= {schema.CAMPAIGN: self.campaign} if self.campaign is not None else {}
            run_id, problem = log_folder(self.out, f"report_{self.campaign or 'all'}", tags)
            if not self.folders and problem is None:
                filled = fill_in(runs, prices) or None
        verdicts = {one.verdict for one in runs} | {one.verdict for one in profiles}
        code = int("invalid" in verdicts)
        if problem is not None:
            note(f"report not logged ({problem}); it lies in {self.out}")
            code = NOT_TRACKED
        lines = [
            *_run_lines(runs, profiles, found.unreadable),
            f"report: {path}",
            *([f"logged as run {run_id}"] if run_id else []),
            *([f"on the server: {filled}"] if filled else []),
        ]
        rows = [run.facts() for run in recorded(runs)]
        facts = {
            "runs": rows,
            "profiles": [profile.facts() for profile in profiles],
            "imported": [run.facts() for run in runs if run.imported],
            "unreadable": list(found.unreadable),
            "report": str(path),
            "report_run_id": run_id,
            "on_server": filled,
        }
        return Output(lines, facts, [table_of("runs", rows)], exit_code=code)


class Pull(WantedRuns, WithPeaks):
    """Write tracked runs as CSV or Parquet.

    One row per measurement, units in the column names. Of a large selection only runs that are new
    since the last pull are read. --roofs fetches the record of every run the first time.
    """

    refresh: bool = option(_REFRESH)
    roofs: bool = option(
        "also where each run stands under its roof: bound, ridge, attainable, share of the roof"
    )
    out: File | None = option("file to write, .csv or .parquet; standard output if not given")
    form: Literal["csv", "json"] = option("what is printed without --out", "csv", "--format")

    def run(self) -> int:
        """Write the table."""
        out = self.out
        if out is not None and out.suffix.lower() not in (".csv", ".parquet"):
            raise UserError(f"out={str(out)!r}: name a .csv or a .parquet file")
        if out is not None and "form" in self.given:
            raise UserError(f"format={self.form!r}: --out has the form of its name; leave one out")
        if self.peaks_file is not None and not self.roofs:
            raise UserError(f"peaks={str(self.peaks_file)!r}: only --roofs uses peaks; give it too")
        from analysis import pull_runs

        how = {"refresh": self.refresh, "roofs": self.roofs, "peaks": self.peaks()}
        table = self.search(pull_runs, **how, watch=watched)
        if table.empty:
            raise self.nothing()
        if out is None and self.form == "json":
            rows = table.astype(object).where(table.notna(), None).to_dict("records")
            click.echo(json.dumps(rows, default=str))
            return 0
        if out is None:
            click.echo(table.to_csv(index=False), nl=False)
            return 0
        with writing(out, "name another file"):
            if out.suffix.lower() == ".csv":
                table.to_csv(out, index=False)
            else:
                table.to_parquet(out, index=False)
        click.echo(f"{counted(len(table), 'run')} in {out}", err=True)
        return 0


def _run_lines(
    runs: Runs, profiles: Sequence[PlacedProfile], unreadable: Sequence[str]
) -> Iterator[str]:
    """A line for each run and each profile, then one for each problem, as the report has it."""
    from analysis import recorded
    from analysis.report.write import problems

    for run in recorded(runs):
        yield f"{run.name}  run {run.number}, {run.label}: {_line(run)}"
    yield from (f"{one.name}  profile of {one.label}: {one.verdict}" for one in profiles)
    if elsewhere := [run for run in runs if run.imported]:
        placed = sum(run.point is not None for run in elsewhere)
        yield f"{len(elsewhere)} imported runs, {placed} of them placed by modelled work"
    for subject, reasons in problems(runs, profiles, unreadable):
        yield f"{subject}: {'; '.join(reasons)}"


def _line(run: Run) -> str:
    if run.samples_per_s is None:
        return run.verdict
    unsure = "?" if run.point and not run.point.bound_sure else ""
    bound = f"{run.point.bound}{unsure}" if run.point else "unknown"
    return f"{run.samples_per_s:.4g} {run.rate_unit}, bound {bound}, {run.verdict}"


def fill_in(runs: Runs, prices: Prices) -> str:
    """Put places and costs of runs on the server; return a line on it.

    Empty where nothing was otherwise. What the server refuses is said, and no failure of the
    report.
    """
    from analysis.runs.groups import Group
    from analysis.server.pull import addition_of, with_cost
    from tracking.connection import TrackingError
    from tracking.upload.delivery import add_to_runs

    additions = {}
    for run in runs:
        addition, cost = addition_of(run), None
        if run.samples_per_s is not None:
            cost = prices.cost(Group((run,))) or prices.cost(Group((run,)), spot=True)
        if cost:
            price = f"{cost.price}"
            addition = with_cost(addition, cost.per_million_samples, price, run.sample)
        if addition is not None:
            additions[run.name] = addition
    what = "bound, share of the roof and cost" if prices else "bound and share of the roof"
    try:
        added = add_to_runs(additions)
    except TrackingError as error:
        return f"{what} are not on all runs of the server ({error})"
    if added.refused:
        return f"{what} not put on {added.refused} runs ({added.why})"
    counts = {"new": added.new, "changed": added.changed, "as before": added.same}
    counts["left for the next report"] = added.left
    words = ", ".join(f"{count} {how}" for how, count in counts.items() if count)
    return f"{what} of runs: {words}" if added.new or added.changed or added.left else ""
