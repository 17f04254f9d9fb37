"""What works on this machine, what does not, and the remedy.

Importing this imports no torch; the checks themselves are in this package's modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.errors import Problem

Status = Literal["ok", "warning", "missing"]


@dataclass(frozen=True)
class Check:
    """`missing`: not even a CPU can be measured without it. `warning`: something else cannot.

    `remedy` is what to do, word for word; every check that is not ok has one.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None = None


def check(name: str, found: str | Problem, status: Status = "warning") -> Check:
    """Return the check `name`: ok with what was found, or of `status` with its problem."""
    if isinstance(found, Problem):
        return Check(name, status, found.what, found.remedy)
    return Check(name, "ok", found)


Group = Callable[[], Iterable[Check]]


def machine_groups(records: Path) -> dict[str, Group]:
    """Return the checks of this machine; those of `devices` import torch when they are run."""
    from bench.doctor.host import host_checks, nvidia_checks, perf_checks
    from bench.doctor.installation import device_checks, package_checks

    return {
        "packages": package_checks,
        "devices": device_checks,
        "nvidia": nvidia_checks,
        "perf": perf_checks,
        "host": lambda: host_checks(records),
    }


def run_checks(groups: Mapping[str, Group]) -> list[Check]:
    """Return the checks of all groups in order; a group that fails gives one that says so."""
    from bench.machine.probes import reason_of

    checks: list[Check] = []
    for name, group in groups.items():
        try:
            checks += list(group())
        except Exception as error:
            remedy = "install the project's packages: uv pip install -r requirements.txt"
            failure = Problem(f"the check itself failed: {reason_of(error)}", remedy)
            checks.append(check(name, failure, "missing"))
    return checks
