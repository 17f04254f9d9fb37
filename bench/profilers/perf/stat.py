"""What `perf stat` counted, read into a record.

perf scales a count up to the whole time by the share of it in which the event had a counter. On a
processor with two kinds of cores that share is mostly the time spent on the other kind, so perf's
numbers add up to far too much: 25.5e9 cycles at 98.11 % and 12.6e9 at 1.89 %, of which the latter
were 0.24e9. The largest share of any event on a kind is the time that was spent there; each count
is multiplied by that, and the kinds added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.errors import UserError
from bench.profilers.perf.rows import PerfRow, read_rows
from bench.records import CpuCounters

#: Figure -> the names by which perf prints its event.
CORE_EVENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cycles": ("cycles", "cpu-cycles"),
        "instructions": ("instructions",),
        "cache_references": ("cache-references",),
        "cache_misses": ("cache-misses",),
        "branches": ("branches", "branch-instructions"),
        "branch_misses": ("branch-misses",),
    }
)


@dataclass(frozen=True)
class FlopEvents:
    """One maker's floating-point events: FLOP per count, a multiply-add being 2.

    `counts_bf16` says whether bf16 products are documented to be among them; counts of `scalable`
    events are those of vectors of `SCALABLE_UNIT_BITS`.
    """

    maker: str
    weights: Mapping[str, int]
    counts_bf16: bool
    scalable: frozenset[str] = frozenset()


def _intel_weights() -> dict[str, int]:
    """Elements per instruction; a fused multiply-add counts twice by itself.

    Linux, tools/perf/pmu-events/arch/x86/sapphirerapids/floating-point.json: "Each count
    represents 8 computation operations, one for each element ... FM(N)ADD/SUB instructions count
    twice". Broadwell and later; 512-bit ones only where the processor has AVX-512. Half-precision,
    VDPBF16PS and AMX are in none of them, and AMX_OPS_RETIRED was withdrawn from the same files.
    """
    widths = {"scalar": 0, "128b_packed": 128, "256b_packed": 256, "512b_packed": 512}
    elements = {"single": 32, "double": 64}
    return {
        f"fp_arith_inst_retired.{width}_{element}": bits // size if bits else 1
        for width, bits in widths.items()
        for element, size in elements.items()
    }


FLOP_EVENTS = (
    FlopEvents("Intel", MappingProxyType(_intel_weights()), counts_bf16=False),
    # amdzen2/floating-point.json: "All FLOPS ... Multiply-add counts as 2 FLOPS ... This event can
    # count above 15" per cycle, for which Linux 5.6 and later pair two counters; amdzen4's and
    # amdzen5's add the bfloat16 ones.
    FlopEvents("AMD", MappingProxyType({"fp_ret_sse_avx_ops.all": 1}), counts_bf16=True),
    # Arm Architecture Reference Manual, FP_FIXED_OPS_SPEC and FP_SCALE_OPS_SPEC: operations of
    # elements, twice for a multiply-add; scalable vectors as if they were 128 bits long. They are
    # counted when executed, wrongly predicted paths included.
    FlopEvents(
        "Arm",
        MappingProxyType({"fp_fixed_ops_spec": 1, "fp_scale_ops_spec": 1}),
        counts_bf16=False,
        scalable=frozenset({"fp_scale_ops_spec"}),
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
_NOT_IN_FILE = "a file of perf stat does not have it"


@dataclass(frozen=True)
class Collection:
    """How a file came about, as far as it does not say so itself.

    `whole`: every floating-point event that the machine has was asked for. `computed`: a step was
    trained during the count, so that an event that is 0 was not counted; hypervisors are known to
    do that. `withheld`: figure -> why it is not to be shown, whatever the file holds.
    """

    source: str = "perf stat"
    whole: bool = False
    computed: bool = False
    vector_bits: int | None = None  # Arm's scalable vectors
    withheld: Mapping[str, str] = field(default_factory=dict)


def read_perf_stat(
    path: Path,
    iterations: int | None = None,
    window_s: float | None = None,
    collection: Collection | None = None,
) -> CpuCounters:
    """Return what a file of `perf stat -x` or `-j` says of `iterations` steps.

    What perf did not count is None with the reason.
    Raises `UserError` with file and line where a number is ambiguous, and with the file where
    nothing that is read here was counted.
    """
    collection = collection or Collection()
    cores = _CoreCounts(path, [row for row in read_rows(path) if row.event in _OF_CORES])
    found: dict[str, float | str] = {
        **{name: cores.total(names) for name, names in CORE_EVENTS.items()},
        "flops": cores.flops(whole=collection.whole, vector_bits=collection.vector_bits),
        **collection.withheld,
    }
    if collection.computed:
        found = {name: value or _NONE_AT_ALL for name, value in found.items()}
    missing = {name: value for name, value in found.items() if isinstance(value, str)}
    if len(missing) == len(found):
        raise UserError(f"{path}: perf counted nothing that is read here: {_causes(missing)}")
    values: dict[str, Any] = {
        name: None if isinstance(value, str) else round(value) for name, value in found.items()
    }
    return CpuCounters.of(
        _NOT_IN_FILE,
        missing,
        source=collection.source,
        scope=cores.scope(),
        running_share=cores.shares(),
        iterations=iterations,
        window_s=window_s,
        **values,
    )


def _causes(missing: Mapping[str, str]) -> str:
    causes = sorted({why for why in missing.values() if why != _NOT_ASKED})
    if not causes:
        return f"no {', '.join(names[0] for names in CORE_EVENTS.values())}; count some of them"
    return f"{'; '.join(causes)}; mlproject doctor says what would help"


def _count_or_why(row: PerfRow, share: float) -> float | str:
    """Return the row's count, or why there is none; `share` is the time that it was counted for."""
    if row.count is None:
        return row.why
    if share < _MINIMUM_SHARE:
        return f"counted for {100 * share:.1f} % of the time, too little to scale up"
    return row.count


