"""The host: disk, memory, what it runs in, and what counts inside a step."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.doctor import Check, check
from bench.errors import Problem
from bench.machine import environment, surroundings
from bench.machine.cpu import PackageEnergy
from bench.machine.gpu_drivers import compute_capability
from bench.machine.probes import ROOT, UnknownFactError, open_nvml, text_of, value_or_none
from bench.profilers.ncu.tool import (
    RefusalError,
    counter_permission,
    find_ncu,
    permission_remedy,
    require_chip,
)
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
        if (root / "dev/shm").is_dir():
            yield check("shared memory", _shared_memory(root / "dev/shm"))
        yield check("cpu energy", _energy(root))
    virtual = value_or_none(lambda: surroundings.virtualization(root))
    yield check("surroundings", _surroundings(virtual, root))
    try:
        source = environment.power_source(virtual)
    except UnknownFactError as error:
        source = f"unknown: {error}"
    on_battery = Problem("on battery: clocks are held down", "plug it in")
    yield check("power", on_battery if source == "battery" else source)


def _disk(records: Path) -> Check:
    place = records.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        what = f"cannot write in {place}: {error.strerror}"
        return check("records", Problem(what, "use --records FOLDER"), "missing")
    detail = f"{free_bytes / _GB:.1f} GB free in {place}"
    if free_bytes < _ENOUGH_DISK_BYTES:
        return check("records", Problem(detail, "free some space, or use --records FOLDER"))
    return check("records", detail)


def _shared_memory(place: Path) -> str | Problem:
    size_bytes = shutil.disk_usage(place).total
    detail = f"{place} holds {size_bytes / _GB:.2f} GB"
    if size_bytes >= _ENOUGH_SHARED_BYTES:
        return detail
    return Problem(
        f"{detail}: image loaders can run out of it",
        "start the container with --shm-size=8g or --ipc=host; or use workers=0",
    )


def _energy(root: Path) -> str | Problem:
    try:
        PackageEnergy(root)
    except UnknownFactError as error:
        if "Permission denied" in str(error):
            remedy = "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
            return Problem("only root may read the counter", remedy)
        return f"{error}: CPU runs have no energy"
    return "RAPL can be read"


def _surroundings(virtual: str | None, root: Path) -> str | Problem:
    around = value_or_none(lambda: surroundings.container(root)) or "unknown"
    detail = f"container {around}, hypervisor {virtual or 'unknown'}"
    if virtual == "wsl1":
        remedy = "in Windows: wsl --set-version <distribution> 2"
        return Problem(f"{detail}: WSL 1 has no GPU", remedy)
    if virtual == "wsl2":
        return Problem(
            f"{detail}: the driver spills GPU memory into the host's silently, and speed falls",
            "in NVIDIA Control Panel: CUDA - Sysmem Fallback Policy > Prefer No Sysmem Fallback",
        )
    return detail


def nvidia_checks(
    root: Path = ROOT,
    nvml_opener: Callable[[], Any] = open_nvml,
    capability: Callable[[], tuple[int, int]] = compute_capability,
) -> Iterator[Check]:
    """Look at driver, NVML, ncu and its permission; one line where there is no NVIDIA device."""
    try:
        nvml = nvml_opener()
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        names = ", ".join(map(nvml.nvmlDeviceGetName, handles))
        yield check("nvml", f"driver {nvml.nvmlSystemGetDriverVersion()}: {names}")
    except Exception as error:
        vendors = (root / "sys/bus/pci/devices").glob("*/vendor")
        if all(text_of(vendor) != "0x10de" for vendor in vendors):
            yield check("nvidia", "no NVIDIA device here: NVML and ncu are not needed")
            return
        faults = (remedy for sign, remedy in _NVML_REMEDIES.items() if sign in str(error))
        yield check("nvml", Problem(f"{error}: no GPU telemetry", next(faults)))
    yield check("ncu", _ncu(root, capability))
    is_allowed, detail = counter_permission(root)
    yield check("gpu counters", detail if is_allowed else Problem(detail, permission_remedy(root)))


#: The remedy by a part of what NVML, or its package, says.
_NVML_REMEDIES = {
    "mismatch": "reboot: the driver was updated under the running kernel",
    "not installed": "uv pip install nvidia-ml-py",
    "": "install NVIDIA's driver, then see that nvidia-smi works",
}


def _ncu(root: Path, capability: Callable[[], tuple[int, int]]) -> str | Problem:
    try:
        ncu = find_ncu(root)
        if (device := value_or_none(capability)) is not None:
            require_chip(ncu, device)
    except RefusalError as refusal:
        return refusal.problem
    return f"{ncu} at {ncu.path}"


def perf_checks(root: Path = ROOT) -> Iterator[Check]:
    """Try what a profile would do with perf; where that fails, say why. Other systems have none."""
    if platform.system() == "Linux":
        yield check("perf", find_obstacle(root) or "counts")
