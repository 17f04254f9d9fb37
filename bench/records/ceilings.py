"""A device's roofs, and the run that measured them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bench.config.resolved import Backend, MathMode
from bench.records.base import Count, Facts, KeptRecord, PositiveRate, Record, lacking
from bench.records.environment import Environment, Telemetry

#: Figures beside the two peaks, which tell a fault from what a device does for a moment.
_MORE = dict.fromkeys(("burst_flops_per_s", "one_way_bytes_per_s"), "not measured with the peaks")


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

    @model_validator(mode="before")
    @classmethod
    def _as_today(cls, data: Any) -> Any:
        """Say of a ceiling of an older version, or of a datasheet's, what it does not have."""
        return lacking(data, _MORE) if isinstance(data, dict) else data


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
