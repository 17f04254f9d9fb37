"""Measuring from Python: what `mlproject run` and `mlproject ceilings` do, without the upload."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from bench.config import RunConfig
from bench.config.nodes import node_rank
from bench.errors import UnsupportedError, UserError
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.known_roofs import find_ceilings
from bench.launcher.measurement import launch_ceilings, launch_measurement
from bench.records import CeilingsRecord, RunRecord
from bench.records.folders import DEFAULT_RECORDS, RecordFolder
from bench.records.journal import OnEvent, ignore

Measured = TypeVar("Measured", RunRecord, CeilingsRecord)


def measure(
    config: RunConfig,
    *,
    records: str | Path = DEFAULT_RECORDS,
    on_event: OnEvent = ignore,
    wait: bool = True,
) -> RunRecord:
    """Measure `config` in a fresh process; return its record, which is then on disk in `records`.

    A run that went out of memory or crashed returns its record too: `record.outcome` and
    `record.reason` say so. `on_event` is called with each event of the worker's journal while it
    runs. Another process that measures on the device is waited for, unless `wait` is false. Raises
    `UserError` for what cannot be measured as asked (`UnsupportedError` where this device cannot)
    and for a folder that cannot be written, and `KeyboardInterrupt` after Ctrl-C; the record of
    such a run, with what it had measured, stays in `records`.
    """
    if node_rank(config) > 0:
        raise UserError(
            f"nodes={config.nodes}: the machine whose NODE_RANK is 0 keeps the record; "
            "on this one run `mlproject run` with the same settings"
        )
    devices = device_names(config.backend, config.devices)
    with exclusive(devices, wait=wait and config.nodes == 1):
        return _measured(launch_measurement(config, RecordFolder.create(Path(records)), on_event))


def measure_roofs(
    backend: str = "auto",
    *,
    records: str | Path = DEFAULT_RECORDS,
    if_missing: bool = False,
    on_event: OnEvent = ignore,
    wait: bool = True,
) -> CeilingsRecord:
    """Measure the roofs of `backend` (auto, cpu, cuda or mps) in a fresh process.

    With `if_missing`, clean roofs that `records` holds of this device and this torch are
    returned instead. Outcomes and errors as in `measure`.
    """
    known = find_ceilings(Path(records), backend) if if_missing else None
    if known is not None:
        return known
    with exclusive(device_names(backend), wait=wait):
        return _measured(launch_ceilings(backend, RecordFolder.create(Path(records)), on_event))


def _measured(record: Measured) -> Measured:
    """Return the record of a run that was tried; raise what its caller has to act on."""
    if record.outcome == "unsupported":
        raise UnsupportedError(record.reason)
    if record.outcome == "refused":
        raise UserError(record.reason)
    if record.outcome == "interrupted":
        raise KeyboardInterrupt(f"{record.record_id}: {record.reason}")
    return record
