"""What counts inside a step: NVIDIA's driver, library and profiler, and Linux's perf."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.doctor import Check, ok
from bench.machine.gpu_drivers import compute_capability
from bench.machine.probes import ROOT, open_nvml, text_of, value_or_none
from bench.profilers.ncu.ncu_choice import require_chip
from bench.profilers.ncu.ncu_complaints import counter_permission
from bench.profilers.ncu.ncu_program import RefusalError, find_ncu
from bench.profilers.perf import find_obstacle, paranoia

_PCI_VENDOR = "0x10de"


def nvidia_checks(
    root: Path = ROOT,
    nvml_opener: Callable[[], Any] = open_nvml,
    capability: Callable[[], tuple[int, int]] = compute_capability,
) -> Iterator[Check]:
    """Look at driver, NVML, ncu and its permission; one line where there is no NVIDIA device."""
    try:
        nvml = nvml_opener()
        yield ok("nvml", _devices(nvml))
    except Exception as error:
        vendors = (root / "sys/bus/pci/devices").glob("*/vendor")
        if all(text_of(vendor) != _PCI_VENDOR for vendor in vendors):
            yield ok("nvidia", "no NVIDIA device here: NVML and ncu are not needed")
            return
        yield _nvml_fault(str(error))
    yield _ncu_check(root, capability)
    permission = counter_permission(root)
    if permission.state == "allowed":
        yield ok("gpu counters", permission.detail)
    else:
        yield Check("gpu counters", "warning", permission.detail, permission.remedy)


def _devices(nvml: Any) -> str:
    count = nvml.nvmlDeviceGetCount()
    names = [
        nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)
    ]
    return f"driver {nvml.nvmlSystemGetDriverVersion()}: {', '.join(names)}"


def _nvml_fault(fault: str) -> Check:
    if "mismatch" in fault.lower():
        remedy = "reboot: the driver was updated under the running kernel"
    elif "not installed" in fault:
        remedy = "uv pip install nvidia-ml-py"
    else:
        remedy = "install NVIDIA's driver, then see that nvidia-smi works"
    return Check("nvml", "warning", f"{fault}: no GPU telemetry", remedy)


def _ncu_check(root: Path, capability: Callable[[], tuple[int, int]]) -> Check:
    """What `mlproject profile` would say of ncu itself."""
    try:
        ncu = find_ncu(root)
        if (device := value_or_none(capability)) is not None:
            require_chip(ncu, device)
    except RefusalError as refusal:
        return Check("ncu", "warning", refusal.what, refusal.remedy)
    return ok("ncu", f"{ncu} at {ncu.path}")


def perf_checks(root: Path = ROOT) -> Iterator[Check]:
    """Try what a profile would do with perf; where that fails, say why. Other systems have none."""
    if platform.system() != "Linux":
        return
    obstacle = find_obstacle(root)
    if obstacle is None:
        yield ok("perf", f"counts; perf_event_paranoid is {paranoia(root)}")
    else:
        yield Check("perf", "warning", obstacle.cause, obstacle.remedy)
