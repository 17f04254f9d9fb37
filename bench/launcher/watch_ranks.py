"""Watches the ranks of a measurement on several devices, and the launcher that holds them."""

from __future__ import annotations

import contextlib
import os

import psutil

from bench.config import RunConfig
from bench.launcher.telemetry import SeveralDevices, device_source
from bench.launcher.watch import WorkerWatch
from bench.machine.host_memory import allocator_settings
from bench.records import Measurement, Telemetry
from bench.records.folders import RecordFolder
from bench.records.journal import Event, OnEvent


class RanksWatch(WorkerWatch):
    """The worker is torch's elastic launcher; rank 0 tells how far the measurement is.

    The elastic launcher starts every rank in a session of its own. They are asked to end directly:
    it would ask their image loaders too.
    """

    def __init__(self, config: RunConfig, folder: RecordFolder, on_event: OnEvent) -> None:
        super().__init__("ranks", folder, on_event, environment=allocator_settings(config))
        self._nodes = config.nodes
        self._devices: SeveralDevices | None = None

    def _take(self, event: Event) -> None:
        rank = event.facts.get("rank")
        if event.name == "started" and rank is not None:
            self._lead(event.facts["pid"])
        if not rank:  # of rank 0, or of the elastic launcher
            super()._take(event)
        elif event.name == "device":
            self._sample_device(event)

    def _lead(self, pid: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._leaders.append(psutil.Process(pid))
        with contextlib.suppress(psutil.NoSuchProcess):  # one of them may have ended already
            pids = (leader.pid for leader in self._leaders)
            self._folder.claim(os.getpid(), self._popen.pid, *pids)

    def _sample_device(self, event: Event) -> None:
        """Every GPU of this machine; its processor only once."""
        if self._devices is None:
            self._devices = SeveralDevices()
            self._sampler.add(self._devices)
        elif event.facts["backend"] == "cpu":
            return
        source = device_source(event.facts["backend"], event.facts["uuid"], self._popen.pid)
        self._devices.join(event.facts["rank"], source)

    def window_telemetry(self, window: Measurement | None) -> Telemetry | None:
        """Return what was sampled on this machine inside the measured window."""
        found = super().window_telemetry(window)
        if found is None or found.energy_j is None or self._nodes == 1:
            return found
        why = {"energy_j": "the other machines' devices are not sampled"}
        return found.replaced(missing=why, energy_j=None)
