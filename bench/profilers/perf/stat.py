"""What a profile's `perf stat` counted, read into a record.

perf scales a count up to the whole time by the share of it in which the event had a counter. On a
processor with two kinds of cores that share is mostly the time spent on the other kind, so perf's
numbers add up to far too much: 25.5e9 cycles at 98.11 % and 12.6e9 at 1.89 %, of which the latter
were 0.24e9. The largest share of any event on a kind is the time that was spent there; each count
is multiplied by that, and the kinds added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.errors import UserError
from bench.records import CpuCounters

#: Names of events may hold commas, so that perf's fields had better not be parted by them.
SEPARATOR = ";"
_VALUE = re.compile(r"\d+(?:\.\d+)?|<not \w+>")
_NAME = re.compile(
    r"(?:(?P<pmu>[\w.-]+)/(?P<inside>[^/]+)/|(?P<bare>[^/:]+)(?=$|:))"
    r":?(?P<modifiers>[ukhHGIpPSDWeRb]*)"
)
#: What perf-list(1)'s modifiers u and k leave of both modes; neither and both leave both.
_SCOPES = {(True, False): "user", (False, True): "kernel"}


@dataclass(frozen=True)
class PerfRow:
    """One event: its count, or perf's own word why there is none.

    The count is what perf prints: scaled up to the whole time where the event was counted for a
    `share` below 1 of it. `pmu` is empty where perf names none.
    """

    pmu: str
    event: str
    scope: str
    count: float | str
    share: float

    @property
    def counted_share(self) -> float:
        """The share of the time in which it was counted."""
        return 0.0 if isinstance(self.count, str) else self.share


def read_rows(path: Path) -> list[PerfRow]:
    """Return the events of a file of `perf stat -x` with our separator and `LC_ALL=C`, in order.

    Raises `UserError` with file and line where it is not what perf writes.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = [each.strip() for each in line.split(SEPARATOR)]
        if line.startswith("#") or not fields[0]:  # no event, or metrics of the one before
            continue
        try:
            value, _, event, _, percent, *_ = fields
            rows.append(_row(value, event, float(percent) / 100))
        except ValueError:
            raise UserError(
                f"{path}, line {number}: {line[:80]!r} is no row of perf stat; profile again"
            ) from None
    return rows


def _row(value: str, event: str, share: float) -> PerfRow:
    if not _VALUE.fullmatch(value) or not 0 <= share <= 1:
        raise ValueError
    name = _NAME.fullmatch(event)
    modifiers = name["modifiers"] if name else ""
    return PerfRow(
        (name and name["pmu"]) or "",
        ((name and (name["inside"] or name["bare"])) or event).lower(),
        _SCOPES.get(("u" in modifiers, "k" in modifiers), "user and kernel"),
        value.strip("<>") if value.startswith("<") else float(value),
        share,
    )


# Their figures

#: Figure -> its event.
CORE_EVENTS: Mapping[str, str] = {
    "cycles": "cycles",
    "instructions": "instructions",
    "cache_references": "cache-references",
    "cache_misses": "cache-misses",
    "branches": "branches",
    "branch_misses": "branch-misses",
}


class FlopEvents(NamedTuple):
    """One maker's floating-point events: FLOP per count, a multiply-add being 2.

    `counts_bf16` says whether bf16 products are documented to be among them; counts of the event
    `scalable` are those of vectors of `SCALABLE_UNIT_BITS`.
    """

    maker: str
    weights: Mapping[str, int]
    counts_bf16: bool = False
    scalable: str = ""


FLOP_EVENTS = (
    # Linux, tools/perf/pmu-events/arch/x86/sapphirerapids/floating-point.json: "Each count
    # represents 8 computation operations, one for each element ... FM(N)ADD/SUB instructions count
    # twice". Broadwell and later; 512-bit ones only where the processor has AVX-512.
    # Half-precision, VDPBF16PS and AMX are in none of them, and AMX_OPS_RETIRED was withdrawn from
    # the same files.
    FlopEvents(
        "Intel",
        {
            f"fp_arith_inst_retired.{width}_{element}": elements
            for element, per_128 in (("single", 4), ("double", 2))
            for width, elements in (
                ("scalar", 1),
                ("128b_packed", per_128),
                ("256b_packed", 2 * per_128),
                ("512b_packed", 4 * per_128),
            )
        },
    ),
    # amdzen2/floating-point.json: "All FLOPS ... Multiply-add counts as 2 FLOPS ... This event can
    # count above 15" per cycle, for which Linux 5.6 and later pair two counters; amdzen4's and
    # amdzen5's add the bfloat16 ones.
    FlopEvents("AMD", {"fp_ret_sse_avx_ops.all": 1}, counts_bf16=True),
    # Arm Architecture Reference Manual, FP_FIXED_OPS_SPEC and FP_SCALE_OPS_SPEC: operations of
    # elements, twice for a multiply-add; scalable vectors as if they were 128 bits long. They are
    # counted when executed, wrongly predicted paths included.
    FlopEvents(
        "Arm", {"fp_fixed_ops_spec": 1, "fp_scale_ops_spec": 1}, scalable="fp_scale_ops_spec"
    ),
)
SCALABLE_UNIT_BITS = 128

