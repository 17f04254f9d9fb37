"""What `perf stat -x` or `-j` counted, whatever version of perf wrote it, read into a record.

perf scales a count up to the whole time by the share of it in which the event had a counter. On a
processor with two kinds of cores that share is mostly the time spent on the other kind, so perf's
numbers add up to far too much: 25.5e9 cycles at 98.11 % and 12.6e9 at 1.89 %, of which the latter
were 0.24e9. The largest share of any event on a kind is the time that was spent there; each count
is multiplied by that, and the kinds added up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import UserError
from bench.records import CpuCounters

# The lines of a file

_COLLECT = "collect with perf stat -x, or -j, and without -A, -I or --per-*"
_SEPARATORS = ",;|\t"
#: What a row's first field can be; other lines are the program's own output, or metrics.
_VALUE = r"\d[\d., ]*|<not \w+>"
_ROW = re.compile(rf"(?:{_VALUE})\s*[{_SEPARATORS}]")
_SIGN = re.compile(
    rf'^(?:(?:{_VALUE})\s*([{_SEPARATORS}])[A-Za-z%/]*\1[A-Za-z]|{{"[a-z-]+" *: *"[^"]*", *"unit")',
    re.MULTILINE,
)
#: -A, --per-core and the like put a processor's name first.
_SPLIT_ROW = re.compile(rf"(?:CPU|[SNDCL])\d[-\w]*\s*[{_SEPARATORS}]")
_SPLIT_KEYS = {"interval", "cpu", "core", "socket", "die", "cluster", "cache", "node", "thread"}
_NAME = re.compile(
    r"(?:(?P<pmu>[\w.-]+)/(?P<inside>[^/]+)/|(?P<bare>[^/:]+)(?=$|:))"
    r":?(?P<modifiers>[ukhHGIpPSDWeRb]*)"
)
#: What perf-list(1)'s modifiers u and k leave of both modes; neither and both leave both.
_SCOPES = {(True, False): "user", (False, True): "kernel"}
#: Longer than any count of 64 bits.
_MOST_DIGITS = 25


@dataclass(frozen=True)
class PerfRow:
    """One event: its count, or perf's own word why there is none.

    The count is what perf prints: scaled up to the whole time where the event was counted for a
    `share` below 1 of it. An old perf does not print a share of 1. `pmu` is empty where perf names
    none.
    """

    line: int
    pmu: str
    event: str
    scope: str
    count: float | str
    share: float | None

    @property
    def counted_share(self) -> float:
        """The share of the time in which it was counted."""
        if isinstance(self.count, str):
            return 0.0
        return 1.0 if self.share is None else self.share


def is_perf_stat(head: str) -> bool:
    """Whether a file that begins with `head` was written by `perf stat -x` or `-j`."""
    return _SIGN.search(head) is not None


def read_rows(path: Path) -> list[PerfRow]:
    """Return the events of a file that `perf stat -x` or `-j` wrote, in its order.

    Raises `UserError` with file and line where a number is not certain.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    rows: dict[tuple[str, str], PerfRow] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        try:
            row = _row(number, line)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {line[:80]!r} {error}; {_COLLECT}") from None
        if row and (first := rows.setdefault((row.pmu, row.event), row)) is not row:
            raise UserError(
                f"{path}, line {number}: {row.event!r} again, after line {first.line}; "
                "give a file of a single perf stat"
            )
    return list(rows.values())


def _row(number: int, line: str) -> PerfRow | None:
    if _SPLIT_ROW.match(line):
        raise ValueError("is split by processor")
    if line.startswith('{"'):
        separator, fields = ",", _json_fields(line)
    elif _ROW.match(line):
        # A comma that comes first may be a decimal one, where another character parts the fields.
        other = re.match(rf"(?:{_VALUE})\s*([{_SEPARATORS.replace(',', '')}])", line)
        separator = other[1] if other else ","
        fields = _text_fields(line, separator)
    else:
        return None
    if fields is None:
        return None
    value, unit, event, percent = fields
    if not re.fullmatch(r"[A-Za-z%/]*", unit) or not re.match(r"[A-Za-z]", event):
        raise ValueError("is no value, unit and event")
    share = None if percent is None else _number(percent, separator) / 100
    if share is not None and share > 1:
        raise ValueError("was counted for more than the whole time")
    name = _NAME.fullmatch(event)
    modifiers = name["modifiers"] if name else ""
    return PerfRow(
        number,
        (name and name["pmu"]) or "",
        ((name and (name["inside"] or name["bare"])) or event).lower(),
        _SCOPES.get(("u" in modifiers, "k" in modifiers), "user and kernel"),
        value.strip("<>") if value.startswith("<") else _number(value, separator),
        share,
    )


