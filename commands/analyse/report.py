"""`mlproject report`: tables, rooflines and a report, logged back to the server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.errors import UserError
from commands.views.recorded import NOT_TRACKED, format_option
from commands.views.selection import (
    campaign_option,
    experiment_option,
    filter_option,
    no_runs,
    refresh_option,
)

if TYPE_CHECKING:
    from analysis import Gathered, ProfileResult, RunResult
    from tracking.reading.search import TrackedRun


@click.command()
@filter_option
@campaign_option
@experiment_option
@refresh_option
@click.option(
    "--records",
    type=click.Path(path_type=Path, file_okay=False),
    help="read this folder of records instead of the tracking server",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports/latest"),
    show_default=True,
    help="folder of the report; an earlier report there is replaced",
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
    help="log the report to the tracking server; on unless --records is given",
)
@format_option
def command(
    filter_string: str,
    campaign: str | None,
    experiments: tuple[str, ...],
    refresh: bool,
    records: Path | None,
    out: Path,
    printed: bool,
    logged: bool | None,
    form: str,
) -> int:
    """Write tables, rooflines and a report of tracked runs.

    Exit codes: 0 written; 1 written, but a run's or a profile's numbers are impossible; 2 no run
    matches, or a wrong value; 3 written, but not logged.
    """
    if records is not None and (filter_string or experiments):
        raise UserError("--records reads a folder: --filter and --experiment ask a server")
    from analysis import profile_results, run_results
    from analysis.report import print_pdf, write_report

    gathered = _from_folder(records, campaign) if records is not None else _from_server(
        filter_string, campaign, experiments, refresh=refresh
    )  # fmt: skip
    gathered = gathered.told_apart()
    results = run_results(
        gathered.measurements, gathered.ceilings, gathered.run_ids, gathered.profiles
    )
    profiles = profile_results(gathered.profiles, results, gathered.ceilings, gathered.run_ids)
    path = write_report(
        gathered.measurements,
        gathered.ceilings,
        out,
        profiles=gathered.profiles,
        run_ids=gathered.run_ids,
        unreadable=gathered.unreadable,
        imported=gathered.imported,
    )
    if printed:
        print_pdf(path)
    wanted = logged if logged is not None else records is None
    run_id, problem = (
        _log(out, campaign, len(results) + len(gathered.imported)) if wanted else (None, None)
    )
    _print(results, profiles, gathered, path, run_id, form)
    if problem is not None:
        click.echo(f"mlproject: report not logged ({problem}); it lies in {out}", err=True)
        return NOT_TRACKED
    verdicts = {one.verdict for one in results} | {one.verdict for one in profiles}
    return int("invalid" in verdicts)


def _from_folder(records: Path, campaign: str | None) -> Gathered:
    from analysis import split_records
    from bench.records.folders import read_records

    gathered = split_records(read_records(records), campaign)
    if not gathered.measurements:
        of_campaign = f" of campaign {campaign!r}" if campaign is not None else ""
        raise UserError(f"records={str(records)!r}: holds no measurement{of_campaign}")
    return gathered


def _from_server(
    filter_string: str, campaign: str | None, experiments: Sequence[str], *, refresh: bool
) -> Gathered:
    from analysis import gather_records
    from tracking.store import TrackingError

    try:
        gathered = gather_records(
            filter_string,
            experiments=experiments or None,
            campaign=campaign,
            refresh=refresh,
            watch=_watched,
        )
    except TrackingError as error:
        raise UserError(str(error)) from None
    if not gathered.measurements and not gathered.imported and gathered.unreadable:
        raise UserError(f"no record could be read: {gathered.unreadable[0]}")
    if not gathered.measurements and not gathered.imported:
        raise no_runs(filter_string, campaign, experiments)
    return gathered


def _watched(runs: Sequence[TrackedRun]) -> Iterable[TrackedRun]:
    """A progress bar where somebody watches a terminal."""
    from rich.console import Console
    from rich.progress import track

    return track(
        runs,
        "reading records",
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _log(out: Path, campaign: str | None, runs: int) -> tuple[str | None, str | None]:
    """Return the report's run id, or the reason why there is none."""
    from tracking import schema
    from tracking.store import TrackingError
    from tracking.upload.report_run import log_report

    tags = {schema.NOTE: f"Report over {runs} runs: open report/report.html."}
    if campaign is not None:
        tags[schema.CAMPAIGN] = campaign
    try:
        return log_report(out, name=f"report_{campaign or 'all'}", tags=tags), None
    except TrackingError as error:
        return None, str(error)


def _print(
    results: Sequence[RunResult],
    profiles: Sequence[ProfileResult],
    gathered: Gathered,
    path: Path,
    run_id: str | None,
    form: str,
) -> None:
    if form == "json":
        facts = {
            "runs": [result.facts() for result in results],
            "profiles": [profile.facts() for profile in profiles],
            "imported": [{"run_id": run.name, "label": run.label} for run in gathered.imported],
            "unreadable": gathered.unreadable,
            "report": str(path),
            "report_run_id": run_id,
        }
        click.echo(json.dumps(facts))
        return
    for result in results:
        click.echo(f"{result.name}  {result.label}: {_line(result)}")
        for problem in result.problems:
            click.echo(f"    {problem}")
    for profile in profiles:
        click.echo(f"{profile.name}  profile of {profile.label}: {profile.verdict}")
        for problem in profile.problems:
            click.echo(f"    {problem}")
    if gathered.imported:
        click.echo(f"{len(gathered.imported)} imported runs")
    for line in gathered.unreadable:
        click.echo(f"record not read: {line}")
    click.echo(f"report: {path}")
    if run_id is not None:
        click.echo(f"logged as run {run_id}")


def _line(result: RunResult) -> str:
    facts = result.facts()
    if facts["images_per_s"] is None:
        return str(result.verdict)
    unsure = "" if facts["bound_sure"] is not False else " (unsure)"
    bound = f"bound {facts['bound']}{unsure}" if facts["bound"] else "bound unknown"
    return f"{facts['images_per_s']:.4g} images/s, {bound}, {result.verdict}"
