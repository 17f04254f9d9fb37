"""Tracked runs as plain values, and their records, for packages that do not know MLflow."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from pydantic import ValidationError

from bench.errors import UserError
from bench.records import ImportedRecord
from bench.records.folders import ANY_RECORD, MeasuredRecord, cache_folder, write_atomically
from tracking import schema
from tracking.patience import AFTER_A_RUN_S, ON_ITS_OWN_S, Patience, http_settings
from tracking.reading.selection import Selection, chosen_experiments
from tracking.store import TrackingError, open_client, tracking_call
from tracking.upload.tracked_run import TrackedRun

__all__ = ["TrackedRun", "download_record", "download_records", "runs_filter", "search_runs"]

#: What servers call their runs; it becomes the name of a file here.
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Records on their way at once: a server at a distance answers each in its own time.
_AT_ONCE = 8


@tracking_call
def search_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    tracking_uri: str | None = None,
) -> list[TrackedRun]:
    """Return every run that matches MLflow's filter, newest first, over all pages.

    `experiments` are names; None means all. Raises `UserError` for an unknown experiment and
    `TrackingError` for everything the server refuses, a malformed filter too.
    """
    client, ask = open_client(tracking_uri), Patience(AFTER_A_RUN_S, ON_ITS_OWN_S)
    chosen = chosen_experiments(client, ask, experiments)
    return list(Selection(client, ask, chosen, filter_string).runs())


def runs_filter(filter_string: str = "", campaign: str | None = None) -> str:
    """Return MLflow's filter for runs that match `filter_string` and are of `campaign`.

    Raises `UserError` for a campaign that no run can carry.
    """
    conditions = [filter_string.strip()] if filter_string.strip() else []
    if campaign is not None:
        if not campaign or set("'\"`\\") & set(campaign):
            raise UserError(f"campaign={campaign!r}: use the label given to mlproject run")
        conditions.append(f"tags.`{schema.CAMPAIGN}` = '{campaign}'")
    return " and ".join(conditions)


@tracking_call
def download_record(
    run_id: str, tracking_uri: str | None = None, artifact_uri: str | None = None
) -> MeasuredRecord:
    """Return the record of a run, from the cache of this user where it was fetched before.

    Who knows the run's `artifact_uri` spares the server a question. Raises `UserError` where the
    run holds no record of this version, or one that was imported, and `TrackingError`.
    """
    record = _download(run_id, tracking_uri, artifact_uri)
    if isinstance(record, ImportedRecord):
        raise UserError(f"run {run_id}: imported from {record.source_file}, not measured by us")
    return record


def download_records(
    runs: Iterable[TrackedRun], tracking_uri: str | None = None
) -> Iterator[MeasuredRecord | UserError | TrackingError]:
    """Yield the record of each run in the order given, or why there is none; fetches several."""

    def fetched(run: TrackedRun) -> MeasuredRecord | UserError | TrackingError:
        try:
            return download_record(run.run_id, tracking_uri, run.artifact_uri)
        except (UserError, TrackingError) as error:
            return error

    with http_settings(), ThreadPoolExecutor(_AT_ONCE) as pool:  # settings are the process's
        yield from pool.map(fetched, runs)


def _download(
    run_id: str, tracking_uri: str | None, artifact_uri: str | None
) -> MeasuredRecord | ImportedRecord:
    if not _RUN_ID.fullmatch(run_id):
        raise UserError(f"run {run_id[:80]!r}: no run's id")
    cached = cache_folder() / "records" / f"{run_id}.json"
    with contextlib.suppress(FileNotFoundError, ValidationError):  # damaged: fetched again
        return ANY_RECORD.validate_json(cached.read_bytes())
    client, ask = open_client(tracking_uri), Patience(AFTER_A_RUN_S, ON_ITS_OWN_S)
    where = artifact_uri or ask(client.get_run, run_id).info.artifact_uri
    repository = get_artifact_repository(where, tracking_uri=client.tracking_uri)
    with tempfile.TemporaryDirectory() as folder:
        path = ask(repository.download_artifacts, schema.RECORD_ARTIFACT, folder)
        text = Path(path).read_text(encoding="utf-8")
    try:
        record = ANY_RECORD.validate_json(text)
    except ValidationError as error:
        raise UserError(
            f"run {run_id}: its record.json is not of this version ({error.errors()[0]['msg']}); "
            "read it with the version that wrote it"
        ) from None
    cached.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(cached, text)
    return record
