"""Tracked runs as plain values, as tables too, and their records, for packages without MLflow.

Of a large selection a Parquet file on this disk keeps the runs that hold all of their record, which
are final. The next search reads those that were uploaded since, and those that are not whole. A run
that somebody renames or tags by hand shows only with `refresh`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import ValidationError

from bench.errors import UserError, fault_line, printable
from bench.records import ImportedRecord
from bench.records.folders import (
    ANY_RECORD,
    AnyRecord,
    WholeRecord,
    cache_folder,
    parse_record,
    write_atomically,
)
from tracking import schema
from tracking.connection import Server, TrackingError, paused_collector
from tracking.content import content_of, figures_digest, last_values
from tracking.embedded import DELETED
from tracking.store import public_uri

if TYPE_CHECKING:
    from mlflow.entities import Run


@dataclass(frozen=True)
class TrackedRun:
    """A run as the server has it; metrics hold each key's last value."""

    run_id: str
    name: str
    status: str
    start_time: datetime  # UTC
    params: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    artifact_uri: str


#: The columns that every run has; the others are by key, such as `params.arch`.
_INFO = ("run_id", "name", "status", "start_time", "artifact_uri")
_TYPES_BY_KEY = {"params": "category", "metrics": "float64", "tags": "category"}
_TYPES = _TYPES_BY_KEY | {"status": "category", "start_time": "datetime64[us, UTC]"}


def runs_table(runs: Iterable[TrackedRun]) -> pd.DataFrame:
    """Return a row per run, in their order; columns by key as in MLflow's tables: `params.arch`.

    Texts are categories: most of what a run says, many others say too.
    """
    columns: dict[str, list[Any]] = {name: [] for name in _INFO}
    by_key: dict[str, dict[str, list[Any]]] = {group: {} for group in _TYPES_BY_KEY}
    rows = 0
    for run in runs:
        for name, column in columns.items():
            column.append(getattr(run, name))
        for group, keys in by_key.items():
            for key, value in getattr(run, group).items():
                column = keys.setdefault(key, [])
                if len(column) < rows:
                    column += [None] * (rows - len(column))
                column.append(intern(value) if type(value) is str else value)
        rows += 1
    for group, keys in by_key.items():
        for key, column in keys.items():
            columns[f"{group}.{key}"] = column + [None] * (rows - len(column))
    typed = {name: pd.Series(column, dtype=_type(name)) for name, column in columns.items()}
    table: pd.DataFrame = pd.DataFrame(typed)
    return table


def _type(column: str) -> Any:
    return _TYPES.get(column.partition(".")[0], "string")


