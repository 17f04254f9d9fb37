"""The host: disk, memory, what it runs in, and what counts inside a step."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.doctor import Check, ok
from bench.machine import environment, surroundings
from bench.machine.cpu import PackageEnergy
from bench.machine.gpu_drivers import compute_capability
from bench.machine.probes import ROOT, UnknownFactError, open_nvml, text_of, value_or_none
from bench.profilers.ncu.choice import require_chip
from bench.profilers.ncu.complaints import counter_permission
from bench.profilers.ncu.program import RefusalError, find_ncu
from bench.profilers.perf import find_obstacle

_GB = 1e9
#: A record is under 1 MB, a profile under 100 MB, a generated data set under 1 GB.
_ENOUGH_DISK_BYTES = 2e9
#: Eight loaders that keep two batches of 128 images of 224 x 224 x 3 floats ready.
_ENOUGH_SHARED_BYTES = 8 * 2 * 128 * 224 * 224 * 3 * 4


def host_checks(records: Path, root: Path = ROOT) -> Iterator[Check]:
    """Look at the host as far as it bears on a measurement."""
    yield _disk(records)
    if platform.system() == "Linux":
        yield from _shared_memory(root)
        yield _energy(root)
    virtual = value_or_none(lambda: surroundings.virtualization(root))
    yield _surroundings(virtual, root)
    yield _power(virtual)


def _disk(records: Path) -> Check:
    place = _existing_part(records)
    try:
        with tempfile.TemporaryFile(dir=place):
            free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        detail = f"cannot write in {place}: {error.strerror}"
        return Check("records", "missing", detail, "name a folder of yours: --records FOLDER")
    detail = f"{free_bytes / _GB:.1f} GB free in {place}"
    if free_bytes < _ENOUGH_DISK_BYTES:
        return Check("records", "warning", detail, "free some space, or use --records FOLDER")
    return ok("records", detail)


def _shared_memory(root: Path) -> Iterator[Check]:
    place = root / "dev/shm"
    if not place.is_dir():
        return
    size_bytes = shutil.disk_usage(place).total
    detail = f"{place} holds {size_bytes / _GB:.2f} GB"
    if size_bytes < _ENOUGH_SHARED_BYTES:
        yield Check(
            "shared memory",
            "warning",
            f"{detail}: image loaders can run out of it",
            "start the container with --shm-size=8g or --ipc=host; or use workers=0",
        )
    else:
        yield ok("shared memory", detail)


def _energy(root: Path) -> Check:
    try:
        PackageEnergy(root)
    except UnknownFactError as error:
        if "Permission denied" in str(error):
            remedy = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
            return Check("cpu energy", "warning", "only root may read the counter", remedy)
        return ok("cpu energy", f"{error}: CPU runs have no energy")
    return ok("cpu energy", "RAPL can be read")


def _surroundings(virtual: str | None, root: Path) -> Check:
    around = value_or_none(lambda: surroundings.container(root)) or "unknown"
    detail = f"container {around}, hypervisor {virtual or 'unknown'}"
    if virtual == "wsl1":
        remedy = "in Windows: wsl --set-version <distribution> 2"
        return Check("surroundings", "warning", f"{detail}: WSL 1 has no GPU", remedy)
    if virtual == "wsl2":
        return Check(
            "surroundings",
            "warning",
            f"{detail}: the driver spills GPU memory into the host's silently, and speed falls",
            "in NVIDIA Control Panel: CUDA - Sysmem Fallback Policy > Prefer No Sysmem Fallback",
        )
    return ok("surroundings", detail)


def _power(virtual: str | None) -> Check:
    try:
        source = environment.power_source(virtual)
    except UnknownFactError as error:
        return ok("power", f"unknown: {error}")
    if source == "battery":
        return Check("power", "warning", "on battery: clocks are held down", "plug it in")
    return ok("power", source)


def _existing_part(folder: Path) -> Path:
    """`folder`, or the nearest folder above it that exists."""
    place = folder.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


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
        yield ok("perf", "counts")
    else:
        yield Check("perf", "warning", obstacle.cause, obstacle.remedy)
