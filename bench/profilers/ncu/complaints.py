"""What ncu says when it fails, and what to do about it on this machine.

The words are those of ncu 2024.1 and of the FAQ in NVIDIA's Kernel Profiling Guide.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from bench.machine.limits import profiling_capabilities
from bench.machine.probes import ROOT, UnknownFactError, text_of, value_or_none
from bench.machine.surroundings import container, virtualization

#: The first driver that takes CAP_PERFMON for CAP_SYS_ADMIN.
_FIRST_PERFMON_DRIVER = 565

_WINDOWS = (
    "in Windows, as administrator, NVIDIA Control Panel > Desktop > Enable Developer Settings, "
    "then Developer > Manage GPU Performance Counters > allow access to all users"
)
_WSL2 = f"{_WINDOWS}; WSL2 needs Windows 11 with driver 525 or newer (Windows 10: 545)"
_OPTION = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
#: Which program rebuilds the initramfs, by where distributions put it.
_REBUILDERS = {
    "update-initramfs": "sudo update-initramfs -u",
    "dracut": "sudo dracut --force",
    "mkinitcpio": "sudo mkinitcpio -P",
}


#: `sudo` alone drops the PATH.
AS_ROOT = 'run it as `sudo -E env "PATH=$PATH" mlproject profile ...`'


def counter_permission(root: Path = ROOT) -> tuple[bool | None, str]:
    """Return whether the counters may be read, by the driver's files, and what these say.

    None where only trying decides.
    """
    try:
        parameters = text_of(root / "proc/driver/nvidia/params")
    except UnknownFactError:
        where = "Windows" if _below_windows(root) else "the driver, outside of what is seen here,"
        return None, f"{where} decides, and tells only when ncu runs"
    restricted = re.search(r"RmProfilingAdminOnly: *(\d)", parameters)
    if restricted is None or restricted[1] == "0":
        return True, "every user may read them"
    held = profiling_capabilities(root)
    if "CAP_SYS_ADMIN" in held or (held and _takes_perfmon(root)):
        return True, "for administrators only, and this process is one"
    return False, "only administrators may read the GPU's counters here (RmProfilingAdminOnly is 1)"


def permission_remedy(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return what to do on this machine so that the counters may be read."""
    if _below_windows(root):
        return _WINDOWS if os.name == "nt" else _WSL2
    around = value_or_none(lambda: container(root, environ)) or "none"
    capability = "PERFMON" if _takes_perfmon(root) else "SYS_ADMIN"
    folders = [root / folder for folder in ("usr/sbin", "usr/bin", "sbin")]
    rebuilds = (
        line
        for program, line in _REBUILDERS.items()
        if any((folder / program).exists() for folder in folders)
    )
    for_all = (
        f"write `{_OPTION}` into /etc/modprobe.d/nvidia-counters.conf as root, then "
        f"`{next(rebuilds, 'rebuild the initramfs')}` and reboot"
    )
    if around == "none":
        return f"{AS_ROOT} (sudo alone drops your PATH); or, to let every user count, {for_all}"
    if around == "kubernetes":
        grant = f'securityContext: {{capabilities: {{add: ["{capability}"]}}}}'
        return f"give the pod's container `{grant}`; or, on the host, {for_all}"
    if around in ("docker", "podman", "containerd"):
        return f"start this container again with --cap-add={capability}; or, on the host, {for_all}"
    return f"on the host, {for_all}"  # apptainer and lxc leave the user's rights as they are


def _below_windows(root: Path) -> bool:
    return os.name == "nt" or value_or_none(lambda: virtualization(root)) in ("wsl1", "wsl2")


def _takes_perfmon(root: Path) -> bool:
    """By the driver's version, as in `NVIDIA UNIX Open Kernel Module for x86_64  580.95.05`."""
    driver = value_or_none(lambda: text_of(root / "proc/driver/nvidia/version")) or ""
    version = re.search(r"\b(\d{3,})\.\d+", driver)
    return version is not None and int(version[1]) >= _FIRST_PERFMON_DRIVER


#: Programs that may hold the GPU's counters, each with how to make it let go.
_HOLDERS = {
    "nv-hostengine": "pause DCGM with `dcgmi profile --pause` (`--resume` afterwards)",
    "dcgm-exporter": "stop dcgm-exporter while you profile",
    "ncu": "wait until the other ncu has ended",
    "nsys": "wait until nsys has ended",
}
_OTHER_HOLDER = (
    "another program holds the counters, perhaps outside of this container: pause DCGM with "
    "`dcgmi profile --pause` and end other profilers"
)


