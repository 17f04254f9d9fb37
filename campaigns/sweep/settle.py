"""A pause until the device is idle and has cooled down, between one run and the next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from bench.launcher.telemetry import HostSource, Source, device_source
from bench.machine.identity import environment_id
from bench.records import DeviceInfo, Environment
from bench.records.journal import Clock

#: More than this and something else is at work: percent of the device, or of the whole host.
_IDLE_PERCENT = 10.0
#: A device this near to where it was before the sweep has cooled down.
_COOL_C = 5.0
_POLL_S = 1.0
#: So many readings in a row: one quiet second is no idle machine.
_QUIET_READINGS = 3

_LOADS = ("cpu_utilization_percent", "gpu_utilization_percent")
_TEMPERATURES = ("cpu_temperature_c", "gpu_temperature_c")


class Settler:
    """Waits for a quiet device; what a device cannot tell is not waited for.

    `at_rest_c` are the temperatures to come back to; by default those of now.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        at_rest_c: Mapping[str, float] | None = None,
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._sleep = sleep
        values = self._read()
        now_c = {name: values[name] for name in _TEMPERATURES if name in values}
        self.at_rest_c = now_c if at_rest_c is None else dict(at_rest_c)

    @classmethod
    def of_device(cls, device: DeviceInfo, at_rest_c: Mapping[str, float] | None = None) -> Settler:
        """Return a settler of the host and of `device`."""
        here = os.getpid()
        sources = [HostSource(here), device_source(device.backend, device.uuid, here)]
        return cls(sources, at_rest_c=at_rest_c)

    def settle(self, limit_s: float) -> str | None:
        """Wait, at most `limit_s`; return what was still amiss when the time was up, or None."""
        deadline_s = self._clock() + limit_s
        quiet = 0
        amiss: str | None = "no reading yet"
        while self._clock() < deadline_s:
            amiss = self._amiss(self._read())
            quiet = 0 if amiss else quiet + 1
            if quiet == _QUIET_READINGS:
                return None
            self._sleep(_POLL_S)
        return amiss or "not quiet for long enough"

    def _read(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for source in self._sources:
            values |= source.read().values
        return values

    def _amiss(self, values: dict[str, float]) -> str | None:
        for name in _LOADS:
            if values.get(name, 0.0) > _IDLE_PERCENT:
                return f"{name} is {values[name]:.0f}"
        for name, at_rest_c in self.at_rest_c.items():
            if values.get(name, at_rest_c) > at_rest_c + _COOL_C:
                return f"{name} is {values[name]:.0f}, at rest it was {at_rest_c:.0f}"
        return None


class Settlers:
    """A settler per environment of a sweep, made before its first run; `limit_s` 0 never waits."""

    def __init__(self, environments: Sequence[Environment], limit_s: float) -> None:
        self._limit_s = limit_s
        self._settlers = {
            environment_id(each): Settler.of_device(each.device)
            for each in (environments if limit_s else ())
        }

    def settle(self, environment: Environment) -> None:
        """Wait until the environment's device is quiet, or the time is up."""
        if self._limit_s:
            self._settlers[environment_id(environment)].settle(self._limit_s)
