"""`mlproject run`: one configuration; per repeat a fresh worker, a record and a tracked run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.config import RunConfig, rate_unit
from bench.errors import UserError
from bench.records import RunRecord
from commands.views.options import (
    checked_config,
    format_option,
    one_option_per_field,
    records_option,
    track_option,
    wait_option,
)
from commands.views.recorded import EXIT_CODES, import_upload, measured, verdict_fact

if TYPE_CHECKING:
    from bench.records.folders import RecordFolder
    from bench.records.journal import OnEvent


@click.command()
@one_option_per_field
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="tracked runs of it, each in a fresh process; from two on, their mean has an interval",
)
@records_option
@track_option
@wait_option
@format_option
def command(
    repeats: int, records: Path, tracked: bool, wait: bool, form: str, **values: str
) -> int:
    """Measure one configuration as one tracked run, or several.

    The record is on disk before anything is uploaded. Exit codes: 0 measured and tracked; 1 no
    whole measurement (out of memory, crash), recorded with its reason; 2 a wrong value; 3 measured
    but not uploaded; 130 interrupted. Of several repeats the first that is not 0 counts; an
    interrupt ends them all. With nodes above 1, the machine whose NODE_RANK is 0 keeps the record;
    the others take part and write none; no machine then waits for its device.
    """
    config = checked_config(values)
    from bench.config.nodes import node_rank

    if repeats > 1 and config.nodes > 1:
        raise UserError(f"repeats={repeats}: with nodes above 1 start each repeat on every machine")
    if node_rank(config) > 0:
        return _take_part(config)
    # The launcher comes last: psutil and NVML cost time that a wrong value should not.
    from bench.launcher.device_lock import device_names
    from bench.launcher.measurement import launch_measurement

    devices = device_names(config.backend, config.devices)
    done: list[RunRecord] = []

    def launch(folder: RecordFolder, on_event: OnEvent) -> RunRecord:
        meanwhile = import_upload if tracked else None
        repeat = config.model_copy(update={"repeat": config.repeat + len(done)})
        done.append(launch_measurement(repeat, folder, on_event, meanwhile=meanwhile))
        return done[-1]

    codes = []
    while len(done) < repeats and EXIT_CODES["interrupted"] not in codes:
        repeat = f", repeat {len(done) + 1} of {repeats}" if repeats > 1 else ""
        title = f"{config.arch} {config.precision}{repeat}"
        codes.append(
            measured(
                *(records, title, launch, _facts),
                devices=devices,
                wait=wait and config.nodes == 1,
                tracked=tracked,
                form=form,
            )
        )
        # The run that `mlflow run` made holds the first repeat; the others get runs of their own.
        os.environ.pop("MLFLOW_RUN_ID", None)
    if repeats > 1:
        _print_mean(done, form)
    return next(filter(None, codes), 0)


def _print_mean(records: Sequence[RunRecord], form: str) -> None:
    """Print the mean rate of the repeats that were measured to their end."""
    from analysis.statistics.repeats import repeats_of
    from bench.records.verdict.record_metrics import rate_name, summary

    whole = [record for record in records if record.outcome == "ok"]
    resolved = whole[0].resolved if whole else None
    facts: dict[str, Any] = {"repeats": len(whole)}
    if resolved is not None:
        name = rate_name(whole[0].config, resolved)
        values = [summary(record)[name] for record in whole]
        together = repeats_of(values).interval()
        facts |= {
            f"{name}_mean": together.value,
            f"{name}_low": together.low,
            f"{name}_high": together.high,
        }
    if form == "json":
        click.echo(json.dumps(facts))
    elif resolved is not None:
        interval = ""
        if together.low is not None and together.high is not None:
            interval = f", 95 % interval {together.low:.4g} to {together.high:.4g}"
        click.echo(
            f"  {len(whole)} repeats: {together.value:.4g} {rate_unit(resolved.sample)}{interval}"
        )


def _take_part(config: RunConfig) -> int:
    from bench.launcher.device_lock import device_names, exclusive
    from bench.launcher.measurement import take_part

    # the other machines do not wait for long
    with exclusive(device_names(config.backend, config.devices), wait=False):
        outcome, reason = take_part(config)
    click.echo(f"took part: {outcome}" + (f" ({reason})" if reason else ""))
    return EXIT_CODES[outcome]


def _facts(record: RunRecord) -> dict[str, Any]:
    from bench.records.verdict.record_metrics import rate_name, summary

    known, resolved = summary(record), record.resolved
    rates = [] if resolved is None else [rate_name(record.config, resolved)]
    facts: dict[str, Any] = {
        name: round(known[name], 4)
        for name in (
            *rates,
            "throughput_tokens_per_s",
            "iteration_time_ms_p50",
            "attained_gflops",
        )
        if name in known
    }
    if record.measurement is not None and record.measurement.ended_early is not None:
        facts["ended_early"] = record.measurement.ended_early
    return facts | verdict_fact(record.verdict)
