"""Intervals of time: their unions, what others leave of them, and which one is on top."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.profilers.traces.spans import DeviceSpan, HostSpan

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


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

    def without(self, other: Intervals) -> Intervals:
        """Return what the other ones do not cover."""
        numbered = [(1, *span) for span in zip(self.begins, self.ends, strict=True)]
        numbered += [(0, *span) for span in zip(other.begins, other.ends, strict=True)]
        bounds, numbers = paint(numbered)
        is_left = numbers[:-1] == 1
        return Intervals(bounds[:-1][is_left], bounds[1:][is_left])

    def outside(self, other: Intervals) -> float:
        """Return the length of what the other ones do not cover."""
        covered = other._covered_until(self.ends) - other._covered_until(self.begins)
        return self.length - float(np.sum(covered))

    def _covered_until(self, times: Times) -> Times:
        if not len(self.begins):
            return np.zeros(len(times))
        before = np.concatenate(([0.0], np.cumsum(self.ends - self.begins)))
        number = np.searchsorted(self.begins, times, side="right")
        beyond = np.maximum(self.ends[np.maximum(number - 1, 0)] - times, 0.0)
        covered: Times = before[number] - np.where(number > 0, beyond, 0.0)
        return covered


def by_kind(spans: Sequence[DeviceSpan]) -> tuple[Intervals, ...]:
    """Return the unions of all spans, of computation, communication, copies, and all but copies.

    Spans may be in any order and overlap. Computation is kernels that do not communicate, and
    fills.
    """
    begins, ends = span_times(spans)
    copies = np.array([span.kind == "copy" for span in spans], dtype=bool)
    communicates = np.array([span.communicates for span in spans], dtype=bool)
    every = np.ones(len(spans), dtype=bool)
    kinds = every, ~copies & ~communicates, communicates, copies, ~copies
    return tuple(Intervals.union(begins[kind], ends[kind]) for kind in kinds)


def span_times(spans: Sequence[DeviceSpan | HostSpan]) -> tuple[Times, Times]:
    """When each span begins and ends, in microseconds."""
    begins = np.array([span.begin_us for span in spans], dtype=np.float64)
    return begins, np.array([span.end_us for span in spans], dtype=np.float64)


def number_at(begins: Times, ends: Times, times: Times) -> Numbers:
    """The number of the interval that holds each time; -1 where none does."""
    number = np.searchsorted(begins, times, side="right") - 1
    return np.where((number >= 0) & (times < np.append(ends, -np.inf)[number]), number, -1)


def paint(intervals: Iterable[tuple[int, float, float]]) -> tuple[Times, Numbers]:
    """Bounds and the number that holds from each to the next; -1 is none.

    `intervals` are (number, begin, end); where they overlap, the later is seen.
    """
    numbers, begins, ends = np.array([*intervals]).reshape(-1, 3).T
    bounds: Times = np.unique((begins, ends))
    painted = np.full(len(bounds), -1)
    firsts, lasts = np.searchsorted(bounds, begins), np.searchsorted(bounds, ends)
    for number, first, last in zip(numbers, firsts, lasts, strict=True):
        painted[first:last] = number
    return bounds, painted


def painted_at(bounds_and_numbers: tuple[Times, Numbers], times: Times) -> Numbers:
    """Return the number on top at each time, of what `paint` returned."""
    bounds, numbers = bounds_and_numbers
    at_times: Numbers = np.append(numbers, -1)[np.searchsorted(bounds, times, side="right") - 1]
    return at_times


def exclusive_us(spans: Sequence[DeviceSpan | HostSpan]) -> list[float]:
    """Return of each span the time in which none of those before it ran."""
    if not spans:
        return []
    on_top = [(number, span.begin_us, span.end_us) for number, span in enumerate(spans)]
    bounds, numbers = paint(reversed(on_top))
    seen = numbers[:-1] >= 0
    times_us = np.bincount(numbers[:-1][seen], np.diff(bounds)[seen], len(spans))
    return list(map(float, times_us))
