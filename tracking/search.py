"""Tracked runs as plain values, and their records, for packages that do not know MLflow."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from pydantic import ValidationError

from bench.errors import UserError
from bench.folders import ANY_RECORD, MeasuredRecord, write_atomically
from bench.places import cache_folder
from bench.records import ImportedRecord
from tracking import schema
from tracking.finding import all_experiments
from tracking.patience import AFTER_A_RUN_S, ON_ITS_OWN_S, Patience
from tracking.store import open_client, tracking_call

_PAGE = 1000
#: What servers call their runs; it becomes the name of a file here.
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class TrackedRun:
    """A run as the server tells it; metrics hold each key's last value."""

    run_id: str
    name: str
    status: str
    start_time: datetime  # UTC
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    artifact_uri: str


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
    client = open_client(tracking_uri)
    ask = Patience(AFTER_A_RUN_S, ON_ITS_OWN_S)
    ids = _experiment_ids(client, ask, experiments)
    runs: list[TrackedRun] = []
    token: str | None = None
    while True:
        page = ask(client.search_runs, ids, filter_string, max_results=_PAGE, page_token=token)
        runs += [_tracked(run) for run in page]
        token = page.token
        if not token:
            return runs


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
def download_record(run_id: str, tracking_uri: str | None = None) -> MeasuredRecord:
    """Return the record of a run, from the cache of this user where it was fetched before.

    Raises `UserError` where the run holds no record of this version, or one that was imported,
    and `TrackingError`.
    """
    record = _download(run_id, tracking_uri)
    if isinstance(record, ImportedRecord):
        raise UserError(f"run {run_id}: imported from {record.source_file}, not measured by us")
    return record


def _download(run_id: str, tracking_uri: str | None) -> MeasuredRecord | ImportedRecord:
    if not _RUN_ID.fullmatch(run_id):
        raise UserError(f"run {run_id[:80]!r}: no run's id")
    cached = cache_folder() / "records" / f"{run_id}.json"
    with contextlib.suppress(FileNotFoundError, ValidationError):  # damaged: fetched again
        return ANY_RECORD.validate_json(cached.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        ask = Patience(AFTER_A_RUN_S, ON_ITS_OWN_S)
        download = open_client(tracking_uri).download_artifacts
        path = ask(download, run_id, schema.RECORD_ARTIFACT, folder)
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


def _experiment_ids(client: MlflowClient, ask: Patience, names: Sequence[str] | None) -> list[str]:
    found = {e.name: e.experiment_id for e in all_experiments(client, ask)}
    if names is None:
        return list(found.values())
    if unknown := [name for name in names if name not in found]:
        raise UserError(
            f"experiment={unknown[0]!r}: not on this server; it has {', '.join(sorted(found))}"
        )
    return [found[name] for name in names]


def _tracked(run: Run) -> TrackedRun:
    return TrackedRun(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id,
        status=run.info.status,
        start_time=datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        artifact_uri=run.info.artifact_uri,
    )
