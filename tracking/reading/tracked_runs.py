"""Tracked runs as plain values, by columns too, and their records, for packages without MLflow.

Of a large selection a Parquet file on this disk keeps the runs that hold all of their record, which
are final. The next search reads those that were uploaded since, and those that are not whole. A run
that somebody renames or tags by hand shows only with `refresh`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from mlflow.entities import Run, ViewType
from pydantic import ValidationError

from bench.errors import UserError, fault_line, printable
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
from tracking.store import public_uri


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


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
#: Each distinct text once: most of what a run says, many others say too.
_TEXT = pa.dictionary(pa.int32(), pa.string())
_INFO = {
    "run_id": pa.large_string(),
    "name": pa.large_string(),
    "status": _TEXT,
    "start_time": pa.int64(),  # microseconds since 1970, UTC
    "artifact_uri": pa.large_string(),
}
#: What a run has by key, and the types of the columns, which are named `params.arch`.
_BY_KEY = {"params": _TEXT, "metrics": pa.float64(), "tags": _TEXT}
#: Runs turned into columns at once.
_ROWS_AT_ONCE = 1000


class RunColumns:
    """Many runs, in an order: a column each for what all have, and for every key that any has.

    Of 100,000 runs that takes a tenth of the memory of as many `TrackedRun`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of(cls, runs: Iterable[TrackedRun]) -> RunColumns:
        """Return the columns of `runs`, in their order."""
        rest, parts = iter(runs), []
        while some := list(islice(rest, _ROWS_AT_ONCE)):
            parts.append(cls(_table(some)))
        return cls.joined(parts)

    @classmethod
    def joined(cls, parts: Sequence[RunColumns]) -> RunColumns:
        """Return the runs of all `parts`, one after the other."""
        held = [one.table for one in parts if len(one)] or [_table([])]
        if len(held) == 1:
            return cls(held[0])
        joined = pa.concat_tables(held, promote_options="default")
        return cls(joined.unify_dictionaries().combine_chunks())

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[TrackedRun]:
        """Yield each run."""
        for start in range(0, len(self), _ROWS_AT_ONCE):
            table = self.table.slice(start, _ROWS_AT_ONCE)
            info = {name: table[name].to_pylist() for name in _INFO}
            info["start_time"] = [_EPOCH + start * _MICROSECOND for start in info["start_time"]]
            by_key: dict[str, list[dict[str, Any]]] = {
                group: [{} for _ in range(table.num_rows)] for group in _BY_KEY
            }
            for name in table.column_names[len(_INFO) :]:
                group, _, key = name.partition(".")
                for held, value in zip(by_key[group], table[name].to_pylist(), strict=True):
                    if value is not None:
                        held[key] = value
            columns = info | by_key
            for row in range(len(table)):
                yield TrackedRun(**{name: each[row] for name, each in columns.items()})

    @property
    def run_ids(self) -> list[str]:
        """The id of each run."""
        return self.plain("run_id")

    def plain(self, column: str) -> list[Any]:
        """Return a column's value of each run, None where it has none."""
        values: list[Any] = self.column(column).to_pylist()
        return values

    def column(self, column: str) -> pa.ChunkedArray:
        """Return `run_id`, `name`, `status`, `artifact_uri`, or by key `params.arch`."""
        if column in self.table.column_names:
            return self.table[column]
        return pa.chunked_array([pa.nulls(len(self), _BY_KEY[column.partition(".")[0]])])

    def distinct(self, column: str) -> tuple[list[str], npt.NDArray[np.int32]]:
        """Return the distinct texts of a column, and which of them each run has, -1: none."""
        texts = self.column(column)
        if not pa.types.is_dictionary(texts.type):
            texts = texts.dictionary_encode()
        whole = texts.unify_dictionaries().combine_chunks()
        which = pc.fill_null(whole.indices, -1).to_numpy(zero_copy_only=False)
        return whole.dictionary.to_pylist(), which

    def numbers(self, metric: str) -> npt.NDArray[np.float64]:
        """Return a metric's last value of each run, NaN where it has none."""
        values: npt.NDArray[np.float64] = self.column(f"metrics.{metric}").to_numpy()
        return values

    def has_text(self, column: str, text: str) -> npt.NDArray[np.bool_]:
        """Return of each run whether a column holds this text."""
        texts, which = self.distinct(column)
        return which == texts.index(text) if text in texts else np.zeros(len(self), bool)

    def start_times(self) -> npt.NDArray[np.datetime64]:
        """Return when each run began, UTC."""
        starts: npt.NDArray[np.int64] = self.table["start_time"].to_numpy()
        return starts.astype("datetime64[us]")

    def tag_keys(self) -> list[str]:
        """Return the keys of tags that any run has."""
        return [
            name.removeprefix("tags.")
            for name in self.table.column_names
            if name.startswith("tags.") and self.table[name].null_count < len(self)
        ]

    def only(self, chosen: npt.NDArray[np.bool_]) -> RunColumns:
        """Return the chosen runs."""
        return RunColumns(self.table.filter(pa.array(chosen)))

    def of_ids(self, run_ids: Collection[str]) -> npt.NDArray[np.bool_]:
        """Return of each run whether its id is one of these."""
        known = pa.array(list(run_ids), pa.large_string())
        found: npt.NDArray[np.bool_] = pc.is_in(self.table["run_id"], value_set=known).to_numpy()
        return found

    def once_per_record(self) -> RunColumns:
        """Return of each record the run that counts: a whole one, else the one of the first id."""
        _, record = self.distinct(f"tags.{schema.RECORD_ID}")
        unfinished = ~self.has_text(f"tags.{schema.UPLOADED}", "true")
        order = np.lexsort((np.array(self.run_ids, str), unfinished, record))
        counts = record < 0  # of no record: all of them
        counts[order[np.unique(record[order], return_index=True)[1]]] = True
        return self if counts.all() else self.only(counts)

    def newest_first(self, *, then_by_id: bool = False) -> RunColumns:
        """Return the runs by start; those that began at one time as they stand, or by id."""
        keys = [("start_time", "descending"), *([("run_id", "ascending")] if then_by_id else [])]
        return RunColumns(self.table.take(pc.sort_indices(self.table, sort_keys=keys)))


