"""The host's processor and memory, by psutil: of the whole machine and of the worker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import psutil
from typing_extensions import override

from bench.errors import Unknown
from bench.launcher.telemetry.sampler import Reading, Source
from bench.machine.probes import UnknownFactError, probe
from bench.records.folders import is_running
from bench.records.journal import Clock

#: Listing descendants reads the whole process table; they seldom change after the start.
_REFRESH_S = 2.0
_BYTES_PER_MB = 1e6


class ProcessTree:
    """CPU time and memory of a process and its descendants, as far as they still run."""

    def __init__(self, pid: int, clock: Clock = time.perf_counter) -> None:
        self._pid = pid
        self._clock = clock
        self._listed_s = -_REFRESH_S
        self._processes: list[psutil.Process] = []
        self._cpu_s: dict[psutil.Process, float] = {}
        self._cpu_read_s: float | None = None
        self._seen: set[int] = {pid}

    @property
    def seen(self) -> frozenset[int]:
        """Process ids of every member met so far, ended ones too."""
        self._members()
        return frozenset(self._seen)

    @property
    def alive(self) -> bool:
        """Whether the root of the tree still runs."""
        return is_running(self._pid)

    def rss_mb(self) -> float:
        """Return the resident memory of all members in MB; pages they share count in each.

        Raises `UnknownFactError` once the tree has ended.
        """
        sizes = []
        for process in self._members():
            with contextlib.suppress(psutil.Error):
                sizes.append(process.memory_info().rss)
        if not sum(sizes):
            raise UnknownFactError("the worker has ended")
        return sum(sizes) / _BYTES_PER_MB

    def cpu_percent(self) -> float:
        """Return the CPU time used since the last call over the wall time, 100 being one core.

        Raises `UnknownFactError` on the first call and once the tree has ended.
        """
        now = self._clock()
        before, self._cpu_s = self._cpu_s, {}
        for process in self._members():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu_s[process] = times.user + times.system
        began, self._cpu_read_s = self._cpu_read_s, now
        if not self._cpu_s:
            raise UnknownFactError("the worker has ended")
        if began is None or now <= began:
            raise UnknownFactError("CPU time needs two readings")
        used = sum(seconds - before.get(process, 0.0) for process, seconds in self._cpu_s.items())
        return 100 * used / (now - began)

    def _members(self) -> list[psutil.Process]:
        now = self._clock()
        if now - self._listed_s >= _REFRESH_S:
            self._listed_s = now
            try:
                root = psutil.Process(self._pid)
                self._processes = [root, *root.children(recursive=True)]
            except psutil.Error:
                self._processes = []
            self._seen.update(process.pid for process in self._processes)
        return self._processes


#: A reading dearer than this would show in the worker on a small machine. Some kernels take
#: milliseconds per core for the frequency, and some boards for a temperature.
_AFFORDABLE_S = 0.005
_SHARES = ("cpu_utilization_percent", "worker_cpu_percent")
_OPTIONAL = ("cpu_frequency_mhz", "cpu_temperature_c", "stolen_cpu_percent")
_LOGICAL_CORES = psutil.cpu_count() or 1
#: hwmon names of processor sensors (kernel Documentation/hwmon, arm and arm64 thermal zones).
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")


class HostSource(Source):
    """CPU share, memory, frequency and temperature of the machine; CPU and memory of the worker.

    `worker_cpu_percent`, `stolen_cpu_percent` and `other_cpu_percent`, the rest of the machine,
    count 100 for one busy core. Stolen is what the host of a virtual machine gave to others.
    `worker_rss_mb` is the sum over the worker's processes: shared pages count in each.
    """

    name = "psutil"

    def __init__(self, worker_pid: int, clock: Clock = time.perf_counter) -> None:
        tree = ProcessTree(worker_pid, clock)
        self._gauges: dict[str, Callable[[], float]] = {
            "cpu_utilization_percent": psutil.cpu_percent,
            "memory_used_mb": _memory_used_mb,
            "worker_cpu_percent": tree.cpu_percent,
            "worker_rss_mb": tree.rss_mb,
            "stolen_cpu_percent": _stolen_cpu_percent,
            "cpu_frequency_mhz": _cpu_frequency_mhz,
            "cpu_temperature_c": _cpu_temperature_c,
        }
        self._left_out: dict[str, Unknown] = {}
        for name, gauge in tuple(self._gauges.items()):
            begin = clock()
            value = probe(gauge)  # what rates need anyway
            took_s = clock() - begin
            if name in _OPTIONAL and took_s > _AFFORDABLE_S:
                dear = f"one reading takes {1e3 * took_s:.0f} ms: it would disturb the run"
                value = Unknown(dear)
            if name in _OPTIONAL and isinstance(value, Unknown):
                self._left_out[name] = value
                del self._gauges[name]

    @override
    def read(self) -> Reading:
        """Read all gauges; those of rates cover the time since the last reading."""
        values = {name: probe(gauge) for name, gauge in self._gauges.items()}
        busy, worker, stolen = map(values.get, (*_SHARES, "stolen_cpu_percent"))
        if isinstance(busy, float) and isinstance(worker, float):
            others = busy * _LOGICAL_CORES - worker - (stolen or 0.0)
            values["other_cpu_percent"] = max(0.0, others)
        return Reading({**self._left_out, **values})


def _memory_used_mb() -> float:
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) / _BYTES_PER_MB


def _stolen_cpu_percent() -> float:
    """Since the last call, of all cores; `psutil.cpu_percent` counts it as busy."""
    share = getattr(psutil.cpu_times_percent(), "steal", None)
    if share is None:
        raise UnknownFactError("the system does not count it")
    return float(share * _LOGICAL_CORES)


def _cpu_frequency_mhz() -> float:
    frequency = psutil.cpu_freq()
    if frequency is None or not frequency.current:
        raise UnknownFactError("the system shows no frequency")
    return float(frequency.current)


def _cpu_temperature_c() -> float:
    sensors = getattr(psutil, "sensors_temperatures", None)
    found = sensors() if sensors else {}
    readings = [entry.current for name in _CPU_SENSORS for entry in found.get(name, ())]
    if not readings:
        raise UnknownFactError("the system shows no processor sensor")
    return float(max(readings))
