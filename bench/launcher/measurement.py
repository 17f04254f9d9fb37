"""Measures in a fresh worker process and makes its account a whole record on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from bench.config import RunConfig
from bench.launcher.exports import write_exports
from bench.launcher.failure import failure_cause
from bench.launcher.watch import RanksWatch, WorkerWatch
from bench.machine.allocator import allocator_settings
from bench.records import (
    LAUNCHER_FACTS,
    CeilingsRecord,
    Outcome,
    ProcessFigures,
    RunRecord,
    Telemetry,
    Verdict,
)
from bench.records.folders import RecordFolder, write_atomically
from bench.records.journal import OnEvent, ignore
from bench.records.verdict.run_verdict import judge, judge_ceilings

R = TypeVar("R", RunRecord, CeilingsRecord)


def launch_measurement(
    config: RunConfig, folder: RecordFolder, on_event: OnEvent = ignore
) -> RunRecord:
    """Measure `config` in a fresh process and leave the record in `folder`.

    Always returns a record that is safe on disk, whatever became of the worker; Ctrl-C ends the
    worker, keeps what it had measured, and gives a record with the outcome `interrupted`.
    """
    folder.claim(os.getpid())  # before the configuration: from then on sync sees the folder
    folder.write(folder.config, config)
    watch = _watch(config, folder, on_event)
    watch.wait()
    record = folder.read_worker()
    if not isinstance(record, RunRecord):
        outcome, reason = watch.death()
        record = unmeasured(config, folder, outcome=outcome, reason=reason, created=watch.started)
    telemetry = watch.window_telemetry(record.measurement)
    return finish_record(folder, record, watch.figures(), telemetry, "no window was measured")


def _watch(config: RunConfig, folder: RecordFolder, on_event: OnEvent) -> WorkerWatch:
    if config.world_size == 1:
        return WorkerWatch("measure", folder, on_event, environment=allocator_settings(config))
    return RanksWatch(config, folder, on_event)


def take_part(config: RunConfig, on_event: OnEvent = ignore) -> tuple[Outcome, str | None]:
    """Run this machine's ranks of a measurement whose record another machine keeps.

    Returns how they ended and, unless it went well, why. Raises `UserError` where nothing can be
    written to the system's temporary folder.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as here:
        folder = RecordFolder.create(Path(here))
        folder.write(folder.config, config)
        watch = RanksWatch(config, folder, on_event)
        watch.wait()
        accounts = folder.read_ranks()
        if len(accounts) == config.devices and all(each.outcome == "ok" for each in accounts):
            return "ok", None
        outcome, reason = watch.death()
        found = unmeasured(config, folder, outcome=outcome, reason=reason, created=watch.started)
        return failure_cause(folder, found)


def launch_ceilings(
    backend: str, folder: RecordFolder, on_event: OnEvent = ignore
) -> CeilingsRecord:
    """Measure the roofs of `backend` in a fresh process and leave the record in `folder`."""
    folder.claim(os.getpid())
    write_atomically(folder.config, json.dumps({"kind": "ceilings", "backend": backend}))
    watch = WorkerWatch("ceilings", folder, on_event)
    watch.wait()
    record = folder.read_worker()
    if not isinstance(record, CeilingsRecord):
        outcome, reason = watch.death()
        record = CeilingsRecord(
            record_id=folder.record_id,
            created=watch.started,
            outcome=outcome,
            reason=reason,
            environment=None,
            ceilings=(),
            samples=(),
            telemetry=None,
            verdict=None,
            missing=dict.fromkeys(("environment", "telemetry", "verdict"), reason),
        )
    return finish_ceilings(folder, record, watch.telemetry_between("device", "ended"))


def unmeasured(config: RunConfig, folder: RecordFolder, **how: Any) -> RunRecord:
    """Return the record of a worker that wrote nothing; `how`: outcome, reason, created."""
    absent = ("resolved", "measurement", "environment", "complexity", *LAUNCHER_FACTS)
    return RunRecord(
        record_id=folder.record_id,
        config=config,
        config_id=config.config_id,
        missing=dict.fromkeys(absent, how["reason"]),
        **how,
        **dict.fromkeys(absent),
    )


def finish_record(
    folder: RecordFolder,
    record: RunRecord,
    process: ProcessFigures | None,
    telemetry: Telemetry | None,
    why_missing: str,
) -> RunRecord:
    """Add what only the launcher knows, judge the whole, and write it with its exports."""
    facts: dict[str, Any] = {"process": process, "telemetry": telemetry}
    if record.outcome != "ok":
        facts["outcome"], facts["reason"] = failure_cause(folder, record)
    whole = _whole(record, facts, why_missing, judge)
    folder.close(whole)
    write_exports(folder, whole)
    return whole


def finish_ceilings(
    folder: RecordFolder, record: CeilingsRecord, telemetry: Telemetry | None
) -> CeilingsRecord:
    """Add what was sampled during it, judge the whole, and write it."""
    why_missing = "the worker did not get that far"
    whole = _whole(record, {"telemetry": telemetry}, why_missing, judge_ceilings)
    folder.close(whole)
    return whole


def _whole(
    record: R, facts: dict[str, Any], why_missing: str, judge_it: Callable[[R], Verdict]
) -> R:
    """The record with the launcher's facts, or why they are missing, and its verdict."""
    missing = {name: why_missing for name, fact in facts.items() if fact is None}
    verdict = judge_it(record.model_copy(update=facts))
    return record.replaced(missing, **facts, verdict=verdict)
