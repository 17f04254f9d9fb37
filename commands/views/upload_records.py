"""Record folders to the server, one by one, with one line for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click

from bench.errors import UserError
from bench.records.folders import AnyRecord, RecordFolder
from tracking.upload.upload_state import LockedError, uploading

#: In the order in which they are printed.
_FATES = (
    "uploaded",
    "there already",
    "still measuring",
    "being uploaded by another process",
    "failed",
)


def upload_all(folders: Sequence[RecordFolder], target: str | None) -> Counter[str]:
    """Upload what is not there yet and return how many met which fate.

    A folder that cannot be read, or that the server refuses, is named and the others go on.
    Raises `TrackingError` where the server can be used for nothing now.
    """
    from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
    from tracking.store import TrackingError
    from tracking.upload.upload import is_uploaded, upload

    counts = Counter(dict.fromkeys(_FATES, 0))
    for folder in folders:
        if is_uploaded(folder, target):
            counts["there already"] += 1
            continue
        try:
            record = _recovered(folder)
            if record is None:
                counts["still measuring"] += 1
                continue
            if record.record_id != folder.record_id:
                raise UserError(f"holds the record {record.record_id[:80]!r}: name the folder so")
            run_id = upload(folder, record, target, ask=RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S))
        except LockedError:
            counts["being uploaded by another process"] += 1
            continue
        except (UserError, TrackingError) as error:
            if isinstance(error.__cause__, LockedError):
                counts["being uploaded by another process"] += 1
                continue
            if isinstance(error, TrackingError) and error.away:
                click.echo(f"{counts['uploaded']} uploaded before the server went away", err=True)
                raise
            counts["failed"] += 1
            click.echo(f"mlproject: {folder.record_id}: {error}", err=True)
            continue
        counts["uploaded"] += 1
        click.echo(f"  {folder.record_id} -> run {run_id}")
    return counts


def _recovered(folder: RecordFolder) -> AnyRecord | None:
    """The folder's record, made whole by one process alone where its launcher died."""
    from bench.launcher.recover import recover

    record = folder.read_record()
    if record is not None or folder.in_use():
        return record
    with uploading(folder, wait_s=1.0):
        return recover(folder)
