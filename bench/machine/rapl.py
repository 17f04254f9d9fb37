"""Energy of the processor packages by RAPL, as Linux shows it under /sys/class/powercap.

Kernel Documentation/power/powercap/powercap.rst. Memory modules are not in a package's count.
Since Linux 5.10 only root may read it (CVE-2020-8694).
"""

from __future__ import annotations

from pathlib import Path

from bench.machine.probes import ROOT, UnknownFactError, text_of

_MICRO = 1e-6


class PackageEnergy:
    """Cumulative energy of all processor packages.

    Raises `UnknownFactError` where no package's counter can be read.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._packages = [_Package(folder) for folder in _package_folders(root)]
        if not self._packages:
            raise UnknownFactError("the kernel shows no RAPL energy counter")

    def energy_j(self) -> float:
        """Return joules; only differences mean something. Raises `UnknownFactError`."""
        return sum(package.energy_j() for package in self._packages)


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