def _table(runs: Sequence[TrackedRun]) -> pa.Table:
    columns = {name: [getattr(run, name) for run in runs] for name in _INFO}
    columns["start_time"] = [(start - _EPOCH) // _MICROSECOND for start in columns["start_time"]]
    arrays = {name: pa.array(columns[name], kind) for name, kind in _INFO.items()}
    for group, kind in _BY_KEY.items():
        held: list[Mapping[str, Any]] = [getattr(run, group) for run in runs]
        for key in dict.fromkeys(key for each in held for key in each):
            values = [each.get(key) for each in held]
            # pandas' and numpy's NaN would be taken for nothing: a metric that is NaN was logged
            arrays[f"{group}.{key}"] = pa.array(values, kind, from_pandas=False)
    return pa.table(arrays)


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


def search_runs(filter_string: str = "", *, tracking_uri: str | None = None) -> list[TrackedRun]:
    """Return every run that matches MLflow's filter, newest first, over all pages.

    Raises `TrackingError` for everything the server refuses, a malformed filter too.
    """
    server = Server(tracking_uri)
    return list(_found(server, filter_string, _chosen(server, None)))


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
            try:
                found = {
                    run.run_id: run
                    for one in (f"tags.`{schema.UPLOADED_AT}` IS NULL", *new)
                    for run in search(schema.matching(filter_string, one))
                }
            except TrackingError as error:
                if error.away:
                    raise
                _say_read_whole(public_uri(server.uri))
            else:
                runs = RunColumns.of(found.values())
                runs = RunColumns.joined([held.only(~held.of_ids(found)), runs])
    if runs is None:
        runs = RunColumns.of(search(filter_string))
    if len(runs) < KEPT_FROM:
        with contextlib.suppress(OSError):
            path.unlink()
    else:
        _keep(path, runs, chosen, now)
        deleted = server.search(filter_string, [*chosen], stage=ViewType.DELETED_ONLY)
        runs = runs.only(~runs.of_ids({run.info.run_id for run in deleted}))
    return runs.newest_first(then_by_id=True).once_per_record()


@cache
def _say_read_whole(store: str) -> None:
    why = "a server before MLflow 3.10, which cannot say what is new: everything is read each time"
    print(f"mlproject: {store}: {why}", file=sys.stderr)


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
        except Exception as error:  # no record stops the others
            return UserError(fault_line(error))

    wanted = list(runs)
    named = (run.run_id for run in wanted)
    afar = {one for one in named if not (_RUN_ID.fullmatch(one) and _cached(one).exists())}
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


def _cached(run_id: str) -> Path:
    return cache_folder() / "records" / f"{run_id}.json"
