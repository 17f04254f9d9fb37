"""What another program measured, read from its file: a place for its numbers, not for a record."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from bench.records.base import Count, Facts, PositiveRate

SourceFormat = Literal["table", "iterations", "timm", "optimum-benchmark"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ImportedRecord(Facts):
    """One result of another program, as its file tells it; nothing is added or estimated.

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
