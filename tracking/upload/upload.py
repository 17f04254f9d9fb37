"""One record folder, or one report, to one tracked run, in few requests, and never twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from bench.records import ProfileRecord
from bench.records.folders import DEFAULT_RECORDS, AnyRecord, MeasuredRecord, RecordFolder
from tracking import schema
from tracking.matching_runs import RECORD, chosen_run, is_whole, make_run, run_by_id
from tracking.retry import AWAY_LIMIT_S, RetryPolicy, ask_once
from tracking.store import experiment_id, open_client, public_uri, tracking_call
from tracking.upload import upload_state
from tracking.upload.owner import owner_tags
from tracking.upload.run_content import content_of, end_ms

#: A server takes so many params and tags in one request, and a thousand of all three together.
_PER_BATCH = 100
_METRICS_PER_BATCH = 1000 - 2 * _PER_BATCH
ARTIFACTS = (
    "iterations.csv",
    "telemetry.csv",
    "environment.json",
    "console.log",
    "journal.jsonl",
    "ops.csv",
    "kernels.csv",
    "trace.json.gz",
    "trace.sqlite",
    schema.RECORD_ARTIFACT,
)
#: What a run is to carry beside its record, if that is known.
Placing: TypeAlias = Callable[[RecordFolder, AnyRecord], schema.Addition | None]
#: Folders that tools leave in a profile's, kept as they are.
_ARTIFACT_FOLDERS = ("ncu", "perf")


@tracking_call
def upload(
    folder: RecordFolder,
    record: AnyRecord,
    tracking_uri: str | None = None,
    *,
    fresh: bool = False,
    ask: RetryPolicy | None = None,
    place: Placing | None = None,
) -> str:
    """Bring `record` to the server and return its run id; a whole copy there is left as it is.

    Under `mlflow run` the record fills the run that MLflow made, named by `MLFLOW_RUN_ID`;
    otherwise a new run with the record's own times. A run that an earlier attempt left
    incomplete, or whose record was completed since, is completed. `fresh`: this process has just
    made the record, so that only a folder which remembers an attempt has to be looked for on the
    server. `place` gives what the run carries beside its record. Raises `TrackingError` once `ask`
    gives up, or if the server refuses; nothing on disk is lost by it.
    """
    server = public_uri(tracking_uri)
    ask = ask or RetryPolicy(AWAY_LIMIT_S)
    with upload_state.uploading(folder, ask.limit_s):
        known = upload_state.recall(folder, server)
        if known is not None and known.whole and known.run_id:
            return known.run_id
        client = open_client(tracking_uri)
        content = content_of(record, place(folder, record) if place else None)
        if isinstance(record, ProfileRecord) and record.timed_record_id:
            timed = chosen_run(client, ask, RECORD, record.timed_record_id)
            if timed is not None:
                content.tags[schema.TIMED_RUN_ID] = timed.info.run_id
        run = _remembered_run(client, ask, known, record)
        if run is None and not (fresh and known is None):
            run = chosen_run(client, ask, RECORD, record.record_id)
        found = run is not None
        if run is None:
            upload_state.remember(folder, server, None, whole=False)
            start_ms = int(record.created.timestamp() * 1000)
            tags = {**content.tags, **owner_tags(), "mlflow.source.name": "mlproject"}
            where, name = ask(experiment_id, client), tags[schema.RUN_NAME]
            run = make_run(client, ask, where, RECORD, tags, name=name, start_ms=start_ms)
            if not fresh:  # another machine may hold a copy of the folder and be at it too
                run = chosen_run(client, ask, RECORD, record.record_id) or run
        changed = known is not None and known.changed
        upload_state.remember(folder, server, run.info.run_id, whole=False, changed=changed)
        unfinished = changed or not is_whole(run)
        if unfinished:
            fill(client, ask, run, content, folder, found=found)
        if unfinished or run.info.status == "RUNNING":
            ask(client.set_terminated, run.info.run_id, content.status, end_time=end_ms(record))
        upload_state.remember(folder, server, run.info.run_id, whole=True)
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
    known = upload_state.recall(folder, public_uri(tracking_uri))
    return known is not None and known.whole


@tracking_call
def end_refused_run(reason: str) -> None:
    """End the run that `mlflow run` made for a configuration which never became a measurement."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if run_id:
        client, ask = open_client(), RetryPolicy(AWAY_LIMIT_S)
        tags = {schema.REASON: reason[: schema.TAG_CHARACTERS], schema.OUTCOME: "refused"}
        log_all(client, ask, run_id, tags=tags)
        ask(client.set_terminated, run_id, "FAILED")


