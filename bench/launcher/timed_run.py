"""The timed run that a profile explains."""

from __future__ import annotations

from pathlib import Path

from bench.config import RunConfig
from bench.errors import UserError
from bench.records import Environment, RunRecord
from bench.records.folders import RecordFolder, record_folders


def find_timed(
    records: Path, config: RunConfig, environment: Environment | None
) -> RunRecord | None:
    """Return the newest whole measurement of `config` on the same device and torch, or None."""
    if environment is None:
        return None
    for folder in reversed(list(record_folders(records))):
        record = _measurement(folder)
        if (
            record is not None
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


def _measurement(folder: RecordFolder) -> RunRecord | None:
    """A record that this version cannot read is no reason to stop."""
    try:
        record = folder.read_record()
    except UserError:
        return None
    return record if isinstance(record, RunRecord) else None
