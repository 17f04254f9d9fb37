"""Samples all sources from the launcher's own loop, and cuts the measured window out of them."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar

from bench.errors import Unknown
from bench.machine import UnknownFactError, probe
from bench.records import SampledSeries, Telemetry
from bench.records.journal import Clock

T = TypeVar("T")
U = TypeVar("U")
_NO_DEVICE = Unknown("no device is sampled")


@dataclass(frozen=True)
class Reading:
    """What a source saw at one instant; what it could not read is `Unknown`.

    `energy_j` counts up from any zero, and so do `dram_bytes`, those that the device moved, and
    `slowed_s`, the seconds for which power or heat held it below its application clocks.
    """

    values: Mapping[str, float | Unknown] = field(default_factory=dict)
    energy_j: float | Unknown = _NO_DEVICE
    throttle_reasons: frozenset[str] | Unknown = _NO_DEVICE
    slowed_s: Mapping[str, float] | Unknown = _NO_DEVICE
    dram_bytes: float | Unknown = _NO_DEVICE

    @property
    def known(self) -> dict[str, float]:
        """The values that could be read."""
        return {name: fact for name, fact in self.values.items() if not isinstance(fact, Unknown)}


class Source:
    """Something to sample; by itself it shows nothing.

    The one source that `measures_device` gives the record its energy, throttling and foreign
    processes.
    """

    name = "none"
    measures_device = False
    _reading = Reading()
    _others = _NO_DEVICE  # why it does not know which other processes use the device

    def read(self) -> Reading:
        """Return the values of this instant."""
        return self._reading

    def foreign_processes(self) -> tuple[str, ...] | Unknown:
        """Return the processes on the device that are not ours."""
        return self._others


class Devices(Source):
    """Energy and bytes are the devices' sum, throttle reasons and foreign processes those of any.

    The time for which they were slowed is their mean; a fact of all is unknown where it is unknown
    of one. The lowest rank's quantities keep their names, the others' begin with `rank1_`,
    `rank2_`...
    """

    measures_device = True

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}

    def join(self, rank: int, source: Source) -> None:
        """Sample the device of `rank` too, from the next reading on."""
        self._sources = dict(sorted({**self._sources, rank: source}.items()))
        self.name = source.name

    def read(self) -> Reading:
        """Read every device."""
        readings = {rank: source.read() for rank, source in self._sources.items()}
        first = min(readings, default=0)
        return Reading(
            {
                name if rank == first else f"rank{rank}_{name}": value
                for rank, reading in readings.items()
                for name, value in reading.values.items()
            },
            _of_all(sum, [reading.energy_j for reading in readings.values()]),
            _of_all(_any, [reading.throttle_reasons for reading in readings.values()]),
            _of_all(_means, [reading.slowed_s for reading in readings.values()]),
            _of_all(sum, [reading.dram_bytes for reading in readings.values()]),
        )

    def foreign_processes(self) -> tuple[str, ...] | Unknown:
        """Return the foreign processes of any device."""
        processes = [source.foreign_processes() for source in self._sources.values()]
        return _of_all(lambda lists: tuple(sorted(_any(lists))), processes)


def _of_all(combined: Callable[[list[T]], U], facts: Sequence[T | Unknown]) -> U | Unknown:
    known = [fact for fact in facts if not isinstance(fact, Unknown)]
    unknown = (fact for fact in facts if isinstance(fact, Unknown))
    return combined(known) if len(known) == len(facts) else next(unknown)


def _any(facts: Sequence[Iterable[str]]) -> frozenset[str]:
    return frozenset().union(*facts)


def _means(counters: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted(_any(counters))
    return {name: fmean(counter.get(name, 0.0) for counter in counters) for name in names}


@dataclass(frozen=True)
class _Window:
    """The measured window on the clock of the samples."""

    start_s: float
    end_s: float

    def __contains__(self, clock_s: float) -> bool:
        return self.start_s <= clock_s <= self.end_s

    def rise(self, counter: Sequence[tuple[float, float]]) -> float:
        """What a counter, sampled as (seconds, value), rose by over exactly the window.

        At either end it is interpolated between the two samples around it, which takes its rise to
        be steady between them. Raises `UnknownFactError` without samples on both sides, or with
        fewer than two inside, when the ends would outweigh the rest.
        """
        if sum(clock_s in self for clock_s, _ in counter) < 2:
            raise UnknownFactError("fewer than two samples of the counter fell in the window")
        return _at(counter, self.end_s) - _at(counter, self.start_s)

    def shares_slowed(self, counters: Sequence[tuple[float, Mapping[str, float]]]) -> Any:
        """Share of the window for which each limit held the device below its clocks."""
        names = counters[0][1] if counters else ()
        if not names:
            raise UnknownFactError("no sample of the time below the application clocks")
        window_s = self.end_s - self.start_s
        risen_s = {name: self.rise([(at, of[name]) for at, of in counters]) for name in names}
        return {name: min(1.0, seconds / window_s) for name, seconds in risen_s.items()}

    def shares_throttled(self, samples: Sequence[tuple[float, frozenset[str]]]) -> Any:
        """For each reason the share of the window's samples that saw it."""
        seen = [reasons for clock_s, reasons in samples if clock_s in self]
        if not seen:
            raise UnknownFactError("no sample of the throttle reasons fell in the window")
        counts = Counter(reason for reasons in seen for reason in reasons)
        return {reason: count / len(seen) for reason, count in sorted(counts.items())}


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
        #: The instant of each reading of a source, and what it saw.
        self._samples: dict[Source, list[tuple[float, Reading]]] = {
            source: [] for source in sources
        }
        self._broken: dict[str, str] = {}
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

    def stop(self) -> None:
        """Read no source any more."""
        self._next_s = math.inf

    def telemetry(self, window_start_clock_s: float, window_end_clock_s: float) -> Telemetry:
        """Return what was seen in the window; the worker should have ended by now."""
        window = _Window(window_start_clock_s, window_end_clock_s)
        series, missing = [], dict(self._broken)
        for source, samples in self._samples.items():
            for name in dict.fromkeys(name for _, seen in samples for name in seen.values):
                points = [(at, seen.known[name]) for at, seen in samples if name in seen.known]
                inside = [(at - window.start_s, value) for at, value in points if at in window]
                if inside:
                    times_s, values = zip(*inside, strict=True)
                    series.append(
                        SampledSeries(name=name, source=source.name, times_s=times_s, values=values)
                    )
                else:
                    last = samples[-1][1].values.get(name)
                    no_sample = "no sample fell in the window"
                    missing[name] = last.reason if isinstance(last, Unknown) else no_sample
        return Telemetry(
            missing=missing,
            interval_s=self._interval_s,
            series=tuple(series),
            **self._device_facts(window),
        )

    def _device_facts(self, window: _Window) -> dict[str, Any]:
        device = next((source for source in self._samples if source.measures_device), None)
        facts = ("energy_j", "throttle_share", "slowed_share", "foreign_processes", "dram_bytes")
        if device is None:
            return dict.fromkeys(facts, Unknown("the worker never reported its device"))

        def over_window(name: str, share: Callable[[list[tuple[float, Any]]], Any]) -> Any:
            """The device's own reason, where it gave one, comes before that of the window."""
            read = [(at, getattr(reading, name)) for at, reading in self._samples[device]]
            known = [(at, fact) for at, fact in read if not isinstance(fact, Unknown)]
            value = probe(share, known)
            reasons = [fact for _, fact in read if isinstance(fact, Unknown)]
            return reasons[-1] if isinstance(value, Unknown) and reasons else value

        values = (
            over_window("energy_j", window.rise),
            over_window("throttle_reasons", window.shares_throttled),
            over_window("slowed_s", window.shares_slowed),
            probe(device.foreign_processes),
            over_window("dram_bytes", window.rise),
        )
        return dict(zip(facts, values, strict=True))

    def _read(self, source: Source) -> None:
        clock_s, reading = self._clock(), probe(source.read)
        if isinstance(reading, Unknown):  # A driver that goes away must not end the run.
            self._broken[source.name] = reading.reason
        else:
            self._samples[source].append((clock_s, reading))
