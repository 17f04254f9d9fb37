"""`mlproject baseline`: runs under a name, kept on the tracking server."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from bench.errors import UserError
from commands.views.options import format_option, server_needed, table_option
from commands.views.terminal import output, say_unreadable, text_table


@click.group()
def command() -> None:
    """Set, list and remove named baselines, which mlproject compare takes as baseline=NAME.

    A name means the runs that it was set to, and never moves by itself. It is kept on the tracking
    server, in the experiment that MLflow's variables name.
    """


@command.command("set")
@click.argument("name")
@click.argument("side")
@format_option
def set_(name: str, side: str, form: str) -> None:
    """Let NAME mean the runs of SIDE as they are now; a side is what mlproject compare takes.

    Exit codes: 0 set; 2 no run matches, or a wrong value.
    """
    from analysis import group_runs
    from analysis.comparison import read_side
    from analysis.runs.quantities import counted
    from tracking.baselines import set_baseline

    with server_needed():
        runs = read_side(side, say_unreadable)
        if on_disk := [run for run in runs if run.name == run.record_id]:
            raise UserError(
                f"{side!r}: record {on_disk[0].name} is on disk; a baseline is of tracked runs, so "
                "upload it with mlproject sync"
            )
        groups = group_runs(runs)
        if not groups:
            raise UserError(f"{side!r}: none of its {len(runs)} runs has a result")
        found = set_baseline(name, side, [run.name for run in runs])
    if form == "json":
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(
        f"baseline {name}: {counted(len(runs), 'run')} of "
        f"{counted(len(groups), 'configuration')} ({side}), in the experiment {found.experiment}"
    )


@command.command("list")
@table_option
def list_(form: str) -> None:
    """List the baselines of all experiments."""
    from tracking.baselines import all_baselines

    with server_needed():
        found = all_baselines()
    if form == "json":
        click.echo(json.dumps([asdict(one) for one in found]))
        return
    rows = [
        (
            one.name,
            one.side,
            one.set_at[:16].replace("T", " "),
            one.experiment,
            f"{len(one.run_ids)}",
        )
        for one in found
    ]
    headings = ("name", "set to", "at (UTC)", "experiment", "runs")
    output(120).print(text_table(headings, rows, left=range(4)))


@command.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget NAME; its runs stay."""
    from analysis.runs.quantities import counted
    from tracking.baselines import remove_baseline

    with server_needed():
        found = remove_baseline(name)
    click.echo(f"baseline {name}: removed; its {counted(len(found.run_ids), 'run')} stay")
