"""One record folder, or one report, to one tracked run, in few requests, and never twice."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from filelock import FileLock, Timeout
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from bench.errors import UserError
from bench.records import ProfileRecord
from bench.records.folders import DEFAULT_RECORDS, AnyRecord, MeasuredRecord, RecordFolder
from tracking import schema
from tracking.content import content_of, end_ms, last_values
from tracking.matching_runs import (
    RECORD,
    chosen_run,
    is_whole,
    make_run,
    project_run,
    runs_of_records,
)
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy, ask_once
from tracking.store import experiment_id, open_client, server_errors, tracking_call

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
ARTIFACT_FOLDERS = ("ncu", "perf")
#: What a reader of MLflow's pages may change in a run: its name and its description.
_OF_READERS = (schema.RUN_NAME, schema.NOTE)


class LockedError(OSError):
    """Another process uploads this record, and did not end in time."""


@tracking_call
def upload(
    folder: RecordFolder,
    record: AnyRecord,
    tracking_uri: str | None = None,
    *,
    fresh: bool = False,
    ask: RetryPolicy | None = None,
    place: Placing | None = None,
    experiment: str | None = None,
) -> str:
    """Bring `record` to the server and return its run id; a run that equals it is left as it is.

    A record that was measured under `mlflow run` fills the run that MLflow made for it; otherwise a
    new run with the record's own times, in the experiment of that id or the usual one. A run that
    lacks something of the record, or has it otherwise, is filled again. `fresh`: this process has
    just made the record, so it is not looked for on the server. `place` gives what the run carries
    beside its record. Raises `UserError` where the folder holds no record, and `TrackingError` once
    `ask` gives up, or if the server refuses; nothing on disk is lost by it.
    """
    if not _is_plain(folder.record):
        raise UserError(
            f"{folder.path}: holds no record.json; give `records`, the folder it was measured in"
        )
    ask = ask or RetryPolicy(AWAY_LIMIT_S)
    with uploading(folder, ask.limit_s):
        client = open_client(tracking_uri)
        content = content_of(record, place(folder, record) if place else None)
        if isinstance(record, ProfileRecord) and record.timed_record_id:
            timed = chosen_run(client, ask, RECORD, record.timed_record_id)
            if timed is not None:
                content.tags[schema.TIMED_RUN_ID] = timed.info.run_id
        run = project_run(client, ask, _noted_run_id(folder), record.record_id)
        if run is None and not fresh:
            run = chosen_run(client, ask, RECORD, record.record_id)
        found = run is not None
        if run is None:
            start_ms = int(record.created.timestamp() * 1000)
            tags = {**content.tags, "mlflow.source.name": "mlproject"}
            where, name = experiment or ask(experiment_id, client), tags[schema.RUN_NAME]
            run = make_run(client, ask, where, RECORD, tags, name=name, start_ms=start_ms)
            if not fresh:  # another machine may hold a copy of the folder and be at it too
                run = chosen_run(client, ask, RECORD, record.record_id) or run
        if not is_whole(run) or _differences(client, ask, run, content_of(record), folder):
            fill(client, ask, run, content, folder, found=found)
            ask(client.set_terminated, run.info.run_id, content.status, end_time=end_ms(record))
    return str(run.info.run_id)


def log_record(
    record: MeasuredRecord,
    records: str | Path = DEFAULT_RECORDS,
    *,
    tracking_uri: str | None = None,
) -> str:
    """Bring a record of the folder `records` to the tracking server and return its run id.

    A record that is there already is left as it is. `tracking_uri` is MLflow's own default if not
    given. Raises `UserError` where `records` does not hold the record, and `TrackingError`;
    `mlproject sync` uploads the record later.
    """
    return upload(RecordFolder(Path(records) / record.record_id), record, tracking_uri)


class Held:
    """What a server has of some records, searched for once. Raises `TrackingError`."""

    def __init__(self, record_ids: Iterable[str], tracking_uri: str | None = None) -> None:
        self._tracking_uri = tracking_uri
        with server_errors(tracking_uri):
            self._ask = RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
            self._client = open_client(tracking_uri)
            self._runs = runs_of_records(self._client, self._ask, record_ids)

    def differences(
        self, folder: RecordFolder, record: AnyRecord, *, contents: bool = False
    ) -> list[str] | None:
        """Return what the record's run lacks or has otherwise; None where no one run is whole.

        With `contents` the run's copy of the record is compared byte by byte, not by its size.
        """
        runs = self._runs.get(record.record_id, [])
        if len(runs) != 1 or not is_whole(runs[0]):
            return None
        with server_errors(self._tracking_uri):
            found = _differences(self._client, self._ask, runs[0], content_of(record), folder)
            if contents and folder.record.name not in found:
                there = self._ask(
                    self._client.download_artifacts, runs[0].info.run_id, schema.RECORD_ARTIFACT
                )
                if Path(there).read_bytes() != folder.record.read_bytes():
                    found.append(folder.record.name)
        return found


def _differences(
    client: MlflowClient,
    ask: RetryPolicy,
    run: Run,
    content: schema.Content,
    folder: RecordFolder,
) -> list[str]:
    """What of the record the run lacks or has otherwise: status, names of values and of files.

    Files are compared by their size. A parameter that is there cannot change in MLflow.
    """
    last = last_values(content.metrics)
    own = {name: text for name, text in content.tags.items() if name not in _OF_READERS}
    metrics, tags = otherwise(run, schema.Addition(last, own))
    params = content.params.keys() - run.data.params.keys()
    status = [] if run.info.status == content.status else [f"status {run.info.status}"]
    repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=client.tracking_uri)
    sizes = {each.path: each.file_size for each in ask(repository.list_artifacts)}
    files = [
        path.name
        for path, below in _files(folder.path)
        if below is None and sizes.get(path.name, -1) not in (None, path.stat().st_size)
    ]
    names = sorted({*metrics, *tags, *params, *_strange_tags(run, content)})
    return [*status, *names, *files]


def _strange_tags(run: Run, content: schema.Content) -> list[str]:
    """Tags of ours that the record does not give its run, such as the reason of `sync --reap`."""
    ours = {name for name in run.data.tags if name.startswith("mlproject.")}
    return sorted(ours - content.tags.keys() - schema.BESIDE_RECORD)


def otherwise(run: Run, addition: schema.Addition) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics and tags of an addition that the run lacks, or has otherwise."""
    there = run.data.metrics
    metrics = {
        name: value
        for name, value in addition.metrics.items()
        if name not in there or not _are_alike(there[name], value)
    }
    tags = {name: text for name, text in addition.tags.items() if run.data.tags.get(name) != text}
    return metrics, tags


