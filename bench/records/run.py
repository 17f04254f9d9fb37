"""One configuration, measured once, here or by another program."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from bench.config import ResolvedConfig, RunConfig
from bench.records.base import Count, Facts, KeptRecord, Outcome, PositiveRate, Verdict
from bench.records.complexity import Complexity
from bench.records.environment import Environment, ProcessFigures, Telemetry
from bench.records.measurement import Measurement

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


SourceFormat = Literal["table", "iterations", "timm", "optimum-benchmark"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ImportedRecord(Facts):
    """One result of another program, as its file has it; nothing is added or estimated.

    `iteration_times_s` are there only where the file has a row per iteration. `params`, `metrics`
    and `extra` hold what else the file says: `params` and `metrics` under this project's names,
    `extra` under the file's own.
    """

    schema_version: Literal[1] = 1
    kind: Literal["imported"] = "imported"
    record_id: str
    created: datetime  # UTC; when it was measured if the file says so, else when it was imported
    source_file: str  # its name, without folders
    source_sha256: str
    source_line: Annotated[int, Field(ge=1)] | None  # of a table; None for a whole file
    source_format: SourceFormat
    campaign: str
    env: str | None  # label of the machine
    arch: str
    device: str | None
    backend: str | None
    precision: str | None
    batch_size: Annotated[int, Field(ge=1)] | None
    repeat: Count | None
    throughput_images_per_s: PositiveRate | None
    measured_at: datetime | None
    iteration_times_s: tuple[Positive, ...] | None
    params: dict[str, str] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
    extra: dict[str, str] = Field(default_factory=dict)
