"""The roofline's arithmetic, the peaks that makers publish, and which roof a run is held against.

Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009:
attainable = min(peak FLOP/s, intensity x peak B/s).

A run is held against its own device's measured roof, else the datasheet's. Of a trace or an
imported result no more is known than the device's name: the roof is then one that was measured on a
device of that name, else the datasheet's.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from analysis.presentation.table import read_rows
from bench.errors import Unknown
from bench.records import (
    POWER_LIMIT,
    AllReduce,
    CacheRoof,
    Ceiling,
    CeilingsRecord,
    CounterCheck,
    DeviceInfo,
    Environment,
    Finding,
    MathMode,
    OpTime,
    ProfileRecord,
    RunRecord,
    Telemetry,
    TracedOp,
)
from bench.records.base import ratio
from bench.records.complexity import SCALED_PRODUCT
from bench.records.environment import same_device, same_power_limit

#: A ceiling is itself a measurement, good to a few percent: only what passes it by more counts.
CEILING_MARGIN = 1.03


@dataclass(frozen=True)
class Roof:
    """Two limits of one device in one math mode, both positive.

    What a device may exceed them by without a fault: `burst_flops_per_s`, for as long as its power
    allows, or by convolutions that execute fewer FLOP than are counted; and `one_way_bytes_per_s`,
    by a kernel that only reads or only writes. 0 where unknown. `fp32_flops_per_s` is the peak of
    what a step in fewer bits leaves in fp32, `half_flops_per_s` that of what one in fp8 leaves in
    bf16; 0 in other modes, and where unknown.
    """

    peak_flops_per_s: float
    peak_bytes_per_s: float
    burst_flops_per_s: float = 0.0
    one_way_bytes_per_s: float = 0.0
    fp32_flops_per_s: float = 0.0
    half_flops_per_s: float = 0.0

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

    def of_mixture(self, fp32_share: float, half_share: float = 0.0) -> Roof:
        """Return the roof of work with these shares in fp32 and bf16, each at its own peak."""
        parts = (fp32_share, self.fp32_flops_per_s), (half_share, self.half_flops_per_s)
        peak = self.peak_flops_per_s
        slower = 1 + sum(share * (peak / own - 1) for share, own in parts if own)
        burst = self.burst_flops_per_s / slower
        return replace(self, peak_flops_per_s=peak / slower, burst_flops_per_s=burst)

    def of_op(self, op: OpTime | TracedOp) -> Roof:
        """Return the roof of one op in the arithmetic of its own."""
        fp32_share = ratio(op.fp32_flops, op.flops) or 0.0
        return self.of_mixture(fp32_share, 0.0 if op.op == SCALED_PRODUCT else 1 - fp32_share)

    @property
    def ridge_flop_per_byte(self) -> float:
        """Intensity from which on the arithmetic, not the memory, is the limit."""
        return self.peak_flops_per_s / self.peak_bytes_per_s

    def attainable_flops_per_s(self, intensity_flop_per_byte: float) -> float:
        """Return the most FLOP/s that a step of this intensity can reach."""
        return min(self.peak_flops_per_s, intensity_flop_per_byte * self.peak_bytes_per_s)


_MODES: tuple[MathMode, ...] = ("fp32", "tf32", "bf16", "fp16", "fp8")
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
    compute_capability: _Known = None
    inline_ecc: Annotated[bool, BeforeValidator(lambda text: text or False)] = Field(
        False, description="neither yes nor empty"
    )
    fp8_tflop_per_s: _Known = None

    @cached_property
    def names(self) -> frozenset[str]:
        """Its names, normalised."""
        return frozenset(map(normalised, self.devices.split("|")))

    @cached_property
    def flops_per_s(self) -> dict[MathMode, float]:
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


# Which roof a run is held against

#: The modes of autocast.
HALVES = ("bf16", "fp16")


def _other_peaks(mode: MathMode, peaks: Mapping[MathMode, float | None]) -> dict[str, float]:
    """The peaks of what a step in `mode` leaves in other arithmetic, by the names of `Roof`."""
    fp32 = peaks.get("fp32") if mode in (*HALVES, "fp8") else None
    half = peaks.get("bf16") if mode == "fp8" else None
    return {"fp32_flops_per_s": fp32 or 0.0, "half_flops_per_s": half or 0.0}


#: Mean SM clocks that differ by more are of other settings, not of samples taken by chance.
_CLOCK_TOLERANCE = 0.1
#: Share of samples at the power limit from which on that limit may have set the clock.
_POWER_LIMITED_SHARE = 0.05


@dataclass(frozen=True)
class UsedCeiling:
    """A ceiling, the record it comes from (None for a datasheet), and what made us fall back."""

    ceiling: Ceiling
    roof: Roof  # its two peaks, both known
    record_id: str | None
    instead_of_measured: str | None = None
    doubts: tuple[Finding, ...] = ()  # why the roof itself may be too low
    cache_roofs: tuple[CacheRoof, ...] = ()  # of the same record
    counter_checks: tuple[CounterCheck, ...] = ()  # likewise
    all_reduces: tuple[AllReduce, ...] = ()


def datasheet_ceiling(
    device: DeviceInfo, math_mode: MathMode, peaks: Sequence[Peaks] = (), because: str = ""
) -> UsedCeiling | Unknown:
    """Return the datasheet peaks of `device` in `math_mode`, or why there are none.

    `because` says why they stand in for measured ones. `peaks` of a user's own go before those of
    this package. A device is found by its whole name: matching parts of names takes an L40S for an
    L4. Where parts of one name differ, it must also have the power limit or the number of
    multiprocessors of the row.
    """
    rows = rows_of(device.name, peaks)
    if not rows:
        return Unknown(f"the datasheet table does not hold {device.name!r}")
    watts = device.power_limit_w
    of_part = (
        row
        for row in rows
        if row.multiprocessors in (None, device.cores)
        and (row.power_limit_w is None or same_power_limit(watts, row.power_limit_w))
    )
    row = next(of_part, None)
    if row is None:
        parts = " and ".join(row.part for row in rows)
        limit = "unknown" if watts is None else f"{watts:g} W"
        return Unknown(
            f"the peaks of {device.name!r} differ by part: the datasheet table holds {parts}, this "
            f"device's limit is {limit}, its multiprocessors are {device.cores or 'unknown'}"
        )
    if math_mode not in row.flops_per_s:
        return Unknown(f"the datasheet of {device.name!r} gives no {math_mode} peak")
    rates = row.flops_per_s
    roof = Roof(rates[math_mode], row.bytes_per_s, **_other_peaks(math_mode, rates))
    ceiling = Ceiling.of(
        "a datasheet gives one figure",
        device=device.name,
        backend=device.backend,
        math_mode=math_mode,
        peak_flops_per_s=roof.peak_flops_per_s,
        peak_bytes_per_s=roof.peak_bytes_per_s,
        kind="datasheet",
        source=row.source,
        date="undated",
    )
    return UsedCeiling(ceiling, roof, None, because)


def rows_of(name: str, peaks: Sequence[Peaks]) -> list[Peaks]:
    """Return the datasheets of a device's name, those of the user's own first."""
    return [row for row in (*peaks, *datasheet_peaks()) if normalised(name) in row.names]


def choose_ceiling(
    record: RunRecord | ProfileRecord,
    ceilings: Sequence[CeilingsRecord],
    peaks: Sequence[Peaks] = (),
) -> UsedCeiling | Unknown:
    """Return the roof for `record`, or why there is none.

    The newest complete measured ceiling of the same device, driver, power limit, clock and math
    mode, one without a doubt before any other; else the datasheet of exactly that device; else
    nothing: a peak is never assumed, and emulated arithmetic has none.
    """
    if record.environment is None or record.resolved is None:
        return Unknown("the record does not say on which device or in which math mode it ran")
    environment, math_mode = record.environment, record.resolved.math_mode
    if not record.resolved.native_math:
        return Unknown(
            f"this device computes {math_mode} by emulation, which has no roof: "
            "run it again with precision=amp or fp32 there"
        )
    if math_mode == "fp64":
        return Unknown("no roof is measured in fp64")
    of_device = (
        roofs
        for roofs in ceilings
        if roofs.environment and same_device(roofs.environment, environment)
    )
    why = ""
    order = sorted(of_device, key=lambda roofs: (not _doubts(roofs), roofs.created), reverse=True)
    for roofs in order:
        used = _matching(roofs, record, environment, math_mode)
        if isinstance(used, UsedCeiling):
            return used
        why = why or f"no measured ceiling fits ({used.reason})"
    why = why or "no ceilings were measured on this device"
    datasheet = datasheet_ceiling(environment.device, math_mode, peaks, why)
    if isinstance(datasheet, Unknown):
        return Unknown(f"{why}; {datasheet.reason}: run mlproject ceilings on that machine")
    return datasheet


def _doubts(candidate: CeilingsRecord) -> tuple[Finding, ...]:
    findings = candidate.verdict.findings if candidate.verdict else ()
    return tuple(finding for finding in findings if finding.level != "note")


def _other_clock(roofs: Telemetry | None, record: RunRecord | ProfileRecord) -> str | None:
    """How the mean SM clocks of roofs and run differ, or None where that says nothing.

    A power limit lowers the clock by the work, so the slower of the two may be at one.
    """
    run = record.telemetry if isinstance(record, RunRecord) else None
    if roofs is None or run is None:
        return None
    theirs_mhz, ours_mhz = roofs.mean("gpu_sm_clock_mhz"), run.mean("gpu_sm_clock_mhz")
    if theirs_mhz is None or ours_mhz is None:
        return None
    slower = run if ours_mhz < theirs_mhz else roofs
    limited_share = (slower.throttle_share or {}).get(POWER_LIMIT, 0.0)
    apart_mhz = abs(theirs_mhz - ours_mhz)
    if apart_mhz <= _CLOCK_TOLERANCE * theirs_mhz or limited_share > _POWER_LIMITED_SHARE:
        return None
    return f"a mean SM clock of {theirs_mhz:.0f} MHz, the run of {ours_mhz:.0f} MHz"


def _matching(
    candidate: CeilingsRecord,
    record: RunRecord | ProfileRecord,
    ours: Environment,
    mode: MathMode,
) -> UsedCeiling | Unknown:
    """The ceiling in `mode` of a record of this very device, or what it lacks."""
    name, theirs = candidate.record_id, candidate.environment
    if theirs is None or candidate.outcome != "ok":
        return Unknown(f"{name} ended {candidate.outcome}")
    a, b = theirs.device, ours.device
    if a.driver != b.driver:
        return Unknown(f"{name} is of driver {a.driver}, the run of {b.driver}")
    limits = theirs.instruction_limits, ours.instruction_limits
    if b.backend == "cpu" and limits[0] != limits[1]:
        return Unknown(f"{name} is of instructions limited by {limits[0]}, the run by {limits[1]}")
    if not same_power_limit(a.power_limit_w, b.power_limit_w):
        watts = f"{a.power_limit_w} W, the run at {b.power_limit_w} W"
        return Unknown(f"{name} is at a power limit of {watts}")
    clocks = a.application_clock_mhz, b.application_clock_mhz
    if None not in clocks and clocks[0] != clocks[1]:
        return Unknown(
            "{} is at application clocks of {:g} MHz, the run of {:g} MHz".format(name, *clocks)
        )
    if other_clock := _other_clock(candidate.telemetry, record):
        return Unknown(f"{name} had {other_clock}: locked clocks may differ")
    return _measured(candidate, mode)


def _measured(candidate: CeilingsRecord, mode: MathMode) -> UsedCeiling | Unknown:
    measured = {roof.math_mode: roof for roof in candidate.ceilings if roof.kind == "measured"}
    name, ceiling = candidate.record_id, measured.get(mode)
    if ceiling is None:
        return Unknown(f"{name} did not measure {mode}")
    roof = Roof.of(ceiling)
    if roof is None:
        return Unknown(f"{name} measured only one of the two roofs of {mode}")
    peaks = {name: other.peak_flops_per_s for name, other in measured.items()}
    roof = replace(roof, **_other_peaks(mode, peaks))
    with_it = candidate.cache_roofs, candidate.counter_checks, candidate.all_reduces
    return UsedCeiling(ceiling, roof, name, None, _doubts(candidate), *with_it)


# By a name alone

#: Words by which published results name exactly one part, in any order, and its driver's name.
_PUBLISHED: Mapping[frozenset[str], str] = {
    frozenset(words.split()): name
    for name, published in {
        "NVIDIA A100-SXM4-40GB": "a100 sxm 40gb, a100 sxm4 40gb",
        "NVIDIA A100-PCIE-40GB": "a100 pcie 40gb",
        "NVIDIA A100-SXM4-80GB": "a100 sxm 80gb, a100 sxm4 80gb",
        "NVIDIA A100 80GB PCIe": "a100 pcie 80gb",
        "NVIDIA A30": "a30 pcie 24gb",
        "NVIDIA H100 80GB HBM3": "h100 sxm 80gb, h100 sxm5 80gb",
        "NVIDIA H100 PCIe": "h100 pcie 80gb",
        "NVIDIA H200": "h200 sxm 140gb, h200 sxm 141gb",
        "NVIDIA GH200 480GB": "gh200 96gb",
        "Tesla V100-SXM2-16GB": "v100 sxm2 16gb",
        "Tesla V100-SXM2-32GB": "v100 sxm2 32gb",
        "Tesla V100-PCIE-16GB": "v100 pcie 16gb",
        "Tesla V100-PCIE-32GB": "v100 pcie 32gb",
    }.items()
    for words in published.split(", ")
}


def driver_name(published: str) -> str:
    """Return a device's name as its driver gives it, where a published one means one part."""
    words = frozenset(re.split(r"[\s_-]+", normalised(published)))
    return _PUBLISHED.get(words, published)


