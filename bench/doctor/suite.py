"""All checks of this machine, each group safe from the failure of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from bench.doctor import Check
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
    """Run all groups at once, and return their checks in the order of the groups.

    A group that fails itself gives a check that says so.
    """
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(chain.from_iterable(pool.map(_checked, groups, groups.values())))


def _checked(name: str, group: Group) -> list[Check]:
    try:
        return list(group())
    except Exception as error:
        detail = f"the check itself failed: {reason_of(error)}"
        remedy = "install the project's packages: uv pip install -r requirements.txt"
        return [Check(name, "missing", detail, remedy)]
