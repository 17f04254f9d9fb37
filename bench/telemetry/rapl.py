"""Energy of the processor packages by RAPL, as Linux shows it under /sys/class/powercap.

Kernel Documentation/power/powercap/powercap.rst. Memory modules are not in a package's count.
Since Linux 5.10 only root may read it (CVE-2020-8694).
"""

from __future__ import annotations

import time
from pathlib import Path

from bench.environment.probes import ROOT, UnknownFactError, text_of
from bench.telemetry.base import Clock, Reading, Source

_MICRO = 1e-6


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
        self._packages = [_Package(folder) for folder in _package_folders(root)]
        if not self._packages:
            raise UnknownFactError("the kernel shows no RAPL energy counter")
        self._last: tuple[float, float] | None = None

    def read(self) -> Reading:
        """Read every package; power comes with the second reading."""
        now = self._clock()
        try:
            energy_j = sum(package.energy_j() for package in self._packages)
        except UnknownFactError as error:
            self.missing["energy_j"] = str(error)
            return Reading()
        last, self._last = self._last, (now, energy_j)
        if last is None or now <= last[0]:
            return Reading({}, energy_j)
        power_w = (energy_j - last[1]) / (now - last[0])
        return Reading({"cpu_package_power_w": power_w}, energy_j)


class _Package:
    """One counter, made to count on where the register wraps around."""

    def __init__(self, folder: Path) -> None:
        self._counter = folder / "energy_uj"
        self._range_uj = int(text_of(folder / "max_energy_range_uj"))
        self._last_uj = int(text_of(self._counter))
        self._total_uj = 0

    def energy_j(self) -> float:
        now_uj = int(text_of(self._counter))
        step = now_uj - self._last_uj
        self._total_uj += step if step >= 0 else step + self._range_uj
        self._last_uj = now_uj
        return self._total_uj * _MICRO


def _package_folders(root: Path) -> list[Path]:
    """Packages only: `psys` holds them again, and intel-rapl-mmio shows the same counters."""
    zones = sorted((root / "sys/class/powercap").glob("intel-rapl:*"))
    return [zone for zone in zones if text_of(zone / "name").startswith("package-")]
