"""Peaks from makers' documents, for devices without a measured ceiling.

The table holds dense figures, 16-bit ones with fp32 accumulation. A device is found by its whole
name alone: matching parts of names takes an L40S for an L4. A device that is not in the table has
no datasheet peak; nothing is assumed for it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from analysis.roofs.roof import Roof
from analysis.roofs.same_device import is_power_limit
from bench.records import Ceiling, DeviceInfo, MathMode


@dataclass(frozen=True)
class NoCeiling:
    """Why there is no roof to hold against a run."""

    reason: str


@dataclass(frozen=True)
class _Row:
    names: frozenset[str]
    power_limit_w: float | None  # of parts whose peak depends on it
    flops_per_s: dict[str, float]  # by math mode
    bytes_per_s: float
    source: str


def datasheet_ceiling(device: DeviceInfo, math_mode: MathMode) -> tuple[Ceiling, Roof] | NoCeiling:
    """Return the datasheet peaks of `device` in `math_mode`, or why there are none.

    A laptop part must also run at the power limit that the table's row is for.
    """
    rows = [row for row in _table() if _normalised(device.name) in row.names]
    if not rows:
        return NoCeiling(f"the datasheet table does not hold {device.name!r}")
    row = next((row for row in rows if _same_limit(row, device)), None)
    if row is None:
        known = " and ".join(f"{row.power_limit_w:g} W" for row in rows)
        limit = "unknown" if device.power_limit_w is None else f"{device.power_limit_w:g} W"
        return NoCeiling(
            f"the peak of {device.name!r} depends on its power limit: "
            f"the datasheet table holds {known}, this device's limit is {limit}"
        )
    if math_mode not in row.flops_per_s:
        return NoCeiling(f"the datasheet of {device.name!r} gives no {math_mode} peak")
    roof = Roof(row.flops_per_s[math_mode], row.bytes_per_s)
    ceiling = Ceiling(
        device=device.name,
        backend=device.backend,
        math_mode=math_mode,
        peak_flops_per_s=roof.peak_flops_per_s,
        peak_bytes_per_s=roof.peak_bytes_per_s,
        kind="datasheet",
        source=row.source,
        date="undated",
    )
    return ceiling, roof


@cache
def _table() -> tuple[_Row, ...]:
    text = files("analysis.roofs").joinpath("data/datasheet_peaks.csv").read_text(encoding="utf-8")
    return tuple(_row(values) for values in csv.DictReader(text.splitlines()))


def _row(values: dict[str, str]) -> _Row:
    suffix = "_tflop_per_s"
    flops = {
        column.removesuffix(suffix): float(value) * 1e12
        for column, value in values.items()
        if column.endswith(suffix) and value
    }
    return _Row(
        names=frozenset(_normalised(name) for name in values["devices"].split("|")),
        power_limit_w=float(values["power_limit_w"]) if values["power_limit_w"] else None,
        flops_per_s=flops,
        bytes_per_s=float(values["memory_gb_per_s"]) * 1e9,
        source=values["source"],
    )


def _normalised(name: str) -> str:
    """Fold case and spaces; drop the maker's name, which older drivers leave out."""
    return " ".join(name.casefold().split()).removeprefix("nvidia ")


def _same_limit(row: _Row, device: DeviceInfo) -> bool:
    if row.power_limit_w is None:
        return True
    limit = device.power_limit_w
    return limit is not None and is_power_limit(limit, row.power_limit_w)
