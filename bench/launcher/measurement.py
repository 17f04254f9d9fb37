"""Measures in a fresh worker process and makes its account a whole record on disk."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bench.config import RunConfig
from bench.launcher.device_lock import crowding
from bench.launcher.watch import RanksWatch, WorkerWatch
from bench.machine.limits import allocator_settings
from bench.records import (
    CeilingsRecord,
    Facts,
    KernelTotals,
    OpTime,
    Outcome,
    ProcessFigures,
    ProfileRecord,
    RankAccount,
    RunRecord,
    Telemetry,
)
from bench.records.folders import RecordFolder, write_atomically
from bench.records.journal import OnEvent, ignore
from bench.records.run_verdict import judge

R = TypeVar("R", RunRecord, CeilingsRecord)


def launch_measurement(
    config: RunConfig,
    folder: RecordFolder,
    on_event: OnEvent = ignore,
    *,
    while_preparing: Callable[[], object] | None = None,
) -> RunRecord:
    """Measure `config` in a fresh process and leave the record in `folder`.

    `while_preparing` is called in a thread while a worker on one device imports and prepares; its
    warm-up begins once that has returned. It must not raise. With several devices it is not called.

    Always returns a record that is safe on disk, whatever became of the worker; Ctrl-C ends the
    worker, keeps what it had measured, and gives a record with the outcome `interrupted`.
    """
    folder.claim(os.getpid())  # before the configuration: from then on sync sees the folder
    folder.write(folder.config, config)
    if crowded := crowding(config):
        refused = unmeasured(config, folder, "unsupported", crowded, datetime.now(timezone.utc))
        return finish(folder, refused, crowded)
    if config.world_size == 1:
        environment = allocator_settings(config)
        watch = WorkerWatch(
            "measure", folder, on_event, environment=environment, while_preparing=while_preparing
        )
    else:
        watch = RanksWatch(config, folder, on_event)
    watch.wait()
    record = folder.read_worker()
    if not isinstance(record, RunRecord):
        record = unmeasured(config, folder, *watch.death(), watch.started)
    telemetry = watch.window_telemetry(record.measurement)
    return finish(
        folder, record, "no window was measured", process=watch.figures(), telemetry=telemetry
    )


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
        return failure_cause(folder, *watch.death(), config.world_size)


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
        record = CeilingsRecord.of(
            reason,
            record_id=folder.record_id,
            created=watch.started,
            outcome=outcome,
            reason=reason,
            ceilings=(),
            samples=(),
        )
    telemetry = watch.telemetry_between("device", "ended")
    return finish(folder, record, "the worker did not get that far", telemetry=telemetry)


def unmeasured(
    config: RunConfig, folder: RecordFolder, outcome: Outcome, reason: str, created: datetime
) -> RunRecord:
    """Return the record of a worker that wrote nothing."""
    return RunRecord.of(
        reason,
        record_id=folder.record_id,
        created=created,
        config=config,
        config_id=config.config_id,
        outcome=outcome,
        reason=reason,
    )


def finish(
    folder: RecordFolder,
    record: R,
    why_missing: str,
    **facts: Telemetry | ProcessFigures | Outcome | str | None,
) -> R:
    """Add what only the launcher knows, judge the whole, and write it with its exports."""
    if isinstance(record, RunRecord) and record.outcome != "ok":
        ranks = record.config.world_size
        facts["outcome"], facts["reason"] = failure_cause(
            folder, record.outcome, record.reason, ranks
        )
    missing = {name: why_missing for name, fact in facts.items() if fact is None}
    verdict = judge(record.model_copy(update=facts))
    whole = record.replaced(missing, **facts, verdict=verdict)
    folder.close(whole)
    if isinstance(whole, RunRecord):
        write_exports(folder, whole)
    return whole


def failure_cause(
    folder: RecordFolder, outcome: Outcome, reason: str | None, ranks: int
) -> tuple[Outcome, str | None]:
    """Return the outcome and the reason of the rank, of so many, that failed first.

    When one rank ends, the others lose their connection to it, and rank 0 reports only that. Work
    on one device, or work that went well, keeps its own `outcome` and `reason`.
    """
    failed = [account for account in folder.read_ranks() if account.outcome != "ok"]
    if outcome == "ok" or not failed:
        return outcome, reason
    first = min(failed, key=_precedence)
    alike = all(account.reason == first.reason for account in failed)
    together = alike and len(failed) == ranks
    return first.outcome, first.reason if together else f"rank {first.rank}: {first.reason}"


def _precedence(account: RankAccount) -> tuple[int, float]:
    """Ranks that failed by themselves, then those killed, and last those that lost the others.

    A killed rank comes second, since a rank may abort over the loss of another. An interrupt is
    how the elastic launcher ends the ranks that have not failed.
    """
    if account.outcome == "interrupted":
        return 2, account.ended_unix_s
    return {"own": 0, "killed": 1, "lost": 3}[account.cause], account.ended_unix_s


#: The file's name, its header and its rows.
Table = tuple[str, list[str], list[list[object]]]


def write_exports(folder: RecordFolder, record: RunRecord | ProfileRecord) -> None:
    """Write the tables of what the record holds, and `environment.json`.

    Of a run `iterations.csv` and `telemetry.csv`, of a profile `ops.csv` and `kernels.csv`.
    """
    tables = _of_run(record) if isinstance(record, RunRecord) else _of_profile(record)
    for name, header, rows in tables:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *rows])
        write_atomically(folder.path / name, text.getvalue())
    if record.environment is not None:
        folder.write(folder.path / "environment.json", record.environment)


def _of_run(record: RunRecord) -> Iterator[Table]:
    if (measurement := record.measurement) is not None:
        phases = measurement.phase_times_s or {}  # if they were timed
        header = ["iteration", "iteration_time_s", "data_wait_s", *(f"{name}_s" for name in phases)]
        columns = [measurement.iteration_times_s, measurement.data_wait_s, *phases.values()]
        rows = [[step, *values] for step, values in enumerate(zip(*columns, strict=True))]
        yield "iterations.csv", header, rows
    if record.telemetry is not None and record.telemetry.series:
        samples = [
            [time_s, series.name, value, series.source]
            for series in record.telemetry.series
            for time_s, value in zip(series.times_s, series.values, strict=True)
        ]
        yield "telemetry.csv", ["time_s", "series", "value", "source"], samples


def _of_profile(record: ProfileRecord) -> Iterator[Table]:
    if record.ops is not None:
        yield "ops.csv", *_columns(OpTime, record.ops.ops)
    if record.counters is not None:
        yield "kernels.csv", *_columns(KernelTotals, record.counters.per_kernel)


def _columns(kind: type[Facts], facts: Sequence[Facts]) -> tuple[list[str], list[list[object]]]:
    """One row per record, a column per field; what is missing is an empty cell."""
    header = [name for name in kind.model_fields if name != "missing"]
    return header, [[getattr(each, name) for name in header] for each in facts]
