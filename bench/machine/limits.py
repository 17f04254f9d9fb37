"""What a process runs in, what the system allows it, what it has used, and how it ended.

Limits of control groups (versions 1 and 2) may be set on any level above the process, so the
tightest one up to the root counts. Inside a container the mounted root is the container's own
group. Files: the kernel's Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/{memory,cpusets}.rst, sched-bwc.rst.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import psutil

from bench.config import RunConfig
from bench.errors import UnsupportedError
from bench.machine import (
    UnknownFactError,
    output_of,
    probe,
    sysctl,
    system_path,
    text_of,
    value_or_none,
)

#: What container runtimes leave in their containers; the orchestrator comes first.
_CONTAINERS = {
    "kubernetes": "var/run/secrets/kubernetes.io",
    "podman": "run/.containerenv",
    "docker": ".dockerenv",
    "apptainer": ".singularity.d",
}


def container(environ: Mapping[str, str] = os.environ) -> str:
    """Return the container runtime around this process, with its image if known, or `none`.

    Nothing inside a container knows its image; `MLPROJECT_IMAGE` names it, as in ours.
    """
    system = platform.system()
    if system == "Windows":
        raise UnknownFactError("not looked for on Windows")
    if system == "Darwin":
        return "none"
    if "KUBERNETES_SERVICE_HOST" in environ:
        runtime = "kubernetes"
    else:
        traces = (name for name, path in _CONTAINERS.items() if system_path(path).exists())
        # systemd notes the others, such as lxc
        noted = value_or_none(lambda: text_of("run/systemd/container"))
        runtime = next(traces, noted or "none")
    image = environ.get("MLPROJECT_IMAGE")
    return f"{runtime} ({image})" if image and runtime != "none" else runtime


def virtualization() -> str:
    """Return the hypervisor under this system (`wsl1`, `wsl2`, systemd's `kvm`...), or `none`.

    Without systemd it is the firmware's maker, where the processor shows that there is one.
    """
    system = platform.system()
    if system == "Darwin":
        return "unidentified" if sysctl("kern.hv_vmm_present") == "1" else "none"
    if system == "Windows":
        raise UnknownFactError("not looked for on Windows")
    # Microsoft's kernels: 4.4.0-19041-Microsoft and 5.15.90.1-microsoft-standard-WSL2.
    release = text_of("proc/sys/kernel/osrelease").lower()
    if "microsoft" in release:
        return "wsl2" if "wsl2" in release else "wsl1"
    detect = partial(output_of, "systemd-detect-virt", "--vm", accepted_codes=(0, 1))
    if word := value_or_none(detect):
        return word
    processor = text_of("proc/cpuinfo").split()
    if "hypervisor" in processor:
        maker = re.match(r"\w+", _text("sys/class/dmi/id/sys_vendor"))
        return maker[0].lower() if maker else "unidentified"
    if "flags" in processor:  # Arm's processors do not say
        return "none"
    raise UnknownFactError("neither systemd nor the processor shows a hypervisor")


def cpu_quota() -> float | None:
    """Return the cores of the tightest quota on this process; None where there is none."""
    quotas = []
    for group in _groups("cpu"):
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if not quota.isdigit():
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_bytes() -> int:
    """Return the memory this process may use: the machine's, or its control group's if less."""
    names = ("memory.max", "memory.limit_in_bytes")  # of version 2, and of version 1
    limits = [_text(group / name) for group in _groups("memory") for name in names]
    total = int(psutil.virtual_memory().total)
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])


def oom_kills() -> int | None:
    """Return how many processes the kernel's out-of-memory killer has ended so far.

    Of this process's own memory group where that is counted, else of the whole machine; None
    where neither is (macOS, Windows, kernels before 4.13).
    """
    names = ("memory.events", "memory.oom_control")
    own = (group / name for group in _groups("memory") for name in names)
    for path in (*own, system_path("proc/vmstat")):
        if kills := re.search(r"^oom_kill (\d+)$", _text(path), re.MULTILINE):
            return int(kills[1])
    return None


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of the groups above it, innermost first."""
    base = system_path("sys/fs/cgroup")
    unified = base if (base / "cgroup.controllers").exists() else base / "unified"
    for line in _text("proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount = unified
        elif controller in controllers.split(","):
            mount = base / controllers if (base / controllers).exists() else base / controller
        else:
            continue
        inner = mount / path.lstrip("/")
        # ".." appears when the namespace's root lies below us: only the mount can be read then.
        chain = [mount] if ".." in inner.parts else [inner, *inner.parents]
        yield from (folder for folder in chain if folder.is_relative_to(mount))


def _text(path: str | Path) -> str:
    return probe(text_of, path) or ""


def peak_memory_bytes() -> int:
    """Return the most memory that this process, or one that it waited for, has held at once.

    On Linux its own is VmHWM of proc(5): ru_maxrss may be that of the process that started this
    one, which is handed down through exec (setmax_mm_hiwater_rss in fs/exec.c).
    """
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own, children = (resource.getrusage(whose).ru_maxrss for whose in who)
    if sys.platform == "darwin":  # bytes there, KiB on Linux (getrusage(2) of each)
        return max(own, children)
    peak = re.search(r"^VmHWM:\s*(\d+) kB", _text("proc/self/status"), re.MULTILINE)
    if peak is None:
        raise UnknownFactError("the kernel shows no high-water mark")
    return 1024 * max(int(peak[1]), children)


#: Bit numbers of capabilities(7).
_BITS = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38}


def profiling_capabilities() -> frozenset[str]:
    """Return which of CAP_SYS_ADMIN and CAP_PERFMON this process has, as far as known.

    With either it may read performance counters whatever the system's default is.
    """
    status = _text("proc/self/status")
    mask = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    effective = int(mask[1], 16) if mask else 0
    return frozenset(name for name, bit in _BITS.items() if effective >> bit & 1)


_SIGKILL = 9


def describe_exit(
    returncode: int, oom_kills_before: int | None, oom_kills_after: int | None
) -> str:
    """Return in words how a process ended, and whether the out-of-memory killer had a hand in it.

    The counts are `oom_kills` before the start and after the end.
    """
    words = f"exit code {returncode}"
    if returncode < 0:
        names = {number.value: number.name for number in signal.Signals}
        words = f"ended by {names.get(-returncode, 'an unnamed signal')} (signal {-returncode})"
    elif returncode >= 2**31:  # Windows's NTSTATUS, such as 0xC0000005: access violation
        words = f"ended by exception 0x{returncode:08X}"
    if returncode == 0 or oom_kills_before is None or oom_kills_after is None:
        return words
    if (kills := oom_kills_after - oom_kills_before) > 0:
        return f"{words}: the kernel's out-of-memory killer struck ({kills} killed since then)"
    return f"{words}, not by the out-of-memory killer" if returncode == -_SIGKILL else words


#: No separate mapping for a large block, never give the heap's end back.
_RETAIN = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
#: Ask for huge pages: fewer faults the first time, fewer misses of the page table's cache after.
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
_OTHER_ALLOCATOR = re.compile("jemalloc|tcmalloc|mimalloc")

Allocator = Literal["system", "retain", "preloaded"]


def allocator_settings(config: RunConfig) -> dict[str, str]:
    """Return the environment under which a worker measures `config`."""
    if config.allocator == "system" or not _is_glibc() or _is_preloaded():
        return {}
    tunables = [os.environ.get("GLIBC_TUNABLES", ""), _HUGE_PAGES]
    return {**_RETAIN, "GLIBC_TUNABLES": ":".join(filter(None, tunables))}


def allocator_in_use(asked: str) -> Allocator:
    """Return what this process was started with.

    Raises `UnsupportedError` where `asked` is `retain` and the process cannot.
    """
    if _is_preloaded():
        return "preloaded"
    if _is_glibc() and all(os.environ.get(name) == value for name, value in _RETAIN.items()):
        return "retain"
    if asked == "retain":
        raise UnsupportedError(
            "allocator='retain': only glibc keeps memory when asked, which is Linux's; "
            "use allocator=auto"
        )
    return "system"


def _is_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"


def _is_preloaded() -> bool:
    """Whether the user put another allocator in the C library's place."""
    return bool(_OTHER_ALLOCATOR.search(os.environ.get("LD_PRELOAD", "")))
