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
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError
from bench.records import Account, CpuCounters, ResolvedConfig

#: Names of events may hold commas, so that perf's fields had better not be parted by them.
SEPARATOR = ";"
_VALUE = re.compile(r"\d+(?:\.\d+)?|<not \w+>")
_EVENT = re.compile(r"(?:([\w.-]+)/)?(.+?)(?:[/:]([ukhHGIpPSDWeRb]*))?")
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
        fields = [field.strip() for field in line.split(SEPARATOR)]
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
    name = _EVENT.fullmatch(event)
    if not name or not _VALUE.fullmatch(value) or not 0 <= share <= 1:
        raise ValueError
    pmu, plain, modifiers = (part or "" for part in name.groups())
    scope = _SCOPES.get(("u" in modifiers, "k" in modifiers), "user and kernel")
    count = value.strip("<>") if value.startswith("<") else float(value)
    return PerfRow(pmu, plain.lower(), scope, count, share)


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
_SCALABLE = "fp_scale_ops_spec"
#: Each maker's floating-point events, and FLOP per count; a multiply-add is 2.
FLOP_EVENTS: Mapping[str, Mapping[str, int]] = {
    # Linux, tools/perf/pmu-events/arch/x86/sapphirerapids/floating-point.json: "Each count
    # represents 8 computation operations, one for each element ... FM(N)ADD/SUB instructions count
    # twice". Broadwell and later; 512-bit ones only where the processor has AVX-512.
    # Half-precision, VDPBF16PS and AMX are in none of them, and AMX_OPS_RETIRED was withdrawn from
    # the same files.
    "Intel": {
        f"fp_arith_inst_retired.{width}_{element}": elements
        for element, per_128 in (("single", 4), ("double", 2))
        for width, elements in (
            ("scalar", 1),
            ("128b_packed", per_128),
            ("256b_packed", 2 * per_128),
            ("512b_packed", 4 * per_128),
        )
    },
    # amdzen2/floating-point.json: "All FLOPS ... Multiply-add counts as 2 FLOPS ... This event can
    # count above 15" per cycle, for which Linux 5.6 and later pair two counters; amdzen4's and
    # amdzen5's add the bfloat16 ones.
    "AMD": {"fp_ret_sse_avx_ops.all": 1},
    # Arm Architecture Reference Manual, FP_FIXED_OPS_SPEC and FP_SCALE_OPS_SPEC: operations of
    # elements, twice for a multiply-add; scalable vectors as if they were 128 bits long. They are
    # counted when executed, wrongly predicted paths included.
    "Arm": {"fp_fixed_ops_spec": 1, _SCALABLE: 1},
}
#: The 16-bit products that are documented to be among a maker's events.
_COUNTED_16_BIT = {("AMD", "bf16")}

#: An event that had a counter for less of the time is not scaled up to a number of its own.
_MINIMUM_SHARE = 0.1
#: Shares of the kinds of cores that do not add up to the whole time are not the time spent there.
_UNACCOUNTED = 0.05
_NONE_AT_ALL = "counted 0 while a step was trained: the machine does not count it"


def read_perf_stat(
    path: Path, source: str, step: Account, vector_bits: int | None = None
) -> CpuCounters:
    """Return what the file says of the window of `step`; what perf did not count has its reason.

    perf was asked for every floating-point event that the machine has. `vector_bits` is the length
    of Arm's scalable vectors. An event that is 0 was not counted, since a step was trained:
    hypervisors are known to do that. Raises `UserError` with the file where nothing was counted.
    """
    rows = read_rows(path)
    cores = _CoreCounts(rows)
    figures = {name: cores.total(event) for name, event in CORE_EVENTS.items()}
    figures["flops"] = cores.flops(step.resolved, vector_bits)
    figures = {name: value or _NONE_AT_ALL for name, value in figures.items()}
    missing = {name: value for name, value in figures.items() if isinstance(value, str)}
    if len(missing) == len(figures):
        causes = "; ".join(sorted({*missing.values()}))
        raise UserError(
            f"{path}: perf counted nothing that is read here: {causes}; mlproject doctor says what "
            "would help"
        )
    return CpuCounters.of(
        "",
        missing,
        source=source,
        scope=rows[0].scope,
        running_share=cores.shares(),
        iterations=step.iterations,
        window_s=step.window_s,
        **{name: round(value) for name, value in figures.items() if not isinstance(value, str)},
    )


class _CoreCounts:
    """The events of cores in one file. Each figure is a number, or the reason why there is none."""

    def __init__(self, rows: Sequence[PerfRow]) -> None:
        self._rows = rows
        shares: dict[str, float] = {}
        for row in rows:
            share = 0.0 if isinstance(row.count, str) else row.share
            if row.pmu not in ("", "cpu"):
                shares[row.pmu] = max(share, shares.get(row.pmu, 0.0))
        #: Kind of core -> share of the time spent there; empty where there is only one kind.
        self._resident = shares if len(shares) > 1 and any(shares.values()) else {}

    def _share(self, row: PerfRow) -> float:
        """The share of the time on its kind of core in which an event was counted."""
        resident = self._resident.get(row.pmu, 1.0)
        return min(1.0, row.share / resident) if resident else 0.0

    def shares(self) -> dict[str, float]:
        """Return event -> share of its kind of core's time in which it was counted."""
        return {
            f"{row.pmu}/{row.event}/" if self._resident else row.event: self._share(row)
            for row in self._rows
            if not isinstance(row.count, str)
        }

    def total(self, event: str) -> float | str:
        """Return the counts of one event."""
        rows = [row for row in self._rows if row.event == event]
        if not self._resident or not rows:
            return self._count(rows)
        accounted = sum(self._resident.values())
        if abs(accounted - 1) > _UNACCOUNTED:
            return f"the kinds of cores account for {100 * accounted:.0f} % of the time"
        total = 0.0
        for kind, resident in self._resident.items():
            of_kind = [row for row in rows if row.pmu == kind]
            count = self._count(of_kind) if resident else 0.0
            if isinstance(count, str):
                return f"{count} on {kind}, where {100 * resident:.1f} % of the time was spent"
            total += count * resident
        return total

    def _count(self, rows: Sequence[PerfRow]) -> float | str:
        if not rows:
            return "perf was not asked for it"
        share = self._share(rows[0])
        if not isinstance(rows[0].count, str) and share < _MINIMUM_SHARE:
            return f"counted for {100 * share:.1f} % of the time, too little to scale up"
        return rows[0].count

    def flops(self, resolved: ResolvedConfig | None, vector_bits: int | None) -> float | str:
        """Return executed FLOP, from whichever maker's events are there.

        Without a total where products of 16 bits are in none of them.
        """
        asked = {row.event for row in self._rows}
        maker = next((name for name, events in FLOP_EVENTS.items() if asked & events.keys()), None)
        if maker is None:
            return "perf knows no floating-point events of this processor"
        mode = resolved.math_mode if resolved is not None and resolved.native_math else None
        if mode in ("bf16", "fp16") and (maker, mode) not in _COUNTED_16_BIT:
            return f"{maker}'s floating-point events do not count products of {mode}"
        total = 0.0
        for event, flops in FLOP_EVENTS[maker].items():
            count = self.total(event) if event in asked else 0.0
            if isinstance(count, str):
                return f"{event}: {count}"
            if count and event == _SCALABLE:
                if vector_bits is None:
                    return f"{event} is per 128 bits, and the length of the vectors is unknown"
                count *= vector_bits / 128
            total += count * flops
        return total
