"""One configuration opened on its device: all that a step needs, and what is known of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from bench.config import RunConfig
from bench.cost import DEFAULT_CACHE_BYTES, StepSpec
from bench.cost.remembered import remembered_complexity
from bench.machine import read_environment
from bench.records import Complexity, Environment, ResolvedConfig
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device
from bench.training.inputs import open_batches
from bench.training.phases import Phases
from bench.training.precision import open_precision
from bench.training.resolve import resolve
from bench.training.team import Team
from bench.training.window import Step, Window
from bench.worker.prepare import build_step, open_phases, set_switches

T = TypeVar("T")


@dataclass(frozen=True)
class OpenRig:
    """A configuration whose step is ready to run."""

    config: RunConfig
    resolved: ResolvedConfig
    device: Device
    phases: Phases
    window: Window
    team: Team
    step: Step
    journal: JournalWriter

    def warm_up(self, last: Step | None = None) -> None:
        """Run the warm-up; its last iteration is `last`, where that is given."""
        iterations = self.config.warmup_iters
        self.journal.note("warmup_started", iterations=iterations)

        def on_lap(seconds: float) -> None:
            self.journal.note("warmup", seconds=seconds)

        self.window.warm_up(self.step, iterations - (last is not None), on_lap)
        if last is not None:
            self.window.warm_up(last, 1, on_lap)

    def measure(self) -> None:
        """Run the measured window."""
        limit_s = None if self.resolved.max_seconds == "none" else self.resolved.max_seconds
        plan = self.team.plan(self.config.iters, limit_s, self.window.warmup_times_s)
        self.journal.note("window_started", iterations=plan.iterations, max_seconds=limit_s)
        self.window.measure(self.step, plan.iterations, plan.max_seconds, self.phases)
        self.window.ended_early = self.window.ended_early or plan.ended_early
        self.journal.note("window_ended")

    def spec(self) -> StepSpec:
        """Return what decides the cost of the step, for `bench.cost`."""
        return _spec(self.config, self.resolved)


class Rig:
    """A configuration on its way to a step; what it has reached stays readable if it is cut."""

    def __init__(self, config: RunConfig, journal: JournalWriter, team: Team | None = None) -> None:
        self.config = config
        self._team = team or Team()
        self.resolved: ResolvedConfig | None = None
        self.ready: OpenRig | None = None
        self.startup_s: dict[str, float] = {}
        self._device: Device | None = None
        self._journal = journal

    @contextmanager
    def opened(self) -> Iterator[OpenRig]:
        """Open device, data and model; end the loader processes afterwards."""
        config, team = self.config, self._team
        device = self._device = team.open_device(config)
        self._journal.note("device", backend=device.backend, uuid=device.info().uuid)
        precision = open_precision(config.precision, device)
        precision.apply()
        resolved = self.resolved = resolve(config, device, precision)
        set_switches(config, resolved)
        phases = open_phases(config, device, time.perf_counter)
        batches = self._timed(
            "data", lambda: open_batches(config, resolved, device.torch_device, team.shard)
        )
        try:
            step, self.resolved = self._timed(
                "model", lambda: build_step(config, resolved, device, precision, phases, team)
            )
            window = Window(time.perf_counter, device, team.barrier)
            next_batch = window.waiting(batches.next)
            device.reset_peak_memory()
            self.ready = OpenRig(
                config,
                self.resolved,
                device,
                phases,
                window,
                team,
                team.in_step(lambda: step(next_batch)),
                self._journal,
            )
            yield self.ready
        finally:
            batches.close()

    def environment(self, folder: RecordFolder) -> Environment | None:
        """Return the machine and software, if a device was opened."""
        if self._device is None:
            return None
        return read_environment(self._device.info(), folder.path, self.config.env)

    def complexity(self) -> Complexity | None:
        """Return what a step has to do, if the configuration was resolved on a device."""
        if self.resolved is None or self._device is None:
            return None
        return remembered_complexity(
            _spec(self.config, self.resolved),
            cache_bytes=self._device.info().last_level_cache_bytes or DEFAULT_CACHE_BYTES,
        )

    def _timed(self, name: str, make: Callable[[], T]) -> T:
        begin = time.perf_counter()
        made = make()
        self.startup_s[name] = time.perf_counter() - begin
        return made


def _spec(config: RunConfig, resolved: ResolvedConfig) -> StepSpec:
    return StepSpec(
        config.arch,
        batch_size=resolved.batch_size,
        precision=config.precision,
        image_size=resolved.image_size,
        math_mode=resolved.math_mode,
        fused_optimizer=resolved.fused_optimizer,
        depthwise_fp32=resolved.depthwise_fp32,
    )
