"""Tracked runs as plain values, and their records, for packages that do not know MLflow."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from pathlib import Path

from mlflow.entities import Experiment, Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.entities import PagedList
from mlflow.tracking import MlflowClient
from mlflow.utils.search_utils import SearchUtils
from pydantic import ValidationError

from bench.errors import UserError, printable
from bench.records import ImportedRecord
from bench.records.folders import WholeRecord, cache_folder, parse_record, write_atomically
from tracking import schema
from tracking.content import content_of, figures_digest, last_values
from tracking.reading.pages import TrackedRun, all_experiments, all_runs, matching, paused_collector
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy, http_settings, is_away
from tracking.store import (
    TrackingError,
    is_embedded,
    open_client,
    open_existing,
    server_errors,
    tracking_call,
)

#: What servers call their runs; it becomes the name of a file here.
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Records on their way at once: a server at a distance answers each in its own time.
_AT_ONCE = 8

#: Runs at a time: a server builds a page in memory, and within the time that an answer may take.
#: Each page looks through the tags of all runs, so an embedded store is read in fewer.
_PAGE, _EMBEDDED_PAGE = 1000, 4000
#: A metric of runs whose work was counted, which an import may do later.
_COUNTED = "step_gflop"
#: Of a filter; SQL takes more, but MLflow's parser of filters is slow.
_IDS_AT_ONCE = 100


def tracked(run: Run) -> TrackedRun:
    """Return MLflow's run as plain values."""
    return TrackedRun(
        run_id=run.info.run_id,
        name=printable(run.info.run_name or run.info.run_id),
        status=run.info.status,
        start_time=datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc),
        params=dict(run.data.params),
        metrics=dict(run.data.metrics),
        tags=dict(run.data.tags),
        artifact_uri=run.info.artifact_uri,
    )


@tracking_call
def search_runs(
    filter_string: str = "",
    *,
    experiments: Sequence[str] | None = None,
    tracking_uri: str | None = None,
) -> list[TrackedRun]:
    """Return every run that matches MLflow's filter, newest first, over all pages.

    `experiments` are names; None means all. Raises `UserError` for an unknown experiment and
    `TrackingError` for everything the server refuses, a malformed filter too.
    """
    client, ask = open_client(tracking_uri), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    chosen = chosen_experiments(all_experiments(client, ask), experiments)
    return list(Selection(client, ask, chosen, filter_string).runs())


@tracking_call
def download_any(run_id: str, tracking_uri: str | None = None) -> WholeRecord | ImportedRecord:
    """Return the record of a run, an imported one too; else as `download_record`."""
    return any_record(run_id, partial(open_existing, tracking_uri))


def download_record(run_id: str, tracking_uri: str | None = None) -> WholeRecord:
    """Return the record of a run, from the cache of this user where it was fetched before.

    Raises `UserError` where the run holds no record of this version, or one that was imported, and
    `TrackingError`.
    """
    record = download_any(run_id, tracking_uri)
    if isinstance(record, ImportedRecord):
        raise UserError(f"run {run_id}: imported from {record.source_file}, not measured by us")
    return record


def download_records(
    runs: Iterable[TrackedRun], tracking_uri: str | None = None
) -> Iterator[WholeRecord | ImportedRecord | UserError | TrackingError]:
    """Yield the record of each run in the order given, or why there is none; fetches several.

    Those of imported runs too.
    """
    client = cache(partial(open_existing, tracking_uri))  # each new one looks for Spark

    def fetched(
        run: TrackedRun,
    ) -> WholeRecord | ImportedRecord | UserError | TrackingError:
        try:
            with server_errors(tracking_uri):
                record = any_record(run.run_id, client, run.artifact_uri)
                uncounted = isinstance(record, ImportedRecord) and record.complexity is None
                if uncounted and _COUNTED in run.metrics:  # since it was fetched
                    _cached(run.run_id).unlink(missing_ok=True)
                    record = any_record(run.run_id, client, run.artifact_uri)
                return record
        except (UserError, TrackingError) as error:
            return error

    wanted = list(runs)
    afar = {run.run_id for run in wanted if not _is_cached(run.run_id)}
    # settings are the process's
    with http_settings(), paused_collector(), ThreadPoolExecutor(_AT_ONCE) as pool:
        coming = pool.map(fetched, (run for run in wanted if run.run_id in afar))
        for run in wanted:
            yield next(coming) if run.run_id in afar else fetched(run)


def tracked_records(filter_string: str, known: Collection[str]) -> Iterator[WholeRecord]:
    """Yield the records of the runs that match, less those of the `known` record ids.

    Those of other versions are left out. Raises `TrackingError`.
    """
    for run in search_runs(filter_string):
        if run.tags.get(schema.RECORD_ID) not in known:
            with contextlib.suppress(UserError):
                yield download_record(run.run_id)


