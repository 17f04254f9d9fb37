"""The roofline's arithmetic, and the peaks that makers publish.

Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009:
attainable = min(peak FLOP/s, intensity x peak B/s).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from analysis.table import read_rows
from bench.records import Ceiling

#: A ceiling is itself a measurement, good to a few percent: only what passes it by more counts.
CEILING_MARGIN = 1.03


@dataclass(frozen=True)
class Roof:
    """Two limits of one device in one math mode, both positive.

    What a device may exceed them by without a fault: `burst_flops_per_s`, for as long as its power
    allows, or by convolutions that execute fewer FLOP than are counted; and `one_way_bytes_per_s`,
    by a kernel that only reads or only writes. 0 where unknown. `fp32_flops_per_s` is the peak of
    what a step in 16 bits leaves in fp32; 0 in other modes, and where unknown.
    """

    peak_flops_per_s: float
    peak_bytes_per_s: float
    burst_flops_per_s: float = 0.0
    one_way_bytes_per_s: float = 0.0
    fp32_flops_per_s: float = 0.0

    @classmethod
    def of(cls, ceiling: Ceiling) -> Roof | None:
        """Return the roof of a measured ceiling; None where one of its two peaks is not known."""
        peak, bandwidth = ceiling.peak_flops_per_s, ceiling.peak_bytes_per_s
        if peak is None or bandwidth is None:
            return None
        burst, one_way = ceiling.burst_flops_per_s, ceiling.one_way_bytes_per_s
        return cls(peak, bandwidth, burst or 0.0, one_way or 0.0)

    @property
    def most_flops_per_s(self) -> float:
        """The most that arithmetic can reach, for however short a time."""
        return max(self.peak_flops_per_s, self.burst_flops_per_s)

    @property
    def most_bytes_per_s(self) -> float:
        """The most that a single kernel can move."""
        return max(self.peak_bytes_per_s, self.one_way_bytes_per_s)

    def of_several(self, devices: int) -> Roof:
        """Return the roof of so many such devices together."""
        return Roof(*(devices * rate for rate in astuple(self)))

    def of_mixture(self, fp32_share: float) -> Roof:
        """Return the roof of work of which `fp32_share` is in fp32: each part at its own peak."""
        if not (self.fp32_flops_per_s and fp32_share):
            return self
        slower = 1 + fp32_share * (self.peak_flops_per_s / self.fp32_flops_per_s - 1)
        peak, burst = self.peak_flops_per_s / slower, self.burst_flops_per_s / slower
        return replace(self, peak_flops_per_s=peak, burst_flops_per_s=burst)

    @property
    def ridge_flop_per_byte(self) -> float:
        """Intensity from which on the arithmetic, not the memory, is the limit."""
        return self.peak_flops_per_s / self.peak_bytes_per_s

    def attainable_flops_per_s(self, intensity_flop_per_byte: float) -> float:
        """Return the most FLOP/s that a step of this intensity can reach."""
        return min(self.peak_flops_per_s, intensity_flop_per_byte * self.peak_bytes_per_s)


_MODES = ("fp32", "tf32", "bf16", "fp16")
#: A number that a row may leave empty.
_Known = Annotated[
    Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
    BeforeValidator(lambda text: text or None),
    Field(description="no positive number; empty means unknown"),
]


class Peaks(BaseModel):
    """What a maker publishes of one part: dense figures, 16-bit ones with fp32 accumulation.

    Power limit and multiprocessors are None unless parts of one name differ in them, a rate without
    a published peak. The fields after the source are what `analysis.prediction` asks of a device
    that was not measured. A field's description says what is wrong with a value that it refuses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    devices: str = Field(
        pattern=r"^\s*[^|\s][^|]*(\|\s*[^|\s][^|]*)*$",
        description="no name as a driver gives it, nor several with | between them",
    )
    power_limit_w: _Known = None
    multiprocessors: _Known = None
    fp32_tflop_per_s: _Known = None
    tf32_tflop_per_s: _Known = None
    bf16_tflop_per_s: _Known = None
    fp16_tflop_per_s: _Known = None
    memory_gb_per_s: float = Field(
        gt=0, allow_inf_nan=False, description="no memory bandwidth in GB/s, which a roof needs"
    )
    source: str = Field(min_length=1, description="no source of the figures")
    processors: _Known = None
    fp32_lanes_per_scheduler: _Known = None
    board_w: _Known = None
    memory_gb: _Known = None
    inline_ecc: Annotated[bool, BeforeValidator(lambda text: text or False)] = Field(
        False, description="neither yes nor empty"
    )

    @cached_property
    def names(self) -> frozenset[str]:
        """Its names, normalised."""
        return frozenset(map(normalised, self.devices.split("|")))

    @cached_property
    def flops_per_s(self) -> dict[str, float]:
        """The peaks that are published, by math mode."""
        rates = {mode: getattr(self, f"{mode}_tflop_per_s") for mode in _MODES}
        return {mode: 1e12 * rate for mode, rate in rates.items() if rate is not None}

    @property
    def bytes_per_s(self) -> float:
        """The memory's bandwidth."""
        return 1e9 * self.memory_gb_per_s

    @property
    def memory_bytes(self) -> int | None:
        """The memory's size as a driver gives it: GB of 2^30 bytes, less check bits (1/16)."""
        left = 15 / 16 if self.inline_ecc else 1
        return int(2**30 * left * self.memory_gb) if self.memory_gb else None

    @property
    def part(self) -> str:
        """What distinguishes this part from others of its name, such as `150 W`; or ""."""
        figures = {"W": self.power_limit_w, "multiprocessors": self.multiprocessors}
        return ", ".join(f"{figure:g} {unit}" for unit, figure in figures.items() if figure)


