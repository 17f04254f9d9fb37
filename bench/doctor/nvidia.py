"""NVIDIA's driver, library and profiler."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.doctor.capabilities import may_profile
from bench.doctor.check import Check, ok
from bench.environment.nvml import open_nvml
from bench.environment.probes import ROOT, UnknownFactError, output_of, text_of

#: Where installers put ncu without putting it on PATH.
_NCU_PLACES = (
    "usr/local/cuda*/bin/ncu",
    "opt/nvidia/nsight-compute/*/ncu",
    "Program Files/NVIDIA Corporation/Nsight Compute */ncu.bat",
)
#: The first that counts tensor-core work (sm__ops_path_*), with CUDA 12.2.
_FIRST_NCU = (2023, 2)
_PCI_VENDOR = "0x10de"

_ALLOW_COUNTERS = (
    "as root, write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into "
    "/etc/modprobe.d/nvidia-counters.conf, rebuild the initramfs and reboot; "
    "or profile as root; in a container, start it with --cap-add=SYS_ADMIN"
)
_ALLOW_COUNTERS_ON_WINDOWS = (
    "in Windows, NVIDIA Control Panel > Desktop > Enable Developer Settings, then Developer > "
    "Manage GPU Performance Counters > allow access to all users"
)


def nvidia_checks(root: Path = ROOT, nvml_opener: Callable[[], Any] = open_nvml) -> Iterator[Check]:
    """Look at driver, NVML, ncu and its permission; one line where there is no NVIDIA device."""
    try:
        nvml = nvml_opener()
        yield ok("nvml", _devices(nvml))
    except Exception as error:
        if not _has_hardware(root):
            yield ok("nvidia", "no NVIDIA device here: NVML and ncu are not needed")
            return
        yield _nvml_fault(str(error))
    yield _ncu_check(root)
    yield _permission_check(root)


def _devices(nvml: Any) -> str:
    count = nvml.nvmlDeviceGetCount()
    names = [
        nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)
    ]
    return f"driver {nvml.nvmlSystemGetDriverVersion()}: {', '.join(names)}"


def _has_hardware(root: Path) -> bool:
    vendors = (root / "sys/bus/pci/devices").glob("*/vendor")
    return any(text_of(vendor) == _PCI_VENDOR for vendor in vendors)


def _nvml_fault(fault: str) -> Check:
    if "mismatch" in fault.lower():
        remedy = "reboot: the driver was updated under the running kernel"
    elif "not installed" in fault:
        remedy = "uv pip install nvidia-ml-py"
    else:
        remedy = "install NVIDIA's driver, then see that nvidia-smi works"
    return Check("nvml", "warning", f"{fault}: no GPU telemetry", remedy)


def _ncu_check(root: Path) -> Check:
    on_path = shutil.which("ncu")
    found = on_path or next(
        (str(p) for place in _NCU_PLACES for p in sorted(root.glob(place))), None
    )
    if found is None:
        remedy = "install Nsight Compute (it comes with the CUDA toolkit) and put ncu on PATH"
        return Check("ncu", "warning", "not found: no kernel counters", remedy)
    try:
        version = re.search(r"Version (\d+)\.(\d+)\S*", output_of(found, "--version", timeout_s=10))
    except UnknownFactError as error:
        return Check("ncu", "warning", str(error), "reinstall Nsight Compute")
    if version is None:
        return Check("ncu", "warning", f"{found} tells no version", "reinstall Nsight Compute")
    detail = f"{version[0]} at {found}"
    if (int(version[1]), int(version[2])) < _FIRST_NCU:
        remedy = "install Nsight Compute 2023.2 or newer: older ones do not count tensor-core work"
        return Check("ncu", "warning", detail, remedy)
    if on_path is None:
        remedy = f'export PATH="{Path(found).parent}:$PATH"'
        return Check("ncu", "warning", f"{detail}, which is not on PATH", remedy)
    return ok("ncu", detail)


def _permission_check(root: Path) -> Check:
    """Whether ncu may count, as the driver says before one tries."""
    name = "gpu counters"
    try:
        parameters = text_of(root / "proc/driver/nvidia/params")
    except UnknownFactError:
        where = "Windows" if platform.system() == "Windows" else "the driver outside (WSL2?)"
        detail = f"{where} decides, and tells only when ncu runs"
        return Check(name, "warning", detail, _ALLOW_COUNTERS_ON_WINDOWS)
    restricted = re.search(r"RmProfilingAdminOnly: *(\d)", parameters)
    if restricted is None or restricted[1] == "0":
        return ok(name, "every user may read them")
    if may_profile(root):
        return ok(name, "for administrators only, and this process is one")
    return Check(name, "warning", "only administrators may read them", _ALLOW_COUNTERS)
