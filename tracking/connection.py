"""The tracking server of MLflow's settings: asked again while it is away, given up on in seconds.

`Server` is the only holder of MLflow's client, which is imported by the first call that needs it:
an embedded store is read without. MLflow asks again by itself, for four minutes by
default; its own repeats are off unless the user has set them.
"""

from __future__ import annotations

import gc
import getpass
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import groupby
from os.path import commonprefix
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from bench.errors import Problem, UserError, one_line
from bench.records.journal import Clock
from tracking import schema
from tracking.embedded import ACTIVE, ALL, DELETED, EmbeddedReader, conditions
from tracking.store import (
    is_broken,
    is_embedded,
    is_folder,
    is_servers_folder,
    is_unmade,
    local_path,
    open_store,
    place_of_files,
    public_uri,
    settings_uri,
    sqlite_file,
)

if TYPE_CHECKING:
    from mlflow.entities import Experiment, Metric, Run
    from mlflow.store.artifact.artifact_repo import ArtifactRepository
    from mlflow.tracking import MlflowClient

P = ParamSpec("P")
T = TypeVar("T")
#: After a measurement somebody waits for the prompt: MLflow's import and this stay below 10 s.
AWAY_LIMIT_S = 5.0
#: How long a request of a command that does nothing else may wait for a server at work.
ANSWER_LIMIT_S = 60.0
_FIRST_PAUSE_S = 0.2
_MAX_PAUSE_S = 2.0
_TIMEOUT = "MLFLOW_HTTP_REQUEST_TIMEOUT"
#: MLflow reads them at each request. A bar per file and a link per run would bury what a command
#: says, and the link costs a request.
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
#: A first contact with an SQLite file prints a line per schema migration, a damaged one tracebacks.
for _noisy in ("mlflow.store.db.utils", "alembic", "alembic.runtime.migration"):
    logging.getLogger(_noisy).setLevel(logging.CRITICAL)
#: Runs at a time: a server builds a page in memory, and within the time that an answer may take.
_PAGE = 1000
#: Ids in one filter; MLflow parses longer ones slowly.
_IDS_AT_ONCE = 100
#: Record ids begin with their day, as in 20261120T104500Z-1f2e3d4c.
_DAY_CHARACTERS = 8


