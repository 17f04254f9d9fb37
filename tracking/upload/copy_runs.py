"""This project's runs from one store to another: records fetched from there, and uploaded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, ParamSpec, TypeVar

from mlflow.entities import Run
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from bench.errors import UserError
from bench.records.folders import AnyRecord, RecordFolder
from tracking import schema
from tracking.content import content_of
from tracking.matching_runs import is_whole, runs_of_records
from tracking.reading.pages import all_experiments, all_runs, matching
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.store import (
    experiment_named,
    is_embedded,
    is_unmade,
    open_client,
    public_uri,
    server_errors,
    settings_uri,
    sqlite_file,
)
from tracking.upload.upload import ARTIFACT_FOLDERS, ARTIFACTS, upload

#: Facts of the copy, which its own upload sets.
_OF_EACH_COPY = (schema.UPLOADED, schema.UPLOADED_AT, schema.TIMED_RUN_ID)

P = ParamSpec("P")
T = TypeVar("T")
State = Literal["copied", "there already"]


class _Store(RetryPolicy):
    """One of the two stores, asked as a server that may be away; failures carry its name."""

    def __init__(self, uri: str) -> None:
        super().__init__(AWAY_LIMIT_S, ANSWER_LIMIT_S)
        self._uri = uri
        with server_errors(uri):
            self.client = open_client(uri)

    def __call__(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with server_errors(self._uri):
            return super().__call__(ask, *args, **kwargs)


class Copier:
    """Copies this project's runs from the store `source` to `target`, which are tracking URIs.

    What a run carries beside its record, such as a user's tags, is copied too, and the experiment
    keeps its name. Raises `TrackingError`.
    """

    def __init__(self, source: str, target: str) -> None:
        self._source, self._target = source, target
        self._from, self._to = _Store(source), _Store(target)
        self._names: dict[str, str] = {}  # experiment: source id -> name
        self._experiments: dict[str, str] = {}  # name -> target id
        self._there: dict[str, list[Run]] = {}
        self._copied: set[str] = set()  # record ids

    def runs(self, filter_string: str = "") -> list[Run]:
        """Return the source's runs that match and hold a whole record, oldest first."""
        store = self._from
        experiments = all_experiments(store.client, store)
        self._names = {each.experiment_id: each.name for each in experiments}
        wanted = matching(f"tags.`{schema.UPLOADED}` = 'true'", filter_string)
        found = list(all_runs(store.client, store, list(self._names), wanted))
        ids = [run.data.tags.get(schema.RECORD_ID, "") for run in found]
        self._there = runs_of_records(self._to.client, self._to, ids)
        return found[::-1]

    def copy(self, run: Run) -> State:
        """Copy one run unless the target has its record; a copy that was cut is completed.

        Raises `UserError` where the run does not hold its record, or holds it where this machine
        must not read for a store of somebody else.
        """
        record_id = run.data.tags.get(schema.RECORD_ID, "")
        there = self._there.get(record_id, ())
        whole = any(is_whole(each) and each.info.status != "RUNNING" for each in there)
        if whole or record_id in self._copied:
            return "there already"
        with tempfile.TemporaryDirectory() as place:
            folder = RecordFolder(Path(place))
            self._fetch(run, folder.path)
            record = folder.read_record()
            if record is None or record.record_id != record_id:
                raise UserError(f"its record.json is not the record {record_id[:80]!r}")
            upload(
                folder,
                record,
                self._target,
                ask=RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S),
                place=lambda *_: _beside(run, record),
                experiment=self._experiment(self._names[run.info.experiment_id]),
            )
        self._copied.add(record_id)
        return "copied"

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            self._experiments[name] = self._to(experiment_named, self._to.client, name)
        return self._experiments[name]

    def _fetch(self, run: Run, place: Path) -> None:
        """Copy the files of a record from the run to `place`."""
        server = self._from.client.tracking_uri
        uri = run.info.artifact_uri
        repository: ArtifactRepository = self._from(
            get_artifact_repository, uri, tracking_uri=server
        )
        with repository.thread_pool:  # its threads would stay until the collector comes
            for path in self._files(repository):
                self._check_readable(repository, path)
                self._from(repository.download_artifacts, path, str(place))

    def _files(self, repository: ArtifactRepository, below: str | None = None) -> Iterator[str]:
        for each in self._from(repository.list_artifacts, below):
            inside = PurePosixPath(each.path)
            if inside.is_absolute() or ".." in inside.parts or "\\" in each.path:
                raise UserError(f"artifact {each.path!r}: a name that leads out of its run")
            if below is None and each.path not in (ARTIFACT_FOLDERS if each.is_dir else ARTIFACTS):
                continue
            if each.is_dir:
                yield from self._files(repository, each.path)
            else:
                yield each.path

    def _check_readable(self, repository: ArtifactRepository, path: str) -> None:
        """Refuse a file of this machine that the store names and that does not lie with it.

        Whoever made the store chose the names; through it any file could be sent to the target.
        The store of MLflow's own settings is the user's.
        """
        if public_uri(self._source) == public_uri():
            return
        if not isinstance(repository, LocalArtifactRepository):
            if not is_embedded(self._source):
                return
        elif (store := sqlite_file(self._source)) is not None:
            file = Path(repository.artifact_dir, path).resolve()
            beside = store.resolve().parent
            if any(file.is_relative_to(beside / name) for name in ("mlruns", "mlartifacts")):
                return
        raise UserError(
            f"artifacts in {repository.artifact_uri[:200]!r}: of this store only those in mlruns "
            "or mlartifacts beside its file are read; or give its server with --from"
        )


def source_uri(given: str | None, target: str | None) -> str:
    """Return the store to copy from; `given` None: the one that MLflow's settings name.

    Raises `UserError` for an embedded store that does not exist, which MLflow would make by being
    asked, and for the target itself.
    """
    uri = given or settings_uri()
    name = public_uri(uri)
    if is_unmade(uri):
        raise UserError(f"from={name!r}: no such store; give the one to copy from with --from")
    if name == public_uri(target):
        raise UserError(f"from={name!r}: the same store as the one to copy to; give another")
    return uri


def _beside(run: Run, record: AnyRecord) -> schema.Addition:
    """What the run carries beside its record: its place under a roof, and a user's own."""
    content = content_of(record)
    own = {point.key for point in content.metrics}
    metrics = {name: value for name, value in run.data.metrics.items() if name not in own}
    left = {*content.tags, *_OF_EACH_COPY}
    tags = {
        name: text
        for name, text in run.data.tags.items()
        if name not in left and not name.startswith("mlflow.")
    }
    return schema.Addition(metrics, tags)