def _are_alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


@tracking_call
def end_refused_run(reason: str) -> None:
    """End the run that `mlflow run` made for a configuration which never became a measurement."""
    client, ask = open_client(), RetryPolicy(AWAY_LIMIT_S)
    run = project_run(client, ask, os.environ.get("MLFLOW_RUN_ID"))
    if run is not None:
        tags = {schema.REASON: reason[: schema.TAG_CHARACTERS], schema.OUTCOME: "refused"}
        log_all(client, ask, run.info.run_id, tags=tags)
        ask(client.set_terminated, run.info.run_id, "FAILED")


def _noted_run_id(folder: RecordFolder) -> str | None:
    """The run that `mlflow run` had made for the process that measured the record."""
    if not _is_plain(folder.project_run):
        return None
    return folder.project_run.read_text(encoding="utf-8", errors="replace")


@tracking_call
def log_report(
    folder: Path,
    *,
    name: str,
    tags: dict[str, str],
    run_id: str | None = None,
) -> str:
    """Make a finished run of kind `report` with the files of `folder` and return its id.

    A run of that `run_id`, or the one that `mlflow run` made for this process, is used if there is
    one. Raises `TrackingError`.
    """
    client, ask = open_client(), RetryPolicy(AWAY_LIMIT_S)
    tags = {schema.KIND: "report", schema.RUN_NAME: name, **tags}
    if run_id is None and (made := project_run(client, ask, os.environ.get("MLFLOW_RUN_ID"))):
        run_id = made.info.run_id
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
    parameters and equal points once. The tag that says whole goes with the last points. The last
    value of a metric is that of the latest point: where somebody logged one after the record's, the
    record's value is logged once more after it.
    """
    run_id = run.info.run_id
    repository = get_artifact_repository(run.info.artifact_uri, tracking_uri=client.tracking_uri)
    for path, place in _files(folder.path):
        ask(repository.log_artifact, str(path), place)
    metrics = [Metric(p.key, p.value, int(p.unix_s * 1000), p.step) for p in content.metrics]
    last = {each.key: each for each in metrics}
    now_ms = int(time.time() * 1000)
    for there in run.data.to_proto().metrics:
        ours = last.get(there.key)
        if ours and (there.step, there.timestamp) > (ours.step, ours.timestamp):
            when_ms = max(now_ms, there.timestamp + 1)
            metrics.append(Metric(ours.key, ours.value, when_ms, there.step))
    params = {key: text for key, text in content.params.items() if key not in run.data.params}
    tags = content.tags if found else {}
    for name in _strange_tags(run, content):
        ask(client.delete_tag, run_id, name)
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
    for name in ARTIFACT_FOLDERS:
        for root, folders, files in os.walk(folder / name, onerror=None):
            folders[:] = sorted(each for each in folders if not Path(root, each).is_symlink())
            for file in sorted(files):
                if _is_plain(Path(root, file)) and not (folder / name).is_symlink():
                    yield Path(root, file), Path(root).relative_to(folder).as_posix()


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@contextmanager
def uploading(folder: RecordFolder, wait_s: float) -> Iterator[None]:
    """Hold the folder against other uploads of it; the system frees it if this process dies.

    Raises `LockedError` where another process still holds it after `wait_s`.
    """
    path = folder.path / ".uploading.lock"
    if path.is_symlink():
        raise LockedError(f"{path} is a link: remove it")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise LockedError(f"another process is uploading {folder.path.name}") from None
    try:
        yield
    finally:
        lock.release()
