"""This machine's devices: which there are, and at rest before each measurement."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.config import RunConfig
from bench.errors import UserError
from bench.launcher.telemetry import HostSource, Source, device_source
from bench.launcher.watch import WorkerWatch
from bench.records import DeviceInfo, Environment, Machine
from bench.records.folders import RecordFolder, write_atomically
from bench.records.journal import Clock, ignore

#: More than this and something else is at work: percent of the device, or of the whole host.
_IDLE_PERCENT = 10.0
#: A device this near to where it was before the sweep has cooled down.
_COOL_C = 5.0
_POLL_S = 1.0
#: So many readings in a row: one quiet second is no idle machine.
_QUIET_READINGS = 3

_LOADS = ("cpu_utilization_percent", "gpu_utilization_percent")
_TEMPERATURES = ("cpu_temperature_c", "gpu_temperature_c")


def identify_machine(env: str = "auto") -> tuple[Environment, ...]:
    """Return the environment of every device here, the one that `auto` takes first.

    Takes the few seconds of an import of torch. Raises `UserError` where that fails.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = RecordFolder.create(Path(temporary), "machine")
        write_atomically(folder.config, json.dumps({"env": env}))
        watch = WorkerWatch("identify", folder, ignore)
        watch.wait()
        account = folder.read_worker()
        if isinstance(account, Machine):
            return account.environments
        outcome, reason = watch.death()
    if outcome == "interrupted":
        raise KeyboardInterrupt
    raise UserError(f"no worker can start here: {reason}; mlproject doctor says more")


def environment_of(config: RunConfig, environments: tuple[Environment, ...]) -> Environment:
    """Return the environment that `config` is measured on."""
    if config.backend == "auto":
        return environments[0]
    return next(each for each in environments if each.device.backend == config.backend)


class Settler:
    """Waits for a quiet device; a load or temperature that it does not report is not waited for.

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
        """Wait, at most `limit_s`; return what was not quiet when the time was up, or None."""
        deadline_s = self._clock() + limit_s
        quiet = 0
        not_quiet: str | None = "no reading yet"
        while self._clock() < deadline_s:
            not_quiet = self._not_quiet(self._read())
            quiet = 0 if not_quiet else quiet + 1
            if quiet == _QUIET_READINGS:
                return None
            self._sleep(_POLL_S)
        return not_quiet or "not quiet for long enough"

    def _read(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for source in self._sources:
            values |= source.read().values
        return values

    def _not_quiet(self, values: dict[str, float]) -> str | None:
        for name in _LOADS:
            if values.get(name, 0.0) > _IDLE_PERCENT:
                return f"{name} is {values[name]:.0f}"
        for name, at_rest_c in self.at_rest_c.items():
            if values.get(name, at_rest_c) > at_rest_c + _COOL_C:
                return f"{name} is {values[name]:.0f}, at rest it was {at_rest_c:.0f}"
        return None
