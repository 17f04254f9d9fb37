"""`mlproject report`: tables, rooflines and a report, logged back to the server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commands.views.filled_in import fill_in
from commands.views.options import (
    WantedRuns,
    format_option,
    peaks_option,
    price_options,
    records_instead_option,
    refresh_option,
    wanted_runs_options,
)
from commands.views.recorded import NOT_TRACKED
from commands.views.terminal import watched

if TYPE_CHECKING:
    from analysis import PlacedProfile, PlacedRun, Run
    from analysis.comparison.machines.prices import Prices


@click.command()
@wanted_runs_options
@refresh_option
@records_instead_option
@peaks_option
@price_options
@click.option(
    "--reference",
    metavar="ENV",
    help="machine that the others are held against; by default the one with most configurations "
    "in common",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports/latest"),
    show_default=True,
    help="folder of the report; an earlier report there is replaced unless it was edited",
)
@click.option(
    "--pdf",
    "printed",
    is_flag=True,
    help="print it as PDF too; needs Chromium, Chrome, Edge or WeasyPrint",
)
@click.option(
    "--log/--no-log",
    "logged",
    default=None,
    help="log the report to the tracking server, and put bound, share of the roof and means of "
    "repeats there for MLflow's pages; on unless --records is given",
)
@click.option("--title", help="title of the report instead of the usual one")
@click.option("--author", help="who wrote it, below the title")
@click.option(
    "--notes",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Markdown file with your own text, put in below the results",
)
@format_option
def command(
    wanted: WantedRuns,
    refresh: bool,
    records: tuple[Path, ...],
    peaks_file: Path | None,
    prices: Prices,
    reference: str | None,
    out: Path,
    printed: bool,
    logged: bool | None,
    title: str | None,
    author: str | None,
    notes: Path | None,
    form: str,
) -> int:
    """Write tables, rooflines and a report of tracked runs.

    Exit codes: 0 written; 1 written, but a run's or a profile's numbers are impossible; 2 no run
    matches, a wrong value, or an edited report in the folder; 3 written, but not logged.
    """
    from analysis import place_profiles, recorded
    from analysis.report import print_pdf, write_report
    from analysis.report.front_matter import front_matter
    from analysis.roofs.peaks import read_peaks
    from analysis.traces.placed import place_traces

    front = front_matter(title, author, notes)
    peaks = read_peaks(peaks_file) if peaks_file else ()
    found = wanted.records(records, refresh=refresh, traces=True, watch=watched)

    runs = found.runs(peaks)
    placed = recorded(runs)
    profiles = place_profiles(
        found.profiles, placed, found.ceilings, run_ids=found.run_ids, peaks=peaks
    )
    path = write_report(
        runs,
        out,
        profiles=profiles,
        traces=place_traces(found.traces, found.ceilings, peaks),
        run_ids=found.run_ids,
        unreadable=found.unreadable,
        front=front,
        prices=prices,
        reference=reference,
        on_moved=_say_moved,
    )
    if printed:
        print_pdf(path)
    run_id = problem = None
    filled = ""
    if not records if logged is None else logged:
        run_id, problem = _log(out, wanted.campaign, len(runs))
        if not records and problem is None:
            filled = fill_in(found, runs, wanted, prices)
    _print(runs, profiles, found.unreadable, path, run_id, filled, form)
    if problem is not None:
        click.echo(f"mlproject: report not logged ({problem}); it lies in {out}", err=True)
        return NOT_TRACKED
    verdicts = {one.verdict for one in runs} | {one.verdict for one in profiles}
    return int("invalid" in verdicts)


def _say_moved(aside: Path) -> None:
    click.echo(
        f"mlproject: an earlier version's report, which may have been edited, is now in {aside}",
        err=True,
    )


def _log(out: Path, campaign: str | None, runs: int) -> tuple[str | None, str | None]:
    """Return the report's run id, or the reason why there is none."""
    from tracking import schema
    from tracking.store import TrackingError
    from tracking.upload.upload import log_report

    tags = {schema.NOTE: f"Report over {runs} runs: open report/report.html."}
    if campaign is not None:
        tags[schema.CAMPAIGN] = campaign
    try:
        return log_report(out, name=f"report_{campaign or 'all'}", tags=tags), None
    except TrackingError as error:
        return None, str(error)


def _print(
    runs: Sequence[Run],
    profiles: Sequence[PlacedProfile],
    unreadable: Sequence[str],
    path: Path,
    run_id: str | None,
    filled: str,
    form: str,
) -> None:
    from analysis import recorded
    from analysis.runs.imported import imported
    from analysis.runs.placed import doubtful_roofs
    from analysis.runs.quantities import counted

    if form == "json":
        facts = {
            "runs": [run.facts() for run in recorded(runs)],
            "profiles": [profile.facts() for profile in profiles],
            "imported": [run.facts() for run in imported(runs)],
            "unreadable": list(unreadable),
            "report": str(path),
            "report_run_id": run_id,
            "on_server": filled or None,
        }
        click.echo(json.dumps(facts))
        return
    lines = [(run.name, f"{run.label}: {_line(run)}", run.problems) for run in recorded(runs)]
    lines += [
        (one.name, f"profile of {one.label}: {one.verdict}", one.problems) for one in profiles
    ]
    lines += [
        (f"roof of {under[0].env}", f"over {counted(len(under), 'run')}", (why,))
        for under, why in doubtful_roofs(runs)
    ]
    for name, line, problems in lines:
        click.echo("\n    ".join([f"{name}  {line}", *problems]))
    if elsewhere := imported(runs):
        placed = sum(run.point is not None for run in elsewhere)
        click.echo(f"{len(elsewhere)} imported runs, {placed} of them placed by modelled work")
    for run in elsewhere:
        for finding in run.findings:
            if finding.level != "note":
                click.echo(f"    {run.label}: {finding.level}: {finding.message}")
    for number, line in enumerate(unreadable, 1):
        click.echo(f"not read, {number} of {len(unreadable)}: {line}")
    click.echo(f"report: {path}")
    if run_id is not None:
        click.echo(f"logged as run {run_id}")
    if filled:
        click.echo(f"on the server: {filled}")


def _line(run: PlacedRun) -> str:
    facts = run.facts()
    if facts["samples_per_s"] is None:
        return str(run.verdict)
    unsure = "" if facts["bound_sure"] is not False else " (unsure)"
    bound = f"bound {facts['bound']}{unsure}" if facts["bound"] else "bound unknown"
    rate = f"{facts['samples_per_s']:.4g} {run.rate_unit}"
    if facts["tokens_per_s"] is not None:
        rate += f", {facts['tokens_per_s']:.4g} tokens/s"
    return f"{rate}, {bound}, {run.verdict}"
