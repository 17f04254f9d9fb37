"""One NVIDIA GPU by NVML: load, memory, power, clock, heat, throttling, energy, neighbours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import psutil

from bench.launcher.telemetry.base import Gauge, Reading, Source
from bench.launcher.telemetry.host import ProcessTree
from bench.machine.probes import nvml_device, reason_of
from bench.records import CLOCK_SETTING, POWER_LIMIT

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


def _temperature_c(nvml: Any, card: Any) -> float:
    names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
    return float(_newest(*names, nvml, card, nvml.NVML_TEMPERATURE_GPU))


#: Each series, and what NVML has of it: memory in bytes, power in milliwatts.
_READERS: dict[str, Callable[[Any, Any], float]] = {
    "gpu_utilization_percent": lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu,
    "gpu_memory_used_mb": lambda nvml, card: nvml.nvmlDeviceGetMemoryInfo(card).used / 1e6,
    "gpu_power_w": lambda nvml, card: nvml.nvmlDeviceGetPowerUsage(card) / 1e3,
    "gpu_sm_clock_mhz": lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
    "gpu_temperature_c": _temperature_c,
}
GPU_SERIES = tuple(_READERS)


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
            name: partial(reader, nvml, self._handle) for name, reader in _READERS.items()
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
