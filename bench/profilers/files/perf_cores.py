"""Counts of the processor's own events, on one kind of core or on several.

perf scales a count up to the whole time by the share of it in which the event had a counter. On a
processor with two kinds of cores that share is mostly the time spent on the other kind, so perf's
numbers add up to far too much: 25.5e9 cycles at 98.11 % and 12.6e9 at 1.89 %, of which the latter
were 0.24e9. The largest share of any event on a kind is the time that was spent there; each count
is multiplied by that, and the kinds added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.errors import UserError
from bench.profilers.files.perf_events import (
    CORE_EVENTS,
    FLOP_EVENTS,
    SCALABLE_UNIT_BITS,
    FlopEvents,
)
from bench.profilers.files.perf_rows import PerfRow

#: An event that had a counter for less of the time is not scaled up to a number of its own.
MINIMUM_SHARE = 0.1
#: Shares of the kinds of cores that do not add up to the whole time are not the time spent there.
_UNACCOUNTED = 0.05
NOT_ASKED = "perf was not asked for it"


def is_core_event(event: str) -> bool:
    """Whether `event` is one that is read here and counted by a core."""
    return any(event in names for names in CORE_EVENTS.values()) or any(
        event in events.weights for events in FLOP_EVENTS
    )


def count_or_why(row: PerfRow, share: float) -> float | str:
    """Return the row's count, or why there is none; `share` is the time that it was counted for."""
    if row.count is None:
        return row.why
    if share < MINIMUM_SHARE:
        return f"counted for {share:.1%} of the time, too little to scale up"
    return row.count


class CoreCounts:
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
            return NOT_ASKED
        if not self._resident:
            self._refuse_two(rows)
            return count_or_why(rows[0], _share(rows[0]))
        accounted = sum(self._resident.values())
        if abs(accounted - 1) > _UNACCOUNTED:
            return rows[0].why or f"the kinds of cores account for {accounted:.0%} of the time"
        total = 0.0
        for kind, resident in self._resident.items():
            here = [row for row in rows if row.pmu == kind]
            self._refuse_two(here)
            if not resident:  # no thread ever ran there
                continue
            count = count_or_why(here[0], self._counted_share(here[0])) if here else NOT_ASKED
            if isinstance(count, str):
                return f"{count} on {kind}, where {resident:.1%} of the time was spent"
            total += count * resident
        return total

    def flops(self, *, whole: bool, vector_bits: int | None) -> float | str:
        """Return executed FLOP, from whichever maker's events are there.

        `whole`: the file holds all of them that the processor has. `vector_bits` is the length of
        Arm's scalable vectors.
        """
        for events in FLOP_EVENTS:
            here = {row.event for row in self._rows} & events.weights.keys()
            absent = sorted(events.weights.keys() - here)
            if here and absent and not whole:
                return f"perf was not asked for {', '.join(absent)}: their FLOP would be lacking"
            if here:
                return self._flops_of(events, sorted(here), vector_bits)
        return NOT_ASKED

    def _flops_of(
        self, events: FlopEvents, here: Sequence[str], vector_bits: int | None
    ) -> float | str:
        total = 0.0
        for event in here:
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
