"""`mlproject ceilings`: this machine's roofs, measured by a fresh worker."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from bench.records import CeilingsRecord
from commands.views.options import (
    backend_option,
    format_option,
    records_option,
    track_option,
    wait_option,
)
from commands.views.recorded import finish, measured, verdict_fact


@click.command()
@backend_option
@click.option(
    "--if-missing",
    is_flag=True,
    help="do nothing where --records holds roofs of this device and this torch already",
)
@records_option
@track_option
@wait_option
@format_option
def command(
    backend: str, if_missing: bool, records: Path, tracked: bool, wait: bool, form: str
) -> int:
    """Measure this machine's roofs: matrix product per precision, memory and cache bandwidth."""
    from bench.launcher.device_lock import device_names
    from bench.launcher.known_roofs import find_ceilings
    from bench.launcher.measurement import launch_ceilings
    from bench.records.folders import RecordFolder

    known = find_ceilings(records, backend) if if_missing else None
    if known is not None:
        folder = RecordFolder(records / known.record_id)
        return finish(folder, known, _facts(known), tracked=tracked, form=form, fresh=False)
    launch = partial(launch_ceilings, backend)
    return measured(
        *(records, "ceilings", launch, _facts),
        devices=device_names(backend),
        wait=wait,
        tracked=tracked,
        form=form,
    )


def _facts(record: CeilingsRecord) -> dict[str, str]:
    facts = {"device": record.environment.device.name} if record.environment else {}
    for ceiling in record.ceilings:
        if ceiling.peak_flops_per_s is not None:
            facts[f"roof {ceiling.math_mode}"] = f"{ceiling.peak_flops_per_s / 1e9:.4g} GFLOP/s"
        if ceiling.peak_bytes_per_s is not None:
            facts["roof memory"] = f"{ceiling.peak_bytes_per_s / 1e9:.4g} GB/s"
    for roof in record.cache_roofs:
        if roof.peak_bytes_per_s is not None:
            facts[f"roof {roof.level}"] = f"{roof.peak_bytes_per_s / 1e9:.4g} GB/s"
        else:
            facts[f"no roof {roof.level}"] = roof.missing["peak_bytes_per_s"]
    return facts | verdict_fact(record.verdict)
