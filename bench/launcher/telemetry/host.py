"""The host's processor and memory, by psutil: of the whole machine and of the worker."""

from __future__ import annotations

import time

import psutil

from bench.launcher.telemetry.base import Gauge, Reading, Source
from bench.launcher.telemetry.tree import ProcessTree
from bench.machine.probes import UnknownFactError
from bench.records.journal import Clock

#: A reading dearer than this would show in the worker on a small machine. Some kernels take
#: milliseconds per core for the frequency, and some boards for a temperature.
_AFFORDABLE_S = 0.005
_BYTES_PER_MB = 1e6
_LOGICAL_CORES = psutil.cpu_count() or 1
#: hwmon names of processor sensors (kernel Documentation/hwmon, arm and arm64 thermal zones).
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")


class HostSource(Source):
    """CPU share, memory, frequency and temperature of the machine; CPU and memory of the worker.

    `worker_cpu_percent` and `other_cpu_percent`, the rest of the machine, count 100 for one busy
    core. `worker_rss_mb` adds up the worker's
    processes, so pages that they share count in each.
    """

    name = "psutil"

    def __init__(self, worker_pid: int, clock: Clock = time.perf_counter) -> None:
        super().__init__()
        tree = ProcessTree(worker_pid, clock)
        gauges: dict[str, Gauge] = {
            "cpu_utilization_percent": psutil.cpu_percent,
            "memory_used_mb": _memory_used_mb,
            "worker_cpu_percent": tree.cpu_percent,
            "worker_rss_mb": tree.rss_mb,
            "cpu_frequency_mhz": _cpu_frequency_mhz,
            "cpu_temperature_c": _cpu_temperature_c,
        }
        self._gauges = {
            name: gauge for name, gauge in gauges.items() if self._is_cheap(name, gauge, clock)
        }

    def read(self) -> Reading:
        """Read all gauges; those of rates cover the time since the last reading."""
        values = self._read_gauges(self._gauges)
        if {"cpu_utilization_percent", "worker_cpu_percent"} <= values.keys():
            busy_percent = values["cpu_utilization_percent"] * _LOGICAL_CORES
            values["other_cpu_percent"] = max(0.0, busy_percent - values["worker_cpu_percent"])
        return Reading(values)

    def _is_cheap(self, name: str, gauge: Gauge, clock: Clock) -> bool:
        """Read once, which rates need anyway, and leave out what is absent or takes too long."""
        begin = clock()
        values = self._read_gauges({name: gauge})
        took_s = clock() - begin
        if name in _OPTIONAL and not values:
            return False
        if name in _OPTIONAL and took_s > _AFFORDABLE_S:
            self.missing[name] = (
                f"one reading takes {took_s * 1e3:.0f} ms: it would disturb the run"
            )
            return False
        return True


_OPTIONAL = ("cpu_frequency_mhz", "cpu_temperature_c")


def _memory_used_mb() -> float:
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) / _BYTES_PER_MB


def _cpu_frequency_mhz() -> float:
    frequency = psutil.cpu_freq()
    if frequency is None or not frequency.current:
        raise UnknownFactError("the system tells no frequency")
    return float(frequency.current)


def _cpu_temperature_c() -> float:
    sensors = getattr(psutil, "sensors_temperatures", None)
    found = sensors() if sensors else {}
    readings = [entry.current for name in _CPU_SENSORS for entry in found.get(name, ())]
    if not readings:
        raise UnknownFactError("the system shows no processor sensor")
    return float(max(readings))
