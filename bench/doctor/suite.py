"""All checks of this machine, each group safe from the failure of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bench.doctor import Check, check
from bench.errors import Problem
from bench.machine.probes import reason_of

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
    checks: list[Check] = []
    for name, group in groups.items():
        try:
            checks += list(group())
        except Exception as error:
            remedy = "install the project's packages: uv pip install -r requirements.txt"
            failure = Problem(f"the check itself failed: {reason_of(error)}", remedy)
            checks.append(check(name, failure, "missing"))
    return checks
