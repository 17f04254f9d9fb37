"""What was seen of a worker from outside: its process, and the machine meanwhile."""

from __future__ import annotations

from pydantic import model_validator
from typing_extensions import Self

from bench.records.base import Count, Facts, PositiveRate, Record, Seconds


class ProcessFigures(Facts):
    """What `/usr/bin/time -v` tells of the worker and the loader processes it waited for."""

    real_s: Seconds
    user_s: Seconds | None
    system_s: Seconds | None
    max_rss_bytes: Count | None  # of the largest single process


class Series(Record):
    """One sampled quantity; `name` carries the unit, `times_s` count from the window's start."""

    name: str
    source: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.times_s) != len(self.values):
            raise ValueError(f"series {self.name}: times and values differ in length")
        return self


class Telemetry(Facts):
    """Series sampled by the launching process during the window, and what could not be read."""

    interval_s: PositiveRate
    series: tuple[Series, ...]
    energy_j: float | None  # by the device's own counter over the window
    throttle_share: dict[str, float] | None  # throttle reason -> share of samples; {} means never
    foreign_processes: tuple[str, ...] | None  # others on the device, "pid name", before or after
