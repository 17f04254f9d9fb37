"""Energy and power of the processor packages (`bench.machine.rapl`)."""

from __future__ import annotations

import time
from pathlib import Path

from bench.launcher.telemetry.base import Reading, Source
from bench.machine.probes import ROOT, UnknownFactError
from bench.machine.rapl import PackageEnergy
from bench.records.journal import Clock


class RaplSource(Source):
    """Cumulative package energy, and `cpu_package_power_w` between two readings.

    Raises `UnknownFactError` where no package's counter can be read.
    """

    name = "rapl"
    measures_device = True

    def __init__(self, root: Path = ROOT, clock: Clock = time.perf_counter) -> None:
        super().__init__(
            {
                "throttle_share": "not read for CPUs",
                "foreign_processes": "a CPU is shared: see cpu_utilization_percent",
            }
        )
        self._clock = clock
        self._energy = PackageEnergy(root)
        self._last: tuple[float, float] | None = None

    def read(self) -> Reading:
        """Read every package; power comes with the second reading."""
        now = self._clock()
        try:
            energy_j = self._energy.energy_j()
        except UnknownFactError as error:
            self.missing["energy_j"] = str(error)
            return Reading()
        last, self._last = self._last, (now, energy_j)
        if last is None or now <= last[0]:
            return Reading({}, energy_j)
        power_w = (energy_j - last[1]) / (now - last[0])
        return Reading({"cpu_package_power_w": power_w}, energy_j)