#: Value, unit, event, percentage of the time.
_Fields = tuple[str, str, str, str | None]


def _json_fields(line: str) -> _Fields | None:
    try:
        found: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON (a decimal comma? set LC_ALL=C)") from None
    if _SPLIT_KEYS & found.keys():
        raise ValueError("is split by processor or time")
    if "event" not in found:  # a metric of the event before it
        return None
    value, unit, event = (str(found.get(key, "")) for key in ("counter-value", "unit", "event"))
    percent = found.get("pcnt-running")
    return value, unit, event, None if percent is None else str(percent)


def _text_fields(line: str, separator: str) -> _Fields:
    fields = [field.strip() for field in _joined(line.split(separator), separator)]
    if len(fields) < 3:
        raise ValueError("is no row of perf stat")
    value, unit, event, *rest = fields
    if rest and re.fullmatch(r"\d+\.\d+%", rest[0]):  # the variance of -r
        rest = rest[1:]
    if not any(rest):
        return value, unit, event, None
    if len(rest) < 2 or not rest[0].isdecimal():
        raise ValueError("has no running time after its event")
    if not re.fullmatch(rf"\d+{_point(separator)}\d\d", rest[1]):
        raise ValueError("has no percentage after its running time (a decimal comma? set LC_ALL=C)")
    return value, unit, event, rest[1]


def _joined(fields: list[str], separator: str) -> list[str]:
    """`cpu/event=0x3,umask=0x8/` is one name, though perf's own separator is in it."""
    if len(fields) > 3 and fields[2].count("/") == 1:
        for end in range(3, len(fields)):
            if "/" in fields[end]:
                name = separator.join(fields[2 : end + 1])
                return [*fields[:2], name, *fields[end + 1 :]]
    return fields


def _number(text: str, separator: str) -> float:
    pattern = rf"[0-9]+({_point(separator)}[0-9]+)?"
    if len(text) > _MOST_DIGITS or not re.fullmatch(pattern, text):
        raise ValueError(f"has {text[:30]!r} where a number must be")
    return int(text) if text.isdecimal() else float(text.replace(",", "."))


def _point(separator: str) -> str:
    """A decimal comma looks like a comma between fields where that parts them."""
    return r"\." if separator == "," else "[.,]"


# Their figures

#: Figure -> the names by which perf prints its event.
CORE_EVENTS: Mapping[str, tuple[str, ...]] = {
    "cycles": ("cycles", "cpu-cycles"),
    "instructions": ("instructions",),
    "cache_references": ("cache-references",),
    "cache_misses": ("cache-misses",),
    "branches": ("branches", "branch-instructions"),
    "branch_misses": ("branch-misses",),
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

_OF_CORES = frozenset[str]().union(*CORE_EVENTS.values(), *(each.weights for each in FLOP_EVENTS))
#: An event that had a counter for less of the time is not scaled up to a number of its own.
_MINIMUM_SHARE = 0.1
#: Shares of the kinds of cores that do not add up to the whole time are not the time spent there.
_UNACCOUNTED = 0.05
_NOT_ASKED = "perf was not asked for it"
_NONE_AT_ALL = "counted 0 while a step was trained: the machine does not count it"


@dataclass(frozen=True)
class Collection:
    """What a profile knows of the file that it made, and the file does not say.

    perf was then asked for every floating-point event that the machine has, and a step was trained
    during the count, so that an event that is 0 was not counted; hypervisors are known to do that.
    `vector_bits` is the length of Arm's scalable vectors; `withheld` has figures that are not to be
    shown, whatever the file holds, with the reason.
    """

    source: str
    iterations: int
    window_s: float
    vector_bits: int | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)


