"""What one device ran, with the calls that launched it, and the intervals that it covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.profilers.traces import DeviceSpan, HostSpan, Trace

Thread = tuple[Any, Any]
Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Intervals:
    """Intervals that do not overlap, in rising order. Times are of any one unit."""

    begins: Times
    ends: Times

    @classmethod
    def union(cls, begins: Times, ends: Times) -> Intervals:
        """Return the union of intervals in any order; those that touch become one."""
        order = np.argsort(begins, kind="stable")
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        first = np.ones(len(begins), dtype=bool)
        first[1:] = begins[1:] > ends[:-1]
        last = np.append(first[1:], True)[: len(begins)]
        return cls(begins[first], ends[last])

    @property
    def length(self) -> float:
        """What they cover."""
        return float(np.sum(self.ends - self.begins))

    def outside(self, other: Intervals) -> float:
        """Return the length of what the other ones do not cover."""
        covered = other._covered_until(self.ends) - other._covered_until(self.begins)
        return self.length - float(np.sum(covered))

    def __or__(self, other: Intervals) -> Intervals:
        begins = np.concatenate((self.begins, other.begins))
        return Intervals.union(begins, np.concatenate((self.ends, other.ends)))

    @cached_property
    def _before(self) -> Times:
        """What the first 0, 1, 2... of them cover."""
        return np.concatenate(([0.0], np.cumsum(self.ends - self.begins)))

    def _covered_until(self, times: Times) -> Times:
        if not len(self.begins):
            return np.zeros(len(times))
        number = np.searchsorted(self.begins, times, side="right")
        beyond = np.maximum(self.ends[np.maximum(number - 1, 0)] - times, 0.0)
        covered: Times = self._before[number] - np.where(number > 0, beyond, 0.0)
        return covered


@dataclass(frozen=True)
class DeviceWork:
    """Kernels, copies and fills of one device, in the order of their beginning."""

    spans: Sequence[DeviceSpan]
    launches: Sequence[HostSpan | None]  # of each span; None where the trace does not have it

    @classmethod
    def of(cls, trace: Trace, device: int | str | None) -> DeviceWork:
        """What `device` ran in the whole trace."""
        spans = [span for span in trace.device if span.device == device]
        return cls(spans, [trace.launch_of(span) for span in spans])

    @cached_property
    def calls(self) -> list[HostSpan]:
        """The known launches, in order."""
        known = [call for call in self.launches if call is not None]
        return sorted(known, key=lambda call: call.begin_us)

    @property
    def threads(self) -> list[Thread]:
        """Those that launched kernels."""
        pairs = zip(self.spans, self.launches, strict=True)
        return list({call.thread: None for span, call in pairs if call and span.kind == "kernel"})

    @property
    def copies(self) -> dict[int | None, DeviceSpan]:
        """Copies whose call is known, by its correlation."""
        pairs = zip(self.spans, self.launches, strict=True)
        return {call.correlation: span for span, call in pairs if call and span.kind == "copy"}


def by_kind(spans: Sequence[DeviceSpan]) -> tuple[Intervals, ...]:
    """Return the unions of all spans, then of computation, communication and copies.

    Spans may be in any order and overlap. Computation is kernels that do not communicate, and
    fills.
    """
    begins, ends = span_times(spans)
    copies = np.array([span.kind == "copy" for span in spans], dtype=bool)
    communicates = np.array([span.communicates for span in spans], dtype=bool)
    kinds = np.ones(len(spans), dtype=bool), ~copies & ~communicates, communicates, copies
    return tuple(Intervals.union(begins[kind], ends[kind]) for kind in kinds)


def span_times(spans: Sequence[DeviceSpan | HostSpan]) -> tuple[Times, Times]:
    """When each span begins and ends, in microseconds."""
    begins = np.array([span.begin_us for span in spans], dtype=np.float64)
    return begins, np.array([span.end_us for span in spans], dtype=np.float64)
