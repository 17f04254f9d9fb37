"""Runs from one store to another: each once, with its own times, and again where it was cut."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

import mlflow
from filelock import FileLock
from mlflow.entities import Metric, Run
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from bench.errors import UserError
from bench.records.folders import cache_folder
from tracking import schema
from tracking.matching_runs import (
    COPY,
    RECORD,
    all_experiments,
    all_runs,
    chosen_run,
    is_whole,
    make_run,
    run_by_id,
)
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.store import experiment_named, open_client, public_uri, server_errors
from tracking.upload.owner import owner_tags
from tracking.upload.upload import log_all

_PARENT = "mlflow.parentRunId"
#: Of the copy, not of the run: set when it is whole, or by the process that makes it.
_OWN_TAGS = frozenset(
    (
        schema.UPLOADED,
        schema.UPLOADED_AT,
        schema.COPIED,
        schema.COPIED_FROM,
        schema.HOST,
        schema.PROCESS,
    )
)

State = Literal["copied", "there already", "still running"]


@dataclass
class Copier:
    """Copies runs from the store `source` to the store `target`, which are tracking URIs.

    Params, metrics with steps and times, tags, dataset inputs, artifacts, status, times, names and
    the experiment, by name; not models, versions or traces. Raises `TrackingError`.
    """

    source: str
    target: str
    _experiments: dict[str, str] = field(default_factory=dict)  # name -> target id
    _names: dict[str, str] = field(default_factory=dict)  # source id -> name

    def __post_init__(self) -> None:
        with server_errors(self.source):
            self._from = open_client(self.source)
            self._asking = RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
        with server_errors(self.target):
            self._to = open_client(self.target)
            self._sending = RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)

    def runs(self, filter_string: str = "") -> list[Run]:
        """Return the source's active runs that match: parents before children, then by age."""
        with server_errors(self.source):
            experiments = all_experiments(self._from, self._asking)
            self._names = {each.experiment_id: each.name for each in experiments}
            found = list(all_runs(self._from, self._asking, list(self._names), filter_string))
        return _parents_first(found)

    def copy(self, run: Run) -> State:
        """Copy one run unless the target has it; a copy that was cut is completed."""
        if run.info.status in ("RUNNING", "SCHEDULED"):
            return "still running"
        with _alone(self.target):
            there = self._there(run)
            if there is not None and _finished(there, run):
                return "there already"
            with server_errors(self.target):
                there = there or self._made(run)
            self._fill(there, run)
        return "copied"

    def _there(self, run: Run) -> Run | None:
        """The target's run that holds this one, or is to hold it."""
        with server_errors(self.target):
            origin = _origin(run)
            if origin != run.info.run_id and (home := run_by_id(self._to, self._sending, origin)):
                return home
            record_id = run.data.tags.get(schema.RECORD_ID)
            if record_id and is_whole(run):
                held = chosen_run(self._to, self._sending, RECORD, record_id)
                if held is not None:
                    return held
            return chosen_run(self._to, self._sending, COPY, origin)

    def _made(self, run: Run) -> Run:
        name = self._names[run.info.experiment_id]
        if name not in self._experiments:
            self._experiments[name] = self._sending(experiment_named, self._to, name)
        tags = {COPY.tag: _origin(run), **owner_tags()}
        if record_id := run.data.tags.get(schema.RECORD_ID):
            tags[schema.RECORD_ID] = record_id
        made = make_run(
            *(self._to, self._sending, self._experiments[name], COPY, tags),
            name=run.info.run_name,
            start_ms=run.info.start_time,
        )
        return chosen_run(self._to, self._sending, COPY, _origin(run)) or made

    def _fill(self, there: Run, run: Run) -> None:
        run_id, send = there.info.run_id, self._sending
        self._copy_artifacts(run, there)
        for key in run.data.metrics:
            with server_errors(self.source):
                history = self._asking(self._from.get_metric_history, run.info.run_id, key)
            points = [Metric(key, each.value, each.timestamp, each.step) for each in history]
            with server_errors(self.target):
                log_all(self._to, send, run_id, points)
        held = there.data.params
        params = {name: text for name, text in run.data.params.items() if name not in held}
        tags = self._tags(run)
        last = {schema.COPIED: "true", schema.COPIED_FROM: _origin(run)}
        if is_whole(run):
            last |= schema.whole_tags()
        with server_errors(self.target):
            log_all(self._to, send, run_id, params=params, tags=tags)
            if run.inputs is not None and run.inputs.dataset_inputs:
                send(self._to.log_inputs, run_id, run.inputs.dataset_inputs)
            log_all(self._to, send, run_id, tags=last)
            send(self._to.set_terminated, run_id, run.info.status, end_time=run.info.end_time)

    def _tags(self, run: Run) -> dict[str, str]:
        tags = {name: text for name, text in run.data.tags.items() if name not in _OWN_TAGS}
        if parent := tags.get(_PARENT):
            with server_errors(self.target):
                copied = chosen_run(self._to, self._sending, COPY, parent)
            tags[_PARENT] = copied.info.run_id if copied else parent
        return tags

    def _copy_artifacts(self, run: Run, there: Run) -> None:
        with server_errors(self.target):
            to = get_artifact_repository(
                there.info.artifact_uri, tracking_uri=self._to.tracking_uri
            )
        with tempfile.TemporaryDirectory() as folder:
            for number, path in enumerate(self._artifacts(run.info.run_id)):
                here = Path(folder, str(number))
                here.mkdir()
                with server_errors(self.source):
                    local = self._asking(
                        self._from.download_artifacts, run.info.run_id, path, str(here)
                    )
                place = str(PurePosixPath(path).parent)
                with server_errors(self.target):
                    self._sending(to.log_artifact, local, None if place == "." else place)
                Path(local).unlink()

    def _artifacts(self, run_id: str, folder: str | None = None) -> Iterator[str]:
        with server_errors(self.source):
            listed = self._asking(self._from.list_artifacts, run_id, folder)
        for each in listed:
            _check_inside(each.path)
            if each.is_dir:
                yield from self._artifacts(run_id, each.path)
            else:
                yield each.path


