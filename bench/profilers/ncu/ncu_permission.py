"""Whether the NVIDIA driver lets this process read the GPU's counters, and how to make it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.machine.limits import profiling_capabilities
from bench.machine.probes import ROOT, UnknownFactError, text_of, value_or_none
from bench.machine.virtualization import container, virtualization

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


@dataclass(frozen=True)
class Permission:
    """`unknown` where only trying decides; everything but `allowed` has its remedy."""

    state: Literal["allowed", "forbidden", "unknown"]
    detail: str
    remedy: str = ""


def counter_permission(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Permission:
    """Read what the driver says before one tries."""
    try:
        parameters = text_of(root / "proc/driver/nvidia/params")
    except UnknownFactError:
        where = "Windows" if _below_windows(root) else "the driver, outside of what is seen here,"
        detail = f"{where} decides, and tells only when ncu runs"
        return Permission("unknown", detail, permission_remedy(root, environ))
    restricted = re.search(r"RmProfilingAdminOnly: *(\d)", parameters)
    if restricted is None or restricted[1] == "0":
        return Permission("allowed", "every user may read them")
    held = profiling_capabilities(root)
    if "CAP_SYS_ADMIN" in held or (held and _takes_perfmon(root)):
        return Permission("allowed", "for administrators only, and this process is one")
    detail = "only administrators may read the GPU's counters here (RmProfilingAdminOnly is 1)"
    return Permission("forbidden", detail, permission_remedy(root, environ))


def permission_remedy(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Return what to do on this machine so that the counters may be read."""
    if _below_windows(root):
        return _WINDOWS if os.name == "nt" else _WSL2
    around = value_or_none(lambda: container(root, environ)) or "none"
    capability = "PERFMON" if _takes_perfmon(root) else "SYS_ADMIN"
    on_host = f"on the host, {_for_every_user(root)}"
    if around == "kubernetes":
        grant = f'securityContext: {{capabilities: {{add: ["{capability}"]}}}}'
        return f"give the pod's container `{grant}`; or, {on_host}"
    if around in ("docker", "podman", "containerd"):
        return f"start this container anew with --cap-add={capability}; or, {on_host}"
    if around != "none":  # apptainer and lxc leave the user's rights as they are
        return on_host
    return (
        'run it as `sudo -E env "PATH=$PATH" mlproject profile ...` (sudo alone drops your PATH); '
        f"or, to let every user count, {_for_every_user(root)}"
    )


def _for_every_user(root: Path) -> str:
    rebuild = next(
        (line for program, line in _REBUILDERS.items() if _installed(root, program)),
        "rebuild the initramfs",
    )
    return (
        f"write `{_OPTION}` into /etc/modprobe.d/nvidia-counters.conf as root, then `{rebuild}` "
        "and reboot"
    )


def _installed(root: Path, program: str) -> bool:
    return any((root / folder / program).exists() for folder in ("usr/sbin", "usr/bin", "sbin"))


def _below_windows(root: Path) -> bool:
    return os.name == "nt" or value_or_none(lambda: virtualization(root)) in ("wsl1", "wsl2")


def _takes_perfmon(root: Path) -> bool:
    """By the driver's version, as in `NVIDIA UNIX Open Kernel Module for x86_64  580.95.05`."""
    driver = value_or_none(lambda: text_of(root / "proc/driver/nvidia/version")) or ""
    version = re.search(r"\b(\d{3,})\.\d+", driver)
    return version is not None and int(version[1]) >= _FIRST_PERFMON_DRIVER