class TrackingError(Exception):
    """The server could not be used; the message is one line and holds no credentials.

    `away`: whether it can be used for nothing now, as opposed to having refused this one thing.
    `denied`: whether something must be mended first, such as credentials, address or proxy.
    `code`: MLflow's own.
    """

    def __init__(
        self, message: str, *, away: bool = True, denied: bool = False, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.away, self.denied, self.code = away, denied, code


class Server:
    """A tracking server, or an embedded store, that may be away for a while.

    `uri` None: that of MLflow's settings. `patience_s`: for how long it may be away; an answer
    starts that time again, so a slow server that gets on is never cut off. `answer_s`: how long one
    request may wait, None: for what is left of the patience. `must_exist`: an embedded store that
    is not there is refused, where MLflow would make it. Every method raises `TrackingError`.
    """

    _told: str | None = None

    def __init__(
        self,
        uri: str | None = None,
        patience_s: float = AWAY_LIMIT_S,
        answer_s: float | None = ANSWER_LIMIT_S,
        *,
        must_exist: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self.uri = uri or settings_uri()
        self.patience_s = patience_s
        self._answer_s = answer_s
        self._must_exist = must_exist
        self._clock = clock
        self._answered_s = clock()
        self._shared: dict[str, bool] = {}  # by experiment
        for name, text in _SETTINGS.items():
            os.environ.setdefault(name, text)

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's own client. Raises `UserError` for a store that must exist and does not."""
        self._check_exists()
        with self.errors():
            from mlflow.tracking import MlflowClient

            if is_embedded(self.uri):
                open_store(self.uri)
            return MlflowClient(tracking_uri=self.uri)

    @cached_property
    def _reader(self) -> EmbeddedReader | None:
        """What reads an embedded store faster than MLflow's client, if it can read this one."""
        self._check_exists()
        with self.errors():
            return EmbeddedReader.of(self.uri)

    def _check_exists(self) -> None:
        file = sqlite_file(self.uri)
        if self._must_exist and file is not None and not file.exists():
            raise UserError(
                f"{file.absolute().parent} has no {file.name}, so no runs are tracked there: go to "
                "the folder that they were measured in, name a server with MLFLOW_TRACKING_URI, or "
                "measure one with mlproject run"
            )

    def ask(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `call` returns, asked again while the server is away."""
        pause_s = _FIRST_PAUSE_S
        while True:
            left_s = self.patience_s - (self._clock() - self._answered_s)
            if os.environ.get(_TIMEOUT) in (None, Server._told):  # not the user's
                seconds = max(1, math.ceil(self._answer_s or left_s))
                Server._told = os.environ[_TIMEOUT] = str(seconds)
            try:
                with self.errors():
                    answer = call(*args, **kwargs)
            except TrackingError as error:
                away_s = self._clock() - self._answered_s + pause_s
                if not error.away or error.denied or away_s >= self.patience_s:
                    raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                continue
            self._answered_s = self._clock()
            return answer

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn all that a server, its database or the way there can do into `TrackingError`."""
        try:
            yield
        except (UserError, TrackingError):
            raise
        except Exception as error:
            from tracking.failures import Failure, failure_of  # imports what answers by HTTP

            failure, file = failure_of(error, self.uri), sqlite_file(self.uri)
            if file is not None and is_broken(file, error):
                why = (failure.line if failure else one_line(error))[:120]
                line = f"the store is damaged or unfinished ({why}); the records hold everything"
                failure = Failure(f"{line}: move {file.name} away, then mlproject sync", away=True)
            if failure is None:
                raise
            raise TrackingError(
                f"{public_uri(self.uri)}: {failure.line}"[:400],
                away=failure.away,
                denied=failure.denied,
                code=getattr(error, "error_code", None),
            ) from error

    @cached_property
    def user_tag(self) -> dict[str, str]:
        """The tag of who makes a run: what `MLPROJECT_USER` says, empty: nothing.

        Without that variable it is the login at a server, else the user of this system.
        """
        name = os.environ.get("MLPROJECT_USER")
        if name is None and not is_embedded(self.uri):
            from mlflow.utils.credentials import read_mlflow_creds

            name = read_mlflow_creds().username
        if name is None:
            with suppress(OSError, KeyError, ImportError):  # a container's number without a name
                name = getpass.getuser()
        return {schema.USER: name} if name else {}

    @cached_property
    def experiments(self) -> list[Experiment]:
        """Every active experiment, asked for once."""
        if self._reader is not None:
            return self.ask(self._reader.experiments)
        experiments: list[Experiment] = []
        token: str | None = None
        while True:
            page = self.ask(self.client.search_experiments, max_results=_PAGE, page_token=token)
            experiments += page
            if not (token := page.token):
                break
        if not experiments:  # so reads `{}` too, which another service may say
            default = "refused by MLflow"
            with suppress(TrackingError):
                default = self.ask(self.client.get_experiment, "0").experiment_id
            self.named(default)
        return experiments

    def named(self, name: str) -> str:
        """Return the name of what was made or asked for; an answer without one is not MLflow's."""
        if not name:
            from tracking.failures import NOT_MLFLOW

            raise TrackingError(
                f"{public_uri(self.uri)}: another service {NOT_MLFLOW}", denied=True
            )
        return name

    def experiment_id(self) -> str:
        """Return the experiment that MLflow's variables name, made if new; else MLflow's default.

        The same experiment that `mlflow run` uses, so that runs started either way stand together.
        Variables that name two experiments are refused, as by MLflow.
        """
        given, name = (os.environ.get(f"MLFLOW_EXPERIMENT_{part}") for part in ("ID", "NAME"))
        if given and name and self.ask(self.client.get_experiment, given).name != name:
            raise TrackingError(
                f"MLFLOW_EXPERIMENT_ID={given!r}, MLFLOW_EXPERIMENT_NAME={name!r}: two "
                "experiments; unset one"
            )
        return given or (self.experiment_named(name) if name else "0")

    def mark(self, experiment_id: str, *, rewrite: bool = False) -> None:
        """Mark an experiment for MLflow's pages as model training, unless somebody chose another.

        `rewrite` also writes what is there, which shows whether these credentials may write.
        """
        key, kind = schema.EXPERIMENT_KIND
        known = (e.tags for e in self.experiments if e.experiment_id == experiment_id)
        tags = next(known, {})
        if rewrite or key not in tags:
            self.ask(self.client.set_experiment_tag, experiment_id, key, tags.get(key, kind))
            vars(self).pop("experiments")
        self.check_files(experiment_id)

    def has_experiment(self) -> bool:
        """Whether the experiment that a name in MLflow's variables asks for is there already."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        return not name or any(experiment.name == name for experiment in self.experiments)

    def check_files(self, experiment_id: str) -> None:
        """Refuse an experiment whose files would stay on this machine, where no other sees them.

        Its files lie in a folder, and the server is on another machine. A deleted run of our own
        shows it: the server must list what this machine writes there.
        """
        [*found] = (e for e in self.experiments if e.experiment_id == experiment_id)
        if not found or not is_servers_folder(self.uri, found[0].artifact_location):
            return
        if experiment_id not in self._shared:
            from tracking.files import ServersFolder

            ours = f"tags.`{schema.TRIAL}` = 'true'"
            trial = next(self.search(ours, [experiment_id], stage=DELETED), None)
            if trial is None:
                tags = {schema.TRIAL: "true"}
                trial = self.ask(self.client.create_run, experiment_id, tags=tags)
                self.end(trial.info.run_id)
                self.ask(self.client.delete_run, trial.info.run_id)
            with self.errors():
                folder = ServersFolder(trial.info.artifact_uri, self.uri)
                self._shared[experiment_id] = folder.is_shared()
        if not self._shared[experiment_id]:
            raise TrackingError(
                f"{public_uri(self.uri)}: the experiment {found[0].name!r} keeps its files in a "
                f"folder of the server's machine, {found[0].artifact_location}: take a new one by "
                "MLFLOW_EXPERIMENT_NAME, on a server with --artifacts-destination",
                denied=True,
            )

    def experiment_named(self, name: str) -> str:
        """Return the id of the experiment of that name, made by the first process if new."""
        experiment = self.ask(self.client.get_experiment_by_name, name)
        if experiment is None:
            vars(self).pop("experiments", None)
            try:
                return str(self.ask(self.client.create_experiment, name))
            except TrackingError as error:
                if error.code != "RESOURCE_ALREADY_EXISTS":
                    raise
                return self.experiment_named(name)
        return str(experiment.experiment_id)

    def search(
        self,
        wanted: str = "",
        experiments: Sequence[str] | None = None,
        *,
        stage: int = ACTIVE,
    ) -> Iterator[Run]:
        """Yield every run of these experiments, None: all, that matches, once, newest start first.

        A page begins at the start time where the one before ended. MLflow's own tokens count runs
        from the newest: for each page the server sorts those before it again, and where one of them
        was deleted since, the page leaves out another. They serve where more runs than a page holds
        began in one millisecond.
        """
        where = [*experiments] if experiments else [e.experiment_id for e in self.experiments]
        found = conditions(wanted) if all(map(str.isdecimal, where)) else None
        if self._reader is not None and found is not None:
            ids = self.ask(self._reader.run_ids, where, found, stage)
            for start in range(0, len(ids), _PAGE):
                with paused_collector():
                    runs = self.ask(self._reader.runs, ids[start : start + _PAGE])
                yield from runs
            return
        selection, edge_ms, token = wanted, None, None
        at_edge: set[str] = set()
        while True:
            with paused_collector():
                page = self.ask(
                    self.client.search_runs,
                    where,
                    selection,
                    run_view_type=stage,
                    max_results=_PAGE,
                    page_token=token,
                )
            yield from (run for run in page if run.info.run_id not in at_edge)
            if not page.token:
                return
            last_ms = page[-1].info.start_time if page else edge_ms
            if last_ms == edge_ms:
                token = page.token
            else:
                edge_ms, token, at_edge = last_ms, None, set()
                selection = schema.matching(wanted, f"attributes.start_time <= {edge_ms}")
            at_edge |= {run.info.run_id for run in page if run.info.start_time == edge_ms}

    def runs(self, run_ids: Sequence[str]) -> Iterator[Run]:
        """Yield the active runs of these ids."""
        for start in range(0, len(run_ids), _IDS_AT_ONCE):
            ids = ", ".join(f"'{run_id}'" for run_id in run_ids[start : start + _IDS_AT_ONCE])
            yield from self.search(f"attributes.run_id IN ({ids})")

    def runs_of(self, record_ids: Iterable[str]) -> dict[str, list[Run]]:
        """Return the runs of these records by record id, the one that counts first.

        That is a whole one, else the one whose id sorts first: every process decides alike. Of a
        record without an active run it is a whole one that somebody deleted and may restore. There
        is a search for each hundred of a day: MLflow's filter knows no list of tags, so what begins
        as they do is asked for. A quote in an id would end the filter's string, so none has it.
        """
        by_record: dict[str, dict[str, Run]] = {}
        wanted = sorted(
            record_id for record_id in set(record_ids) if not set("'\"`\\") & set(record_id)
        )
        for _, same_day in groupby(wanted, lambda record_id: record_id[:_DAY_CHARACTERS]):
            of_day = list(same_day)
            for start in range(0, len(of_day), _IDS_AT_ONCE):
                begin = commonprefix(of_day[start : start + _IDS_AT_ONCE])  # noqa: RUF071
                wanted_tag = f"tags.`{schema.RECORD_ID}` LIKE '{begin}%'"
                for run in self.search(wanted_tag, stage=ALL):
                    runs = by_record.setdefault(run.data.tags.get(schema.RECORD_ID, ""), {})
                    runs[run.info.run_id] = run
        return {
            record_id: counting
            for record_id, runs in by_record.items()
            if record_id in wanted and (counting := _counting(runs.values()))
        }

    def run_of(self, record_id: str) -> Run | None:
        """Return the run of a record, or None; where two uploads made one each, join them.

        The unfinished ones beside the one that counts are deleted.
        """
        runs = self.runs_of([record_id]).get(record_id, [])
        for run in runs[1:]:
            if not schema.is_whole(run):
                self.ask(self.client.delete_run, run.info.run_id)
        return runs[0] if runs else None

    def run(self, run_id: str) -> Run | None:
        """Return the run of that id, a deleted one too; None where the server has none."""
        if self._reader is not None:
            return next(iter(self.ask(self._reader.runs, [run_id])), None)
        try:
            return self.ask(self.client.get_run, run_id)
        except TrackingError as error:
            if error.code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def log(
        self,
        run_id: str,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] = MappingProxyType({}),
        tags: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Log to a run; MLflow sends as few requests as the server's limits allow."""
        from mlflow.entities import Param, RunTag

        texts = [Param(*item) for item in params.items()], [RunTag(*item) for item in tags.items()]
        self.ask(self.client.log_batch, run_id, metrics, *texts)

    def end(self, run_id: str, status: str = "FINISHED", end_ms: int | None = None) -> None:
        """End a run: FINISHED, FAILED or KILLED, now or at a time since 1970."""
        self.ask(self.client.set_terminated, run_id, status, end_ms)

    def files(self, artifact_uri: str) -> ArtifactRepository:
        """Return what lists, reads and writes the files of a run."""
        from tracking.files import repository_of

        return self.ask(repository_of, self.uri, artifact_uri)

    def read(self, artifact_uri: str, name: str) -> bytes:
        """Return what a file of a run holds."""
        if is_embedded(self.uri) and is_folder(artifact_uri):
            with self.errors():
                here = local_path(place_of_files(self.uri, artifact_uri))
                return (here / name).read_bytes()
        repository = self.files(artifact_uri)
        # MLflow's thread of each download would stay until the collector comes.
        with tempfile.TemporaryDirectory() as folder, repository.thread_pool:
            return Path(self.ask(repository.download_artifacts, name, folder)).read_bytes()


@contextmanager
def paused_collector() -> Iterator[None]:
    """Keep Python's collector of cycles from running, in this process.

    MLflow makes over a hundred objects of a run, and a record has as many. Going through them again
    and again takes more than half of the time of a large page, and finds nothing: they have no
    cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _counting(runs: Iterable[Run]) -> list[Run]:
    """The active runs of one record, else the whole deleted ones; the one that counts first."""
    ordered = sorted(runs, key=lambda run: (not schema.is_whole(run), run.info.run_id))
    active = [run for run in ordered if not schema.is_deleted(run)]
    return active or [run for run in ordered if schema.is_whole(run)]


def tracking_state() -> str | Problem:
    """Ask the tracking server for its experiments, the right to write and its place for files.

    Nothing is made there, save a deleted run where files lie in a folder of the server.
    """
    where = public_uri()
    if is_unmade(settings_uri()):
        return f"{where} will be made by the first tracked run"
    try:
        server = Server(answer_s=AWAY_LIMIT_S)
        count = len(server.experiments)
        state = f"{where} answers, {count} experiment{'s' * (count != 1)}"
        if server.has_experiment():  # a run makes it, not a look
            server.mark(server.experiment_id(), rewrite=True)
            state += ", may be written to"
    except TrackingError as error:
        mend = "" if error.denied else "check MLFLOW_TRACKING_URI and the server; "
        remedy = f"{mend}records stay on disk until then, and mlproject sync uploads them"
        return Problem(str(error), remedy)
    return state