def any_record(
    run_id: str, open_store: Callable[[], MlflowClient], artifact_uri: str | None = None
) -> WholeRecord | ImportedRecord:
    """Return the record of a run, an imported one too; the store is opened if it is not cached.

    Who knows the run's `artifact_uri` spares the server a question. Raises `UserError` where there
    is no record of this version, and what MLflow raises.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise UserError(f"run {run_id[:80]!r}: no run's id")
    cached = _cached(run_id)
    with contextlib.suppress(OSError, ValidationError):  # damaged: fetched again
        return parse_record(cached.read_bytes())
    client, ask = open_store(), RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)
    where = artifact_uri or ask(client.get_run, run_id).info.artifact_uri
    repository = get_artifact_repository(where, tracking_uri=client.tracking_uri)
    if isinstance(repository, LocalArtifactRepository):
        path = ask(repository.download_artifacts, schema.RECORD_ARTIFACT)  # where it is
        text = Path(path).read_bytes()
    else:
        # MLflow's thread of each download would stay until the collector comes.
        with tempfile.TemporaryDirectory() as folder, repository.thread_pool:
            path = ask(repository.download_artifacts, schema.RECORD_ARTIFACT, folder)
            text = Path(path).read_bytes()
    try:
        record = parse_record(text)
    except ValidationError as error:
        raise UserError(
            f"run {run_id}: its record.json is not of this version ({error.errors()[0]['msg']}); "
            "read it with the version that wrote it"
        ) from None
    with contextlib.suppress(OSError):  # a home that cannot be written costs the next one time
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(cached, text, durable=False)
    return record


def _is_cached(run_id: str) -> bool:
    return _RUN_ID.fullmatch(run_id) is not None and _cached(run_id).exists()


def _cached(run_id: str) -> Path:
    return cache_folder() / "records" / f"{run_id}.json"


@dataclass(frozen=True)
class Selection:
    """The active runs of some experiments that match MLflow's filter."""

    client: MlflowClient
    ask: RetryPolicy
    experiments: Sequence[Experiment]
    filter_string: str

    def runs(self, also: str = "", *, deleted: bool = False) -> Iterator[TrackedRun]:
        """Yield every run, or every deleted one, that matches `also` too: newest start first."""
        view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
        size = _EMBEDDED_PAGE if is_embedded(str(self.client.tracking_uri)) else _PAGE
        ids, wanted = self._selected(also)
        pages = all_runs(self.client, self.ask, ids, wanted, page_size=size, view=view)
        yield from map(self._as_recorded, map(tracked, pages))

    def _as_recorded(self, run: TrackedRun) -> TrackedRun:
        """The run with the figures of its record where somebody logged others to it since."""
        digest = figures_digest(run.metrics, run.tags)
        if run.tags.get(schema.UPLOADED) != "true" or run.tags.get(schema.FIGURES) == digest:
            return run
        try:
            content = content_of(any_record(run.run_id, lambda: self.client, run.artifact_uri))
        except (UserError, MlflowException, OSError) as error:
            if is_away(error):
                raise
            return run  # without its record, what the server says is all there is
        beside = {
            name: value
            for name, value in run.metrics.items()
            if name.startswith(schema.METRICS_BESIDE_RECORD)
        }
        kept = {
            name: text
            for name, text in run.tags.items()
            if name in schema.BESIDE_RECORD or not name.startswith("mlproject.")
        }
        metrics = last_values(content.metrics) | beside
        return replace(run, metrics=metrics, tags=content.tags | kept)

    def uploaded_since(self, since: datetime) -> Iterator[TrackedRun]:
        """Yield the runs whose upload ended at `since` or later, and some of the hour before.

        A filter cannot compare tags, only match how they begin; to order by a tag takes SQLite
        time that grows with the square of the runs.
        """
        for begin in time_prefixes(since, datetime.now(timezone.utc)):
            yield from self.runs(f"tags.`{schema.UPLOADED_AT}` LIKE '{begin}%'")

    def of_ids(self, run_ids: Sequence[str]) -> Iterator[TrackedRun]:
        """Yield the runs of these ids that still match."""
        for start in range(0, len(run_ids), _IDS_AT_ONCE):
            ids = ", ".join(f"'{one}'" for one in run_ids[start : start + _IDS_AT_ONCE])
            yield from self.runs(f"attributes.run_id IN ({ids})")

    def has(self, number: int) -> bool:
        """Whether exactly so many runs match.

        One run is asked for, the one at that place, by a token as MLflow makes them for pages.
        MLflow may change it: a server that does not know it refuses, or answers with other runs.
        """
        if number == 0:
            return not self._one(None)
        token = SearchUtils.create_page_token(number - 1)  # type: ignore[no-untyped-call]
        page = self._one(token.decode())
        return len(page) == 1 and not page.token

    def _one(self, token: str | None) -> PagedList[Run]:
        found: PagedList[Run] = self.ask(
            self.client.search_runs, *self._selected(), max_results=1, page_token=token
        )
        return found

    def _selected(self, also: str = "") -> tuple[list[str], str]:
        return [one.experiment_id for one in self.experiments], matching(self.filter_string, also)


def time_prefixes(since: datetime, until: datetime) -> Iterator[str]:
    """Yield how times from `since` to `until`, as `schema.sortable`, begin, in few prefixes.

    Whole hours up to the next day, days up to the next month, months, years; the last may end
    after `until`.
    """
    at = since.replace(minute=0, second=0, microsecond=0)
    while at <= until:
        text = schema.sortable(at)
        if (at.month, at.day, at.hour) == (1, 1, 0):
            yield text[: len("2026")]
            at = at.replace(year=at.year + 1)
        elif (at.day, at.hour) == (1, 0):
            yield text[: len("2026-11")]
            at = (at + timedelta(days=31)).replace(day=1)
        elif at.hour == 0:
            yield text[: len("2026-11-21")]
            at += timedelta(days=1)
        else:
            yield text[: len("2026-11-21T18")]
            at += timedelta(hours=1)


def chosen_experiments(
    experiments: Sequence[Experiment], names: Sequence[str] | None
) -> list[Experiment]:
    """Return the experiments of these names, None: all. Raises `UserError` for an unknown one."""
    found = {one.name: one for one in experiments}
    if names is None:
        return list(found.values())
    if unknown := [name for name in names if name not in found]:
        raise UserError(
            f"experiment={unknown[0]!r}: not on this server; it has {', '.join(sorted(found))}"
        )
    return [found[name] for name in names]
