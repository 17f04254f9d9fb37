"""One record folder, or one report, to one tracked run, in few requests, and never twice."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from filelock import FileLock, Timeout
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Run
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.http_artifact_repo import HttpArtifactRepository

from bench.config import user_path, without_home
from bench.errors import UserError
from bench.images import images_by_class
from bench.records import ProfileRecord
from bench.records.folders import DEFAULT_RECORDS, AnyRecord, MeasuredRecord, RecordFolder
from tracking import schema
from tracking.connection import Server, TrackingError
from tracking.content import content_of, end_ms, figures_digest, last_values
from tracking.failures import NOT_MLFLOW
from tracking.store import CREDENTIALS, public_uri

ARTIFACTS = (
    "iterations.csv",
    "ranks.csv",
    "telemetry.csv",
    "environment.json",
    "console.log",
    "journal.jsonl",
    "ops.csv",
    "account.png",
    "kernels.csv",
    "trace.json.gz",
    schema.RECORD_ARTIFACT,
)
#: What a run is to carry beside its record, if that is known.
Placing: TypeAlias = Callable[[RecordFolder, AnyRecord], schema.Addition | None]
#: Folders that tools leave in a profile's, kept as they are.
ARTIFACT_FOLDERS = ("ncu", "perf")
#: What a reader of MLflow's pages may change in a run: its name and its description.
_OF_READERS = (schema.RUN_NAME, schema.NOTE)
_SOURCE = "mlflow.source.name"
#: Uploads of many copies at once delete each other's runs until one is left.
_STARTS = 8
_PROJECT = Path(__file__).resolve().parents[2]


class LockedError(TrackingError):
    """Another process uploads this record, and did not end in time."""


class DeletedRunError(TrackingError):
    """Somebody deleted the run of this record, which was whole."""


def check_active(run: Run) -> None:
    """Raise `DeletedRunError` where the run was deleted: restored later, it would be a second."""
    if schema.is_deleted(run):
        raise DeletedRunError(
            f"its run {run.info.run_id} was deleted on the server, and no second one is made: "
            "restore it there, or move the record's folder away",
            away=False,
        )


def upload(
    folder: RecordFolder,
    record: AnyRecord,
    server: Server | None = None,
    *,
    place: Placing | None = None,
    experiment: str | None = None,
) -> str:
    """Bring `record` to the server and return its run id; a run that equals it is left as it is.

    A record that was measured under `mlflow run` fills the run that MLflow made for it; otherwise a
    new run with the record's own times, in the experiment of that id or the usual one. A run that
    lacks something of the record, or has it otherwise, is filled again. `place` gives what the run
    carries beside its record. Raises `UserError` where the folder holds no record, and
    `TrackingError` where the server is away or refuses; nothing on disk is lost by it.
    """
    if not _is_plain(folder.record):
        raise UserError(
            f"{folder.path}: holds no record.json; give `records`, the folder it was measured in"
        )
    server = server or Server()
    with uploading(folder, server.patience_s):
        for starts_left in reversed(range(_STARTS)):
            run, content, was_there = _run_for(folder, record, server, place, experiment)
            try:
                if not schema.is_whole(run) or differences(server, run, content_of(record), folder):
                    _fill(server, run, content, folder, record, was_there=was_there)
                break
            except TrackingError as error:  # who uploads another copy may have joined it to theirs
                may_start_again = starts_left and not error.away
                if not (may_start_again and schema.is_deleted(server.run(run.info.run_id))):
                    raise
    return str(run.info.run_id)


def _run_for(
    folder: RecordFolder,
    record: AnyRecord,
    server: Server,
    place: Placing | None,
    experiment: str | None,
) -> tuple[Run, schema.Content, bool]:
    """Return the run that a record fills, what it is to hold, and whether it was there before."""
    content = content_of(record, place(folder, record) if place else None)
    timed_id = record.timed_record_id if isinstance(record, ProfileRecord) else None
    if timed_id and (timed := server.run_of(timed_id)):
        content.tags[schema.TIMED_RUN_ID] = timed.info.run_id
    noted = folder.project_run
    made_for = noted.read_text(errors="replace") if _is_plain(noted) else None
    run = project_run(server, made_for, record.record_id) or server.run_of(record.record_id)
    was_there = run is not None
    if run is not None:
        check_active(run)
    if run is None or not schema.is_whole(run):
        # who makes it, and from where: `mlflow run` writes the project's path
        source = run.data.tags.get(_SOURCE, "") if run else "mlproject"
        made_by = server.user_tag | {_SOURCE: without_home(source)}
        content = replace(content, tags=made_by | content.tags)
    where = run.info.experiment_id if run else experiment or server.experiment_id()
    server.mark(where)
    if run is None:
        made = server.ask(
            server.client.create_run,
            where,
            start_time=int(record.created.timestamp() * 1000),
            tags=content.tags,
            run_name=content.tags[schema.RUN_NAME],
        )
        server.named(made.info.artifact_uri)
        # an answer may have been lost, or another machine be at a copy of the folder
        run = server.run_of(record.record_id) or made
    return run, content, was_there


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
    folder = RecordFolder(Path(records) / record.record_id)
    return upload(folder, record, Server(tracking_uri, answer_s=None))


def differences(
    server: Server,
    run: Run,
    content: schema.Content,
    folder: RecordFolder,
    *,
    byte_by_byte: bool = False,
) -> list[str]:
    """What of the record the run lacks or has otherwise: status, names of values and of files.

    Files are compared by their size, with `byte_by_byte` the record by its bytes too. A parameter
    that is there cannot change in MLflow.
    """
    own = {name: text for name, text in content.tags.items() if name not in _OF_READERS}
    figures = figures_digest(schema.plain_metrics(run.data.metrics), run.data.tags)
    if run.data.tags.get(schema.FIGURES) == figures:  # of all that an older version logged
        own.pop(schema.FIGURES, None)
    metrics, tags = otherwise(run, schema.Addition(last_values(content.metrics), own))
    params = content.params.keys() - run.data.params.keys()
    status = [] if run.info.status == content.status else [f"status {run.info.status}"]
    files = _missing_files(server, server.files(run.info.artifact_uri), folder)
    if byte_by_byte and folder.record.name not in files:
        there = server.read(run.info.artifact_uri, schema.RECORD_ARTIFACT)
        if there != folder.record.read_bytes():
            files.append(folder.record.name)
    return [*status, *sorted({*metrics, *tags, *params, *_strange_tags(run, content)}), *files]


def _missing_files(
    server: Server, repository: ArtifactRepository, folder: RecordFolder
) -> list[str]:
    """Names of the record's files that the run does not list, or lists with another size."""
    sizes = {file.path: file.file_size for file in server.ask(repository.list_artifacts)}
    return [
        path.name
        for path, below in _files(folder.path)
        if below is None and sizes.get(path.name, -1) not in (None, path.stat().st_size)
    ]


