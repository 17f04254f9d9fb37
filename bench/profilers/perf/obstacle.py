"""Why perf cannot count here, and what would help: shown before a profile, by doctor, and after.

perf itself is asked, with the very options of a profile, since a version, a package, a setting of
the kernel, a container and a hypervisor may each stand in its way.
"""

from __future__ import annotations

import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from bench.machine.limits import profiling_capabilities
from bench.machine.probes import ROOT, UnknownFactError, text_of, value_or_none
from bench.machine.surroundings import container, virtualization
from bench.profilers.perf.program import Trial, try_events

#: Up to this level users may count their own processes in user mode (kernel,
#: Documentation/admin-guide/perf-security.rst); Debian's and Ubuntu's higher ones forbid it.
_HIGHEST_PARANOIA = 2
#: What perf says (tools/perf/util/evsel.c); a worker's own output may lie beside it.
_NO_PERMISSION = re.compile(
    "No permission to enable|Access to performance monitoring|permission to collect"
)
_PARANOID = "proc/sys/kernel/perf_event_paranoid"


@dataclass(frozen=True)
class Obstacle:
    """What stands in the way, and what to do about it."""

    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}"


def find_obstacle(root: Path = ROOT) -> Obstacle | None:
    """Return why perf cannot count the processor's events here, or None if it can."""
    system = platform.system()
    if system != "Linux":
        remedy = _ELSEWHERE.get(system, _OPS)
        return Obstacle(f"perf is a tool of Linux, and this is {system}", remedy)
    if shutil.which("perf") is None:
        return Obstacle("perf is not installed", _INSTALL)
    try:
        # task-clock needs no counter: it works where counters are absent and perf is allowed.
        trial = try_events(("task-clock", "instructions"), gated=True)
    except UnknownFactError as error:
        return Obstacle(str(error), _CANNOT_START)
    if trial.counts and trial.rows:
        return None
    return of_complaint(trial.complaint, root) or _of_rows(trial, root)


def of_complaint(complaint: str, root: Path = ROOT) -> Obstacle | None:
    """Return the obstacle that perf's own words name, or None if they name none."""
    if found := re.search(r"perf not found for kernel \S+", complaint):
        return Obstacle(f"{found[0]}: this perf is only a script that looks for it", _wrapper(root))
    if re.search(r"option `(control|delay)'", complaint):
        return Obstacle("this perf cannot be switched on and off (--control)", _UPGRADE)
    return _forbidden(root) if _NO_PERMISSION.search(complaint) else None


def _paranoia(root: Path = ROOT) -> str:
    """Return the level of perf_event_paranoid, or `unknown`."""
    return value_or_none(lambda: text_of(root / _PARANOID)) or "unknown"


def _of_rows(trial: Trial, root: Path) -> Obstacle:
    if trial.exit_code or not trial.rows:
        lines = (line.strip() for line in trial.complaint.splitlines())
        said = (line for line in lines if line.strip(" :") not in ("", "Error"))
        words = next(said, f"exit code {trial.exit_code}")
        return Obstacle(f"perf cannot count: {words}", _CANNOT_START)
    if all(row.why == "not supported" for row in trial.rows):
        return Obstacle(
            "the kernel does not let perf count anything, not even time",
            "in a container, start it with --security-opt seccomp=unconfined or without gVisor; "
            "else use a kernel with CONFIG_PERF_EVENTS",
        )
    hypervisor = value_or_none(lambda: virtualization(root)) or "unidentified"
    return Obstacle("this machine shows no hardware counters", _GUESTS.get(hypervisor, _GUEST))


def _forbidden(root: Path) -> Obstacle:
    """The kernel said no: by its own setting, or by a filter in front of it."""
    level, around = _paranoia(root), value_or_none(lambda: container(root)) or "none"
    where = "on the host, " if around != "none" else ""
    forbidden = level.lstrip("-").isdigit() and int(level) > _HIGHEST_PARANOIA
    if forbidden and not profiling_capabilities(root):
        return Obstacle(
            f"perf_event_paranoid is {level}: users may not count",
            f"{where}sudo sysctl kernel.perf_event_paranoid={_HIGHEST_PARANOIA} (a file in "
            "/etc/sysctl.d keeps it over a restart), or profile as root",
        )
    if around == "none":
        return Obstacle(
            "a seccomp filter or a security module forbids perf_event_open",
            "profile as root, or outside the sandbox that runs this",
        )
    return Obstacle(f"the {around} container forbids perf_event_open", _allow(around))


def _allow(around: str) -> str:
    if around == "kubernetes":
        return (
            "give the pod securityContext.capabilities.add: [PERFMON] and "
            "seccompProfile.type: Unconfined, and run it as root"
        )
    return (
        "start it with --cap-add=PERFMON (where that is unknown, --cap-add=SYS_ADMIN), "
        "and as root in it"
    )


def _wrapper(root: Path) -> str:
    if value_or_none(lambda: virtualization(root)) == "wsl2":
        return (
            "sudo apt install linux-tools-generic, and put the folder of its perf, "
            "/usr/lib/linux-tools/<version>, first on PATH"
        )
    return (
        "sudo apt install linux-tools-$(uname -r); in a container, whose kernel is the host's, "
        "linux-tools-generic, and put /usr/lib/linux-tools/<version> first on PATH"
    )


_OPS = "time per op needs no counters: mlproject profile --tool torch"
_ELSEWHERE = {
    "Darwin": f"Xcode's Instruments has a template CPU Counters; {_OPS}",
    "Windows": f"use WSL2, or Intel VTune or AMD uProf by hand; {_OPS}",
}
_INSTALL = (
    "install it: sudo apt install linux-perf (Debian), linux-tools-common and "
    "linux-tools-$(uname -r) (Ubuntu), sudo dnf install perf (Fedora, Red Hat)"
)
_UPGRADE = "install that of Linux 5.10 or later: sudo apt install linux-perf, sudo dnf upgrade perf"
_CANNOT_START = (
    "try `perf stat -e instructions -- true` by hand; a perf of the running kernel, and TMPDIR on "
    "a file system of Linux, are what it needs"
)
_GUEST = (
    "a virtual machine has those its host passes on: on Google Cloud set "
    "advancedMachineFeatures.performanceMonitoringUnit (STANDARD), on Amazon take a .metal size or "
    "one that fills a socket, in libvirt use <cpu mode='host-passthrough'/> and <pmu state='on'/>; "
    "else use a machine of your own"
)
_GUESTS = {
    "none": "this kernel does not know its processor: see `dmesg | grep PMU`, use a newer kernel",
    "wsl2": (
        "wsl --update, and remove hardwarePerformanceCounters=false from .wslconfig; some "
        "processors pass none on to WSL2: then start Linux itself"
    ),
    "vmware": "switch on `Virtualize CPU performance counters` in the virtual machine's settings",
    "hyperv": ("on the host, Set-VMProcessor NAME -Perfmon @('pmu'); on Azure use another machine"),
    "virtualbox": "VirtualBox passes none on: use another hypervisor or the machine itself",
}
