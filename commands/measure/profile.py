"""`mlproject profile`: what one step of a configuration did inside, beside its timed run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click
from click.core import ParameterSource

from bench.config import RunConfig
from bench.errors import UserError
from bench.records import ProfileRecord, RunRecord, ToolName
from commands.views.options import (
    checked_config,
    format_option,
    one_option_per_field,
    records_option,
    server_needed,
    track_option,
    wait_option,
)
from commands.views.recorded import measured, profile_facts

if TYPE_CHECKING:
    from bench.records.folders import RecordFolder
    from bench.records.journal import OnEvent

AUTO = "auto"
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@click.command()
@click.option(
    "--tool",
    "tools",
    type=click.Choice([AUTO, *get_args(ToolName)]),
    multiple=True,
    default=[AUTO],
    show_default=True,
    help="torch: time per op; ncu: an NVIDIA GPU's counters; perf: a Linux CPU's; "
    "auto: torch, and the counters that this machine has",
)
@click.option(
    "--of",
    "timed_id",
    metavar="RECORD",
    help="profile the configuration of this record, and explain that run: its name in --records, "
    "its folder, or its run's id in MLflow",
)
@one_option_per_field
@records_option
@track_option
@wait_option
@format_option
@click.pass_context
def command(
    context: click.Context,
    /,
    tools: tuple[str, ...],
    timed_id: str | None,
    records: Path,
    tracked: bool,
    wait: bool,
    form: str,
    **values: str,
) -> int:
    """Profile one step of a configuration, as a tracked run linked to the timed one.

    Each tool examines a fresh worker after its warm-up: one step for ncu, a few for PyTorch's
    profiler, the whole window for perf. Exit codes: 0 profiled and tracked; 1 no whole step (out
    of memory, crash), recorded with its reason; 2 a wrong value, or a tool that was asked for by
    name and cannot work here; 3 profiled but not uploaded; 130 interrupted.
    """
    config, timed = _asked(context, values, records, timed_id)
    if config.nodes > 1:
        raise UserError(f"nodes={config.nodes}: a profile is of one machine; use nodes=1")
    if config.data_only:
        raise UserError("data_only=true: a profile looks at a training step; use data_only=false")
    from bench.launcher.device_lock import crowding, device_names
    from bench.launcher.profile import launch_profile

    if crowded := crowding(config):
        raise UserError(crowded)
    names = None if AUTO in tools else cast(tuple[ToolName, ...], tools)

    def launch(folder: RecordFolder, on_event: OnEvent) -> ProfileRecord:
        return launch_profile(config, folder, names, timed, on_event)

    def facts(record: ProfileRecord) -> dict[str, Any]:
        rows = {} if record.ops is None else {"ops": str(records / record.record_id / "ops.csv")}
        return profile_facts(record) | rows

    title = f"{config.arch} {config.precision}"
    return measured(
        *(records, title, launch, facts),
        devices=device_names(config.backend, config.devices),
        wait=wait,
        tracked=tracked,
        form=form,
    )


def _asked(
    context: click.Context, values: dict[str, str], records: Path, timed_id: str | None
) -> tuple[RunConfig, RunRecord | None]:
    if timed_id is None:
        return checked_config(values), None
    from bench.launcher.profile import read_timed

    given = [
        name for name in values if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UserError(
            f"{given[0]}={values[given[0]]!r}: --of takes the configuration from the record; "
            "give one or the other"
        )
    timed: object
    if _RUN_ID.fullmatch(timed_id):
        from analysis import pull_record

        with server_needed():
            timed = pull_record(timed_id)
        if not isinstance(timed, RunRecord):
            raise UserError(f"of={timed_id!r}: this run is no measurement; give one's run id")
    else:
        timed = read_timed(records, timed_id)
    return timed.config, timed
