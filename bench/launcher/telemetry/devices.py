"""Samples of the host and the worker, of an NVIDIA or AMD GPU, and of a processor's energy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil
from typing_extensions import override

from bench.errors import Unknown
from bench.launcher.telemetry import Reading, Source
from bench.machine import UnknownFactError, gpu_drivers, probe
from bench.machine.cpu import PackageEnergy
from bench.machine.gpu_drivers import AMD_UUID, amd_clock_mhz, amd_device, number_of, nvml_device
from bench.records import CLOCK_SETTING, POWER_LIMIT
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
    entries = sensors() if sensors else {}
    readings = [entry.current for name in _CPU_SENSORS for entry in entries.get(name, ())]
    if not readings:
        raise UnknownFactError("the system shows no processor sensor")
    return float(max(readings))


_NO_GPU = Unknown("no NVIDIA device in this run")
_NOT_OF_CPUS = Unknown("not read for CPUs")
_NOT_OF_AMD = Unknown("not read from AMD GPUs")


def device_source(
    backend: str,
    uuid: str | None,
    worker_pid: int,
) -> Source:
    """Return the source for the worker's device: NVML or amdsmi for CUDA, RAPL for a CPU.

    `uuid` is `DeviceInfo.uuid`. Never fails: where nothing can be read, the source says why.
    """
    if backend == "mps":
        why = Unknown("Apple shows its GPU's energy and clocks to root only (powermetrics)")
        return AbsentDevice(why, why)
    if backend == "cpu":
        rapl = probe(RaplSource)
        return AbsentDevice(rapl, _NO_GPU) if isinstance(rapl, Unknown) else rapl

    def of_gpu() -> Source:
        if uuid is not None and uuid.startswith(AMD_UUID):
            return AmdSource(gpu_drivers.open_amdsmi(), uuid)
        return NvidiaSource(gpu_drivers.open_nvml(), uuid or "", worker_pid)

    gpu = probe(of_gpu) if uuid is not None else Unknown("the device's UUID is unknown")
    return AbsentDevice(gpu, gpu, GPU_SERIES) if isinstance(gpu, Unknown) else gpu


class AbsentDevice(Source):
    """A device of which nothing can be sampled: why not its energy, and why not the rest."""

    measures_device = True

    def __init__(self, energy: Unknown, rest: Unknown, series: tuple[str, ...] = ()) -> None:
        self._reading = Reading(dict.fromkeys(series, rest), energy, rest, rest, rest)
        self._others = rest


class RaplSource(Source):
    """Cumulative energy of the processor packages, and `cpu_package_power_w` between two readings.

    Raises `UnknownFactError` where no package's counter can be read.
    """

    name = "rapl"
    measures_device = True
    _others = Unknown("a CPU is shared: see cpu_utilization_percent")

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._energy = PackageEnergy()
        self._last: tuple[float, float] | None = None

    @override
    def read(self) -> Reading:
        """Read every package; power comes with the second reading."""
        now, energy_j = self._clock(), probe(self._energy.energy_j)
        values: dict[str, float | Unknown] = {}
        if not isinstance(energy_j, Unknown):
            last, self._last = self._last, (now, energy_j)
            if last is not None and now > last[0]:
                values["cpu_package_power_w"] = (energy_j - last[1]) / (now - last[0])
        return Reading(values, energy_j, _NOT_OF_CPUS, _NOT_OF_CPUS, _NOT_OF_CPUS)


#: Bits of nvmlDeviceGetCurrentClocksEventReasons that lower the clock against the program's
#: wish, or by somebody's setting (nvml.h, nvmlClocksEventReasons). Idle clocks are no throttling.
_THROTTLE_BITS = {
    0x02: CLOCK_SETTING,
    0x04: POWER_LIMIT,
    0x08: "HwSlowdown",
    0x20: "SwThermal",
    0x40: "HwThermal",
    0x80: "PowerBrake",
    0x200: "BoardLimit",
    0x400: "Reliability",
}
#: Whose time below the application clocks NVML counts (nvml.h, nvmlPerfPolicyType_t).
_SLOWED_BY = {"power": 0, "heat": 1}


def _newest(newer: str, older: str, nvml: Any, *arguments: Any) -> Any:
    """Call a function by the name that this driver and this nvidia-ml-py both know."""
    try:
        return getattr(nvml, newer)(*arguments)
    except (AttributeError, nvml.NVMLError):
        if not hasattr(nvml, older):
            raise
        return getattr(nvml, older)(*arguments)


def _nvidia_temperature_c(nvml: Any, card: Any) -> float:
    names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
    return float(_newest(*names, nvml, card, nvml.NVML_TEMPERATURE_GPU))


#: Each series, and what NVML has of it: memory in bytes, power in milliwatts.
_NVIDIA_READERS: dict[str, Callable[[Any, Any], float]] = {
    "gpu_utilization_percent": lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu,
    "gpu_memory_used_mb": lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).used / 1e6,
    "gpu_power_w": lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1e3,
    "gpu_sm_clock_mhz": lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
    "gpu_temperature_c": _nvidia_temperature_c,
}
GPU_SERIES = tuple(_NVIDIA_READERS)


class NvidiaSource(Source):
    """Samples the device with NVML's `uuid`; `nvml` is the initialised `pynvml` module.

    Raises `UnknownFactError` where NVML does not know the device.
    """

    name = "nvml"
    measures_device = True

    def __init__(self, nvml: Any, uuid: str, worker_pid: int) -> None:
        self._nvml = nvml
        _, self._card = nvml_device(nvml, uuid)
        self._tree = ProcessTree(worker_pid)
        self._foreign_before = probe(self._foreign_now)
        self._gpm = probe(gpu_drivers.GpmCounters, nvml, self._card)

    @override
    def read(self) -> Reading:
        """Read the energy counter first, as its instant matters most."""
        nvml, card, gpm = self._nvml, self._card, self._gpm
        energy_j = probe(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3)  # of mJ
        counted = gpm if isinstance(gpm, Unknown) else probe(gpm.read)
        series, dram_bytes = ({}, counted) if isinstance(counted, Unknown) else counted
        values = {name: probe(read, nvml, card) for name, read in _NVIDIA_READERS.items()} | series
        reasons, slowed_s = probe(self._throttle_reasons), probe(self._slowed_s)
        return Reading(values, energy_j, reasons, slowed_s, dram_bytes)

    @override
    def foreign_processes(self) -> tuple[str, ...] | Unknown:
        """Return `pid name` of other compute processes seen at the start or seen now.

        In a container NVML lists process ids of the host, among them the worker's own, and they
        have no name here. One without a name counts only if it outlives the worker.
        """
        before, after = self._foreign_before, probe(self._foreign_now)
        if isinstance(before, Unknown):
            return before
        if isinstance(after, Unknown):
            return after
        nameless = {} if self._tree.alive else after[1]
        processes = {**before[0], **after[0], **nameless}
        return tuple(f"{pid} {name}" for pid, name in sorted(processes.items()))

    def _foreign_now(self) -> tuple[dict[int, str], dict[int, str]]:
        """Other processes on the device: those with a name here, and those without one."""
        listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._card)
        named, nameless = {}, {}
        for pid in {entry.pid for entry in listed} - self._tree.seen:
            try:
                named[pid] = psutil.Process(pid).name()
            except psutil.Error:
                nameless[pid] = "(of another container or user)"
        return named, nameless

    def _slowed_s(self) -> dict[str, float]:
        counted = self._nvml.nvmlDeviceGetViolationStatus
        return {
            name: counted(self._card, policy).violationTime / 1e9  # ns
            for name, policy in _SLOWED_BY.items()
        }

    def _throttle_reasons(self) -> frozenset[str]:
        names = (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        bits = _newest(*names, self._nvml, self._card)
        return frozenset(name for bit, name in _THROTTLE_BITS.items() if bits & bit)


def _amd_power_w(smi: Any, card: Any) -> float:
    power = smi.amdsmi_get_power_info(card)
    average = power.get("average_socket_power", "N/A")
    return number_of(power["current_socket_power"] if average == "N/A" else average)


def _amd_temperature_c(smi: Any, card: Any) -> float:
    kind, now = smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
    return number_of(smi.amdsmi_get_temp_metric(card, kind, now))


def _amd_energy_j(smi: Any, card: Any) -> float:
    counter = smi.amdsmi_get_energy_count(card)
    count = counter.get("energy_accumulator", counter.get("power", "N/A"))
    return number_of(count) * number_of(counter["counter_resolution"]) / 1e6  # microjoules


_AMD_READERS: dict[str, Callable[[Any, Any], float]] = {
    "gpu_utilization_percent": lambda smi, card: number_of(
        smi.amdsmi_get_gpu_activity(card)["gfx_activity"]
    ),
    # amdsmi calls it MB and counts MiB, as torch reads it too
    "gpu_memory_used_mb": lambda smi, card: (
        number_of(smi.amdsmi_get_gpu_vram_usage(card)["vram_used"]) * 2**20 / 1e6
    ),
    "gpu_power_w": _amd_power_w,
    "gpu_sm_clock_mhz": lambda smi, card: amd_clock_mhz(smi, card, "clk", "cur_clk"),
    "gpu_temperature_c": _amd_temperature_c,
}


class AmdSource(Source):
    """Samples the device of a record's `uuid`; `smi` is the initialised module `amdsmi`.

    Raises `UnknownFactError` where amdsmi does not know the device.
    """

    name = "amdsmi"
    measures_device = True
    _others = _NOT_OF_AMD

    def __init__(self, smi: Any, uuid: str) -> None:
        self._smi = smi
        self._card = amd_device(smi, uuid)

    @override
    def read(self) -> Reading:
        """Read the energy counter first, as its instant matters most."""
        energy_j = probe(_amd_energy_j, self._smi, self._card)
        values = {name: probe(read, self._smi, self._card) for name, read in _AMD_READERS.items()}
        return Reading(values, energy_j, _NOT_OF_AMD, _NOT_OF_AMD, _NOT_OF_AMD)
