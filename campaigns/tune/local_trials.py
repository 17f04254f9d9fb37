"""Trials on this machine: a fresh worker each, one at a time, ended when it takes too long."""

from __future__ import annotations

from pathlib import Path

from bench.config import RunConfig
from bench.launcher.measurement import launch_measurement
from bench.records import Environment, RunRecord
from bench.records.folders import RecordFolder
from bench.records.journal import Event, OnEvent
from campaigns.sweep.executor import Deliver
from campaigns.sweep.local_devices import exclusive


class LocalMeasure:
    """Measures and keeps every record; `deliver` brings it wherever else it is kept.

    Raises `KeyboardInterrupt`, once the record is safe, where the user ended the worker.
    """

    def __init__(
        self, environment: Environment, records: Path, deliver: Deliver, on_event: OnEvent
    ) -> None:
        self._device = environment.device
        self._records = records
        self._deliver = deliver
        self._on_event = on_event

    def __call__(self, config: RunConfig, limit_s: float) -> RunRecord:
        """Return the record of `config`; `interrupted` after `limit_s` seconds."""
        with exclusive(self._device, self._waiting):
            folder = RecordFolder.create(self._records)
            limit = _TimeLimit(limit_s, self._on_event)
            record = launch_measurement(config, folder, limit.on_event)
        self._deliver(folder, record)
        if record.outcome == "interrupted" and not limit.passed:
            raise KeyboardInterrupt
        return record

    def _waiting(self) -> None:
        self._on_event(Event("waiting", 0.0, {"device": self._device.name}))


class _TimeLimit:
    """Ends a worker as Ctrl-C would, at the first tick past the limit."""

    def __init__(self, limit_s: float, on_event: OnEvent) -> None:
        self.passed = False
        self._limit_s = limit_s
        self._on_event = on_event
        self._first_clock_s: float | None = None

    def on_event(self, event: Event) -> None:
        """Pass the event on, and look at its clock."""
        self._on_event(event)
        if event.name != "tick" or self.passed:
            return
        self._first_clock_s = self._first_clock_s or event.clock_s
        if event.clock_s - self._first_clock_s > self._limit_s:
            self.passed = True
            raise KeyboardInterrupt