def joined(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the runs of all tables, one after the other."""
    held = [table for table in tables if len(table)] or [runs_table([])]
    table = pd.concat(held, ignore_index=True)
    typed: pd.DataFrame = table.astype({name: _type(name) for name in table.columns})
    return typed


def plain(table: pd.DataFrame, column: str) -> list[Any]:
    """Return a column's value of each run, None where it has none."""
    if column not in table:
        return [None] * len(table)
    values = table[column].astype(object)
    return list(values.where(values.notna(), None))


def newest_first(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs by start; those that began at one time as they stand."""
    ordered: pd.DataFrame = table.sort_values(
        "start_time", ascending=False, kind="stable", ignore_index=True
    )
    return ordered


def once_per_record(table: pd.DataFrame) -> pd.DataFrame:
    """Return of each record the run that counts: a whole one, else the one of the first id."""
    whole = [text == "true" for text in plain(table, f"tags.{schema.UPLOADED}")]
    by = table[["run_id"]].assign(whole=whole, record=plain(table, f"tags.{schema.RECORD_ID}"))
    by = by.sort_values(["whole", "run_id"], ascending=[False, True])
    again = by["record"].duplicated() & by["record"].notna()
    counts: pd.DataFrame = table[~again.sort_index()].reset_index(drop=True)
    return counts


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


def search_runs(filter_string: str = "", *, tracking_uri: str | None = None) -> list[TrackedRun]:
    """Return every run that matches MLflow's filter, newest first, over all pages.

    Raises `TrackingError` for everything the server refuses, a malformed filter too.
    """
    server = Server(tracking_uri)
    return list(_found(server, filter_string, _chosen(server, None)))


def search_table(
    server: Server,
    filter_string: str = "",
    experiments: Sequence[str] | None = None,
    *,
    refresh: bool = False,
) -> pd.DataFrame:
    """Return what `search_runs` returns as a table, read again only where it is new.

    With `refresh` everything is read again.
    """
    chosen = _chosen(server, experiments)
    name = json.dumps([public_uri(server.uri), experiments and sorted(experiments), filter_string])
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    path = cache_folder() / "runs" / f"{digest}.parquet"
    now = datetime.now(timezone.utc)
    search = partial(_found, server, experiments=chosen)
    runs: pd.DataFrame | None = None
    if not refresh and (kept := _read_kept(path, chosen)) is not None:
        before, since = kept
        days = (since + _DAY * number for number in range((now - since).days + 2))
        new = [f"tags.`{schema.UPLOADED_AT}` LIKE '{day:%Y-%m-%d}%'" for day in days]
        if len(new) <= _MOST_DAYS:
            try:
                news = {
                    run.run_id: run
                    for uploaded in (f"tags.`{schema.UPLOADED_AT}` IS NULL", *new)
                    for run in search(schema.matching(filter_string, uploaded))
                }
            except TrackingError as error:
                if error.away:
                    raise  # else a server before MLflow 3.10, which cannot say what is new
            else:
                old = before[~before["run_id"].isin(news)]
                runs = joined([old, runs_table(news.values())])
    if runs is None:
        runs = runs_table(search(filter_string))
    if len(runs) < KEPT_FROM:
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        _keep(path, runs, chosen, now)
        deleted = server.search(filter_string, [*chosen], stage=DELETED)
        runs = runs[~runs["run_id"].isin([run.info.run_id for run in deleted])]
    return once_per_record(newest_first(runs.sort_values("run_id")))


def _read_kept(
    path: Path, chosen: Mapping[str, int | None]
) -> tuple[pd.DataFrame, datetime] | None:
    """The whole runs of an earlier search, and the day before it, which differing clocks need.

    None where there are none, or where an experiment was made again under its old number.
    """
    try:
        os.utime(path)  # it is there, and was read last
        table = pd.read_parquet(path, page_checksum_verification=True)
        if not table.attrs["experiments"].items() <= chosen.items():
            return None
        return table, datetime.fromisoformat(table.attrs["at"]) - _DAY
    except Exception:  # whatever a damaged file, or one of another version, makes its reader raise
        return None


def _keep(path: Path, runs: pd.DataFrame, chosen: Mapping[str, int | None], now: datetime) -> None:
    """Keep the whole ones of `runs`; a full disk costs the next search time, nothing else."""
    whole = runs[[at is not None for at in plain(runs, f"tags.{schema.UPLOADED_AT}")]]
    whole.attrs = {"at": now.isoformat(), "experiments": dict(chosen)}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        body = whole.to_parquet(index=False, write_page_checksum=True)
        write_atomically(path, body, durable=False)
        others = sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime)
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


def as_tracked(record: AnyRecord, run_id: str | None = None) -> TrackedRun:
    """Return a record as a server would have it, by default under its own id."""
    content, run_id = content_of(record), run_id or record.record_id
    return TrackedRun(
        run_id=run_id,
        name=content.tags[schema.RUN_NAME],
        status=content.status,
        start_time=record.created.astimezone(timezone.utc),
        params=content.params,
        metrics=last_values(content.metrics),
        tags=content.tags,
        artifact_uri="",
    )


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
    runs: pd.DataFrame, tracking_uri: str | None = None
) -> Iterator[WholeRecord | ImportedRecord | UserError | TrackingError]:
    """Yield the record of each run in the order given, or why there is none; fetches several.

    Those of imported runs too.
    """
    server = Server(tracking_uri, must_exist=True)

    def fetched(
        run_id: str, artifact_uri: str, work: float | None
    ) -> WholeRecord | ImportedRecord | UserError | TrackingError:
        try:
            record = _record(server, run_id, artifact_uri)
            uncounted = isinstance(record, ImportedRecord) and record.complexity is None
            if uncounted and work is not None:  # counted since it was fetched
                _cached(run_id).unlink(missing_ok=True)
                record = _record(server, run_id, artifact_uri)
            return record
        except (UserError, TrackingError) as error:
            return error
        except Exception as error:  # no record stops the others
            return UserError(fault_line(error))

    columns = ("run_id", "artifact_uri", f"metrics.{_COUNTED}")
    wanted = list(zip(*(plain(runs, column) for column in columns), strict=True))
    is_here = [_RUN_ID.fullmatch(run_id) and _cached(run_id).exists() for run_id, *_ in wanted]
    with paused_collector(), ThreadPoolExecutor(_AT_ONCE) as pool:
        afar = (run for run, here in zip(wanted, is_here, strict=True) if not here)
        coming = pool.map(lambda run: fetched(*run), afar)
        for run, here in zip(wanted, is_here, strict=True):
            yield fetched(*run) if here else next(coming)


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


def _cached(run_id: str) -> Path:
    return cache_folder() / "records" / f"{run_id}.json"
