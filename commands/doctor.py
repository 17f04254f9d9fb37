"""`mlproject doctor`: what works on this machine, what does not, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import click
from rich.console import Console

from bench.errors import Problem, UserError
from commands.console.options import WithRecords, mlflow_is_here, option
from commands.console.output import Answering, Output, Shown, table_of

if TYPE_CHECKING:
    from bench.doctor import Diagnosis


class Doctor(WithRecords, Shown, Answering):
    """Say what works on this machine, and the remedy for what does not.

    It ends with 0 if at least a CPU can be measured here, else with 1. With --measure it takes
    minutes: it checks by measurements what the project claims of a device, keeps their records,
    and ends with 1 if a check failed.
    """

    measure: bool = option("measure on the device, and check what is claimed of it")
    backend: Literal["cpu", "cuda"] | None = option(
        "with --measure: the device; default: CUDA where there is one"
    )
    minutes: Annotated[float, click.FloatRange(min=0)] = option(
        "with --measure: begin no check after so long", 9.0
    )

    def _result(self) -> Output:
        if self.measure:
            return self._measured()
        if self.given & {"backend", "minutes"}:
            raise UserError("backend, minutes: give --measure with them")
        from bench.doctor import machine_groups, run_checks

        with Console(stderr=True).status("looking at Python, torch, devices, tools and the server"):
            checks = run_checks({**machine_groups(self.records), "tracking": _tracking_checks})
        width = max(len(check.name) for check in checks)
        lines = []
        for check in checks:
            lines.append(f"{check.name:<{width}}  {check.status:<7}  {check.detail}")
            lines += [f"{'':<{width}}  -> {check.remedy}"] if check.remedy else []
        code = int(any(check.status == "missing" for check in checks))
        return Output(lines, list(map(asdict, checks)), exit_code=code)

    def _measured(self) -> Output:
        from bench.launcher.device_lock import device_names
        from campaigns.first_contact import first_contact

        on_card = device_names("auto")[0] not in ("cpu", "mps")
        backend = self.backend or ("cuda" if on_card else "cpu")
        answers = []
        for answer in first_contact(backend, self.records, self.minutes):
            click.echo(str(answer), err=True)
            answers.append(answer)
        failed = any(answer.passed is False for answer in answers)
        return Output([table_of("checks", list(map(asdict, answers)))], exit_code=int(failed))


def _tracking_checks() -> Iterator[Diagnosis]:
    from bench.doctor import diagnosis

    if mlflow_is_here():
        from tracking.connection import tracking_state

        yield diagnosis("tracking server", tracking_state())
        return
    what = "no MLflow in this environment: records stay on disk"
    yield diagnosis("tracking", Problem(what, "mlproject sync uploads them where MLflow is"))