def source_uri(given: str | None, target: str | None) -> str:
    """Return the store to copy from; `given` None: the one that MLflow's settings name.

    Raises `UserError` for an embedded store that does not exist, which MLflow would make by being
    asked, and for the target itself.
    """
    uri = given or settings_uri()
    name = public_uri(uri)
    if name.startswith("sqlite:///") and not Path(name.removeprefix("sqlite:///")).exists():
        raise UserError(f"from={name!r}: no such store; give the one to copy from with --from")
    if name == public_uri(target):
        raise UserError(f"from={name!r}: the same store as the one to copy to; give another")
    return uri


def settings_uri() -> str:
    """Return the tracking URI that MLflow's settings name."""
    return str(mlflow.get_tracking_uri())


def _parents_first(runs: list[Run]) -> list[Run]:
    parents = {run.info.run_id: run.data.tags.get(_PARENT) for run in runs}

    def depth(run_id: str) -> int:
        seen: list[str] = []
        above = parents.get(run_id)
        while above is not None and above in parents and above not in seen:
            seen.append(above)
            above = parents[above]
        return len(seen)

    return sorted(runs, key=lambda run: (depth(run.info.run_id), run.info.start_time))


def _origin(run: Run) -> str:
    """The run's id in the store where it was first tracked."""
    return str(run.data.tags.get(schema.COPIED_FROM, run.info.run_id))


def _finished(there: Run, run: Run) -> bool:
    """Whether the target's run holds all of it, and has ended."""
    if there.info.status == "RUNNING":
        return False
    own = there.info.run_id == _origin(run)
    return own or is_whole(there, COPY) or (is_whole(there) and is_whole(run))


def _check_inside(path: str) -> None:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\\" in path:
        raise UserError(f"artifact {path!r}: a name that leads out of its run; nothing was copied")


@contextmanager
def _alone(target: str) -> Iterator[None]:
    """Hold the target against other copies from this machine."""
    name = hashlib.sha256(public_uri(target).encode()).hexdigest()[:16]
    path = cache_folder() / "locks" / f"copy-{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path):
        yield
