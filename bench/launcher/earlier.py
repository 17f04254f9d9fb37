"""What was measured on this machine before: roofs, and the timed run that a profile explains."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from bench.config import RunConfig
from bench.errors import UserError
from bench.machine.cpu import cpu_model, cpu_signature
from bench.machine.probes import value_or_none
from bench.records import CeilingsRecord, Environment, RunRecord
from bench.records.folders import RecordFolder, readable_records


def find_ceilings(records: Path, backend: str) -> CeilingsRecord | None:
    """Return the newest clean ceilings in `records` of this processor and this torch, or None.

    Does not import torch: which device `auto` means is left to the measurement, and the newest
    ceilings of any device answer for it.
    """
    for _, record in readable_records(records, newest_first=True):
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


def find_timed(
    records: Path, config: RunConfig, environment: Environment | None
) -> RunRecord | None:
    """Return the newest whole measurement of `config` on the same device and torch, or None."""
    if environment is None:
        return None
    for _, record in readable_records(records, newest_first=True):
        if (
            isinstance(record, RunRecord)
            and record.outcome == "ok"
            and record.config_id == config.config_id
            and record.environment is not None
            and record.environment.torch == environment.torch
            and record.environment.device.name == environment.device.name
            and record.environment.device.uuid == environment.device.uuid
        ):
            return record
    return None


def read_timed(records: Path, record_id: str) -> RunRecord:
    """Return the measurement of that id. Raises `UserError` where there is none."""
    record = RecordFolder(records / record_id).read_record()
    if not isinstance(record, RunRecord):
        raise UserError(
            f"of={record_id!r}: no measurement in {records}; give the name of a folder there "
            "that `mlproject run` wrote"
        )
    return record
