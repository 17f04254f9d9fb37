"""Samples all sources from the launching process's own loop while the worker measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from bench.launcher.telemetry.base import Source
from bench.launcher.telemetry.window import Sample, Span, energy_j, series_of, throttle_share
from bench.machine.probes import UnknownFactError, gather, reason_of
from bench.records import Series, Telemetry
from bench.records.journal import Clock


class Sampler:
    """Keeps samples from the worker's start to its end; the window is cut out afterwards.

    Needs no thread: the loop that waits for the worker calls `sample` as often as it likes.
    `clock` must be the one that the window's ends are told in.
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
        device = next((source for source in self._samples if source.measures_device), None)
        facts = gather(
            {
                "energy_j": self._fact(device, "energy_j", energy_j, span),
                "throttle_share": self._fact(device, "throttle_share", throttle_share, span),
                "foreign_processes": lambda: _foreign_processes(device),
            }
        )
        return Telemetry(
            interval_s=self._interval_s,
            series=tuple(series),
            missing=self._missing(series) | facts.missing,
            **facts.values,
        )

    def _read(self, source: Source) -> None:
        clock_s = self._clock()
        try:
            self._samples[source].append(Sample(clock_s, source.read()))
        except Exception as error:  # A driver that goes away must not end the run.
            source.missing[source.name] = reason_of(error)

    def _fact(
        self,
        device: Source | None,
        name: str,
        cut: Callable[[list[Sample], Span], object],
        span: Span,
    ) -> Callable[[], object]:
        """The device's fact; where it cannot be cut, the source's own reason comes first."""

        def probe() -> object:
            if device is None:
                raise UnknownFactError(_NO_DEVICE)
            try:
                return cut(self._samples[device], span)
            except UnknownFactError as error:
                raise UnknownFactError(device.missing.get(name, str(error))) from None

        return probe

    def _missing(self, series: list[Series]) -> dict[str, str]:
        """Reasons of quantities without a sample in the window."""
        seen = {one.name for one in series} | _FACTS
        reasons: dict[str, str] = {}
        for source, samples in self._samples.items():
            reasons |= {
                name: "no sample fell in the window"
                for one in samples
                for name in one.reading.values
            }
            reasons |= source.missing
        return {name: reason for name, reason in reasons.items() if name not in seen}


_NO_DEVICE = "the worker never told which device it uses"
_FACTS = {"energy_j", "throttle_share", "foreign_processes"}


def _foreign_processes(device: Source | None) -> tuple[str, ...]:
    if device is None:
        raise UnknownFactError(_NO_DEVICE)
    processes = device.foreign_processes()
    if processes is None:
        raise UnknownFactError(device.missing.get("foreign_processes", "the device does not tell"))
    return processes
