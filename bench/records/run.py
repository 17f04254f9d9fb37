"""One configuration, measured once."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import model_validator
from typing_extensions import Self

from bench.config import RunConfig
from bench.records.base import Outcome
from bench.records.complexity import Complexity
from bench.records.environment import Environment
from bench.records.finding import Verdict
from bench.records.measurement import Measurement, ResolvedConfig
from bench.records.process import ProcessFigures, Telemetry
from bench.records.upgrade import KeptRecord

#: What only the launching process knows of a run; it adds them to the worker's account.
LAUNCHER_FACTS = ("process", "telemetry", "verdict")


class RunRecord(KeptRecord):
    """One configuration, measured once: the file `record.json` of a record folder."""

    schema_version: Literal[2] = 2
    kind: Literal["measurement"] = "measurement"
    record_id: str
    created: datetime  # UTC
    config: RunConfig
    config_id: str
    outcome: Outcome
    reason: str | None  # why the outcome is not ok
    resolved: ResolvedConfig | None
    measurement: Measurement | None
    process: ProcessFigures | None
    telemetry: Telemetry | None
    environment: Environment | None
    complexity: Complexity | None
    verdict: Verdict | None

    @model_validator(mode="after")
    def _ok_is_whole(self) -> Self:
        if self.outcome == "ok" and (self.measurement is None or self.resolved is None):
            raise ValueError("outcome ok without a measurement")
        return self
