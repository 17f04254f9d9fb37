"""What `perf stat` counted, read into a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.profilers.files.perf_cores import NOT_ASKED, CoreCounts, count_or_why, is_core_event
from bench.profilers.files.perf_events import (
    CORE_EVENTS,
    MEMORY_EVENTS,
    is_memory_event,
    is_one_of_several,
    memory_bytes_per_count,
)
from bench.profilers.files.perf_rows import PerfRow, read_rows
from bench.records import CpuCounters

_NONE_AT_ALL = "counted 0 while a step was trained: the machine does not count it"
_NOT_TOLD = "a file of perf stat does not tell it"


@dataclass(frozen=True)
class Collection:
    """How a file came about, as far as it does not say so itself.

    `whole`: every floating-point event and every memory controller that the machine has was asked
    for. `computed`: a step was trained meanwhile, so that an event of which there were none was
    not counted; hypervisors are known to do that. `withheld`: figure -> why it is not to be told,
    whatever the file holds.
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
    *,
    memory: Path | None = None,
    collection: Collection | None = None,
) -> CpuCounters:
    """Return what `path`, and `memory` for the memory controllers, say of `iterations` steps.

    Both are files of `perf stat -x` or `-j`. What perf did not count is None with the reason.
    Raises `UserError` with file and line where a number is ambiguous, and with the file where
    nothing that is read here was counted.
    """
    collection = collection or Collection()
    rows = read_rows(path) + (read_rows(memory) if memory else [])
    controllers = [row for row in rows if is_memory_event(row.event)]
    cores = CoreCounts(path, [row for row in rows if is_core_event(row.event)])
    told: dict[str, float | str] = {
        **{name: cores.total(names) for name, names in CORE_EVENTS.items()},
        "flops": cores.flops(whole=collection.whole, vector_bits=collection.vector_bits),
        "dram_bytes": _dram_bytes(controllers, whole=collection.whole),
        **collection.withheld,
    }
    if collection.computed:
        told = {name: value or _NONE_AT_ALL for name, value in told.items()}
    missing = {name: value for name, value in told.items() if isinstance(value, str)}
    if len(missing) == len(told):
        raise UserError(f"{path}: perf counted nothing that is read here: {_causes(missing)}")
    values: dict[str, Any] = {
        name: None if isinstance(value, str) else round(value) for name, value in told.items()
    }
    values |= {"iterations": iterations, "window_s": window_s}
    missing |= {name: _NOT_TOLD for name in ("iterations", "window_s") if values[name] is None}
    return CpuCounters(
        source=collection.source,
        # Only perf stat -a counts memory controllers, and then everything else system-wide too.
        scope=cores.scope() + (", whole machine" if controllers and memory is None else ""),
        running_share=cores.shares() | _shares(controllers),
        missing=missing,
        **values,
    )


def _causes(missing: Mapping[str, str]) -> str:
    causes = sorted({why for why in missing.values() if why != NOT_ASKED})
    if not causes:
        return f"no {', '.join(names[0] for names in CORE_EVENTS.values())}; count some of them"
    return f"{'; '.join(causes)}; mlproject doctor says what would help"


def _shares(controllers: Sequence[PerfRow]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for row in controllers:
        if row.count is not None and row.share is not None:
            shares[row.event] = min(row.share, shares.get(row.event, 1.0))
    return shares


def _dram_bytes(rows: Sequence[PerfRow], *, whole: bool) -> float | str:
    """What all memory controllers read and wrote, or why it cannot be told."""
    here = {row.event for row in rows}
    if not here:
        return NOT_ASKED
    accounts = [account for account in MEMORY_EVENTS if here.issuperset(account)]
    if len(accounts) != 1:
        return f"{', '.join(sorted(here))}: not one whole account of reads and writes"
    total = 0.0
    for row in rows:
        if row.event not in accounts[0]:
            continue
        if is_one_of_several(row.pmu) and not whole:
            return f"{row.pmu} is one of several, and whether all were counted is unknown"
        count = count_or_why(row, 1.0 if row.share is None else row.share)
        if isinstance(count, str):
            return f"{row.event}: {count}"
        each = memory_bytes_per_count(row.event, row.unit)
        if each is None:
            return f"{row.event} counts in {row.unit or 'a unit not told'}, not known here"
        total += count * each
    return total
