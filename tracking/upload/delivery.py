"""How a campaign's records reach the tracking server, one by one and whatever becomes of it.

And what of runs there is put right later: places beside their records, and runs left RUNNING.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from mlflow.entities import Metric, Run

from bench.config import RunConfig, parse_config
from bench.errors import UserError, fault_line
from bench.records import Outcome, RunRecord
from bench.records.folders import MeasuredRecord, RecordFolder, record_folders
from bench.records.journal import Clock
from campaigns.plan import PastRun
from tracking import schema
from tracking.connection import Server, TrackingError
from tracking.store import is_embedded, settings_uri
from tracking.tracked_runs import TrackedRun, search_runs
from tracking.upload.upload import Placing, of_this_project, otherwise, project_run, upload

#: A server that is away costs seconds per try, between two measurements.
_TRY_AGAIN_S = 60.0
_WHOLE = f"tags.`{schema.UPLOADED}` = 'true'"


@dataclass
class Delivery:
    """Uploads each record as it is made; a server that fails costs no measurement.

    `problem` is why something did not get there, or None. `project_run` is the run that
    `mlflow run` made for this process, if it made one; `kind` says what it then is. `place` gives
    what a run carries beside its record.
    """

    campaign: str
    kind: str = "sweep"
    clock: Clock = time.monotonic
    project_run: str | None = None
    place: Placing | None = None

    def __post_init__(self) -> None:
        self._not_before_s = 0.0
        self._left: list[RecordFolder] = []
        self._refused = 0
        self._why: str | None = None

    @property
    def problem(self) -> str | None:
        """Why some records are not on the server, or None if all are."""
        return self._why if self._left or self._refused else None

    def begin(self, params: dict[str, str]) -> None:
        """Make the run that `mlflow run` made for this process, if it made one, the campaign's own.

        From then on every record gets a run of its own, as in a sweep started without MLflow.
        Raises `UserError` where a server refuses to be written to: hours would be measured first.
        """
        if not is_embedded(settings_uri()):
            with self._noting(or_refusing=True):
                server = Server(answer_s=None)
                server.mark(server.experiment_id(), rewrite=True)
        run_id = os.environ.pop("MLFLOW_RUN_ID", None)
        if run_id is None:
            return
        name = f"{self.campaign}_{self.kind}"
        tags = {schema.KIND: self.kind, schema.CAMPAIGN: self.campaign, schema.RUN_NAME: name}
        with self._noting():
            server = Server(answer_s=None)
            if (run := project_run(server, run_id)) is not None:
                os.environ["MLFLOW_EXPERIMENT_ID"] = run.info.experiment_id
                os.environ.pop("MLFLOW_EXPERIMENT_NAME", None)
                server.log(run_id, params=params, tags=tags | server.user_tag)
                self.project_run = run_id

    def runs_elsewhere(self) -> list[PastRun]:
        """Return the whole measurements of the campaign that the server knows, of every machine.

        Oldest first; none where the server cannot be asked.
        """
        with self._noting():
            runs = search_runs(schema.runs_filter(_WHOLE, self.campaign, kind="measurement"))
            past_runs = [past for run in runs if (past := _past_run(run)) is not None]
            return sorted(past_runs, key=lambda past: past.record_id)
        return []

    def catch_up(self, records: Path) -> None:
        """Upload what earlier sweeps of the campaign left on disk."""
        if not records.is_dir():
            return
        held: set[str | None] = set()
        with self._noting():
            runs = search_runs(schema.runs_filter(_WHOLE, self.campaign))
            held = {run.tags.get(schema.RECORD_ID) for run in runs}
        for folder in record_folders(records):
            if folder.record_id in held:
                continue
            record = folder.readable_record()
            if isinstance(record, RunRecord) and record.config.campaign == self.campaign:
                self._left.append(folder)
        self._try_left()

    def deliver(self, folder: RecordFolder, record: MeasuredRecord) -> None:
        """Upload one more record, after whatever is still left of the ones before."""
        self._left.append(folder)
        self._try_left()

    def end(self, note: str, *, interrupted: bool) -> None:
        """Try once more what is left, and end the sweep's own run with `note` for description."""
        self._not_before_s = 0.0
        self._try_left()
        if self.project_run is not None:
            with self._noting():
                server = Server(answer_s=None)
                server.log(self.project_run, tags={schema.NOTE: note})
                server.end(self.project_run, "KILLED" if interrupted else "FINISHED")

    def _try_left(self) -> None:
        if not self._left or self.clock() < self._not_before_s:
            return
        with self._noting():
            server = Server(answer_s=None)
            while self._left:
                try:
                    record = self._left[0].read_record()
                    if record is not None:
                        upload(self._left[0], record, server, place=self.place)
                except Exception as error:  # of this one record: the others go on
                    if isinstance(error, TrackingError) and error.away:
                        raise
                    ours = isinstance(error, TrackingError | UserError | OSError)
                    self._why = str(error) if ours else fault_line(error)
                    self._refused += 1
                self._left.pop(0)

    @contextmanager
    def _noting(self, *, or_refusing: bool = False) -> Iterator[None]:
        """Keep a server's failure as the reason, and leave it alone for a while."""
        try:
            yield
        except TrackingError as error:
            if or_refusing and error.denied:
                words = "nothing was measured; --no-track measures without the server"
                raise UserError(f"{error}; {words}") from None
            self._why = str(error)
            self._not_before_s = self.clock() + _TRY_AGAIN_S


