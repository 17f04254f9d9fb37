"""One measurement, from the configuration in its folder to the worker's account of it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import torch

from bench.config import RunConfig
from bench.profilers.fingerprint import work_set
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
from bench.training.fetching import NO_MODEL
from bench.training.team import Team
from bench.worker.outcome import attempt, or_reason
from bench.worker.rig import OpenRig, Rig


def measure(folder: RecordFolder, journal: JournalWriter) -> None:
    """Measure the configuration in `folder` and write `worker.json`, however it ends."""
    config = RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8"))
    created = datetime.now(timezone.utc)
    work = Work(config, journal)
    outcome, reason = attempt(work.run)
    journal.note("ended", outcome=outcome)
    write_account(folder, work, created, outcome, reason)


def write_account(
    folder: RecordFolder, work: Work, created: datetime, outcome: Outcome, reason: str | None
) -> None:
    """Write `worker.json`: what was measured, however far it came."""
    missing = dict.fromkeys(LAUNCHER_FACTS, "told by the launching process")
    facts: dict[str, Any] = {
        "reason": reason,
        "resolved": work.rig.resolved,
        "measurement": or_reason("measurement", work.measurement, missing),
        "environment": or_reason("environment", lambda: work.rig.environment(folder), missing),
        "complexity": or_reason("complexity", work.complexity, missing),
    }
    if work.rig.config.data_only:
        missing["complexity"] = NO_MODEL
    for name, value in facts.items():
        if value is None:
            missing.setdefault(name, "the outcome is ok" if name == "reason" else str(reason))
    record = RunRecord(
        record_id=folder.record_id,
        created=created,
        config=work.rig.config,
        config_id=work.rig.config.config_id,
        outcome=outcome,
        missing=missing,
        **facts,
        **dict.fromkeys(LAUNCHER_FACTS),
    )
    folder.release_reserve()
    folder.write(folder.worker, record)


class Work:
    """One measurement, kept where an interrupt or a crash leaves its parts readable."""

    ranks: DistributedFigures | None = None

    def __init__(self, config: RunConfig, journal: JournalWriter, team: Team | None = None) -> None:
        self.rig = Rig(config, journal, team)
        self._hidden_syncs: int | None = None
        self._work: WorkSet | None = None

    def run(self) -> None:
        """Prepare, warm up, measure; probe outside the window what a step launches and waits for.

        What a profiler leaves in the process must not enter the window: where it leaves nothing,
        the last warm-up iteration is looked at, else one more after the window. The first
        iteration is like no other: it makes gradients and momentum.
        """
        with self.rig.opened() as rig:

            def looked_at() -> torch.Tensor:
                loss = torch.empty(0)

                def once() -> None:
                    nonlocal loss
                    loss = rig.step()

                self._work = work_set(once, rig.device)
                return loss

            if rig.config.data_only:  # nothing to look into
                rig.warm_up()
                rig.measure()
                return
            look_before = not rig.device.profiler_stays and rig.config.warmup_iters > 1
            rig.warm_up(looked_at if look_before else None)
            rig.measure()
            self._hidden_syncs = rig.device.hidden_syncs(rig.step)
            if not look_before:
                looked_at()
            self.compare(rig)

    def compare(self, rig: OpenRig) -> None:
        """Compare notes with other processes; one alone has none to compare with."""

    def measurement(self) -> Measurement | None:
        """Return the window's times, whole or up to where it was cut; None if it never began."""
        rig = self.rig.ready
        if rig is None:
            return None
        batches = rig.config.grad_accum_steps * rig.config.world_size
        return rig.window.measurement(
            images_per_iteration=rig.resolved.batch_size * batches,
            compiled=rig.config.compile != "none",
            phases=rig.phases,
            startup_s=self.rig.startup_s,
            hidden_syncs=self._hidden_syncs,
            work=self._work,
            ranks=self.ranks,
            no_model=NO_MODEL if rig.config.data_only else None,
        )

    def complexity(self) -> Complexity | None:
        """Return what the measured step had to do, if a window was measured and a model ran."""
        if self.rig.config.data_only:
            return None
        return self.rig.complexity() if self.measurement() is not None else None
