"""What works on this machine, what does not, and the remedy.

Importing this imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.machine.probes import reason_of

Status = Literal["ok", "warning", "missing"]
Group = Callable[[], Iterable["Check"]]


@dataclass(frozen=True)
class Check:
    """`missing`: not even a CPU can be measured without it. `warning`: something else cannot.

    `remedy` is what to do, word for word; every check that is not ok has one. Raises
    `ValueError` if it has none.
    """

    name: str
    status: Status
    detail: str
    remedy: str | None

    def __post_init__(self) -> None:
        if self.status != "ok" and not self.remedy:
            raise ValueError(f"check {self.name}: {self.status} without a remedy")


def ok(name: str, detail: str) -> Check:
    """Return a check that found what it looked for."""
    return Check(name, "ok", detail, None)


def can_measure(checks: Iterable[Check]) -> bool:
    """Whether at least this machine's CPU can be measured."""
    return all(check.status != "missing" for check in checks)


def machine_groups(records: Path) -> dict[str, Group]:
    """Return the checks of this machine; those of `devices` import torch when they are run."""
    from bench.doctor.host import host_checks
    from bench.doctor.installation import device_checks, package_checks
    from bench.doctor.profilers import nvidia_checks, perf_checks

    return {
        "packages": package_checks,
        "devices": device_checks,
        "nvidia": nvidia_checks,
        "perf": perf_checks,
        "host": lambda: host_checks(records),
    }


def run_checks(groups: Mapping[str, Group]) -> list[Check]:
    """Run every group. One that fails itself gives a check that says so."""
    checks = []
    for name, group in groups.items():
        try:
            checks += list(group())
        except Exception as error:
            detail = f"the check itself failed: {reason_of(error)}"
            remedy = "install the project's packages: uv pip install -r requirements.txt"
            checks.append(Check(name, "missing", detail, remedy))
    return checks
