"""A search that reads of a large selection only what is new or changed since the last one.

MLflow does not say what changed. But a run of ours is final once its record is uploaded and it has
ended, and says when that was (`schema.UPLOADED_AT`). So runs are kept on this disk, and the next
search asks for those uploaded since, with room for clocks that differ; for those without that tag;
for those that had not ended; and then whether the number of runs agrees. Where it does not, runs
were deleted, or something came that this could not see: the deleted ones are asked for, and if that
does not explain it, everything is read again.

What it cannot see is a final run that somebody renames or tags by hand, unless its selection
thereby gains or loses a run. `refresh` reads all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from bench.records.folders import cache_folder, write_atomically
from tracking import schema
from tracking.reading.pages import RunColumns, TrackedRun, all_experiments
from tracking.reading.tracked_runs import Selection, chosen_experiments
from tracking.retry import ANSWER_LIMIT_S, AWAY_LIMIT_S, RetryPolicy
from tracking.store import open_existing, public_uri, server_errors

#: A smaller selection is read whole each time, which is as quick.
KEPT_FROM = 500
#: How much the clocks of those who upload may differ before everything is read again.
_CLOCKS_DIFFER = timedelta(minutes=10)
#: A server at work gets new runs while it is asked.
_ATTEMPTS = 2


_FORMAT = 2
_UPLOADED_AT = f"tags.{schema.UPLOADED_AT}"
#: Files in the cache; the one that was not read for longest goes first.
_MOST_FILES = 20


class KeptSearch:
    """Searches of one store, which share its client and its list of experiments.

    With `refresh` everything is read again. Raises `UserError` for an embedded store that does not
    exist and for an unknown experiment, and `TrackingError`.
    """

    def __init__(self, tracking_uri: str | None = None, *, refresh: bool = False) -> None:
        self._tracking_uri = tracking_uri
        self._refresh = refresh

    @cached_property
    def _client(self) -> MlflowClient:
        return open_existing(self._tracking_uri)

    @cached_property
    def _experiments(self) -> list[Experiment]:
        return all_experiments(self._client, RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S))

    def runs(
        self, filter_string: str = "", experiments: Sequence[str] | None = None
    ) -> list[TrackedRun]:
        """Return what `search_runs` returns, read again only where it is new or changed."""
        return list(self.columns(filter_string, experiments))

    def columns(
        self, filter_string: str = "", experiments: Sequence[str] | None = None
    ) -> RunColumns:
        """Return `runs` by columns, which many take."""
        with server_errors(self._tracking_uri):
            chosen = chosen_experiments(self._experiments, experiments)
            ask = RetryPolicy(AWAY_LIMIT_S, ANSWER_LIMIT_S)  # its patience begins now
            selection = Selection(self._client, ask, chosen, filter_string)
            path = kept_file(public_uri(self._tracking_uri), experiments, filter_string)
            asked_at = schema.sortable(datetime.now(timezone.utc))
            kept = None if self._refresh else read_kept(path)
            runs = None
            if kept is not None and _is_same_store(kept, selection):
                runs = _brought_up_to_date(selection, kept)
            if runs is None:
                runs = RunColumns.of(selection.runs()).newest_first(then_by_id=True)
        if len(runs) < KEPT_FROM:
            with contextlib.suppress(OSError):
                path.unlink()
        elif kept is None or runs is not kept.runs:
            created = {one.experiment_id: one.creation_time for one in chosen}
            write_kept(path, KeptRuns(asked_at, created, runs))
        return runs


def _is_same_store(kept: KeptRuns, selection: Selection) -> bool:
    """Whether no experiment was made again under its old number, as in a new store."""
    return all(
        kept.experiments.get(one.experiment_id, one.creation_time) == one.creation_time
        for one in selection.experiments
    )


def _brought_up_to_date(selection: Selection, kept: KeptRuns) -> RunColumns | None:
    """Return all runs of the selection, the kept ones themselves where nothing changed.

    None where that takes reading them all.
    """
    final = _are_final(kept.runs)
    uploaded_at = kept.runs.plain(_UPLOADED_AT)
    times = (time for time, is_final in zip(uploaded_at, final, strict=True) if is_final)
    try:
        since = _since(kept, times)
    except ValueError:  # a tag of another program
        return None
    run_ids = kept.runs.run_ids
    open_ids = [
        run_id
        for run_id, is_final, time in zip(run_ids, final, uploaded_at, strict=True)
        if not is_final and time is not None
    ]
    found: dict[str, TrackedRun] = {}
    known = {run_id for run_id, is_final in zip(run_ids, final, strict=True) if is_final}
    gone: set[str] = set()
    try:
        for _ in range(_ATTEMPTS):
            for runs in (
                selection.uploaded_since(since),
                selection.runs(f"tags.`{schema.UPLOADED_AT}` IS NULL"),
                selection.of_ids(open_ids),
            ):
                found |= {run.run_id: run for run in runs}
            gone -= found.keys()
            if selection.has(len((known - gone) | found.keys())):
                return _merged(kept.runs, (known - gone) | found.keys(), found)
            for run in selection.runs(deleted=True):
                gone.add(run.run_id)
                found.pop(run.run_id, None)
            if selection.has(len((known - gone) | found.keys())):
                return _merged(kept.runs, (known - gone) | found.keys(), found)
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":  # an older server knows less of filters
            raise
    return None


def _merged(
    kept: RunColumns, run_ids: Collection[str], found: Mapping[str, TrackedRun]
) -> RunColumns:
    """Return the runs of these ids: as `found` where they are among these, else as `kept`."""
    again = kept.of_ids(found)
    if {run.run_id: run for run in kept.only(again)} == found and len(run_ids) == len(kept):
        return kept
    rest = kept.only(kept.of_ids(run_ids) & ~again)
    return RunColumns.joined([rest, RunColumns.of(found.values())]).newest_first(then_by_id=True)


def _since(kept: KeptRuns, final_at: Iterable[str]) -> datetime:
    """When the kept runs end; a clock that is ahead of this one's does not count."""
    last = min(max(final_at, default=kept.asked_at), kept.asked_at)
    return datetime.fromisoformat(last.replace("Z", "+00:00")) - _CLOCKS_DIFFER


