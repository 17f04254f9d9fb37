"""`mlproject import`: results of other programs, from their files to records and tracked runs."""  # noqa: N999

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.config import parse_config
from bench.errors import UserError
from commands.views.options import records_option, track_option
from commands.views.recorded import NOT_TRACKED, say_not_uploaded, upload_all, write_record

if TYPE_CHECKING:
    from bench.records.folders import RecordFolder

_COUNTS = ("batch_size", "repeat", "image_size", "devices", "warmup_iters")
_FACTS = ("arch", "env", "device", "backend", "precision", "time_unit", *_COUNTS)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--set",
    "facts",
    multiple=True,
    metavar="FACT=VALUE",
    help=f"a fact that a file does not have: {', '.join(_FACTS)} (may be given again)",
)
@click.option(
    "--campaign", default="imported", show_default=True, help="label of the imported runs"
)
@records_option
@track_option
def command(
    files: tuple[Path, ...], facts: tuple[str, ...], campaign: str, records: Path, tracked: bool
) -> int:
    """Import results: files, folders or zips of ledgers, iterations, timm, optimum, DLLogger.

    Each result becomes a record and a tracked run, marked as imported, with the line it comes
    from; results imported before are not changed. Exit codes: 0 all imported; 1 some rows could not
    be imported, the others are; 2 a wrong value; 3 imported, but not all on the tracking server.
    """
    given = _checked_facts(facts)
    parse_config({"campaign": campaign})
    from bench.records.folders import RecordFolder
    from tracking.importing import read_results

    folders: list[RecordFolder] = []
    new = bad = 0
    for path in files:
        found = read_results(path, campaign=campaign, given=given)
        before = new
        for record in found.records:
            folder = RecordFolder(records / record.record_id)
            if not folder.record.is_file():
                write_record(folder, record, records)
                new += 1
            folders.append(folder)
        for problem in found.problems:
            click.echo(f"mlproject: {problem}", err=True)
        bad += len(found.problems)
        known = len(found.records) - (new - before)
        parts = {
            "imported": new - before,
            "known already": known + found.repeated,
            "not taken": len(found.problems),
            "other files": found.other_files,
        }
        counted = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
        click.echo(f"{path}: {counted or 'nothing in it'}")
    return max(1 if bad else 0, _upload(folders) if tracked else 0)


def _upload(folders: list[RecordFolder]) -> int:
    """Upload what is not there yet; say once if the server is away."""
    from tracking.store import TrackingError

    try:
        counts = upload_all(folders, None)
    except TrackingError as error:
        say_not_uploaded(error)
        return NOT_TRACKED
    return 1 if counts["failed"] else 0


def _checked_facts(pairs: tuple[str, ...]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in _FACTS or not text.strip():
            raise UserError(f"set={pair!r}: give FACT=VALUE with one of {', '.join(_FACTS)}")
        if name in _COUNTS and not (text.isascii() and text.isdigit()):
            raise UserError(f"set={pair!r}: give a whole number")
        if name == "time_unit" and text.strip() not in ("s", "ms", "us"):
            raise UserError(f"set={pair!r}: give s, ms or us")
        facts[name] = text.strip()
    return facts
