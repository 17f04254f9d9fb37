"""Everything on a server that matches, over all pages."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from mlflow.entities import Experiment, Run, ViewType
from mlflow.tracking import MlflowClient

from tracking.retry import RetryPolicy

_PAGE = 1000


def all_experiments(client: MlflowClient, ask: RetryPolicy) -> list[Experiment]:
    """Return every active experiment."""
    found: list[Experiment] = []
    token: str | None = None
    while True:
        page = ask(client.search_experiments, max_results=_PAGE, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def all_runs(
    client: MlflowClient,
    ask: RetryPolicy,
    experiment_ids: list[str],
    filter_string: str,
    *,
    page_size: int = _PAGE,
    view: int = ViewType.ACTIVE_ONLY,
) -> Iterator[Run]:
    """Yield every run of the experiments that matches, once, newest start first.

    A page begins at the start time where the one before ended. MLflow's own tokens count runs from
    the newest: for each page the server sorts those before it again, and where one of them was
    deleted since, the page leaves out another. They serve where more runs than a page holds
    began in one millisecond.
    """
    wanted = filter_string
    edge_ms: int | None = None
    at_edge: set[str] = set()
    token: str | None = None
    while True:
        with paused_collector():
            page = ask(
                client.search_runs,
                experiment_ids,
                wanted,
                run_view_type=view,
                max_results=page_size,
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
            wanted = matching(filter_string, f"attributes.start_time <= {edge_ms}")
        at_edge |= {run.info.run_id for run in page if run.info.start_time == edge_ms}


def matching(*filters: str) -> str:
    """Return the filter of what matches all of these, of which some may be empty."""
    return " and ".join(part for one in filters if (part := one.strip()))


_pauses = threading.Lock()
_paused = 0
_was_enabled = False


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Keep Python's collector of cycles from running, in this process.

    MLflow makes over a hundred objects of a run, and a record has as many. Going through them again
    and again takes more than half of the time of a large page, and finds nothing: they have no
    cycles.
    """
    global _paused, _was_enabled
    with _pauses:
        if _paused == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _paused += 1
    try:
        yield
    finally:
        with _pauses:
            _paused -= 1
            if _paused == 0 and _was_enabled:
                gc.enable()


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
_TEXT = pa.dictionary(pa.int32(), pa.large_string())
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
_AT_ONCE = 1000


class RunColumns:
    """Many runs, in an order: a column each for what all have, and for every key that any has.

    Of 100,000 runs that takes a tenth of the memory of as many `TrackedRun`.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of(cls, runs: Iterable[TrackedRun]) -> RunColumns:
        """Return the columns of `runs`, in their order."""
        rest, parts = iter(runs), [_table([])]
        while some := list(islice(rest, _AT_ONCE)):
            parts.append(_table(some))
        return cls(_joined(parts))

    @classmethod
    def joined(cls, parts: Sequence[RunColumns]) -> RunColumns:
        """Return the runs of all `parts`, one after the other."""
        held = [one.table for one in parts if len(one)]
        return cls(_joined(held or [_table([])])) if len(held) != 1 else cls(held[0])

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[TrackedRun]:
        """Yield each run."""
        for start in range(0, len(self), _AT_ONCE):
            yield from _runs(self.table.slice(start, _AT_ONCE))

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
        times: npt.NDArray[np.datetime64] = (
            self.table["start_time"].to_numpy().astype("datetime64[us]")
        )
        return times

    def tag_keys(self) -> list[str]:
        """Return the keys of tags that any run has."""
        keys = [name.removeprefix("tags.") for name in self.table.column_names]
        return [
            key
            for key, name in zip(keys, self.table.column_names, strict=True)
            if key != name and self.table[name].null_count < len(self)
        ]

    def only(self, chosen: npt.NDArray[np.bool_]) -> RunColumns:
        """Return the chosen runs."""
        return RunColumns(self.table.filter(pa.array(chosen)))

    def of_ids(self, run_ids: Collection[str]) -> npt.NDArray[np.bool_]:
        """Return of each run whether its id is one of these."""
        known = pa.array(list(run_ids), pa.large_string())
        found: npt.NDArray[np.bool_] = pc.is_in(self.table["run_id"], value_set=known).to_numpy()
        return found

    def newest_first(self, *, then_by_id: bool = False) -> RunColumns:
        """Return the runs by start; those that began at one time as they stand, or by id."""
        keys = [("start_time", "descending")]
        if then_by_id:
            keys.append(("run_id", "ascending"))
        return RunColumns(self.table.take(pc.sort_indices(self.table, sort_keys=keys)))


def _table(runs: Sequence[TrackedRun]) -> pa.Table:
    columns = {
        "run_id": [run.run_id for run in runs],
        "name": [run.name for run in runs],
        "status": [run.status for run in runs],
        "start_time": [(run.start_time - _EPOCH) // _MICROSECOND for run in runs],
        "artifact_uri": [run.artifact_uri for run in runs],
    }
    arrays = {name: pa.array(columns[name], kind) for name, kind in _INFO.items()}
    for group, kind in _BY_KEY.items():
        held: list[Mapping[str, Any]] = [getattr(run, group) for run in runs]
        for key in dict.fromkeys(key for each in held for key in each):
            values = [each.get(key) for each in held]
            # pandas' and numpy's NaN would be taken for nothing: a metric that is NaN was logged
            arrays[f"{group}.{key}"] = pa.array(values, kind, from_pandas=False)
    return pa.table(arrays)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    joined = pa.concat_tables(tables, promote_options="default")
    return joined.unify_dictionaries().combine_chunks()


def _runs(table: pa.Table) -> Iterator[TrackedRun]:
    info = {name: table[name].to_pylist() for name in _INFO}
    by_key: dict[str, list[dict[str, Any]]] = {
        group: [{} for _ in range(table.num_rows)] for group in _BY_KEY
    }
    for name in table.column_names[len(_INFO) :]:
        group, _, key = name.partition(".")
        for held, value in zip(by_key[group], table[name].to_pylist(), strict=True):
            if value is not None:
                held[key] = value
    for row in range(table.num_rows):
        yield TrackedRun(
            run_id=info["run_id"][row],
            name=info["name"][row],
            status=info["status"][row],
            start_time=_EPOCH + info["start_time"][row] * _MICROSECOND,
            artifact_uri=info["artifact_uri"][row],
            **{group: held[row] for group, held in by_key.items()},
        )