#: An event that had a counter for less of the time is not scaled up to a number of its own.
_MINIMUM_SHARE = 0.1
#: Shares of the kinds of cores that do not add up to the whole time are not the time spent there.
_UNACCOUNTED = 0.05
_NOT_ASKED = "perf was not asked for it"
_NONE_AT_ALL = "counted 0 while a step was trained: the machine does not count it"


@dataclass(frozen=True)
class Collection:
    """What a profile knows of the file that it made, and the file does not say.

    perf was asked for every floating-point event that the machine has. `vector_bits` is the length
    of Arm's scalable vectors; `withheld` has figures that are not to be shown, whatever the file
    holds, with the reason.
    """

    source: str
    iterations: int
    window_s: float
    vector_bits: int | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)


def read_perf_stat(path: Path, collection: Collection) -> CpuCounters:
    """Return what the file says of a profile's window; what perf did not count has its reason.

    An event that is 0 was not counted, since a step was trained: hypervisors are known to do that.
    Raises `UserError` with the file where nothing was counted.
    """
    cores = _CoreCounts(read_rows(path))
    found: dict[str, float | str] = {
        **{name: cores.total(event) for name, event in CORE_EVENTS.items()},
        "flops": cores.flops(collection.vector_bits),
        **collection.withheld,
    }
    found = {name: value or _NONE_AT_ALL for name, value in found.items()}
    missing = {name: value for name, value in found.items() if isinstance(value, str)}
    if len(missing) == len(found):
        causes = "; ".join(sorted({*missing.values()} - {_NOT_ASKED}))
        raise UserError(
            f"{path}: perf counted nothing that is read here: {causes}; mlproject doctor says what "
            "would help"
        )
    return CpuCounters.of(
        "",
        missing,
        source=collection.source,
        scope=cores.scope,
        running_share=cores.shares(),
        iterations=collection.iterations,
        window_s=collection.window_s,
        **{name: round(value) for name, value in found.items() if not isinstance(value, str)},
    )


class _CoreCounts:
    """The events of cores in one file. Each figure is a number, or the reason why there is none."""

    def __init__(self, rows: Sequence[PerfRow]) -> None:
        self._rows = rows
        self.scope = rows[0].scope if rows else "user and kernel"
        kinds = {row.pmu for row in rows} - {"", "cpu"}
        #: Kind of core -> share of the time spent there; empty where there is only one.
        self._resident = {
            kind: max(row.counted_share for row in rows if row.pmu == kind)
            for kind in (kinds if len(kinds) > 1 else ())
        }

    def shares(self) -> dict[str, float]:
        """Return event -> share of its kind of core's time in which it was counted."""
        return {
            f"{row.pmu}/{row.event}/" if self._resident else row.event: self._share_of_kind(row)
            for row in self._rows
            if not isinstance(row.count, str)
        }

    def total(self, event: str) -> float | str:
        """Return the counts of one event."""
        rows = [row for row in self._rows if row.event == event]
        if not rows or not self._resident:
            return self._count(rows)
        accounted = sum(self._resident.values())
        if abs(accounted - 1) > _UNACCOUNTED:
            if isinstance(rows[0].count, str):
                return rows[0].count
            return f"the kinds of cores account for {100 * accounted:.0f} % of the time"
        total = 0.0
        for kind, resident in self._resident.items():
            count = self._count([row for row in rows if row.pmu == kind])
            if not isinstance(count, str):
                total += count * resident
            elif resident:
                return f"{count} on {kind}, where {100 * resident:.1f} % of the time was spent"
        return total

    def _count(self, rows: Sequence[PerfRow]) -> float | str:
        if not rows:
            return _NOT_ASKED
        row = rows[0]
        share = self._share_of_kind(row)
        if not isinstance(row.count, str) and share < _MINIMUM_SHARE:
            return f"counted for {100 * share:.1f} % of the time, too little to scale up"
        return row.count

    def flops(self, vector_bits: int | None) -> float | str:
        """Return executed FLOP, from whichever maker's events are there."""
        asked = {row.event for row in self._rows}
        events = next((each for each in FLOP_EVENTS if asked & each.weights.keys()), None)
        if events is None:
            return _NOT_ASKED
        total = 0.0
        for event in sorted(asked & events.weights.keys()):
            count = self.total(event)
            if isinstance(count, str):
                return f"{event}: {count}"
            if count and event == events.scalable:
                if vector_bits is None:
                    return f"{event} is per 128 bits, and the length of the vectors is unknown"
                count *= vector_bits / SCALABLE_UNIT_BITS
            total += count * events.weights[event]
        return total

    def _share_of_kind(self, row: PerfRow) -> float:
        resident = self._resident.get(row.pmu, 1.0)
        return min(1.0, row.counted_share / resident) if resident else 0.0