class _CoreCounts:
    """The events of cores in one file. Each figure is a number, or the reason why there is none."""

    def __init__(self, path: Path, rows: Sequence[PerfRow]) -> None:
        self._path = path
        self._rows = rows
        kinds = {row.pmu for row in rows} - {"", "cpu"}
        #: Kind of core -> share of the time spent there; empty where there is only one.
        self._resident = (
            {kind: max(_share(row) for row in rows if row.pmu == kind) for kind in kinds}
            if len(kinds) > 1
            else {}
        )

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
            f"{row.pmu}/{row.event}/" if self._resident else row.event: self._counted_share(row)
            for row in self._rows
            if row.count is not None and row.share is not None
        }

    def total(self, names: Iterable[str]) -> float | str:
        """Return the counts of one figure, whose event is known by any of `names`.

        Raises `UserError` where two rows count it.
        """
        rows = [row for row in self._rows if row.event in names]
        if not rows:
            return _NOT_ASKED
        if not self._resident:
            self._refuse_two(rows)
            return _count_or_why(rows[0], _share(rows[0]))
        accounted = sum(self._resident.values())
        if abs(accounted - 1) > _UNACCOUNTED:
            return (
                rows[0].why or f"the kinds of cores account for {100 * accounted:.0f} % of the time"
            )
        total = 0.0
        for kind, resident in self._resident.items():
            here = [row for row in rows if row.pmu == kind]
            self._refuse_two(here)
            if not resident:  # no thread ever ran there
                continue
            count = _count_or_why(here[0], self._counted_share(here[0])) if here else _NOT_ASKED
            if isinstance(count, str):
                return f"{count} on {kind}, where {100 * resident:.1f} % of the time was spent"
            total += count * resident
        return total

    def flops(self, *, whole: bool, vector_bits: int | None) -> float | str:
        """Return executed FLOP, from whichever maker's events are there.

        `whole`: the file holds all of them that the processor has. `vector_bits` is the length of
        Arm's scalable vectors.
        """
        asked = {row.event for row in self._rows}
        events = next((each for each in FLOP_EVENTS if asked & each.weights.keys()), None)
        if events is None:
            return _NOT_ASKED
        absent = sorted(events.weights.keys() - asked)
        if absent and not whole:
            return f"perf was not asked for {', '.join(absent)}: their FLOP would be lacking"
        total = 0.0
        for event in sorted(asked & events.weights.keys()):
            count = self.total((event,))
            if isinstance(count, str):
                return f"{event}: {count}"
            if count and event in events.scalable:
                if vector_bits is None:
                    return f"{event} is per 128 bits, and the length of the vectors is unknown"
                count *= vector_bits / SCALABLE_UNIT_BITS
            total += count * events.weights[event]
        return total

    def _counted_share(self, row: PerfRow) -> float:
        resident = self._resident.get(row.pmu, 1.0)
        return min(1.0, _share(row) / resident) if resident else 0.0

    def _refuse_two(self, rows: Sequence[PerfRow]) -> None:
        if len(rows) > 1:
            lines = " and ".join(str(row.line) for row in rows)
            raise UserError(f"{self._path}: lines {lines} count the same; keep one of them")


def _share(row: PerfRow) -> float:
    """An old perf prints no share where it is the whole."""
    if row.count is None:
        return 0.0
    return 1.0 if row.share is None else row.share
