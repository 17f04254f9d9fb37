"""One record folder to one tracked run, in few requests, and never twice."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from bench.folders import AnyRecord, RecordFolder, write_atomically
from bench.records import CeilingsRecord, ProfileRecord, RunRecord
from tracking import schema
from tracking.store import experiment_id, open_client, public_uri, tracking_call

#: A server's limits for one request.
_METRICS_PER_BATCH = 1000
_PARAMS_PER_BATCH = 100

_ARTIFACTS = (
    "iterations.csv",
    "telemetry.csv",
    "environment.json",
    "console.log",
    "journal.jsonl",
    "ops.csv",
    "kernels.csv",
    schema.RECORD_ARTIFACT,
)
#: Folders that tools leave in a profile's, kept as they are.
_ARTIFACT_FOLDERS = ("ncu", "perf")


@dataclass(frozen=True)
class _Upload:
    """What a record becomes on the server."""

    params: dict[str, str]
    tags: dict[str, str]
    metrics: Sequence[schema.Point]
    status: str


@tracking_call
def upload(folder: RecordFolder, record: AnyRecord, tracking_uri: str | None = None) -> str:
    """Bring `record` to the server and return its run id; a whole copy there is left as it is.

    Under `mlflow run` the record fills the run that MLflow made, named by `MLFLOW_RUN_ID`;
    otherwise a new run with the record's own times. A run that an earlier attempt left
    incomplete is completed. Raises `TrackingError`; nothing on disk is lost by it.
    """
    client = open_client(tracking_uri)
    content = _content(record)
    run_id = _existing_run(client, folder, record) or _new_run(client, record, content.tags)
    if isinstance(record, ProfileRecord) and (timed := _timed_run(client, record)):
        content.tags[schema.TIMED_RUN_ID] = timed
    _remember(folder, run_id, tracking_uri, whole=False)
    run = client.get_run(run_id)
    if run.data.tags.get(schema.UPLOADED) != "true":
        fresh = {key: text for key, text in content.params.items() if key not in run.data.params}
        _log(client, run_id, content, fresh)
        for name in _ARTIFACTS:
            if (folder.path / name).is_file():
                client.log_artifact(run_id, str(folder.path / name))
        for name in _ARTIFACT_FOLDERS:
            if (folder.path / name).is_dir():
                client.log_artifacts(run_id, str(folder.path / name), name)
        client.set_terminated(run_id, content.status, end_time=_end_ms(record))
        client.set_tag(run_id, schema.UPLOADED, "true")
    _remember(folder, run_id, tracking_uri, whole=True)
    return run_id


def is_uploaded(folder: RecordFolder, tracking_uri: str | None = None) -> bool:
    """Whether the folder remembers a whole upload to this server."""
    return bool(_remembered(folder).get(public_uri(tracking_uri), {}).get("whole"))


@tracking_call
def end_refused_run(reason: str) -> None:
    """End the run that `mlflow run` made for a configuration which never became a measurement."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if run_id:
        client = open_client()
        client.set_tag(run_id, schema.REASON, reason[:5000])
        client.set_tag(run_id, schema.OUTCOME, "refused")
        client.set_terminated(run_id, "FAILED")


def _content(record: AnyRecord) -> _Upload:
    status = schema.STATUS[record.outcome]
    if isinstance(record, CeilingsRecord):
        tags, points = schema.ceilings_tags(record), schema.ceilings_metrics(record)
        return _Upload({}, tags, points, status)
    if isinstance(record, ProfileRecord):
        tags, points = schema.profile_tags(record), schema.profile_metrics(record)
        return _Upload(schema.params(record), tags, points, status)
    return _Upload(schema.params(record), schema.tags(record), schema.metrics(record), status)


def _existing_run(client: MlflowClient, folder: RecordFolder, record: AnyRecord) -> str | None:
    """The run of an earlier attempt, or the one that `mlflow run` made for this process.

    An earlier attempt is known by what the folder remembers, or by the record id on the server.
    """
    here = public_uri(client.tracking_uri)
    for run_id in (_remembered(folder).get(here, {}).get("run_id"), _project_run(client)):
        if run_id and _belongs(client, run_id, record):
            return str(run_id)
    return _run_of(client, record.record_id)


def _run_of(client: MlflowClient, record_id: str) -> str | None:
    experiments = [found.experiment_id for found in client.search_experiments()]
    wanted = f"tags.`{schema.RECORD_ID}` = '{record_id}'"
    found = client.search_runs(experiments, wanted, max_results=1)
    return str(found[0].info.run_id) if found else None


def _timed_run(client: MlflowClient, record: ProfileRecord) -> str | None:
    """The run of the measurement that a profile explains, if it is on this server."""
    return _run_of(client, record.timed_record_id) if record.timed_record_id else None


def _project_run(client: MlflowClient) -> str | None:
    """The run that `mlflow run` made for this process, if this is the server that it used."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    return run_id if run_id and client.tracking_uri == open_client().tracking_uri else None


def _belongs(client: MlflowClient, run_id: str, record: AnyRecord) -> bool:
    """Whether the run exists and holds this record or none."""
    try:
        tags = client.get_run(run_id).data.tags
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return tags.get(schema.RECORD_ID, record.record_id) == record.record_id


def _new_run(client: MlflowClient, record: AnyRecord, tags: dict[str, str]) -> str:
    started_ms = int(record.created.timestamp() * 1000)
    run = client.create_run(
        experiment_id(client),
        start_time=started_ms,
        tags={schema.RECORD_ID: record.record_id, "mlflow.source.name": "mlproject"},
        run_name=tags[schema.RUN_NAME],
    )
    return str(run.info.run_id)


def _log(client: MlflowClient, run_id: str, content: _Upload, params: dict[str, str]) -> None:
    """Log in as few requests as the server's limits allow."""
    metrics = [Metric(p.key, p.value, int(p.unix_s * 1000), p.step) for p in content.metrics]
    tags = [RunTag(key, value) for key, value in content.tags.items()]
    pairs = [Param(key, value) for key, value in params.items()]
    first = _METRICS_PER_BATCH - len(tags) - len(pairs[:_PARAMS_PER_BATCH])
    client.log_batch(run_id, metrics[:first], pairs[:_PARAMS_PER_BATCH], tags)
    for start in range(first, len(metrics), _METRICS_PER_BATCH):
        client.log_batch(run_id, metrics[start : start + _METRICS_PER_BATCH])


def _end_ms(record: AnyRecord) -> int | None:
    if not isinstance(record, RunRecord) or record.process is None:
        return None
    return int((record.created.timestamp() + record.process.real_s) * 1000)


def _remembered(folder: RecordFolder) -> dict[str, dict[str, Any]]:
    try:
        remembered = json.loads(folder.uploaded.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _remember(folder: RecordFolder, run_id: str, tracking_uri: str | None, *, whole: bool) -> None:
    known = _remembered(folder) | {public_uri(tracking_uri): {"run_id": run_id, "whole": whole}}
    write_atomically(folder.uploaded, json.dumps(known, indent=1))
