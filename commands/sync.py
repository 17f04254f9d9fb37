"""`mlproject sync`: what a dead server, or a dead process, left on disk goes to the server."""

from __future__ import annotations

from pathlib import Path

import click

from commands.recorded import NOT_TRACKED, records_option


@click.command()
@records_option
@click.option("--to", "tracking_uri", help="tracking URI; default: MLflow's own settings")
def command(records: Path, tracking_uri: str | None) -> int:
    """Upload records that are not on the tracking server yet; each goes there once."""
    from bench.errors import UserError
    from bench.folders import record_folders
    from bench.recover import recover

    folders = list(record_folders(records))
    from tracking.store import TrackingError, public_uri
    from tracking.upload import is_uploaded, upload

    counts = {"uploaded": 0, "there already": 0, "still measuring": 0, "failed": 0}
    for folder in folders:
        if is_uploaded(folder, tracking_uri):
            counts["there already"] += 1
            continue
        try:
            record = recover(folder)
            if record is None:
                counts["still measuring"] += 1
                continue
            run_id = upload(folder, record, tracking_uri)
        except TrackingError as error:
            click.echo(
                f"mlproject: {error}; {counts['uploaded']} uploaded before; sync again later",
                err=True,
            )
            return NOT_TRACKED
        except UserError as error:
            counts["failed"] += 1
            click.echo(f"mlproject: {error}", err=True)
            continue
        counts["uploaded"] += 1
        click.echo(f"  {folder.record_id} -> run {run_id}")
    told = ", ".join(f"{number} {what}" for what, number in counts.items() if number)
    click.echo(f"{told or 'no records'} ({public_uri(tracking_uri)})")
    return 1 if counts["failed"] else 0
