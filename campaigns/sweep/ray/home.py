"""What comes home from nodes: on the driver's disk first, then known as measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from bench.config import RunConfig
from bench.launcher.measurement import finish_record, unmeasured
from bench.records import Environment, RunRecord
from bench.records.folders import RecordFolder
from campaigns.sweep.past import PastRuns
from campaigns.sweep.past_run import PastRun
from campaigns.sweep.ray.fleet import Landing
from campaigns.sweep.ray.parcel import ParcelError, unpack


@dataclass
class Run:
    """One planned run on its way to a record."""

    number: int
    config: RunConfig
    attempts: int = 0


@dataclass(frozen=True)
class Flight:
    """A run that a node is measuring."""

    run: Run
    environment: Environment


@dataclass(frozen=True)
class Landed:
    """What came home; `flight` is the one that this ends, if it ends one, `lost` why in vain."""

    flight: Flight | None
    records: list[tuple[RecordFolder, RunRecord]]
    lost: str | None


class Home:
    """The driver's records folder, where parcels from nodes are unpacked."""

    def __init__(self, records: Path, past: PastRuns, note: Callable[[str], None]) -> None:
        self._records = records
        self._past = past
        self._note = note

    def take_in(self, landing: Landing, flight: Flight | None) -> Landed:
        """Write what arrived and note that it is measured."""
        arrived = []
        lost = landing.lost
        for parcel in landing.parcels:
            try:
                arrived.append(unpack(parcel, self._records))
            except ParcelError as error:
                lost = str(error)
                self._note(f"node {landing.node.name}: {error}")
        if flight is not None and landing.out_of_memory:
            arrived.append(self._out_of_memory(flight, f"node {landing.node.name}: {lost}"))
        for _, record in arrived:
            if record.outcome == "interrupted":
                lost = lost or record.reason
            self._past.add(PastRun.of(record))
        return Landed(flight, arrived, lost)

    def _out_of_memory(self, flight: Flight, why: str) -> tuple[RecordFolder, RunRecord]:
        """The record of a run that Ray's memory monitor ended: no process was left to write it."""
        config = flight.run.config
        folder = RecordFolder.create(self._records)
        folder.write(folder.config, config)
        created = datetime.now(timezone.utc)
        blank = unmeasured(config, folder, outcome="oom", reason=why, created=created)
        missing = {name: reason for name, reason in blank.missing.items() if name != "environment"}
        known = {"environment": flight.environment, "missing": missing}
        return folder, finish_record(folder, RunRecord(**{**dict(blank), **known}), None, None, why)