def _are_final(runs: RunColumns) -> npt.NDArray[np.bool_]:
    """Return of each run whether its record is uploaded and it has ended."""
    running = runs.has_text("status", "RUNNING") | runs.has_text("status", "SCHEDULED")
    _, uploaded_at = runs.distinct(_UPLOADED_AT)
    return (uploaded_at >= 0) & ~running


@dataclass(frozen=True)
class KeptRuns:
    """What an earlier search found: by run id, and when it began by this machine's clock."""

    asked_at: str
    experiments: Mapping[str, int | None]  # id -> creation time in ms, which differs between stores
    runs: RunColumns  # newest first


def kept_file(server: str, experiments: Sequence[str] | None, filter_string: str) -> Path:
    """Return where the runs of a selection are kept."""
    selection = json.dumps([server, experiments and sorted(experiments), filter_string])
    name = hashlib.sha256(selection.encode()).hexdigest()[:32]
    return cache_folder() / "runs" / f"{name}.arrow"


def read_kept(path: Path) -> KeptRuns | None:
    """Return what `path` keeps; None where there is nothing, or nothing whole."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        about = json.loads(head)
        if about["format"] != _FORMAT or about["crc32"] != zlib.crc32(body):
            return None
        runs = RunColumns(pa.ipc.open_stream(body).read_all())
        path.touch()
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException):
        return None
    return KeptRuns(about["asked_at"], about["experiments"], runs)


def write_kept(path: Path, kept: KeptRuns) -> None:
    """Keep `kept`, whole or not at all; a full disk costs the next search time, nothing else."""
    body = pa.BufferOutputStream()
    packed = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(body, kept.runs.table.schema, options=packed) as writer:
        writer.write_table(kept.runs.table)
    columns = body.getvalue()
    about = {
        "format": _FORMAT,
        "crc32": zlib.crc32(columns),
        "asked_at": kept.asked_at,
        "experiments": dict(kept.experiments),
    }
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, b"%s\n%s" % (json.dumps(about).encode(), columns), durable=False)
        others = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in others[:-_MOST_FILES]:
            old.unlink(missing_ok=True)
