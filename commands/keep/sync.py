"""`mlproject sync`: what a dead server, or a dead process, left on disk goes to the server."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import click
from click.core import ParameterSource

from bench.errors import UserError, printable
from commands.views.options import campaign_option, filter_option, records_option
from commands.views.recorded import NOT_TRACKED, upload_all
from tracking.schema import runs_filter

#: Longer than a measurement takes.
_OLD = "24h"
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0}


@click.command()
@records_option
@click.option("--to", "target", metavar="URI", help="server to fill; default: MLflow's settings")
@click.option("--from", "source", metavar="URI", help="copy this project's runs of this store")
@campaign_option
@filter_option
@click.option("--verify", is_flag=True, help="only say where runs differ from their records")
@click.option("--reap", is_flag=True, help="end this project's runs that stayed RUNNING")
@click.option(
    "--older-than",
    metavar="AGE",
    help=f"with --reap, how long ago such a run began at least: 90m, 24h, 7d; default: {_OLD}",
)
@click.pass_context
def command(
    context: click.Context,
    records: Path,
    target: str | None,
    source: str | None,
    campaign: str | None,
    filter_string: str,
    verify: bool,
    reap: bool,
    older_than: str | None,
) -> int:
    """Upload what the tracking server does not have yet; each record and each run once.

    Without options: the records on disk. A run there that differs from its record is put
    right. With --to, also this project's tracked runs of the store that MLflow's settings name.
    With --from, --campaign or --filter: tracked runs alone. With --verify nothing is changed.
    Exit codes: 0 all uploaded; 1 something could not be uploaded, or --verify found a difference;
    2 a wrong value; 3 the server is away: run the command again later.
    """
    age_s = _seconds(older_than or _OLD)
    if older_than is not None and not reap:
        raise UserError(f"older-than={older_than!r}: give it with --reap")
    wanted = runs_filter(filter_string, campaign)
    if verify and (wanted or source or reap):
        raise UserError(
            "verify: it looks at records on disk; give it with --records and --to alone"
        )
    if wanted and target is None and source is None:
        raise UserError("campaign, filter: they choose runs to copy; give --to or --from with them")
    from tracking.store import TrackingError

    code = 0
    asked = context.get_parameter_source("records") is not ParameterSource.DEFAULT
    # not in a default folder that does not exist, where there is something else to do
    has_records = asked or not (target or reap) or records.is_dir()
    try:
        if has_records and not (source or wanted):
            code = _upload_records(records, target, verify=verify)
        if (source or target) and not verify:
            code = max(code, _copy_runs(source, target, wanted))
        if reap:
            _reap(age_s, target)
    except TrackingError as error:
        click.echo(f"mlproject: {error}; sync again later, nothing is lost", err=True)
        return NOT_TRACKED
    return code


def _upload_records(records: Path, target: str | None, *, verify: bool) -> int:
    from bench.records.folders import record_folders

    folders = list(record_folders(records))
    from tracking.store import public_uri

    counts = upload_all(folders, target, verify=verify)
    counted = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    click.echo(f"{counted or 'no records'} ({public_uri(target)})")
    wrong = counts["failed"] or counts["not as their records"] or counts["not uploaded"]
    return 1 if wrong else 0


def _copy_runs(source: str | None, target: str | None, wanted: str) -> int:
    """Copy tracked runs; skipped where neither option is given and the usual store is missing."""
    from tracking.store import TrackingError, public_uri, settings_uri
    from tracking.upload.copy_runs import Copier, source_uri

    named = source or wanted
    try:
        source = source_uri(source, target)
    except UserError:
        if named:
            raise
        return 0
    copier = Copier(source, target or settings_uri())
    counts: Counter[str] = Counter()
    for run in copier.runs(wanted):
        try:
            state = copier.copy(run)
        except (UserError, TrackingError) as error:
            if isinstance(error, TrackingError) and error.away:
                click.echo(_counted(counts, source), err=True)
                raise
            counts["failed"] += 1
            click.echo(
                f"mlproject: {printable(run.info.run_name or '')} ({run.info.run_id}): {error}",
                err=True,
            )
            continue
        counts[state] += 1
        if state == "copied":
            click.echo(f"  {printable(run.info.run_name or '')} ({run.info.run_id})")
    click.echo(f"{_counted(counts, source)} (to {public_uri(target)})")
    return 1 if counts["failed"] else 0


def _named(name: str | None, run_id: str) -> str:
    return f"{printable(name or '')} ({run_id})"


def _counted(counts: Counter[str], source: str) -> str:
    from tracking.store import public_uri

    counted = ", ".join(f"{number} {state}" for state, number in counts.items())
    return f"runs of {public_uri(source)}: {counted or 'none'}"


def _reap(age_s: float, target: str | None) -> None:
    from tracking.upload.reap import reap

    ended, left = reap(age_s, target)
    for run in ended:
        click.echo(f"  {printable(run.info.run_name or '')} ({run.info.run_id}) ended")
    click.echo(f"{len(ended)} ended, {len(left)} left running: begun less than the age ago")


def _seconds(age: str) -> float:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([mhd])", age)
    if found is None:
        raise UserError(f"older-than={age!r}: give a number and a unit, such as 90m, 24h or 7d")
    return float(found[1]) * _UNITS_S[found[2]]
