"""One record folder to one tracked run, in few requests, and never twice."""

from __future__ import annotations

import os
from pathlib import Path

from mlflow.entities import Run, RunTag
from mlflow.tracking import MlflowClient

from bench.records import ProfileRecord
from bench.records.folders import DEFAULT_RECORDS, AnyRecord, MeasuredRecord, RecordFolder
from tracking import schema
from tracking.patience import AFTER_A_RUN_S, Patience, no_repeats
from tracking.store import experiment_id, open_client, public_uri, tracking_call
from tracking.upload import upload_state as memory
from tracking.upload.content import content_of, end_ms
from tracking.upload.filling import fill
from tracking.upload.finding import RECORD, belongs, is_whole, run_of, the_one
from tracking.upload.owner import owner_tags


@tracking_call
def upload(
    folder: RecordFolder,
    record: AnyRecord,
    tracking_uri: str | None = None,
    *,
    fresh: bool = False,
    ask: Patience | None = None,
) -> str:
    """Bring `record` to the server and return its run id; a whole copy there is left as it is.

    Under `mlflow run` the record fills the run that MLflow made, named by `MLFLOW_RUN_ID`;
    otherwise a new run with the record's own times. A run that an earlier attempt left
    incomplete is completed. `fresh`: this process has just made the record, so that only a folder
    which remembers an attempt has to be looked for on the server. Raises `TrackingError` once `ask`
    has no patience left, or if the server refuses; nothing on disk is lost by it.
    """
    here = public_uri(tracking_uri)
    ask = ask or Patience(AFTER_A_RUN_S)
    with memory.uploading(folder, ask.limit_s):
        known = memory.recall(folder, here)
        if known is not None and known.whole and known.run_id:
            return known.run_id
        client = open_client(tracking_uri)
        content = content_of(record)
        if isinstance(record, ProfileRecord) and record.timed_record_id:
            timed = run_of(client, ask, record.timed_record_id)
            if timed is not None:
                content.tags[schema.TIMED_RUN_ID] = timed.info.run_id
        run = _remembered_run(client, ask, known, record)
        if run is None and not (fresh and known is None):
            run = run_of(client, ask, record.record_id)
        found = run is not None
        if run is None:
            memory.remember(folder, here, None, whole=False)
            run = _new_run(client, ask, record, content.tags)
            if not fresh:  # another machine may hold a copy of the folder and be at it too
                run = the_one(client, ask, RECORD, record.record_id) or run
        memory.remember(folder, here, run.info.run_id, whole=False)
        unfinished = not is_whole(run)
        if unfinished:
            fill(client, ask, run, content, folder, found=found)
        if unfinished or run.info.status == "RUNNING":
            ask(client.set_terminated, run.info.run_id, content.status, end_time=end_ms(record))
        memory.remember(folder, here, run.info.run_id, whole=True)
    return str(run.info.run_id)


def log_record(
    record: MeasuredRecord,
    records: str | Path = DEFAULT_RECORDS,
    *,
    tracking_uri: str | None = None,
) -> str:
    """Bring a record of the folder `records` to the tracking server and return its run id.

    A record that is there already is left as it is. `tracking_uri` is MLflow's own default if not
    given. Raises `TrackingError`; `mlproject sync` uploads the record later.
    """
    return upload(RecordFolder(Path(records) / record.record_id), record, tracking_uri)


def is_uploaded(folder: RecordFolder, tracking_uri: str | None = None) -> bool:
    """Whether the folder remembers a whole upload to this server."""
    known = memory.recall(folder, public_uri(tracking_uri))
    return known is not None and known.whole


@tracking_call
def end_refused_run(reason: str) -> None:
    """End the run that `mlflow run` made for a configuration which never became a measurement."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if run_id:
        client, ask = open_client(), Patience(AFTER_A_RUN_S)
        tags = {schema.REASON: reason[:5000], schema.OUTCOME: "refused"}
        ask(client.log_batch, run_id, tags=[RunTag(*tag) for tag in tags.items()])
        ask(client.set_terminated, run_id, "FAILED")


def _remembered_run(
    client: MlflowClient, ask: Patience, known: memory.Copy | None, record: AnyRecord
) -> Run | None:
    """The run of an earlier attempt from here, or the one that `mlflow run` made for us."""
    for run_id in (known.run_id if known else None, _project_run(client)):
        if run_id is not None:
            run = belongs(client, ask, run_id, record.record_id)
            if run is not None:
                return run
    return None


def _project_run(client: MlflowClient) -> str | None:
    """The run that `mlflow run` made for this process, if this is the server that it used."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    return run_id if run_id and client.tracking_uri == open_client().tracking_uri else None


def _new_run(client: MlflowClient, ask: Patience, record: AnyRecord, tags: dict[str, str]) -> Run:
    """Make the record's run. Where the answer is lost, look first whether the server made it."""
    where = ask(experiment_id, client)
    tried = False

    def attempt() -> Run:
        nonlocal tried
        if tried and (made := run_of(client, ask, record.record_id)) is not None:
            return made
        tried = True
        with no_repeats():
            return client.create_run(
                where,
                start_time=int(record.created.timestamp() * 1000),
                tags={**tags, **owner_tags(), "mlflow.source.name": "mlproject"},
                run_name=tags[schema.RUN_NAME],
            )

    return ask(attempt)