def normalised(name: str) -> str:
    """Fold case and spaces; drop the maker's name, which older drivers leave out."""
    return " ".join(name.casefold().split()).removeprefix("nvidia ")


@cache
def datasheet_peaks() -> tuple[Peaks, ...]:
    """Return the table of this package (`data/datasheet_peaks.csv`)."""
    with as_file(files("analysis.roofs") / "data" / "datasheet_peaks.csv") as path:
        return _read(path, path.name)


def read_peaks(path: Path) -> tuple[Peaks, ...]:
    """Return the peaks in a CSV file of the same columns; each source also names the file.

    Raises `UserError` for a file that cannot be read, and with the line for a row that lacks
    devices, memory bandwidth, source or any peak, holds no number where one is needed, or repeats
    a device.
    """
    own = _read(path, f"peaks={str(path)!r}")
    return tuple(row.model_copy(update={"source": f"{row.source} ({path.name})"}) for row in own)


def _read(path: Path, where: str) -> tuple[Peaks, ...]:
    def parts(row: Peaks) -> dict[Hashable, str]:
        part = (row.power_limit_w, row.multiprocessors)
        return {(name, *part): repr(name) for name in sorted(row.names)}

    return tuple(read_rows(path, where, Peaks.model_fields, _parse, parts))


def _parse(values: Mapping[str, str]) -> Iterator[Peaks]:
    """The peaks of a row; raises `ValueError` in a person's words."""
    try:
        row = Peaks.model_validate(values)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0])
        if wrong["type"] in ("missing", "extra_forbidden"):
            columns = ",".join(Peaks.model_fields)
            raise ValueError(f"{name!r}: the columns are {columns}") from None
        why = Peaks.model_fields[name].description
        raise ValueError(f"{name}={wrong['input']!r} is {why}") from None
    if not row.flops_per_s:
        columns = ", ".join(f"{mode}_tflop_per_s" for mode in _MODES)
        raise ValueError(f"no peak: fill in one of {columns}")
    yield row
