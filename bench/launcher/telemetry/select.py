"""From the device that the worker reported to the source that samples it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.launcher.telemetry.base import AbsentDevice, Source
from bench.launcher.telemetry.nvidia import GPU_SERIES, NvidiaSource
from bench.launcher.telemetry.rapl import RaplSource
from bench.machine.nvml import open_nvml
from bench.machine.probes import ROOT, UnknownFactError


def device_source(
    backend: str,
    uuid: str | None,
    worker_pid: int,
    root: Path = ROOT,
    nvml_opener: Callable[[], Any] = open_nvml,
) -> Source:
    """Return the source for the worker's device: NVML for CUDA, RAPL for a CPU.

    `uuid` is `DeviceInfo.uuid`. Never fails: where nothing can be read, the source says why.
    """
    if backend == "cuda":
        return _nvidia(uuid, worker_pid, nvml_opener)
    if backend == "mps":
        return AbsentDevice("Apple shows its GPU's energy and clocks to root only (powermetrics)")
    try:
        return RaplSource(root)
    except UnknownFactError as error:
        absent = AbsentDevice("no NVIDIA device in this run")
        absent.missing["energy_j"] = str(error)
        return absent


def _nvidia(uuid: str | None, worker_pid: int, nvml_opener: Callable[[], Any]) -> Source:
    if uuid is None:
        return AbsentDevice("the device's UUID is unknown", GPU_SERIES)
    try:
        return NvidiaSource(nvml_opener(), uuid, worker_pid)
    except UnknownFactError as error:
        return AbsentDevice(str(error), GPU_SERIES)
