"""Tracked runs as plain values, and their records, for packages that do not know MLflow.

Of a large selection a Parquet file on this disk keeps the runs that hold all of their record, which
are final. The next search reads those that were uploaded since, and those that are not whole. A run
that somebody renames or tags by hand shows only with `refresh`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from mlflow.entities import Run
from pydantic import ValidationError

from bench.errors import UserError, printable
from bench.records import ImportedRecord
from bench.records.folders import (
    ANY_RECORD,
    WholeRecord,
    cache_folder,
    parse_record,
    write_atomically,
)
from tracking import schema
from tracking.connection import Server, TrackingError, paused_collector
from tracking.content import content_of, figures_digest, last_values
from tracking.reading.pages import RunColumns, TrackedRun
from tracking.store import public_uri

#: What servers call their runs; it becomes the name of a file here.
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: Records on their way at once: a server at a distance answers each in its own time.
_AT_ONCE = 8
#: A metric of runs whose work was counted, which an import may do later.
_COUNTED = "step_gflop"
#: A smaller selection is read whole each time, which is as quick.
KEPT_FROM = 500
_DAY = timedelta(days=1)
#: After as many days everything is read again: each day is a search.
_MOST_DAYS = 40
#: Files in the cache; the one that was not read for longest goes first.
_MOST_FILES = 20
_KEPT_TO = b"mlproject.kept"


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
    server = Server(tracking_uri)
    return list(_found(server, filter_string, _chosen(server, experiments)))


def search_columns(
    server: Server,
    filter_string: str = "",
    experiments: Sequence[str] | None = None,
    *,
    refresh: bool = False,
) -> RunColumns:
    """Return what `search_runs` returns by columns, read again only where it is new.

    With `refresh` everything is read again.
    """
    chosen = _chosen(server, experiments)
    name = json.dumps([public_uri(server.uri), experiments and sorted(experiments), filter_string])
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    path = cache_folder() / "runs" / f"{digest}.parquet"
    now = datetime.now(timezone.utc)
    search = partial(_found, server, experiments=chosen)
    runs: RunColumns | None = None
    if not refresh and (kept := _read_kept(path, chosen)) is not None:
        held, since = kept
        days = (since + _DAY * number for number in range((now - since).days + 2))
        new = [f"tags.`{schema.UPLOADED_AT}` LIKE '{day:%Y-%m-%d}%'" for day in days]
        if len(new) <= _MOST_DAYS:
            found = {
                run.run_id: run
                for one in (*new, f"tags.`{schema.UPLOADED_AT}` IS NULL")
                for run in search(schema.matching(filter_string, one))
            }
            runs = RunColumns.of(found.values())
            runs = RunColumns.joined([held.only(~held.of_ids(found)), runs])
    if runs is None:
        runs = RunColumns.of(search(filter_string))
    if len(runs) < KEPT_FROM:
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        _keep(path, runs, chosen, now)
        deleted = server.search(filter_string, [*chosen], deleted=True)
        runs = runs.only(~runs.of_ids({run.info.run_id for run in deleted}))
    return runs.newest_first(then_by_id=True)


def _read_kept(path: Path, chosen: Mapping[str, int | None]) -> tuple[RunColumns, datetime] | None:
    """The whole runs of an earlier search, and the day before it, which differing clocks need.

    None where there are none, or where an experiment was made again under its old number.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        about = json.loads(table.schema.metadata[_KEPT_TO])
        path.touch()
        if not about["experiments"].items() <= chosen.items():
            return None
        return RunColumns(table), datetime.fromisoformat(about["at"]) - _DAY
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException):
        return None


