"""Roofs that this machine has measured before, so that nobody waits for them twice."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from bench.errors import UserError
from bench.machine.cpu import cpu_model, cpu_signature
from bench.machine.probes import value_or_none
from bench.records import CeilingsRecord
from bench.records.folders import AnyRecord, RecordFolder, record_folders


def find_roofs(records: Path, backend: str) -> CeilingsRecord | None:
    """Return the newest clean ceilings in `records` of this processor and this torch, or None.

    Does not import torch: which device `auto` means is left to the measurement, and the newest
    ceilings of any device answer for it.
    """
    if not records.is_dir():
        return None
    for folder in reversed(list(record_folders(records))):
        record = _readable(folder)
        if (
            isinstance(record, CeilingsRecord)
            and record.verdict is not None
            and record.verdict.level == "clean"
            and record.environment is not None
            and record.environment.cpu_model == value_or_none(cpu_model)
            and record.environment.cpu_signature == value_or_none(cpu_signature)
            and record.environment.torch == metadata.version("torch")
            and backend in ("auto", record.environment.device.backend)
        ):
            return record
    return None


def _readable(folder: RecordFolder) -> AnyRecord | None:
    """A record of another version is no reason to stop: the roofs are then measured anew."""
    try:
        return folder.read_record()
    except UserError:
        return None
