"""Peaks that makers publish: the table of this package, and files of a user's own."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from pathlib import Path

from bench.errors import UserError

_FLOPS = "_tflop_per_s"
_MODES = ("fp32", "tf32", "bf16", "fp16")
_COLUMNS = (
    "devices",
    "power_limit_w",
    "multiprocessors",
    *(mode + _FLOPS for mode in _MODES),
    "memory_gb_per_s",
    "source",
)


@dataclass(frozen=True)
class Peaks:
    """What a maker publishes of one part: dense figures, 16-bit ones with fp32 accumulation."""

    names: frozenset[str]  # normalised
    #: Where parts of one name differ, those of this part; None where the name is enough.
    power_limit_w: float | None
    multiprocessors: int | None
    flops_per_s: Mapping[str, float]  # by math mode; a mode without a published peak is absent
    bytes_per_s: float
    source: str

    @property
    def part(self) -> str:
        """What distinguishes this part from others of its name, such as `150 W`; or ""."""
        limit = "" if self.power_limit_w is None else f"{self.power_limit_w:g} W"
        count = "" if self.multiprocessors is None else f"{self.multiprocessors} multiprocessors"
        return ", ".join(filter(None, (limit, count)))


def normalised(name: str) -> str:
    """Fold case and spaces; drop the maker's name, which older drivers leave out."""
    return " ".join(name.casefold().split()).removeprefix("nvidia ")


@cache
def datasheet_peaks() -> tuple[Peaks, ...]:
    """Return the table of this package (`data/datasheet_peaks.csv`)."""
    table = files("analysis.roofs").joinpath("data/datasheet_peaks.csv")
    return _peaks(table.read_text(encoding="utf-8"), "datasheet_peaks.csv")


def read_peaks(path: Path) -> tuple[Peaks, ...]:
    """Return the peaks in a CSV file of the same columns; each source also names the file.

    Raises `UserError` for a file that cannot be read, and with the line for a row that lacks
    devices, memory bandwidth, source or any peak, holds no number where one is needed, or repeats
    a device.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"peaks={str(path)!r}: cannot be read as UTF-8 text ({error})") from None
    return _peaks(text, f"peaks={str(path)!r}", own=path.name)


def _peaks(text: str, where: str, own: str | None = None) -> tuple[Peaks, ...]:
    reader = csv.DictReader(text.splitlines(), strict=True)
    lines: dict[tuple[str, float | None, int | None], int] = {}  # of each part
    found = []
    try:
        if sorted(reader.fieldnames or ()) != sorted(_COLUMNS):
            raise ValueError(f"the columns must be {','.join(_COLUMNS)}")
        for values in reader:
            row = _row(values, own)
            for name in sorted(row.names):
                part = (name, row.power_limit_w, row.multiprocessors)
                if part in lines:
                    raise ValueError(f"{name!r} stands in line {lines[part]} too: keep one of them")
                lines[part] = reader.line_num
            found.append(row)
        if not found:
            raise ValueError("no row follows: give one per device")
    except (ValueError, csv.Error) as error:
        raise UserError(f"{where}, line {max(reader.line_num, 1)}: {error}") from None
    return tuple(found)


def _row(values: Mapping[str | None, str | None], own: str | None) -> Peaks:
    if None in values or None in values.values():
        raise ValueError(f"does not have {len(_COLUMNS)} values: put quotes around commas")
    cells = {str(column): (value or "").strip() for column, value in values.items()}
    for column, why in (
        ("devices", "name the device as its driver does"),
        ("memory_gb_per_s", "a roof needs the memory bandwidth, in GB/s"),
        ("source", "say where the figures come from"),
    ):
        if not cells[column]:
            raise ValueError(f"{column} is empty: {why}")
    names = frozenset(normalised(name) for name in cells["devices"].split("|"))
    if "" in names:
        raise ValueError(f"devices={cells['devices']!r}: a name between | and | is empty")
    flops = {
        mode: 1e12 * peak for mode in _MODES if (peak := _number(cells, mode + _FLOPS)) is not None
    }
    if not flops:
        raise ValueError(
            f"no peak: fill in at least one of {', '.join(m + _FLOPS for m in _MODES)}"
        )
    count = _number(cells, "multiprocessors")
    bandwidth = _number(cells, "memory_gb_per_s")
    assert bandwidth is not None  # it is not empty  # noqa: S101
    return Peaks(
        names=names,
        power_limit_w=_number(cells, "power_limit_w"),
        multiprocessors=None if count is None else round(count),
        flops_per_s=flops,
        bytes_per_s=1e9 * bandwidth,
        source=cells["source"] if own is None else f"{cells['source']} ({own})",
    )


def _number(cells: Mapping[str, str], column: str) -> float | None:
    """The positive number in a cell; None for an empty one."""
    if not cells[column]:
        return None
    try:
        number = float(cells[column])
    except ValueError:
        number = inf
    if not 0 < number < inf:
        raise ValueError(f"{column}={cells[column]!r} is no positive number; empty means unknown")
    return number
