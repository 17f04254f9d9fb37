"""Cutting the measured window out of samples taken before, during and after it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.launcher.telemetry.base import Reading
from bench.machine.probes import UnknownFactError
from bench.records import Series


@dataclass(frozen=True)
class Sample:
    """One reading of one source at `clock_s`."""

    clock_s: float
    reading: Reading


@dataclass(frozen=True)
class Span:
    """The measured window on the clock of the samples."""

    start_s: float
    end_s: float

    def __contains__(self, clock_s: float) -> bool:
        return self.start_s <= clock_s <= self.end_s


def series_of(samples: Sequence[Sample], span: Span, source: str) -> list[Series]:
    """Return one series per quantity seen inside the window, times from its start."""
    points: dict[str, list[tuple[float, float]]] = {}
    for sample in samples:
        if sample.clock_s in span:
            for name, value in sample.reading.values.items():
                points.setdefault(name, []).append((sample.clock_s - span.start_s, value))
    return [
        Series(
            name=name,
            source=source,
            times_s=tuple(time_s for time_s, _ in pairs),
            values=tuple(value for _, value in pairs),
        )
        for name, pairs in points.items()
    ]


def energy_j(samples: Sequence[Sample], span: Span) -> float:
    """Return what the counter rose by over exactly the window.

    At either end it is interpolated between the two samples around it, which takes the power
    to be steady between them. Raises `UnknownFactError` without samples on both sides, or with
    fewer than two inside, when the ends would outweigh the rest.
    """
    counter = [
        (sample.clock_s, sample.reading.energy_j)
        for sample in samples
        if sample.reading.energy_j is not None
    ]
    if sum(clock_s in span for clock_s, _ in counter) < 2:
        raise UnknownFactError("fewer than two samples of the energy counter fell in the window")
    return _at(counter, span.end_s) - _at(counter, span.start_s)


def throttle_share(samples: Sequence[Sample], span: Span) -> dict[str, float]:
    """Return for each reason the share of the window's samples that saw it.

    Raises `UnknownFactError` if none of them could tell.
    """
    seen = [
        sample.reading.throttle_reasons
        for sample in samples
        if sample.clock_s in span and sample.reading.throttle_reasons is not None
    ]
    if not seen:
        raise UnknownFactError("no sample of the throttle reasons fell in the window")
    counts = Counter(reason for reasons in seen for reason in reasons)
    return {reason: count / len(seen) for reason, count in sorted(counts.items())}


def _at(counter: Sequence[tuple[float, float]], clock_s: float) -> float:
    after = bisect_left(counter, (clock_s,))
    if after == len(counter):
        raise UnknownFactError("the energy counter was not read after the window's end")
    end_s, end_j = counter[after]
    if end_s == clock_s:
        return end_j
    if after == 0:
        raise UnknownFactError("the energy counter was not read before the window's start")
    begin_s, begin_j = counter[after - 1]
    return begin_j + (end_j - begin_j) * (clock_s - begin_s) / (end_s - begin_s)