def _remembered_run(
    client: MlflowClient, ask: RetryPolicy, known: upload_state.Copy | None, record: AnyRecord
) -> Run | None:
    """The run of an earlier attempt from here, or the one that `mlflow run` made for us."""
    project_run = os.environ.get("MLFLOW_RUN_ID")
    if project_run and client.tracking_uri != open_client().tracking_uri:  # on another server
        project_run = None
    for run_id in (known.run_id if known else None, project_run):
        run = run_by_id(client, ask, run_id) if run_id else None
        if run is not None and run.info.lifecycle_stage == "active":
            held = run.data.tags.get(schema.RECORD_ID, record.record_id)
            if held == record.record_id:
                return run
    return None


@tracking_call
def log_report(
    folder: Path,
    *,
    name: str,
    tags: dict[str, str],
    run_id: str | None = None,
) -> str:
    """Make a finished run of kind `report` with the files of `folder` and return its id.

    A run of that `run_id`, or the one that `mlflow run` made, is used if there is one. Raises
    `TrackingError`.
    """
    client, ask = open_client(), RetryPolicy(AWAY_LIMIT_S)
    tags = {schema.KIND: "report", schema.RUN_NAME: name, **tags, **owner_tags()}
    run_id = run_id or os.environ.get("MLFLOW_RUN_ID")
    if run_id is None:
        where = ask(experiment_id, client)
        with ask_once():
            run_id = client.create_run(where, run_name=name, tags=tags).info.run_id
    else:
        log_all(client, ask, run_id, tags=tags)
    ask(client.log_artifacts, run_id, str(folder), schema.REPORT_ARTIFACTS)
    ask(client.set_terminated, run_id)
    return str(run_id)


def fill(
    client: MlflowClient,
    ask: RetryPolicy,
    run: Run,
    content: schema.Content,
    folder: RecordFolder,
    *,
    found: bool,
) -> None:
    """Log what the record holds in as few requests as the server's limits allow.

    Everything may be sent twice: files and tags are overwritten, and the server keeps equal
    parameters and equal points once. The tag that says whole goes with the last points.
    """
    run_id = run.info.run_id
    repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=client.tracking_uri)
    for path, place in _files(folder.path):
        ask(repository.log_artifact, str(path), place)
    metrics = [Metric(p.key, p.value, int(p.unix_s * 1000), p.step) for p in content.metrics]
    params = {key: text for key, text in content.params.items() if key not in run.data.params}
    tags = {**content.tags, **owner_tags()} if found else {}
    log_all(client, ask, run_id, metrics, params, {**tags, **schema.whole_tags()})


def log_all(
    client: MlflowClient,
    ask: RetryPolicy,
    run_id: str,
    metrics: Sequence[Metric] = (),
    params: Mapping[str, str] = MappingProxyType({}),
    tags: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Log in as few requests as the server's limits allow, the tags with the last of the rest."""
    limits: Sequence[tuple[Sequence[Any], int]] = (
        (metrics, _METRICS_PER_BATCH),
        ([Param(*param) for param in params.items()], _PER_BATCH),
        ([RunTag(*tag) for tag in tags.items()], _PER_BATCH),
    )
    parts = [[all_[at : at + most] for at in range(0, len(all_), most)] for all_, most in limits]
    batches = zip_longest(*map(reversed, parts), fillvalue=())
    for batch in reversed(list(batches)):
        ask(client.log_batch, run_id, *batch)


def _files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """The artifacts of a record with the folder of the run that each goes to.

    Links are left out: a folder that somebody else wrote must not name files of this machine.
    """
    for name in ARTIFACTS:
        if _is_plain(folder / name):
            yield folder / name, None
    for name in _ARTIFACT_FOLDERS:
        for root, folders, files in os.walk(folder / name, onerror=None):
            folders[:] = sorted(each for each in folders if not Path(root, each).is_symlink())
            for file in sorted(files):
                if _is_plain(Path(root, file)) and not (folder / name).is_symlink():
                    yield Path(root, file), Path(root).relative_to(folder).as_posix()


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
