"""A device's roofs, and the run that measured them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bench.config.resolved import Backend, MathMode
from bench.records.base import Count, Facts, KeptRecord, PositiveRate, Record
from bench.records.environment import Environment, Telemetry


class Ceiling(Facts):
    """The most a device can do in one math mode, measured there or from its maker's document."""

    device: str
    backend: Backend
    math_mode: MathMode
    peak_flops_per_s: PositiveRate | None
    peak_bytes_per_s: PositiveRate | None
    burst_flops_per_s: PositiveRate | None  # of short repetitions, before power limits the clock
    one_way_bytes_per_s: PositiveRate | None  # of reading alone or of writing alone
    kind: Literal["measured", "datasheet"]
    source: str
    date: str


class CeilingSample(Record):
    """One probe of a ceiling: `rates` in FLOP/s or B/s, one per repetition."""

    probe: str  # "matmul bf16 4096x4096x4096", "copy 512 MiB"
    math_mode: MathMode | None
    quantity: Literal["flops_per_s", "bytes_per_s"]
    rates: Annotated[tuple[PositiveRate, ...], Field(min_length=1)]


class CacheRoof(Facts):
    """The bandwidth of one cache level of a device, measured by reading what fits into it."""

    level: Literal["L1", "L2", "L3"]
    size_bytes: Count | None  # of the level, all of its instances together
    peak_bytes_per_s: PositiveRate | None
    source: str


class CeilingsRecord(KeptRecord):
    """One machine's measured roofs: the file `record.json` of a record folder."""

    kind: Literal["ceilings"] = "ceilings"
    environment: Environment | None
    ceilings: tuple[Ceiling, ...]
    samples: tuple[CeilingSample, ...]
    cache_roofs: tuple[CacheRoof, ...] = ()
    telemetry: Telemetry | None
