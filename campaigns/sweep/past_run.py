"""What a sweep needs to know of a run that was measured before."""

from __future__ import annotations

from dataclasses import dataclass

from bench.config import RunConfig
from bench.machine.identity import environment_id
from bench.records import Outcome, RunRecord


@dataclass(frozen=True)
class PastRun:
    """How one run of a campaign ended."""

    config: RunConfig
    environment_id: str | None  # None where it ended before a device was opened
    outcome: Outcome
    reason: str | None
    record_id: str
    device: str | None = None  # its name; None where it is not known

    @classmethod
    def of(cls, record: RunRecord) -> PastRun:
        """Return what a sweep needs to know of `record`."""
        environment = record.environment
        return cls(
            record.config,
            environment_id(environment) if environment else None,
            record.outcome,
            record.reason,
            record.record_id,
            environment.device.name if environment else None,
        )
