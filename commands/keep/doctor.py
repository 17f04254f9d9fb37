"""`mlproject doctor`: what works on this machine, what does not, and the remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from commands.views.options import mlflow_is_here, records_option, table_option

if TYPE_CHECKING:
    from bench.doctor import Check


@click.command()
@records_option
@table_option
def command(records: Path, form: str) -> int:
    """Say what works on this machine, and the remedy for what does not.

    Exit code 0 if at least a CPU can be measured here, else 1.
    """
    from bench.doctor import can_measure
    from bench.doctor.suite import machine_groups, run_checks

    with Console(stderr=True).status("looking at Python, torch, devices, tools and the server"):
        checks = run_checks({**machine_groups(records), "tracking": _tracking_checks})
    if form == "json":
        click.echo(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        _print_table(checks)
    return 0 if can_measure(checks) else 1


def _tracking_checks() -> Iterator[Check]:
    if not mlflow_is_here():
        from bench.doctor import Check

        found = "no MLflow in this environment: records stay on disk"
        yield Check("tracking", "warning", found, "mlproject sync uploads them where MLflow is")
        return
    # A process of its own: imports share one interpreter, and this one is importing torch
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield from pool.submit(_ask_server).result()


def _ask_server() -> list[Check]:
    from tracking.store import tracking_checks

    return tracking_checks()


def _print_table(checks: list[Check]) -> None:
    colours = {"ok": "green", "warning": "yellow", "missing": "red"}
    table = Table("Check", "Status", "What was found, and the remedy", box=box.SIMPLE_HEAD)
    for check in checks:
        found = Text(check.detail)
        if check.remedy:
            found.append(f"\n-> {check.remedy}", style="bold")
        table.add_row(check.name, Text(check.status, style=colours[check.status]), found)
    Console().print(table)
