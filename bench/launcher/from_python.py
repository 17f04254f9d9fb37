"""Measuring from Python: what `mlproject run` and `mlproject ceilings` do, without the upload."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from bench.config import RunConfig
from bench.config.parsing import node_rank
from bench.errors import UnsupportedError, UserError
from bench.launcher.device_lock import device_names, exclusive
from bench.launcher.measurement import launch_ceilings, launch_measurement
from bench.machine.cpu import cpu_model, cpu_signature
from bench.machine.gpu_drivers import device_uuid, management_facts
from bench.machine.probes import value_or_none
from bench.records import CeilingsRecord, DeviceInfo, RunRecord
from bench.records.environment import instruction_limits, same_power_limit
from bench.records.folders import DEFAULT_RECORDS, RecordFolder, readable_records
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
    if record.outcome == "unsupported":
        raise UnsupportedError(record.reason)
    if record.outcome == "refused":
        raise UserError(record.reason)
    if record.outcome == "interrupted":
        raise KeyboardInterrupt(f"{record.record_id}: {record.reason}")
    return record


def find_ceilings(records: Path, backend: str) -> CeilingsRecord | None:
    """Return the newest clean ceilings in `records` of this device and this torch, or None.

    A processor is known by its name, its signature and the limits of its instructions; a card by
    its UUID, its driver and its power limit besides. `backend` auto is CUDA where CUDA's driver
    shows a device and torch is not a build for processors alone; else the newest of this machine's
    other devices answer.
    """
    torch = metadata.version("torch")
    on_card = backend == "cuda" or (backend == "auto" and "+cpu" not in torch)
    uuid = value_or_none(device_uuid) if on_card else None
    card = None if uuid is None else management_facts(uuid)
    cpu = (value_or_none(cpu_model), value_or_none(cpu_signature), instruction_limits(os.environ))
    if "rocm" in torch and backend != "cpu":
        return None  # which AMD device it takes is not known without it
    for _, record in readable_records(records, newest_first=True):
        if (
            isinstance(record, CeilingsRecord)
            and record.verdict is not None
            and record.verdict.level == "clean"
            and (where := record.environment) is not None
            and (where.cpu_model, where.cpu_signature, where.instruction_limits) == cpu
            and where.torch == torch
            and _is_of(backend, card, where.device)
        ):
            return record
    return None


def _is_of(backend: str, card: Mapping[str, Any] | None, device: DeviceInfo) -> bool:
    if backend == "auto":
        meant = device.backend == "cuda" if card is not None else device.backend != "cuda"
    else:
        meant = device.backend == backend
    if not meant or device.backend != "cuda":
        return meant
    return (
        card is not None
        and (device.uuid, device.driver) == (card["uuid"], card["driver"] or None)
        and same_power_limit(device.power_limit_w, card["power_limit_w"] or None)
    )