def read_perf_stat(path: Path, collection: Collection | None = None) -> CpuCounters:
    """Return what a file of `perf stat -x` or `-j` says of a profile's window, or of anything else.

    What perf did not count is None with the reason.
    Raises `UserError` with file and line where a number is ambiguous, and with the file where
    nothing that is read here was counted.
    """
    cores = _CoreCounts(path, [row for row in read_rows(path) if row.event in _OF_CORES])
    found: dict[str, float | str] = {
        **{name: cores.total(names) for name, names in CORE_EVENTS.items()},
        "flops": cores.flops(collection),
    }
    if collection:
        found |= collection.withheld
        found = {name: value or _NONE_AT_ALL for name, value in found.items()}
    missing = {name: value for name, value in found.items() if isinstance(value, str)}
    if len(missing) == len(found):
        causes = "; ".join(sorted({*missing.values()} - {_NOT_ASKED}))
        events = ", ".join(names[0] for names in CORE_EVENTS.values())
        hint = "mlproject doctor says what would help" if causes else "count some of them"
        raise UserError(
            f"{path}: perf counted nothing that is read here: {causes or f'no {events}'}; {hint}"
        )
    return CpuCounters.of(
        "a file of perf stat does not have it",
        missing,
        source=collection.source if collection else "perf stat",
        scope=cores.scope(),
        running_share=cores.shares(),
        iterations=collection.iterations if collection else None,
        window_s=collection.window_s if collection else None,
        **{name: round(value) for name, value in found.items() if not isinstance(value, str)},
    )


class _CoreCounts:
    """The events of cores in one file. Each figure is a number, or the reason why there is none."""

    def __init__(self, path: Path, rows: Sequence[PerfRow]) -> None:
        self._path = path
        self._rows = rows
        kinds = {row.pmu for row in rows} - {"", "cpu"}
        #: Kind of core -> share of the time spent there; empty where there is only one.
        self._resident = {
            kind: max(row.counted_share for row in rows if row.pmu == kind)
            for kind in (kinds if len(kinds) > 1 else ())
        }

    def scope(self) -> str:
        """Return the mode that was counted. Raises `UserError` where events differ in it."""
        scopes = {row.scope: row for row in self._rows}
        if len(scopes) > 1:
            (first, row), (second, other), *_ = scopes.items()
            raise UserError(
                f"{self._path}: line {row.line} counts {first} mode, line {other.line} "
                f"{second} mode; count all events in one mode"
            )
        return next(iter(scopes), "user and kernel")

    def shares(self) -> dict[str, float]:
        """Return event -> share of its kind of core's time in which it was counted."""
        return {
            f"{row.pmu}/{row.event}/" if self._resident else row.event: self._share_of_kind(row)
            for row in self._rows
            if not isinstance(row.count, str) and row.share is not None
        }

    def total(self, names: Iterable[str]) -> float | str:
        """Return the counts of one figure, whose event is known by any of `names`.

        Raises `UserError` where two rows count it.
        """
        rows = [row for row in self._rows if row.event in names]
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
        if len(rows) > 1:
            lines = " and ".join(str(row.line) for row in rows)
            raise UserError(f"{self._path}: lines {lines} count the same; keep one of them")
        if not rows:
            return _NOT_ASKED
        [row] = rows
        share = self._share_of_kind(row)
        if not isinstance(row.count, str) and share < _MINIMUM_SHARE:
            return f"counted for {100 * share:.1f} % of the time, too little to scale up"
        return row.count

    def flops(self, collection: Collection | None) -> float | str:
        """Return executed FLOP, from whichever maker's events are there."""
        asked = {row.event for row in self._rows}
        events = next((each for each in FLOP_EVENTS if asked & each.weights.keys()), None)
        if events is None:
            return _NOT_ASKED
        absent = sorted(events.weights.keys() - asked)
        if absent and collection is None:
            return f"perf was not asked for {', '.join(absent)}: their FLOP would be lacking"
        vector_bits = collection.vector_bits if collection else None
        total = 0.0
        for event in sorted(asked & events.weights.keys()):
            count = self.total((event,))
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
