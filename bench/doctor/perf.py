"""Linux's perf: the processor's own counters."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.doctor.capabilities import may_profile
from bench.doctor.check import Check, ok
from bench.environment.probes import ROOT, UnknownFactError, output_of, text_of

#: Up to this level users may count their own processes in user mode (kernel,
#: Documentation/admin-guide/perf-security.rst); Debian's and Ubuntu's higher ones forbid it.
_HIGHEST_PARANOIA = 2


def perf_checks(root: Path = ROOT) -> Iterator[Check]:
    """Count the instructions of one short program; where that fails, say why."""
    if platform.system() != "Linux":
        return
    if shutil.which("perf") is None:
        remedy = "install it: sudo apt install linux-perf (Ubuntu: linux-tools-generic)"
        yield Check("perf", "warning", "not found: no CPU counters", remedy)
        return
    try:
        answer = output_of(
            "perf", "stat", "-x,", "--log-fd", "1", "-e", "instructions:u", "--", "true"
        )
    except UnknownFactError as error:
        answer = str(error)
    count = answer.partition(",")[0]
    if count.isdigit():
        yield ok("perf", f"counts; perf_event_paranoid is {_paranoia(root)}")
    else:
        yield _fault(root, answer)


def _paranoia(root: Path) -> str:
    try:
        return text_of(root / "proc/sys/kernel/perf_event_paranoid")
    except UnknownFactError:
        return "unknown"


def _fault(root: Path, answer: str) -> Check:
    level = _paranoia(root)
    if level.lstrip("-").isdigit() and int(level) > _HIGHEST_PARANOIA and not may_profile(root):
        return Check(
            "perf",
            "warning",
            f"perf_event_paranoid is {level}: users may not count",
            f"sudo sysctl kernel.perf_event_paranoid={_HIGHEST_PARANOIA}",
        )
    if "not supported" in answer:
        return Check(
            "perf",
            "warning",
            "this machine shows no hardware counters, as most virtual machines do not",
            "use a machine without a hypervisor, or one whose hypervisor passes the counters on",
        )
    return Check(
        "perf",
        "warning",
        f"perf cannot count: {answer.splitlines()[0] if answer else 'no answer'}",
        "install the perf of the running kernel; in a container, start it with --cap-add=PERFMON",
    )