def ceiling_by_name(
    device: DeviceInfo,
    math_mode: MathMode,
    ceilings: Iterable[CeilingsRecord],
    peaks: Sequence[Peaks],
    *,
    because: str,
    env: str | None = None,
) -> UsedCeiling | Unknown:
    """Return the roof of a device by its name, or why there is none.

    The newest one measured on a device of that name and backend, with as many multiprocessors where
    both are known; else the datasheet's. A processor's name says nothing of its memory, so a
    measured roof of one also has the label `env`. `because` says in the result why it is not
    measured on the device itself.
    """
    for candidate in sorted(ceilings, key=lambda roofs: roofs.created, reverse=True):
        environment = candidate.environment
        if environment is None or candidate.outcome != "ok":
            continue
        theirs = environment.device
        if (
            theirs.backend == device.backend
            and normalised(theirs.name) == normalised(device.name)
            and (device.backend != "cpu" or environment.label == env)
            and len({theirs.cores, device.cores} - {None}) < 2
            and (used := _measured(candidate, math_mode))
        ):
            return replace(used, instead_of_measured=because, doubts=())
    return datasheet_ceiling(device, math_mode, peaks, because)


def highest_roof(device: str, peaks: Sequence[Peaks]) -> Roof | None:
    """Return the highest datasheet peaks of any part of this name in any arithmetic, or None.

    What passes them is impossible, whichever part it was and whatever it computed in.
    """
    rows = rows_of(driver_name(device), peaks)
    if not rows:
        return None
    return Roof(
        max(peak for row in rows for peak in row.flops_per_s.values()),
        max(row.bytes_per_s for row in rows),
    )
