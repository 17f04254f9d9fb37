"""Samples of an NVIDIA or AMD GPU and of a processor's energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import psutil

from bench.launcher.telemetry.base import DEVICE_FACTS, AbsentDevice, Gauge, Reading, Source
from bench.launcher.telemetry.host import ProcessTree
from bench.machine.cpu import PackageEnergy
from bench.machine.gpu_drivers import AMD_UUID, amd_clock_mhz, amd_device, number_of, open_amdsmi
from bench.machine.probes import ROOT, UnknownFactError, nvml_device, open_nvml, reason_of
from bench.records import CLOCK_SETTING, POWER_LIMIT
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
        super().__init__()
        self._nvml = nvml
        _, self._handle = nvml_device(nvml, uuid)
        self._tree = ProcessTree(worker_pid)
        self._gauges: dict[str, Gauge] = {
            name: partial(reader, nvml, self._handle) for name, reader in _NVIDIA_READERS.items()
        }
        self._foreign_before = self._foreign_now()

    def read(self) -> Reading:
        """Read the energy counter first, as its instant matters most."""
        energy_j = self._attempt(
            "energy_j", lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
        )  # the counter is in mJ
        reasons = self._attempt("throttle_share", self._throttle_reasons)
        slowed_s = self._attempt("slowed_share", self._slowed_s)
        return Reading(self._read_gauges(self._gauges), energy_j, reasons, slowed_s)

    def foreign_processes(self) -> tuple[str, ...] | None:
        """Return `pid name` of other compute processes seen at the start or seen now.

        In a container NVML lists process ids of the host, among them the worker's own, and they
        have no name here. One without a name counts only if it outlives the worker.
        """
        after = self._foreign_now()
        if self._foreign_before is None or after is None:
            return None
        named = {**self._foreign_before[0], **after[0]}
        nameless = {} if self._tree.alive else after[1]
        return tuple(f"{pid} {name}" for pid, name in sorted((named | nameless).items()))

    def _foreign_now(self) -> tuple[dict[int, str], dict[int, str]] | None:
        """Other processes on the device: those with a name here, and those without one."""
        listed = self._attempt(
            "foreign_processes",
            lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle),
        )
        if listed is None:
            return None
        named, nameless = {}, {}
        for pid in {entry.pid for entry in listed} - self._tree.seen:
            try:
                named[pid] = psutil.Process(pid).name()
            except psutil.Error:
                nameless[pid] = "(of another container or user)"
        return named, nameless

    def _attempt(self, fact: str, read: Any) -> Any:
        try:
            return read()
        except Exception as error:
            self.missing[fact] = reason_of(error)
            return None

    def _slowed_s(self) -> dict[str, float]:
        counted = self._nvml.nvmlDeviceGetViolationStatus
        return {
            name: counted(self._handle, policy).violationTime / 1e9  # ns
            for name, policy in _SLOWED_BY.items()
        }

    def _throttle_reasons(self) -> frozenset[str]:
        names = (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        )
        bits = _newest(*names, self._nvml, self._handle)
        return frozenset(name for bit, name in _THROTTLE_BITS.items() if bits & bit)


_NOT_READ = "not read from AMD GPUs"


def _power_w(smi: Any, card: Any) -> float:
    power = smi.amdsmi_get_power_info(card)
    average = power.get("average_socket_power", "N/A")
    return number_of(power["current_socket_power"] if average == "N/A" else average)


def _amd_temperature_c(smi: Any, card: Any) -> float:
    kind, now = smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
    return number_of(smi.amdsmi_get_temp_metric(card, kind, now))


def _energy_j(smi: Any, card: Any) -> float:
    counter = smi.amdsmi_get_energy_count(card)
    count = counter.get("energy_accumulator", counter.get("power", "N/A"))
    return number_of(count) * number_of(counter["counter_resolution"]) / 1e6  # microjoules


_AMD_READERS = {
    "gpu_utilization_percent": lambda smi, card: number_of(
        smi.amdsmi_get_gpu_activity(card)["gfx_activity"]
    ),
    # amdsmi calls it MB and counts MiB, as torch reads it too
    "gpu_memory_used_mb": lambda smi, card: (
        number_of(smi.amdsmi_get_gpu_vram_usage(card)["vram_used"]) * 2**20 / 1e6
    ),
    "gpu_power_w": _power_w,
    "gpu_sm_clock_mhz": lambda smi, card: amd_clock_mhz(smi, card, "clk", "cur_clk"),
    "gpu_temperature_c": _amd_temperature_c,
}


class AmdSource(Source):
    """Samples the device of a record's `uuid`; `smi` is the initialised module `amdsmi`.

    Raises `UnknownFactError` where amdsmi does not know the device.
    """

    name = "amdsmi"
    measures_device = True

    def __init__(self, smi: Any, uuid: str) -> None:
        super().__init__(
            dict.fromkeys(("throttle_share", "slowed_share", "foreign_processes"), _NOT_READ)
        )
        self._smi = smi
        self._card = amd_device(smi, uuid)
        self._gauges: dict[str, Gauge] = {
            name: partial(reader, smi, self._card) for name, reader in _AMD_READERS.items()
        }

    def read(self) -> Reading:
        """Read the energy counter first, as its instant matters most."""
        energy_j = None
        try:
            energy_j = _energy_j(self._smi, self._card)
        except Exception as error:
            self.missing["energy_j"] = reason_of(error)
        return Reading(self._read_gauges(self._gauges), energy_j)