def _strange_tags(run: Run, content: schema.Content) -> list[str]:
    """Tags of ours that the record does not give its run, such as the reason of `sync --reap`."""
    ours = {name for name in run.data.tags if name.startswith("mlproject.")}
    return sorted(ours - content.tags.keys() - schema.BESIDE_RECORD)


def otherwise(run: Run, addition: schema.Addition) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics and tags of an addition that the run lacks, or has otherwise."""
    there = schema.plain_metrics(run.data.metrics)
    metrics = {
        name: value
        for name, value in addition.metrics.items()
        if name not in there or not _are_alike(there[name], value)
    }
    tags = {name: text for name, text in addition.tags.items() if run.data.tags.get(name) != text}
    return metrics, tags


def _are_alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _fill(
    server: Server,
    run: Run,
    content: schema.Content,
    folder: RecordFolder,
    record: AnyRecord,
    *,
    was_there: bool,
) -> None:
    """Log all that the record holds, end the run, and then say that it is whole.

    Everything may be sent twice: files and tags are overwritten, and the server keeps equal
    parameters and equal points once. The last value of a metric is that of the latest point: where
    somebody logged one after the record's, the record's value is logged once more after it.
    """
    run_id, now_ms = run.info.run_id, int(time.time() * 1000)
    repository = server.files(run.info.artifact_uri)
    for path, place in _files(folder.path):
        server.ask(repository.log_artifact, str(path), place)
    # by HTTP, where another service, or the page of a login, takes anything
    by_http = isinstance(repository, HttpArtifactRepository)
    if by_http and (missing := _missing_files(server, repository, folder)):
        why = f"{', '.join(missing)} not kept: another service {NOT_MLFLOW}"
        raise TrackingError(f"{public_uri(server.uri)}: {why}", denied=True)
    metrics = [
        Metric(schema.logged_name(p.key), p.value, int(p.unix_s * 1000), p.step)
        for p in content.metrics
    ]
    # MLflow's comparison of runs opens on the first
    metrics.sort(key=lambda metric: ("/" in metric.key, not metric.key.startswith("throughput_")))
    last = {metric.key: metric for metric in metrics}
    # its protocol's form takes no step of somebody else's between two
    for there in run.data._metric_objs:
        ours = last.get(there.key)
        if ours and (there.step, there.timestamp) > (ours.step, ours.timestamp):
            when_ms = max(now_ms, there.timestamp + 1)
            metrics.append(Metric(ours.key, ours.value, when_ms, there.step))
    for name in _strange_tags(run, content):
        server.ask(server.client.delete_tag, run_id, name)
    params = {key: text for key, text in content.params.items() if key not in run.data.params}
    server.log(run_id, metrics, params, content.tags if was_there else {})
    if (dataset := dataset_of(record)) is not None:
        server.ask(server.client.log_inputs, run_id, [dataset])
    server.end(run_id, content.status, end_ms(record))
    server.log(run_id, tags=schema.whole_tags())


def dataset_of(record: AnyRecord) -> DatasetInput | None:
    """Return the image folder that a run read, as MLflow's pages know one, by its files today.

    None for data that were made up, and where the folder is not on this machine. The digest is of
    the files' names and sizes.
    """
    config = getattr(record, "config", None)
    if config is None or not config.reads_images:
        return None
    try:
        images = images_by_class(config.data)
    except UserError:
        return None
    root = user_path(config.data)
    files = [(f"{file.relative_to(root)}", size) for of in images.values() for file, size in of]
    profile = {"classes": len(images), "images": len(files), "bytes": sum(s for _, s in files)}
    dataset = Dataset(
        name=root.resolve().name,
        digest=hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12],
        source_type="local",
        source=json.dumps({"uri": config.data}),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


def project_run(server: Server, run_id: str | None, record_id: str | None = None) -> Run | None:
    """Return the run of that id if `mlflow run` of this project made it and nothing fills it yet.

    A run that holds, or is to hold, the record `record_id` counts as free. `MLFLOW_RUN_ID` may
    name a run of any other program too; that one is nobody's here.
    """
    run = server.run(run_id) if run_id else None
    if run is None or run.info.lifecycle_stage != "active" or not of_this_project(run):
        return None
    tags = run.data.tags
    is_free = schema.KIND not in tags or tags.get(schema.RECORD_ID) == record_id is not None
    return run if is_free else None


def of_this_project(run: Run) -> bool:
    """Whether `mlflow run` made the run from this project's folder, or from where it was cloned.

    MLflow writes down the folder, `file://REPOSITORY#FOLDER` where it is under git, or the URI of
    the repository with `#FOLDER`, of which this folder is then a clone.
    """
    from mlflow.utils.git_utils import get_git_repo_url

    if run.data.tags.get("mlflow.source.type") != "PROJECT":
        return False
    source = CREDENTIALS.sub("", run.data.tags.get(_SOURCE, ""))
    base, _, below = source.partition("#")
    above = (folder for folder in (_PROJECT, *_PROJECT.parents) if (folder / ".git").exists())
    repository = next(above, None)
    if repository is not None and base == get_git_repo_url(str(repository)):
        return repository / below == _PROJECT
    folder = Path(base.removeprefix("file://"))
    return folder.is_absolute() and (folder / below).resolve() == _PROJECT


def end_refused_run(reason: str) -> None:
    """End the run that `mlflow run` made for a configuration which never became a measurement."""
    server = Server(answer_s=None)
    run = project_run(server, os.environ.get("MLFLOW_RUN_ID"))
    if run is not None:
        tags = {schema.REASON: reason[: schema.TAG_CHARACTERS], schema.OUTCOME: "refused"}
        server.log(run.info.run_id, tags=tags)
        server.end(run.info.run_id, "FAILED")


def log_report(folder: Path, *, name: str, tags: dict[str, str], run_id: str | None = None) -> str:
    """Make a finished run of kind `report` with the files of `folder` and return its id.

    A run of that `run_id`, or the one that `mlflow run` made for this process, is used if there is
    one. Raises `TrackingError`.
    """
    server = Server(answer_s=None)
    tags = {schema.KIND: "report", schema.RUN_NAME: name, **server.user_tag, **tags}
    if run_id is None and (made := project_run(server, os.environ.get("MLFLOW_RUN_ID"))):
        run_id = made.info.run_id
    if run_id is None:
        where = server.experiment_id()
        server.check_files(where)
        with server.errors():  # asked once: no record tells which of two runs is the report's
            run_id = server.client.create_run(where, run_name=name, tags=tags).info.run_id
    else:
        server.log(run_id, tags=tags)
    uri = server.ask(server.client.get_run, run_id).info.artifact_uri
    server.ask(server.files(uri).log_artifacts, str(folder), schema.REPORT_ARTIFACTS)
    server.end(run_id)
    return str(run_id)


def _files(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """The artifacts of a record with the folder of the run that each goes to.

    Links are left out: a folder that somebody else wrote must not name files of this machine. So
    are empty files: an HTTP client sends one without a length, which many proxies refuse.
    """
    for name in ARTIFACTS:
        if _is_filled(folder / name):
            yield folder / name, None
    for name in ARTIFACT_FOLDERS:
        for root, folders, files in os.walk(folder / name, onerror=None):
            folders[:] = sorted(name for name in folders if not Path(root, name).is_symlink())
            for file in sorted(files):
                if _is_filled(Path(root, file)) and not (folder / name).is_symlink():
                    yield Path(root, file), Path(root).relative_to(folder).as_posix()


def _is_filled(path: Path) -> bool:
    return _is_plain(path) and path.stat().st_size > 0


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


@contextmanager
def uploading(folder: RecordFolder, wait_s: float) -> Iterator[None]:
    """Hold the folder against other uploads of it; the system frees it if this process dies.

    Raises `LockedError` where another process still holds it after `wait_s`.
    """
    path = folder.path / ".uploading.lock"
    if path.is_symlink():
        raise LockedError(f"{path} is a link: remove it", away=False)
    try:
        held = FileLock(path).acquire(timeout=wait_s)
    except Timeout:
        raise LockedError(f"another process is uploading {folder.path.name}", away=False) from None
    with held:
        yield
