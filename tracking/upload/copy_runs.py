"""This project's runs from one store to another: records fetched from there, and uploaded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

from mlflow.entities import Run
from mlflow.store.artifact.artifact_repo import ArtifactRepository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from bench.errors import UserError
from bench.records.folders import AnyRecord, RecordFolder
from tracking import schema
from tracking.connection import Server
from tracking.content import content_of
from tracking.store import is_embedded, is_unmade, public_uri, settings_uri, sqlite_file
from tracking.upload.upload import ARTIFACT_FOLDERS, ARTIFACTS, upload

#: Facts of the copy, which its own upload sets.
_OF_EACH_COPY = (schema.UPLOADED, schema.UPLOADED_AT, schema.TIMED_RUN_ID)
State = Literal["copied", "there already"]


class Copier:
    """Copies runs from `source` to `target`, URIs. Raises `TrackingError` with the store's name."""

    def __init__(self, source: str, target: str) -> None:
        self._from, self._to = Server(source), Server(target)
        self._named = cache(self._to.experiment_named)
        self._there: set[str] = set()  # record ids

    def runs(self, filter_string: str = "") -> list[Run]:
        """Return the source's runs that match and hold a whole record, oldest first."""
        wanted = schema.matching(f"tags.`{schema.UPLOADED}` = 'true'", filter_string)
        runs = list(self._from.search(wanted))
        held = self._to.runs_of(run.data.tags.get(schema.RECORD_ID, "") for run in runs)
        self._there |= {record_id for record_id, (run, *_) in held.items() if _is_there(run)}
        return runs[::-1]

    def copy(self, run: Run) -> State:
        """Copy one run unless the target has its record; a copy that was cut is completed.

        Raises `UserError` where the run does not hold its record, or holds it where this machine
        must not read for a store of somebody else.
        """
        record_id = run.data.tags.get(schema.RECORD_ID, "")
        if record_id in self._there:
            return "there already"
        names = {experiment.experiment_id: experiment.name for experiment in self._from.experiments}
        with tempfile.TemporaryDirectory() as place:
            folder = RecordFolder(Path(place))
            repository = self._from.files(run.info.artifact_uri)
            with repository.thread_pool:  # its threads would stay until the collector comes
                for path in self._files(repository):
                    self._check_readable(repository, path)
                    self._from.ask(repository.download_artifacts, path, place)
            record = folder.read_record()
            if record is None or record.record_id != record_id:
                raise UserError(f"its record.json is not the record {record_id[:80]!r}")
            where = self._named(names[run.info.experiment_id])
            beside = _beside(run, record)
            upload(folder, record, self._to, place=lambda *_: beside, experiment=where)
        self._there.add(record_id)
        return "copied"

    def _files(self, repository: ArtifactRepository, below: str | None = None) -> Iterator[str]:
        for file in self._from.ask(repository.list_artifacts, below):
            inside = PurePosixPath(file.path)
            if inside.is_absolute() or ".." in inside.parts or "\\" in file.path:
                raise UserError(f"artifact {file.path!r}: a name that leads out of its run")
            if below is None and file.path not in (ARTIFACT_FOLDERS if file.is_dir else ARTIFACTS):
                continue
            if file.is_dir:
                yield from self._files(repository, file.path)
            else:
                yield file.path

    def _check_readable(self, repository: ArtifactRepository, path: str) -> None:
        """Refuse a file of this machine that the store names and that does not lie with it.

        The store's maker chose the names; through them any file could be sent to the target.
        The store of MLflow's own settings is the user's.
        """
        source = self._from.uri
        if public_uri(source) == public_uri():
            return
        if not isinstance(repository, LocalArtifactRepository):
            if not is_embedded(source):
                return
        elif (store := sqlite_file(source)) is not None:
            file = Path(repository.artifact_dir, path).resolve()
            beside = store.resolve().parent
            if any(file.is_relative_to(beside / name) for name in ("mlruns", "mlartifacts")):
                return
        raise UserError(
            f"artifacts in {repository.artifact_uri[:200]!r}: of this store only those in mlruns "
            "or mlartifacts beside its file are read; or give its server with --from"
        )


def _is_there(run: Run) -> bool:
    return schema.is_whole(run) and not schema.is_deleted(run)


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
    there = schema.plain_metrics(run.data.metrics)
    metrics = {name: value for name, value in there.items() if name not in own}
    left = {*content.tags, *_OF_EACH_COPY}
    tags = {
        name: text
        for name, text in run.data.tags.items()
        if name not in left and (name == schema.USER or not name.startswith("mlflow."))
    }
    return schema.Addition(metrics, tags)
