"""This machine's devices: which there are, and at rest before each measurement."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.config import RunConfig, TimeLimits
from bench.errors import UserError
from bench.launcher.telemetry import Source
from bench.launcher.telemetry.devices import HostSource, device_source
from bench.launcher.watch import WorkerWatch
from bench.records import Environment, Job, RunRecord
from bench.records.environment import environment_id
from bench.records.folders import RecordFolder
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
        job = Job(kind="machine", config=RunConfig(env=env))
        folder.write(folder.config, job)
        account = WorkerWatch(job, folder, ignore).wait()
    if account.outcome == "ok":
        return account.environments
    if account.outcome == "interrupted":
        raise KeyboardInterrupt
    raise UserError(f"no worker can start here: {account.reason}; mlproject doctor says more")


def environment_of(config: RunConfig, environments: tuple[Environment, ...]) -> Environment:
    """Return the environment that `config` is measured on."""
    if config.backend == "auto":
        return environments[0]
    return next(
        environment for environment in environments if environment.device.backend == config.backend
    )


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
    def of_device(
        cls, backend: str, uuid: str | None, at_rest_c: Mapping[str, float] | None = None
    ) -> Settler:
        """Return a settler of the host and of a device."""
        here = os.getpid()
        sources = [HostSource(here), device_source(backend, uuid, here)]
        return cls(sources, at_rest_c=at_rest_c)

    def settle(self, limit_s: float) -> bool:
        """Wait, at most `limit_s`; return whether the device was quiet before the time was up."""
        deadline_s = self._clock() + limit_s
        quiet = 0
        while self._clock() < deadline_s:
            quiet = quiet + 1 if self._is_quiet(self._read()) else 0
            if quiet == _QUIET_READINGS:
                return True
            self._sleep(_POLL_S)
        return False

    def _read(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for source in self._sources:
            values |= source.read().known
        return values

    def _is_quiet(self, values: dict[str, float]) -> bool:
        idle = all(values.get(name, 0.0) <= _IDLE_PERCENT for name in _LOADS)
        return idle and all(
            values.get(name, at_rest_c) <= at_rest_c + _COOL_C
            for name, at_rest_c in self.at_rest_c.items()
        )


#: FLOP of one sample's training step of a model, or None where it is unknown.
FlopsPerSample = Callable[[RunConfig], float | None]


class _Measured(NamedTuple):
    record: RunRecord
    environment: str
    whole_s: float  # from the worker's start to its end
    sample_s: float
    rest_s: float  # what is neither warm-up nor window


class Durations:
    """What those of `records` took that were measured whole."""

    def __init__(self, records: Iterable[RunRecord], flops_per_sample: FlopsPerSample) -> None:
        self._known = [measured for record in records if (measured := _measured(record))]
        self._flops_per_sample = flops_per_sample

    def of_all(
        self, runs: Sequence[RunConfig], environments: tuple[Environment, ...]
    ) -> tuple[float, int]:
        """Return the seconds of the runs whose time is known, and the number of the others."""
        times = [self.of(config, environment_of(config, environments)) for config in runs]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known), len(times) - len(known)

    def of(self, config: RunConfig, environment: Environment) -> float | None:
        """Return the seconds that a run of `config` will take, or None where it is unknown."""
        here, config_id = environment_id(environment), config.config_id
        alike = [past for past in self._known if past.environment == here]
        exact = [past.whole_s for past in alike if past.record.config_id == config_id]
        if exact:
            return median(exact)
        alike = [
            past for past in alike if _same(past.record.config, config, "precision", "data_only")
        ]
        if not alike or config.batch_size == "auto":
            return None
        sample_s = self._sample_s(config, alike)
        if sample_s is None:
            return None
        batch_s = sample_s * config.batch_size * config.grad_accum_steps * config.world_size
        limits = TimeLimits.of(config, environment.device.backend)
        measured_s = limits.expected_warmup_s(batch_s) + limits.expected_window_s(batch_s)
        return measured_s + median(past.rest_s for past in alike)

    def _sample_s(self, config: RunConfig, alike: Sequence[_Measured]) -> float | None:
        names = ("arch", "image_size", "seq_len")
        same = [past.sample_s for past in alike if _same(past.record.config, config, *names)]
        if same:
            return median(same)
        flops = self._flops_per_sample(config)
        paces = [
            past.sample_s / past.record.complexity.step_flops_per_sample
            for past in alike
            if past.record.complexity is not None
        ]
        return flops * median(paces) if flops and paces else None


def _same(one: RunConfig, other: RunConfig, *names: str) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _measured(record: RunRecord) -> _Measured | None:
    measured, process = record.measurement, record.process
    if record.outcome != "ok" or measured is None or process is None or not record.environment:
        return None
    inside_s = measured.window_s + sum(measured.warmup_times_s)
    return _Measured(
        record,
        environment_id(record.environment),
        process.real_s,
        measured.window_s / measured.samples,
        max(0.0, process.real_s - inside_s),
    )