def _keep(path: Path, runs: RunColumns, chosen: Mapping[str, int | None], now: datetime) -> None:
    """Keep the whole ones of `runs`; a full disk costs the next search time, nothing else."""
    whole = runs.distinct(f"tags.{schema.UPLOADED_AT}")[1] >= 0
    about = json.dumps({"at": now.isoformat(), "experiments": chosen})
    table = runs.only(whole).table.replace_schema_metadata({_KEPT_TO: about})
    body = pa.BufferOutputStream()
    pq.write_table(table, body, write_page_checksum=True)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, body.getvalue().to_pybytes(), durable=False)
        others = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in others[:-_MOST_FILES]:
            old.unlink(missing_ok=True)


def _found(server: Server, filter_string: str, experiments: Iterable[str]) -> Iterator[TrackedRun]:
    """Each run as plain values, with the figures of its record.

    Somebody may have logged others to it since; its digest tells.
    """
    for run in map(tracked, server.search(filter_string, [*experiments])):
        digest = figures_digest(run.metrics, run.tags)
        if run.tags.get(schema.UPLOADED) == "true" and run.tags.get(schema.FIGURES) != digest:
            yield _as_recorded(server, run)
        else:
            yield run


def _as_recorded(server: Server, run: TrackedRun) -> TrackedRun:
    try:
        content = content_of(_record(server, run.run_id, run.artifact_uri))
    except (UserError, TrackingError) as error:
        if getattr(error, "away", False):
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


def tracked(run: Run) -> TrackedRun:
    """Return MLflow's run as plain values."""
    return TrackedRun(
        run_id=run.info.run_id,
        name=printable(run.info.run_name or run.info.run_id),
        status=run.info.status,
        start_time=datetime.fromtimestamp(run.info.start_time / 1000, timezone.utc),
        params=dict(run.data.params),
        metrics=schema.plain_metrics(run.data.metrics),
        tags=dict(run.data.tags),
        artifact_uri=run.info.artifact_uri,
    )


def _chosen(server: Server, names: Sequence[str] | None) -> dict[str, int | None]:
    """When the experiments of these names, None: all, were made, by their ids.

    Raises `UserError` for an unknown one.
    """
    found = {one.name: one for one in server.experiments}
    if unknown := [name for name in names or () if name not in found]:
        raise UserError(
            f"experiment={unknown[0]!r}: not on this server; it has {', '.join(sorted(found))}"
        )
    chosen = found if names is None else names
    return {found[name].experiment_id: found[name].creation_time for name in chosen}


def download_any(run_id: str, tracking_uri: str | None = None) -> WholeRecord | ImportedRecord:
    """Return the record of a run, an imported one too; else as `download_record`."""
    return _record(Server(tracking_uri, must_exist=True), run_id)


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
    server = Server(tracking_uri, must_exist=True)

    def fetched(run: TrackedRun) -> WholeRecord | ImportedRecord | UserError | TrackingError:
        try:
            record = _record(server, run.run_id, run.artifact_uri)
            uncounted = isinstance(record, ImportedRecord) and record.complexity is None
            if uncounted and _COUNTED in run.metrics:  # since it was fetched
                _cached(run.run_id).unlink(missing_ok=True)
                record = _record(server, run.run_id, run.artifact_uri)
            return record
        except (UserError, TrackingError) as error:
            return error

    wanted = list(runs)
    afar = {run.run_id for run in wanted if not _is_cached(run.run_id)}
    with paused_collector(), ThreadPoolExecutor(_AT_ONCE) as pool:
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


def _record(
    server: Server, run_id: str, artifact_uri: str | None = None
) -> WholeRecord | ImportedRecord:
    """The record of a run; the server is asked if it is not cached.

    Who knows the run's `artifact_uri` spares the server a question.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise UserError(f"run {run_id[:80]!r}: no run's id")
    cached = _cached(run_id)
    with contextlib.suppress(OSError, ValidationError):  # damaged: fetched again
        return parse_record(cached.read_bytes(), ANY_RECORD)
    where = artifact_uri or server.ask(server.client.get_run, run_id).info.artifact_uri
    text = server.read(where, schema.RECORD_ARTIFACT)
    try:
        record = parse_record(text, ANY_RECORD)
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
