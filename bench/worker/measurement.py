"""One measurement, from the configuration in its folder to the worker's account of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

from bench.complexity import DEFAULT_CACHE_BYTES, step_complexity
from bench.config import RunConfig
from bench.devices import Device, open_device
from bench.environment import read_environment
from bench.folders import RecordFolder
from bench.inputs import open_batches
from bench.journal import JournalWriter
from bench.phases import Phases
from bench.precision import open_precision
from bench.records import Complexity, Environment, Measurement, ResolvedConfig, RunRecord
from bench.resolve import resolve
from bench.window import Window
from bench.worker.outcome import attempt, one_line
from bench.worker.prepare import build_step, open_phases, set_switches

T = TypeVar("T")

#: Facts that only the launching process has; it adds them to the worker's account.
LAUNCHERS_FACTS = ("process", "telemetry", "verdict")


def measure(folder: RecordFolder, journal: JournalWriter) -> None:
    """Measure the configuration in `folder` and write `worker.json`, however it ends."""
    config = RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8"))
    created = datetime.now(timezone.utc)
    work = _Work(config, journal)
    outcome, reason = attempt(work.run)
    journal.note("ended", outcome=outcome)
    missing = dict.fromkeys(LAUNCHERS_FACTS, "told by the launching process")
    facts: dict[str, Any] = {
        "reason": reason,
        "resolved": work.resolved,
        "measurement": _or_reason("measurement", work.measurement, missing),
        "environment": _or_reason("environment", lambda: work.environment(folder), missing),
        "complexity": _or_reason("complexity", work.complexity, missing),
    }
    for name, value in facts.items():
        if value is None:
            missing.setdefault(name, "the outcome is ok" if name == "reason" else str(reason))
    record = RunRecord(
        record_id=folder.record_id,
        created=created,
        config=config,
        config_id=config.config_id,
        outcome=outcome,
        missing=missing,
        **facts,
        **dict.fromkeys(LAUNCHERS_FACTS),
    )
    folder.release_reserve()
    folder.write(folder.worker, record)


def _or_reason(name: str, make: Callable[[], T | None], missing: dict[str, str]) -> T | None:
    """Make one fact; if that fails, the others must not be lost with it."""
    try:
        return make()
    except Exception as error:
        missing[name] = one_line(error)
        return None


class _Work:
    """The parts of one measurement, kept where an interrupt or a crash leaves them readable."""

    def __init__(self, config: RunConfig, journal: JournalWriter) -> None:
        self.resolved: ResolvedConfig | None = None
        self._config = config
        self._journal = journal
        self._device: Device | None = None
        self._window: Window | None = None
        self._phases = Phases()
        self._startup_s: dict[str, float] = {}
        self._hidden_syncs: int | None = None

    def run(self) -> None:
        """Prepare, warm up, measure, and probe once more outside the window."""
        config = self._config
        device = self._device = open_device(config.backend)
        self._journal.note("device", backend=device.backend, uuid=device.info().uuid)
        precision = open_precision(config.precision, device)
        precision.apply()
        resolved = self.resolved = resolve(config, device, precision)
        set_switches(config, resolved)
        self._phases = open_phases(config, device, time.perf_counter)
        batches = self._timed("data", lambda: open_batches(config, resolved, device.torch_device))
        try:
            step = self._timed(
                "model", lambda: build_step(config, resolved, device, precision, self._phases)
            )
            window = self._window = Window(time.perf_counter, device)
            next_batch = window.waiting(batches.next)
            self._run_window(lambda: step(next_batch), window, device, resolved)
        finally:
            batches.close()

    def _run_window(
        self, step: Callable[[], Any], window: Window, device: Device, resolved: ResolvedConfig
    ) -> None:
        note = self._journal.note
        device.reset_peak_memory()
        note("warmup_started", iterations=self._config.warmup_iters)
        window.warm_up(step, self._config.warmup_iters, lambda s: note("warmup", seconds=s))
        limit = None if resolved.max_seconds == "none" else resolved.max_seconds
        note("window_started", iterations=self._config.iters, max_seconds=limit)
        window.measure(step, self._config.iters, limit, self._phases)
        note("window_ended")
        self._hidden_syncs = device.hidden_syncs(step)

    def _timed(self, name: str, make: Callable[[], T]) -> T:
        begin = time.perf_counter()
        made = make()
        self._startup_s[name] = time.perf_counter() - begin
        return made

    def measurement(self) -> Measurement | None:
        """Return the window's times, whole or up to where it was cut; None if it never began."""
        if self._window is None or self._device is None or self.resolved is None:
            return None
        return self._window.measurement(
            images_per_iteration=self.resolved.batch_size * self._config.grad_accum_steps,
            compiled=self._config.compile != "none",
            phases=self._phases,
            startup_s=self._startup_s,
            hidden_syncs=self._hidden_syncs,
        )

    def environment(self, folder: RecordFolder) -> Environment | None:
        """Return the machine and software, if a device was opened."""
        if self._device is None:
            return None
        return read_environment(self._device.info(), folder.path, self._config.env)

    def complexity(self) -> Complexity | None:
        """Return what the measured step had to do, if a window was measured."""
        if self.measurement() is None or self.resolved is None or self._device is None:
            return None
        return step_complexity(
            self._config.arch,
            batch_size=self.resolved.batch_size,
            precision=self._config.precision,
            math_mode=self.resolved.math_mode,
            image_size=self.resolved.image_size,
            cache_bytes=self._device.info().last_level_cache_bytes or DEFAULT_CACHE_BYTES,
            fused_optimizer=self.resolved.fused_optimizer,
        )
