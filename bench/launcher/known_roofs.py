"""Roofs that were measured here before, found without importing torch."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from bench.machine.cpu import cpu_model, cpu_signature
from bench.machine.gpu_drivers import device_uuid, management_facts
from bench.machine.probes import ProbedFacts, value_or_none
from bench.records import CeilingsRecord, DeviceInfo
from bench.records.environment import instruction_limits, same_power_limit
from bench.records.folders import readable_records


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


def _is_of(backend: str, card: ProbedFacts | None, device: DeviceInfo) -> bool:
    """Whether `device` is what `backend` means here."""
    if backend == "auto":
        meant = device.backend == "cuda" if card is not None else device.backend != "cuda"
    else:
        meant = device.backend == backend
    if not meant or device.backend != "cuda":
        return meant
    return (
        card is not None
        and (device.uuid, device.driver) == (card.values["uuid"], card.values["driver"])
        and same_power_limit(device.power_limit_w, card.values["power_limit_w"])
    )
