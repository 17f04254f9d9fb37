"""Intervals of time as arrays: their union, and what it covers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

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
