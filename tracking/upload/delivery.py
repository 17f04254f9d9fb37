"""How a campaign's records reach the tracking server, one by one and whatever becomes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow.entities import Param, RunTag

from bench.records import RunRecord
from bench.records.folders import RecordFolder, record_folders
from bench.records.journal import Clock
from campaigns.sweep.past import PastRun
from tracking import schema
from tracking.reading.campaign import campaign_runs
from tracking.retry import AWAY_LIMIT_S, RetryPolicy
from tracking.store import TrackingError, open_client, tracking_call
from tracking.upload.owner import owner_tags
from tracking.upload.upload import is_uploaded, upload

#: A server that is away costs seconds per try, between two measurements.
_TRY_AGAIN_S = 60.0


class Delivery:
    """Uploads each record as it is made; a server that fails costs no measurement.

    `problem` is why something did not get there, or None. `project_run` is the run that
    `mlflow run` made for this process, if it made one; `kind` says what it then is.
    """

    def __init__(
        self,
        campaign: str,
        *,
        kind: str = "sweep",
        clock: Clock = time.monotonic,
    ) -> None:
        self._campaign = campaign
        self._clock = clock
        self._not_before_s = 0.0
        self._kind = kind
        self.project_run: str | None = None
        self._left: list[RecordFolder] = []
        self._refused = 0
        self._why: str | None = None

    @property
    def problem(self) -> str | None:
        """Why some records are not on the server, or None if all are."""
        return self._why if self._left or self._refused else None

    def begin(self, params: dict[str, str]) -> None:
        """Make the run that `mlflow run` made, if it made one, the sweep's own."""
        with self._noting():
            self.project_run = take_project_run(self._campaign, params, self._kind)

    def runs_elsewhere(self) -> list[PastRun]:
        """Return the campaign's runs that the server knows; none where it cannot be asked."""
        with self._noting():
            return campaign_runs(self._campaign)
        return []

    def catch_up(self, records: Path) -> None:
        """Upload what earlier sweeps of the campaign left on disk."""
        if not records.is_dir():
            return
        for folder in record_folders(records):
            if is_uploaded(folder):
                continue
            record = folder.readable_record()
            if isinstance(record, RunRecord) and record.config.campaign == self._campaign:
                self._left.append(folder)
        self._try_left()

    def deliver(self, folder: RecordFolder, record: RunRecord) -> None:
        """Upload one more record, after whatever is still left of the ones before."""
        self._left.append(folder)
        self._try_left()

    def end(self, note: str, *, interrupted: bool) -> None:
        """Try once more what is left, and end the sweep's own run with `note` for description."""
        self._not_before_s = 0.0
        self._try_left()
        if self.project_run is not None:
            status = "KILLED" if interrupted else "FINISHED"
            with self._noting():
                end_project_run(self.project_run, note, status=status)

    def _try_left(self) -> None:
        if not self._left or self._clock() < self._not_before_s:
            return
        with self._noting():
            while self._left:
                record = self._left[0].read_record()
                try:
                    if record is not None:
                        upload(self._left[0], record)
                except TrackingError as error:
                    if error.away:
                        raise
                    self._why = str(error)  # of this one record: the others go on
                    self._refused += 1
                self._left.pop(0)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep a server's failure as the reason, and leave it alone for a while."""
        try:
            yield
        except TrackingError as error:
            self._why = str(error)
            self._not_before_s = self._clock() + _TRY_AGAIN_S


@tracking_call
def take_project_run(campaign: str, params: dict[str, str], kind: str = "sweep") -> str | None:
    """Make the run that `mlflow run` made for this process the sweep's own, and return its id.

    From then on every record gets a run of its own, as in a sweep started without MLflow. None
    where MLflow made no run.
    """
    run_id = os.environ.pop("MLFLOW_RUN_ID", None)
    if run_id is None:
        return None
    client, ask = open_client(), RetryPolicy(AWAY_LIMIT_S)
    os.environ["MLFLOW_EXPERIMENT_ID"] = ask(client.get_run, run_id).info.experiment_id
    tags = {schema.KIND: kind, schema.CAMPAIGN: campaign, schema.RUN_NAME: f"{campaign}_{kind}"}
    ask(
        client.log_batch,
        run_id,
        params=[Param(*pair) for pair in params.items()],
        tags=[RunTag(*pair) for pair in {**tags, **owner_tags()}.items()],
    )
    return run_id


@tracking_call
def end_project_run(run_id: str, note: str, *, status: str) -> None:
    """End the sweep's own run with the table of its results as description."""
    client, ask = open_client(), RetryPolicy(AWAY_LIMIT_S)
    ask(client.set_tag, run_id, schema.NOTE, note)
    ask(client.set_terminated, run_id, status)
