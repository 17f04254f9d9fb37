"""The device's intervals of a trace: each op's share of them, the gaps between them, the copies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal

from bench.profilers.ops.op_nest import Event, Nest
from bench.profilers.ops.timed_step import Kind, SeenOp
from bench.records import Copies
from bench.records.verdict.kernel_names import kernel_name

KERNEL, COPY, SET = "kernel", "gpu_memcpy", "gpu_memset"
_KINDS = (KERNEL, COPY, SET)
Direction = Literal["host to device", "device to host", "device to device"]
_DIRECTIONS: dict[str, Direction] = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "device to device",
    "PtoP": "device to device",
}


class DeviceTime:
    """When the device was busy: kernels and copies on any stream; times in seconds."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._intervals = sorted(
            (event for event in events if event.get("cat") in _KINDS),
            # A copy beside a kernel costs the step only what no kernel hides.
            key=lambda event: (event["cat"] != KERNEL, event["ts"]),
        )
        covered = _Covered()
        self._own_us = [covered.add(e["ts"], e["ts"] + e["dur"]) for e in self._intervals]
        self.busy_s = sum(self._own_us) / 1e6
        self.gap_s = covered.gaps() / 1e6

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels, as `bench.records.verdict.kernel_names` spells them."""
        return [kernel_name(event["name"]) for event in self._of(KERNEL)]

    def give_to(self, nest: Nest) -> None:
        """Add each interval to the op of `nest` that launched it.

        Of intervals at the same time the first counts, so no nanosecond is in two ops. What no
        operator launched becomes an op of its own, named after the kernel.
        """
        for event, own_us in zip(self._intervals, self._own_us, strict=True):
            op = nest.by_id.get(event.get("args", {}).get("External id"))
            if op is not None and op.kind is Kind.OP:
                op.own_s += own_us / 1e6
                continue
            siblings = nest.tops if op is None else op.inner
            phase = None if op is None else op.phase
            name = kernel_name(event["name"])
            siblings.append(SeenOp(name, Kind.KERNEL, phase, (), own_us / 1e6))

    def copies(self) -> tuple[Copies, ...] | None:
        """Return the copies by direction, longest first; None if the trace lacks their bytes."""
        by_direction: defaultdict[Direction, list[Event]] = defaultdict(list)
        for event in self._of(COPY):
            if "bytes" not in event["args"]:
                return None
            for way in _DIRECTIONS:
                if way in event["name"]:
                    by_direction[_DIRECTIONS[way]].append(event)
                    break
        copies = [
            Copies(
                direction=direction,
                calls=len(events),
                bytes=sum(event["args"]["bytes"] for event in events),
                time_s=sum(event["dur"] for event in events) / 1e6,
            )
            for direction, events in by_direction.items()
        ]
        return tuple(sorted(copies, key=lambda copy: -copy.time_s))

    def _of(self, kind: str) -> list[Event]:
        return [event for event in self._intervals if event["cat"] == kind]


class _Covered:
    """A union of intervals, kept as disjoint ones in order."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def add(self, begin: float, end: float) -> float:
        """Add an interval; return how much of it was not covered yet."""
        first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        begins, ends = self._begins[first:last], self._ends[first:last]
        inside = zip(begins, ends, strict=True)
        overlap = sum(min(end, there) - max(begin, here) for here, there in inside)
        self._begins[first:last] = [min([begin, *begins])]
        self._ends[first:last] = [max([end, *ends])]
        return end - begin - overlap

    def gaps(self) -> float:
        """Return the length of what lies between the intervals."""
        inner = zip(self._ends, self._begins[1:], strict=False)
        return sum(begin - end for end, begin in inner)
