"""The machine around the device: its system, memory, storage and power."""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

from bench.machine.cgroup import cgroup_limits
from bench.machine.probes import ROOT, UnknownFactError


def os_name() -> str:
    """Return the operating system with its version, such as `Ubuntu 24.04.1 LTS`."""
    system = platform.system()
    if system == "Darwin":
        return f"macOS {platform.mac_ver()[0]}".strip()
    if system == "Windows":
        return f"Windows {platform.release()}".strip()
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", system)
    except OSError:
        return system


def kernel_name() -> str:
    """Return the kernel's release; on Windows the build, which is what changes there."""
    return platform.version() if platform.system() == "Windows" else platform.release()


def memory_bytes(root: Path = ROOT) -> int:
    """Return the memory this process may use: the machine's, or its control group's if less."""
    total = int(psutil.virtual_memory().total)
    limit = cgroup_limits(root).memory_bytes
    return total if limit is None else min(total, limit)


def storage(folder: Path) -> str:
    """Return the file system that `folder` lies on, or will lie on, such as `ext4`.

    Raises `UnknownFactError` where no mount holds it.
    """
    place = folder.resolve()
    holding = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if place.is_relative_to(Path(mount.mountpoint))
    ]
    if not holding:
        raise UnknownFactError(f"no mounted file system holds {place}")
    # Of two mounts on one point the later hides the earlier, hence the reversal before max.
    innermost = max(reversed(holding), key=lambda mount: len(Path(mount.mountpoint).parts))
    if not innermost.fstype:
        raise UnknownFactError(f"the file system on {innermost.mountpoint} has no name")
    return str(innermost.fstype)


def power_source(virtualization: str | None) -> str:
    """Return `mains` or `battery`. Raises `UnknownFactError` where nobody tells."""
    sensor = getattr(psutil, "sensors_battery", None)
    battery = sensor() if sensor else None
    if battery is not None and battery.power_plugged is not None:
        return "mains" if battery.power_plugged else "battery"
    if battery is not None:
        raise UnknownFactError("there is a battery, but the system does not tell who feeds it")
    if virtualization != "none":
        raise UnknownFactError("a virtual machine may not see its host's battery")
    return "mains"


def existing_part(folder: Path) -> Path:
    """Return `folder`, or the nearest folder above it that exists."""
    place = folder.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place
