"""What every measuring command does with a record: show it, upload it, end with a code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from bench.folders import AnyRecord, RecordFolder

#: Exit codes by how a measurement ended.
EXIT_CODES = {"ok": 0, "oom": 1, "crashed": 1, "unsupported": 2, "refused": 2, "interrupted": 130}
NOT_TRACKED = 3

records_option = click.option(
    "--records",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("records"),
    show_default=True,
    envvar="MLPROJECT_RECORDS",
    help="folder where records are safe before any upload",
)
track_option = click.option(
    "--track/--no-track", "tracked", default=True, help="upload the record to the tracking server"
)
format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)


def finish(
    folder: RecordFolder, record: AnyRecord, facts: dict[str, Any], *, tracked: bool, form: str
) -> int:
    """Upload the record if asked, print `facts` with where it lies, and return the exit code."""
    facts = {"record": str(folder.path), "outcome": record.outcome, "reason": record.reason} | facts
    code = EXIT_CODES[record.outcome]
    if tracked:
        run_id, problem = _upload(folder, record)
        facts["run_id"] = run_id
        if problem is not None:
            _say_not_tracked(folder, problem)
            code = code or NOT_TRACKED
    if form == "json":
        click.echo(json.dumps(facts))
    else:
        known = {name: value for name, value in facts.items() if value is not None}
        width = max(map(len, known))
        for name, value in known.items():
            click.echo(f"  {name:<{width}}  {value}")
    if record.reason is not None:
        click.echo(f"mlproject: {record.outcome}: {record.reason}", err=True)
    return code


def _upload(folder: RecordFolder, record: AnyRecord) -> tuple[str | None, str | None]:
    """Return the run id, or the reason why there is none."""
    from tracking.store import TrackingError
    from tracking.upload import upload

    try:
        return upload(folder, record), None
    except TrackingError as error:
        return None, str(error)


def _say_not_tracked(folder: RecordFolder, problem: str) -> None:
    click.echo(
        f"mlproject: not uploaded ({problem}); the record is safe in {folder.path}: "
        "mlproject sync uploads it once the server is back",
        err=True,
    )
