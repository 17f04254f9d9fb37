"""One measurement, from the configuration in its folder to the worker's account of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial

from bench.config import RunConfig
from bench.profilers.ops.torch_profiler import work_set
from bench.records import (
    LAUNCHER_FACTS,
    Complexity,
    DistributedFigures,
    Measurement,
    Outcome,
    RunRecord,
    WorkSet,
)
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device
from bench.training.step import NO_MODEL
from bench.training.team import Team
from bench.training.window import Step
from bench.worker.outcome import attempt, or_reason
from bench.worker.step_setup import ReadyStep, StepSetup


def measure_for_launcher(folder: RecordFolder, journal: JournalWriter) -> None:
    """Measure; the warm-up waits for a launcher that is at work until it closes our input."""
    measure(folder, journal, before_warm_up=sys.stdin.buffer.read)


def measure(
    folder: RecordFolder,
    journal: JournalWriter,
    *,
    before_warm_up: Callable[[], object] | None = None,
) -> None:
    """Measure the configuration in `folder` and write `worker.json`, however it ends."""
    config = RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8"))
    measurement = WorkerMeasurement(config, journal, before_warm_up=before_warm_up)
    outcome, reason = attempt(measurement.run)
    journal.note("ended", outcome=outcome)
    write_account(folder, measurement, outcome, reason)


def write_account(
    folder: RecordFolder,
    measurement: WorkerMeasurement,
    outcome: Outcome,
    reason: str | None,
) -> None:
    """Write `worker.json`: what was measured up to where it ended."""
    setup = measurement.setup
    why = dict.fromkeys(LAUNCHER_FACTS, "known to the launching process")
    if setup.config.data_only:
        why["complexity"] = NO_MODEL
    record = RunRecord.of(
        reason or "the outcome is ok",
        why,
        record_id=folder.record_id,
        created=measurement.created,
        config=setup.config,
        config_id=setup.config.config_id,
        outcome=outcome,
        reason=reason,
        resolved=setup.resolved,
        measurement=or_reason("measurement", measurement.measurement, why),
        environment=or_reason("environment", lambda: setup.environment(folder), why),
        complexity=or_reason("complexity", measurement.complexity, why),
    )
    folder.release_reserve()
    folder.write(folder.worker, record)


class WorkerMeasurement:
    """One measurement, kept where an interrupt or a crash leaves its parts readable."""

    ranks: DistributedFigures | None = None

    def __init__(
        self,
        config: RunConfig,
        journal: JournalWriter,
        team: Team | None = None,
        *,
        before_warm_up: Callable[[], object] | None = None,
    ) -> None:
        self.created = datetime.now(timezone.utc)
        self._before_warm_up = before_warm_up
        self.setup = StepSetup(config, journal, team)
        self._whole: Measurement | None = None  # as the window left it
        self._hidden_syncs: int | None = None
        self._work: WorkSet | None = None
        self._why: dict[str, str] = {}  # of a probe that failed

    def run(self) -> None:
        """Prepare, warm up, measure; count outside the window what a step launches and waits for.

        What a profiler leaves in the process must not enter the window: where it leaves nothing,
        the last warm-up iteration is profiled, else one more after the window. The first iteration
        is like no other: it makes gradients and momentum. Nor is the second of several ranks, in
        which DistributedDataParallel orders its buckets, and which may be the last.

        A probe that fails leaves its fact missing: it does not decide how the run ended.
        """
        with self.setup.opened() as ready:
            has_model = not ready.config.data_only
            in_warm_up = (
                has_model
                and ready.config.warmup_iters > 1
                and ready.config.world_size == 1
                and not ready.device.profiler_stays
            )
            profile = partial(self._profile, ready.device)
            ready.journal.note("notice", text=str(ready.limits))
            if self._before_warm_up is not None:
                self._before_warm_up()
            ready.warm_up(last=profile if in_warm_up else None)
            ready.measure()
            self._whole = self.measurement()
            if has_model:
                self._look_into_step(
                    ready, {} if in_warm_up else {"work": lambda: profile(ready.step)}
                )

    def _look_into_step(self, ready: ReadyStep, work: Mapping[str, Callable[[], None]]) -> None:
        """Look into the step after the window; after a failure ranks are no longer in step."""

        def count_syncs() -> None:
            self._hidden_syncs = ready.device.hidden_syncs(ready.step)

        compare = {"ranks": lambda: self.compare_ranks(ready)}
        for name, probe in {"hidden_syncs": count_syncs, **work, **compare}.items():
            if not self._why or ready.config.world_size == 1:
                or_reason(name, probe, self._why)

    def _profile(self, device: Device, step: Step) -> None:
        """Run one step and keep what it launched; raises what the step raises without a profiler.

        The step runs in any case: it may be one of the warm-up, or of several ranks.
        """
        ran = False

        def once() -> None:
            nonlocal ran
            step()
            ran = True

        self._work = or_reason("work", lambda: work_set(once, device), self._why)
        if not ran:
            step()

    def compare_ranks(self, ready: ReadyStep) -> None:
        """Collect what the other ranks measured; a single process has no others."""

    def measurement(self) -> Measurement | None:
        """Return the window's times, whole or up to where it was cut; None if it never began."""
        ready = self.setup.ready
        if ready is None:
            return None
        if self._whole is not None:
            probed = {"hidden_syncs": self._hidden_syncs, "work": self._work, "ranks": self.ranks}
            known = {name: fact for name, fact in probed.items() if fact is not None}
            return self._whole.replaced(self._why, **known)
        config = ready.config
        batches = config.grad_accum_steps * config.world_size
        return ready.window.measurement(
            samples_per_iteration=ready.resolved.batch_size * batches,
            compiled=config.compile != "none",
            startup_s=self.setup.startup_s,
            changed_switches=self.setup.changed_switches(),
            hidden_syncs=None,
            work=self._work,
            ranks=None,
            no_model=NO_MODEL if config.data_only else None,
        )

    def complexity(self) -> Complexity | None:
        """Return what the measured step had to do, if a window was measured and a model ran."""
        if self.setup.config.data_only:
            return None
        return self.setup.complexity() if self.measurement() is not None else None
