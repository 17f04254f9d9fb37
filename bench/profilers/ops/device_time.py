"""The device's intervals of a trace: each op's share of them, the gaps between them, the copies."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from bench.profilers.ops.op_nest import Kind, Nest, SeenOp
from bench.profilers.traces import DeviceSpan, HostSpan
from bench.records import Copies

Direction = Literal["host to device", "device to host", "device to device"]
_DIRECTIONS: dict[str, Direction] = {
    "HtoD": "host to device",
    "DtoH": "device to host",
    "DtoD": "device to device",
    "PtoP": "device to device",
}


class DeviceTime:
    """When devices were busy: kernels, copies and fills on any stream; times in seconds.

    `busy_s` and `gap_s`, the idle time between first and last interval, are sums over devices.
    """

    def __init__(self, runs: Iterable[DeviceSpan]) -> None:
        # Communication beside computing, and a copy beside a kernel, cost the step only what
        # nothing hides.
        self._runs = sorted(
            runs, key=lambda run: (run.kind != "kernel", run.communicates, run.begin_us)
        )
        covered: defaultdict[int | str | None, _Covered] = defaultdict(_Covered)
        self._exclusive_us = {
            id(run): covered[run.device].add(run.begin_us, run.end_us) for run in self._runs
        }
        self.busy_s = sum(self._exclusive_us.values()) / 1e6
        self.gap_s = sum(each.gaps() for each in covered.values()) / 1e6

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels, as `bench.records.kernel_names` spells them."""
        return [run.short_name for run in self._runs if run.kind == "kernel"]

    def give_to(
        self,
        nest: Nest,
        launches: Mapping[int, HostSpan],
        runs: Iterable[DeviceSpan] | None = None,
    ) -> None:
        """Add each interval to the op of `nest` that launched it; `launches` by correlation.

        `runs` are those of the step that `nest` is of, by default all.

        An op's time is what its intervals took, whatever ran beside them. Of intervals at the same
        time the first alone adds to the exclusive time. What no operator launched becomes an op of
        its own, named after the kernel.
        """
        for run in self._runs if runs is None else runs:
            op = _launcher(run, nest, launches)
            if op is None or op.kind is not Kind.OP:
                siblings = nest.tops if op is None else op.inner
                phase = None if op is None else op.phase
                op = SeenOp(run.short_name, Kind.KERNEL, phase, ())
                siblings.append(op)
            op.own_s += run.duration_us / 1e6
            op.exclusive_s += self._exclusive_us[id(run)] / 1e6
            op.runs.append(run)

    def copies(self) -> tuple[Copies, ...] | None:
        """Return the copies by direction, longest first; None if the trace lacks their bytes."""
        by_direction: defaultdict[Direction, list[tuple[int, float]]] = defaultdict(list)
        for run in self._runs:
            if run.kind != "copy":
                continue
            if run.size_bytes is None:
                return None
            for way in _DIRECTIONS:
                if way in run.name:
                    by_direction[_DIRECTIONS[way]].append((run.size_bytes, run.duration_us))
                    break
        copies = [
            Copies(
                direction=direction,
                calls=len(found),
                bytes=sum(size_bytes for size_bytes, _ in found),
                time_s=sum(duration_us for _, duration_us in found) / 1e6,
            )
            for direction, found in by_direction.items()
        ]
        return tuple(sorted(copies, key=lambda copy: -copy.time_s))


def _launcher(run: DeviceSpan, nest: Nest, launches: Mapping[int, HostSpan]) -> SeenOp | None:
    """The op that the run or its launch names, else the one that was open as it was launched."""
    launch = launches.get(run.correlation) if run.correlation is not None else None
    for identity in (run.external_id, launch and launch.external_id):
        if identity is not None and identity in nest.by_id:
            return nest.by_id[identity]
    return nest.at(launch.thread, launch.begin_us) if launch is not None else None


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