#: Words of ncu, and what is wrong with the remedy. In this order: what is wrong comes before what
#: follows from it.
_COMPLAINTS = {
    r"target vGPU device": (
        "this virtual GPU keeps its counters from the virtual machine: ask its host's "
        "administrator to set enable_profiling=1 for this vGPU"
    ),
    r"driver resource was unavailable or the user": (
        "another program has reserved the GPU's counters, or the driver keeps them from this user: "
        "{let_go}; if nobody does, {permission}"
    ),
    r"driver resource was unavailable": "another program has reserved the GPU's counters: {let_go}",
    r"ERR_NVGPUCTRPERM": "the driver keeps the GPU's counters from this user: {permission}",
    r"Failed to access the following[^\n]*metrics|shared with other MIG instances": (
        "this slice of a GPU (MIG) shares units with others, which may not be counted: use a "
        "compute instance as large as its GPU instance, or as root `nvidia-smi -mig 0`"
    ),
    r"Failed to find metric (?:regex:)?\^?(?P<name>[\w.]+)": (
        "this GPU or this ncu has no metric {name}: install the newest Nsight Compute, or count by "
        "hand and use `mlproject counters`"
    ),
    r"Insufficient driver version": (
        "the NVIDIA driver is too old for this ncu: update the driver, or install the Nsight "
        "Compute of its CUDA version"
    ),
    r"uses the Windows Subsystem for Linux": "ncu does not count under this WSL: {permission}",
    r"part of an active SLI group": (
        "ncu does not count on GPUs in SLI: switch SLI off in the driver's settings"
    ),
    r"[Cc]onfidential computing|Protected memory": (
        "nobody may read the counters of a GPU in confidential-computing mode: profile on another "
        "machine; `mlproject run` works here"
    ),
    r"ERR_NVCMPGPU": (
        "mining cards (CMP) have no counters: profile on another machine; `mlproject run` works "
        "here"
    ),
    r"Profiling is not supported on|unsupported architecture": (
        "this ncu does not know this GPU: install a newer Nsight Compute (`ncu --list-chips`); "
        "before Turing, none counts any more"
    ),
    r"failed to connect to the CUDA driver|Driver could not be loaded": (
        "ncu finds no working CUDA driver: see that nvidia-smi works, and take folders named "
        "`stubs` out of LD_LIBRARY_PATH"
    ),
    r"lock file:? *\(?'?(?P<name>[^\s')]*nsight-compute-lock)|nsight-compute-lock": (
        "another user's lock file {name} is in ncu's way: if nobody else profiles here, `sudo rm "
        "/tmp/nsight-compute-lock`, or set TMPDIR to a folder of your own"
    ),
    r"Failed to access the temporary directory|temporary directory is writable": (
        "ncu cannot write its temporary files: set TMPDIR to a folder that you may write to"
    ),
    r"Insufficient free memory|Insufficient memory and disk space": (
        "the GPU's memory has no room for ncu beside the step: profile with a smaller batch_size"
    ),
    r"Library(?:NotFound|NotLoaded)|Incompatible PerfWorks library": (
        "a library of ncu or of the driver does not load: unset LD_LIBRARY_PATH, or reinstall "
        "Nsight Compute"
    ),
    r"unrecogni[sz]ed option '?(?P<name>[\w-]+)": (
        "this ncu does not know the option {name}: install a newer Nsight Compute"
    ),
}
_STEP_FAILED = "The application returned an error code"
#: What ncu says of a kernel when the step dies in it.
_FOLLOWS = "Failed to profile"
_ERROR_LINE = re.compile(r"^==ERROR== *(.+?)\s*$", re.MULTILINE)


def explain(console: str, root: Path = ROOT) -> str | None:
    """Return cause and remedy of what ncu wrote to `console`, or None if ncu had no complaint.

    None also where the step failed by itself, as ncu then says no more than that.
    """
    # ==PROF== lines name kernels, which may be called anything.
    lines = [line for line in console.splitlines() if not line.startswith("==PROF==")]
    said = "\n".join(lines)
    for words, explanation in _COMPLAINTS.items():
        if found := re.search(words, said):
            running = {process.info["name"] for process in psutil.process_iter(["name"])}
            held_by = [remedy for program, remedy in _HOLDERS.items() if program in running]
            let_go = "; ".join(held_by) or _OTHER_HOLDER
            facts = {"let_go": let_go, "permission": permission_remedy(root)}
            return explanation.format(**facts, **found.groupdict(""))
    errors = _ERROR_LINE.findall(said)
    if any(error.startswith(_STEP_FAILED) for error in errors):
        others = [error for error in errors if not error.startswith((_STEP_FAILED, _FOLLOWS))]
        return f"ncu: {others[0]}" if others else None
    if errors:
        return f"ncu: {errors[0]}"
    if "No kernels were profiled" in said:
        return "ncu saw no kernel in the profiled step: see that the step runs on the GPU"
    return None
