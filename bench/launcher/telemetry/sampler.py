"""Samples all sources from the launcher's own loop, and cuts the measured window out of them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.errors import Unknown
from bench.launcher.telemetry.base import DEVICE_FACTS, AbsentDevice, Reading, Source
from bench.machine.probes import UnknownFactError, probe, reason_of
from bench.records import Series, Telemetry
from bench.records.journal import Clock

#: The instant of a reading of one source, and what it saw.
Sample = tuple[float, Reading]


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
    for clock_s, reading in samples:
        if clock_s in span:
            for name, value in reading.values.items():
                points.setdefault(name, []).append((clock_s - span.start_s, value))
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
    """Return what the energy counter rose by over exactly the window.

    Raises `UnknownFactError` as `_risen` does.
    """
    counter = ((clock_s, reading.energy_j) for clock_s, reading in samples)
    return _risen([(s, joules) for s, joules in counter if joules is not None], span)


def slowed_share(samples: Sequence[Sample], span: Span) -> dict[str, float]:
    """Return the share of the window for which each limit held the device below its clocks.

    Raises `UnknownFactError` as `_risen` does.
    """
    counters = [
        (clock_s, reading.slowed_s) for clock_s, reading in samples if reading.slowed_s is not None
    ]
    names = counters[0][1] if counters else {}
    if not names:
        raise UnknownFactError("no sample of the time below the application clocks")
    window_s = span.end_s - span.start_s
    return {
        name: min(1.0, _risen([(at, seconds[name]) for at, seconds in counters], span) / window_s)
        for name in names
    }


def throttle_share(samples: Sequence[Sample], span: Span) -> dict[str, float]:
    """Return for each reason the share of the window's samples that saw it.

    Raises `UnknownFactError` if none of them could read the reasons.
    """
    seen = [
        reading.throttle_reasons
        for clock_s, reading in samples
        if clock_s in span and reading.throttle_reasons is not None
    ]
    if not seen:
        raise UnknownFactError("no sample of the throttle reasons fell in the window")
    counts = Counter(reason for reasons in seen for reason in reasons)
    return {reason: count / len(seen) for reason, count in sorted(counts.items())}


def _risen(counter: Sequence[tuple[float, float]], span: Span) -> float:
    """Return what a counter, sampled as (seconds, value), rose by over exactly the window.

    At either end it is interpolated between the two samples around it, which takes its rise to be
    steady between them. Raises `UnknownFactError` without samples on both sides, or with fewer
    than two inside, when the ends would outweigh the rest.
    """
    if sum(clock_s in span for clock_s, _ in counter) < 2:
        raise UnknownFactError("fewer than two samples of the counter fell in the window")
    return _at(counter, span.end_s) - _at(counter, span.start_s)


def _at(counter: Sequence[tuple[float, float]], clock_s: float) -> float:
    after = bisect_left(counter, (clock_s,))
    if after == len(counter):
        raise UnknownFactError("the counter was not read after the window's end")
    end_s, end = counter[after]
    if end_s == clock_s:
        return end
    if after == 0:
        raise UnknownFactError("the counter was not read before the window's start")
    begin_s, begin = counter[after - 1]
    return begin + (end - begin) * (clock_s - begin_s) / (end_s - begin_s)


class Sampler:
    """Keeps samples from the worker's start to its end; the window is cut out afterwards.

    Needs no thread: the loop that waits for the worker calls `sample` as often as it likes.
    `clock` must be the one that the window's ends are read from.
    """

    def __init__(
        self,
        interval_s: float = 0.5,
        sources: Iterable[Source] = (),
        clock: Clock = time.perf_counter,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._samples: dict[Source, list[Sample]] = {source: [] for source in sources}
        self._next_s = clock()

    def add(self, source: Source) -> None:
        """Sample `source` too from now on; its first sample is taken at once."""
        self._samples[source] = []
        self._read(source)

    def sample(self) -> None:
        """Read every source if the interval has passed; return at once if not."""
        if self._clock() >= self._next_s:
            self.sample_now()

    def sample_now(self) -> None:
        """Read every source; call it when the window has ended, for the energy's last point."""
        self._next_s = self._clock() + self._interval_s
        for source in self._samples:
            self._read(source)

    def telemetry(self, window_start_clock_s: float, window_end_clock_s: float) -> Telemetry:
        """Return what was seen in the window; the worker should have ended by now."""
        span = Span(window_start_clock_s, window_end_clock_s)
        series = [
            one
            for source, samples in self._samples.items()
            for one in series_of(samples, span, source.name)
        ]
        unknown: Source = AbsentDevice("the worker never reported its device")
        device = next((each for each in self._samples if each.measures_device), unknown)
        seen = self._samples.get(device, [])
        facts: dict[str, Any] = {
            "energy_j": probe(energy_j, seen, span),
            "throttle_share": probe(throttle_share, seen, span),
            "slowed_share": probe(slowed_share, seen, span),
            "foreign_processes": probe(device.foreign_processes),
        }
        found = Telemetry.of(
            "unknown on this device",
            device.missing,
            interval_s=self._interval_s,
            series=tuple(series),
            **{
                name: None if isinstance(fact, Unknown) and name in device.missing else fact
                for name, fact in facts.items()
            },
        )
        return found.replaced(self._missing(series))

    def _read(self, source: Source) -> None:
        clock_s = self._clock()
        try:
            self._samples[source].append((clock_s, source.read()))
        except Exception as error:  # A driver that goes away must not end the run.
            source.missing[source.name] = reason_of(error)

    def _missing(self, series: list[Series]) -> dict[str, str]:
        """Reasons of quantities without a sample in the window."""
        reasons: dict[str, str] = {}
        for source, samples in self._samples.items():
            names = {name for _, reading in samples for name in reading.values}
            reasons |= dict.fromkeys(names, "no sample fell in the window") | source.missing
        seen = {one.name for one in series} | set(DEVICE_FACTS)
        return {name: reason for name, reason in reasons.items() if name not in seen}
