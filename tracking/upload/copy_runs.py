"""Runs from one store to another: each once, with its own times, and again where it was cut."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal, ParamSpec, TypeVar

from filelock import FileLock
from mlflow.entities import Metric, Run
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from bench.errors import UserError
from bench.records.folders import cache_folder
from tracking import schema
from tracking.matching_runs import (
    COPY,
    RECORD,
    chosen_run,
    is_whole,
    make_run,
    run_by_id,
)
from tracking.reading.pages import all_experiments, all_runs
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.store import (
    experiment_named,
    is_unmade,
    open_client,
    public_uri,
    server_errors,
    settings_uri,
)
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

P = ParamSpec("P")
T = TypeVar("T")
State = Literal["copied", "there already", "still running"]


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
    """Copies runs from the store `source` to the store `target`, which are tracking URIs.

    Params, metrics with steps and times, tags, dataset inputs, artifacts, status, times, names and
    the experiment, by name; not models, versions or traces. Raises `TrackingError`.
    """

    def __init__(self, source: str, target: str) -> None:
        self._target = target
        self._from, self._to = _Store(source), _Store(target)
        self._experiments: dict[str, str] = {}  # name -> target id
        self._names: dict[str, str] = {}  # source id -> name

    def runs(self, filter_string: str = "") -> list[Run]:
        """Return the source's active runs that match: parents before children, then by age.

        Not those that sum up repeats: a report of the target's own makes these.
        """
        store = self._from
        experiments = all_experiments(store.client, store)
        self._names = {each.experiment_id: each.name for each in experiments}
        found = all_runs(store.client, store, list(self._names), filter_string)
        kinds = ((run, run.data.tags.get(schema.KIND)) for run in found)
        return _parents_first([run for run, kind in kinds if kind != schema.SUMMARY])

    def copy(self, run: Run) -> State:
        """Copy one run unless the target has it; a copy that was cut is completed."""
        if run.info.status in ("RUNNING", "SCHEDULED"):
            return "still running"
        with _alone(self._target):
            there = self._there(run)
            if there is not None and _finished(there, run):
                return "there already"
            self._fill(there or self._made(run), run)
        return "copied"

    def _there(self, run: Run) -> Run | None:
        """The target's run that holds this one, or is to hold it."""
        store, origin = self._to, _origin(run)
        if origin != run.info.run_id and (home := run_by_id(store.client, store, origin)):
            return home
        record_id = run.data.tags.get(schema.RECORD_ID)
        if record_id and is_whole(run):
            held = chosen_run(store.client, store, RECORD, record_id)
            if held is not None:
                return held
        return self._copy_of(origin)

    def _copy_of(self, origin: str) -> Run | None:
        return chosen_run(self._to.client, self._to, COPY, origin)

    def _made(self, run: Run) -> Run:
        store, name = self._to, self._names[run.info.experiment_id]
        if name not in self._experiments:
            self._experiments[name] = store(experiment_named, store.client, name)
        tags = {COPY.tag: _origin(run), **owner_tags()}
        if record_id := run.data.tags.get(schema.RECORD_ID):
            tags[schema.RECORD_ID] = record_id
        made = make_run(
            *(store.client, store, self._experiments[name], COPY, tags),
            name=run.info.run_name,
            start_ms=run.info.start_time,
        )
        return self._copy_of(_origin(run)) or made

    def _fill(self, there: Run, run: Run) -> None:
        run_id, store, client = there.info.run_id, self._to, self._to.client
        self._copy_artifacts(run, there)
        for key in run.data.metrics:
            history = self._from(self._from.client.get_metric_history, run.info.run_id, key)
            points = [Metric(key, each.value, each.timestamp, each.step) for each in history]
            log_all(client, store, run_id, points)
        held = there.data.params
        params = {name: text for name, text in run.data.params.items() if name not in held}
        log_all(client, store, run_id, params=params, tags=self._tags(run))
        if run.inputs is not None and run.inputs.dataset_inputs:
            store(client.log_inputs, run_id, run.inputs.dataset_inputs)
        last = {schema.COPIED: "true", schema.COPIED_FROM: _origin(run)}
        if is_whole(run):
            last |= schema.whole_tags()
        log_all(client, store, run_id, tags=last)
        store(client.set_terminated, run_id, run.info.status, end_time=run.info.end_time)

    def _tags(self, run: Run) -> dict[str, str]:
        tags = {name: text for name, text in run.data.tags.items() if name not in _OWN_TAGS}
        if parent := tags.get(_PARENT):
            copied = self._copy_of(parent)
            tags[_PARENT] = copied.info.run_id if copied else parent
        return tags

    def _copy_artifacts(self, run: Run, there: Run) -> None:
        uri, fetch = there.info.artifact_uri, self._from.client.download_artifacts
        server = self._to.client.tracking_uri
        to = self._to(get_artifact_repository, uri, tracking_uri=server)
        with tempfile.TemporaryDirectory() as folder:
            for number, path in enumerate(self._artifacts(run.info.run_id)):
                here = Path(folder, str(number))
                here.mkdir()
                local = self._from(fetch, run.info.run_id, path, str(here))
                place = str(PurePosixPath(path).parent)
                self._to(to.log_artifact, local, None if place == "." else place)
                Path(local).unlink()

    def _artifacts(self, run_id: str, folder: str | None = None) -> Iterator[str]:
        for each in self._from(self._from.client.list_artifacts, run_id, folder):
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
    if is_unmade(uri):
        raise UserError(f"from={name!r}: no such store; give the one to copy from with --from")
    if name == public_uri(target):
        raise UserError(f"from={name!r}: the same store as the one to copy to; give another")
    return uri


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