def _past_run(run: TrackedRun) -> PastRun | None:
    """What a sweep needs to know of a run; None for one that another version wrote."""
    given = {name: run.params[name] for name in RunConfig.model_fields if name in run.params}
    outcome = run.tags.get(schema.OUTCOME)
    try:
        config = parse_config(given)
    except UserError:
        return None
    if config.config_id != run.tags.get(schema.CONFIG_ID) or outcome not in schema.STATUS:
        return None
    return PastRun(
        config,
        run.tags.get(schema.ENVIRONMENT_ID),
        cast(Outcome, outcome),
        run.tags.get(schema.REASON),
        run.tags[schema.RECORD_ID],
        run.tags.get(schema.CODE),
    )


def reap(older_than_s: float, tracking_uri: str | None = None) -> tuple[list[Run], list[Run]]:
    """End the runs of this project that are RUNNING and began more than `older_than_s` ago.

    They are those that an upload of ours made, or that `mlflow run` of this project made. Return
    the ended ones, and the younger ones, which are left. Raises `TrackingError`.
    """
    server, now_s = Server(tracking_uri), time.time()
    ended: list[Run] = []
    left: list[Run] = []
    # read to the end first: a run that is ended leaves the selection that is paged through
    for run in list(server.search("attributes.status = 'RUNNING'")):
        run_id, age_s = run.info.run_id, now_s - run.info.start_time / 1000
        if schema.KIND not in run.data.tags and not of_this_project(run):
            continue
        if age_s <= older_than_s:
            left.append(run)
        elif server.ask(server.client.get_run, run_id).info.status == "RUNNING":  # still
            reason = f"ended by sync --reap: it began {age_s / 3600:.1f} h before"
            outcome = run.data.tags.get(schema.OUTCOME, "interrupted")
            server.log(run_id, tags={schema.OUTCOME: outcome, schema.REASON: reason})
            server.end(run_id, schema.STATUS["interrupted"])
            ended.append(run)
    return ended, left


@dataclass
class Added:
    """How many runs got what they lacked, got other values than they had, or had all.

    `refused` could not be written, for the reason in `why`; `left` were not come to in time.
    """

    new: int = 0
    changed: int = 0
    same: int = 0
    refused: int = 0
    left: int = 0
    why: str = ""


def add_to_runs(
    additions: Mapping[str, schema.Addition],
    *,
    limit_s: float = 60.0,
    clock: Clock = time.monotonic,
) -> Added:
    """Give runs what they are to carry, by run id; what differs takes the place of what was there.

    Runs that have all of it are not written to. In an experiment that these credentials may not
    write to nothing is tried again. After `limit_s` the rest is left for the next time. Raises
    `TrackingError` where the server is away.
    """
    server, until_s, added = Server(), clock() + limit_s, Added(left=len(additions))
    closed: set[str] = set()
    for run in server.runs(list(additions)):
        if clock() > until_s:
            break
        added.left -= 1
        run_id = run.info.run_id
        metrics, tags = otherwise(run, additions[run_id])
        if not metrics and not tags:
            added.same += 1
        elif run.info.experiment_id in closed:
            added.refused += 1
        else:
            now_ms = int(time.time() * 1000)
            points = [
                Metric(schema.logged_name(name), value, now_ms, 0)
                for name, value in metrics.items()
            ]
            try:
                server.log(run_id, points, tags=tags)
            except TrackingError as error:
                if not error.denied:
                    raise
                closed.add(run.info.experiment_id)
                added.refused += 1
                added.why = str(error)
            else:
                known = schema.plain_metrics(run.data.metrics)
                had = metrics.keys() & known.keys() or tags.keys() & run.data.tags.keys()
                added.changed += bool(had)
                added.new += not had
    return added
