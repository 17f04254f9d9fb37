"""Tracked runs as plain values, and their records, for packages that do not know MLflow."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from pydantic import ValidationError

from bench.errors import UserError
from bench.folders import ANY_RECORD, AnyRecord, write_atomically
from bench.places import cache_folder
from tracking import schema
from tracking.store import open_client, tracking_call

_PAGE = 1000


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
    ids = _experiment_ids(client, experiments)
    runs: list[TrackedRun] = []
    token: str | None = None
    while True:
        page = client.search_runs(ids, filter_string, max_results=_PAGE, page_token=token)
        runs += [_tracked(run) for run in page]
        token = page.token
        if not token:
            return runs


@tracking_call
def download_record(run_id: str, tracking_uri: str | None = None) -> AnyRecord:
    """Return the record of a run, from the cache of this user where it was fetched before.

    Raises `UserError` where the run holds no record of this version, and `TrackingError`.
    """
    cached = cache_folder() / "records" / f"{run_id}.json"
    with contextlib.suppress(FileNotFoundError, ValidationError):  # damaged: fetched again
        return ANY_RECORD.validate_json(cached.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        path = open_client(tracking_uri).download_artifacts(run_id, schema.RECORD_ARTIFACT, folder)
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


def _experiment_ids(client: MlflowClient, names: Sequence[str] | None) -> list[str]:
    found = {e.name: e.experiment_id for e in client.search_experiments()}
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
