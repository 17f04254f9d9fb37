"""`mlproject doctor`: what works on this machine, what does not, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from commands.console.options import WithRecords, mlflow_is_here
from commands.console.output import Result, Shown

if TYPE_CHECKING:
    from bench.doctor import Check


class Doctor(WithRecords, Shown):
    """Say what works on this machine, and the remedy for what does not.

    It ends with 0 if at least a CPU can be measured here, else with 1.
    """

    def _result(self) -> Result:
        from bench.doctor import can_measure
        from bench.doctor.suite import machine_groups, run_checks

        with Console(stderr=True).status("looking at Python, torch, devices, tools and the server"):
            checks = run_checks({**machine_groups(self.records), "tracking": _tracking_checks})
        width = max(len(check.name) for check in checks)
        lines = []
        for check in checks:
            lines.append(f"{check.name:<{width}}  {check.status:<7}  {check.detail}")
            lines += [f"{'':<{width}}  -> {check.remedy}"] if check.remedy else []
        code = 0 if can_measure(checks) else 1
        return Result(lines, list(map(asdict, checks)), exit_code=code)


def _tracking_checks() -> Iterable[Check]:
    if mlflow_is_here():
        from tracking.connection import tracking_checks

        return tracking_checks()
    from bench.doctor import Check

    found = "no MLflow in this environment: records stay on disk"
    return [Check("tracking", "warning", found, "mlproject sync uploads them where MLflow is")]
