"""The source that samples the device which the worker reported, and several of them as one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from bench.launcher.telemetry.amd import AmdSource
from bench.launcher.telemetry.base import DEVICE_FACTS, AbsentDevice, Reading, Source
from bench.launcher.telemetry.nvidia import GPU_SERIES, NvidiaSource
from bench.machine.gpu_drivers import AMD_UUID, open_amdsmi
from bench.machine.probes import ROOT, UnknownFactError, open_nvml, reason_of
from bench.machine.rapl import PackageEnergy
from bench.records.journal import Clock

T = TypeVar("T")


def device_source(
    backend: str,
    uuid: str | None,
    worker_pid: int,
    root: Path = ROOT,
    nvml_opener: Callable[[], Any] = open_nvml,
    smi_opener: Callable[[], Any] = open_amdsmi,
) -> Source:
    """Return the source for the worker's device: NVML or amdsmi for CUDA, RAPL for a CPU.

    `uuid` is `DeviceInfo.uuid`. Never fails: where nothing can be read, the source says why.
    """
    if backend == "mps":
        return AbsentDevice("Apple shows its GPU's energy and clocks to root only (powermetrics)")
    if backend == "cpu":
        try:
            return RaplSource(root)
        except UnknownFactError as error:
            absent = AbsentDevice("no NVIDIA device in this run")
            absent.missing["energy_j"] = str(error)
            return absent
    if uuid is None:
        return AbsentDevice("the device's UUID is unknown", GPU_SERIES)
    try:
        if uuid.startswith(AMD_UUID):
            return AmdSource(smi_opener(), uuid)
        return NvidiaSource(nvml_opener(), uuid, worker_pid)
    except Exception as error:  # amdsmi and NVML have errors of their own
        return AbsentDevice(reason_of(error), GPU_SERIES)


class RaplSource(Source):
    """Cumulative energy of the processor packages, and `cpu_package_power_w` between two readings.

    Raises `UnknownFactError` where no package's counter can be read.
    """

    name = "rapl"
    measures_device = True

    def __init__(self, root: Path = ROOT, clock: Clock = time.perf_counter) -> None:
        super().__init__(
            {
                "throttle_share": "not read for CPUs",
                "slowed_share": "not read for CPUs",
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


class SeveralDevices(Source):
    """Energy is the devices' sum, throttle reasons and foreign processes are those of any.

    The time for which they were slowed is their mean.

    The lowest rank's quantities keep their names, the others' begin with `rank1_`, `rank2_`...
    """

    name = "devices"
    measures_device = True

    def __init__(self) -> None:
        super().__init__()
        self._sources: dict[int, Source] = {}

    def join(self, rank: int, source: Source) -> None:
        """Sample the device of `rank` too, from the next reading on."""
        self._sources[rank] = source
        self._sources = dict(sorted(self._sources.items()))
        self.name = source.name

    def read(self) -> Reading:
        """Read every device; a fact of all is unknown where it is unknown of one."""
        values: dict[str, float] = {}
        readings: list[Reading] = []
        for rank, source in self._sources.items():
            prefix = f"rank{rank}_" if readings else ""
            reading = source.read()
            readings.append(reading)
            values |= {f"{prefix}{name}": value for name, value in reading.values.items()}
            self._note("", source, DEVICE_FACTS)
            self._note(prefix, source, source.missing.keys() - set(DEVICE_FACTS))
        energy = _of_all(reading.energy_j for reading in readings)
        reasons = _of_all(reading.throttle_reasons for reading in readings)
        slowed = _of_all(reading.slowed_s for reading in readings)
        return Reading(
            values,
            None if energy is None else sum(energy),
            None if reasons is None else frozenset().union(*reasons),
            None if slowed is None else _mean(slowed),
        )

    def foreign_processes(self) -> tuple[str, ...] | None:
        """Return the foreign processes of any device, or None if they are unknown of one."""
        found: set[str] = set()
        for source in self._sources.values():
            processes = source.foreign_processes()
            if processes is None:
                self._note("", source, ("foreign_processes",))
                return None
            found.update(processes)
        return tuple(sorted(found))

    def _note(self, prefix: str, source: Source, names: Iterable[str]) -> None:
        """Keep the reasons why `source` lacks the facts `names`."""
        for name in names:
            if name in source.missing:
                self.missing[f"{prefix}{name}"] = source.missing[name]


def _mean(counters: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = set[str]().union(*counters)
    return {name: fmean(one.get(name, 0.0) for one in counters) for name in sorted(names)}


def _of_all(values: Iterable[T | None]) -> list[T] | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return known if known and len(known) == len(found) else None
