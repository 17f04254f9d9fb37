"""`mlproject run`: one configuration, one fresh worker, one record, one tracked run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.config import RunConfig
from bench.records import RunRecord
from commands.views.options import (
    checked_config,
    format_option,
    one_option_per_field,
    records_option,
    track_option,
)
from commands.views.recorded import EXIT_CODES, measured, verdict_fact


@click.command()
@one_option_per_field
@records_option
@track_option
@format_option
def command(records: Path, tracked: bool, form: str, **values: str) -> int:
    """Measure one configuration as one tracked run.

    The record is on disk before anything is uploaded. Exit codes: 0 measured and tracked; 1 no
    whole measurement (out of memory, crash), recorded with its reason; 2 a wrong value; 3 measured
    but not uploaded; 130 interrupted. With nodes above 1, the machine whose NODE_RANK is 0 keeps
    the record; the others take part and write none.
    """
    config = checked_config(values)
    from bench.config.nodes import node_rank

    if node_rank(config) > 0:
        return _take_part(config)
    # The launcher comes last: psutil and NVML cost time that a wrong value should not.
    from bench.launcher.measurement import launch_measurement

    title = f"{config.arch} {config.precision}"
    launch = partial(launch_measurement, config)
    return measured(records, title, launch, _facts, tracked=tracked, form=form)


def _take_part(config: RunConfig) -> int:
    from bench.launcher.measurement import take_part

    outcome, reason = take_part(config)
    click.echo(f"took part: {outcome}" + (f" ({reason})" if reason else ""))
    return EXIT_CODES[outcome]


def _facts(record: RunRecord) -> dict[str, Any]:
    from bench.records.verdict.record_metrics import summary

    known = summary(record)
    facts: dict[str, Any] = {
        name: round(known[name], 4)
        for name in (
            "throughput_images_per_s",
            "loader_images_per_s",
            "iteration_time_ms_p50",
            "attained_gflops",
        )
        if name in known
    }
    if record.measurement is not None and record.measurement.ended_early is not None:
        facts["ended_early"] = record.measurement.ended_early
    return facts | verdict_fact(record.verdict)
