"""Measures in a fresh worker process and makes a record on disk of what the worker saw."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from bench.config import RunConfig
from bench.errors import Unknown
from bench.launcher.device_lock import crowding
from bench.launcher.watch import WorkerWatch
from bench.records import (
    Account,
    CeilingsRecord,
    Facts,
    Job,
    KernelTotals,
    OpTime,
    Outcome,
    ProcessFigures,
    ProfileRecord,
    RunRecord,
    Telemetry,
)
from bench.records.folders import RecordFolder, write_atomically
from bench.records.job import RankAccount
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
    job = Job(config=config)
    folder.write(folder.config, job)
    if crowded := crowding(config):
        refused, why = Account.of_none("unsupported", crowded), Unknown(crowded)
        return finish_run(folder, config, datetime.now(timezone.utc), refused, why, why)
    prepares = while_preparing if config.world_size == 1 else None
    watch = WorkerWatch(job, folder, on_event, while_preparing=prepares)
    account = watch.wait()
    telemetry = watch.window_telemetry(account.measurement)
    return finish_run(folder, config, watch.started, account, watch.figures(), telemetry)


def take_part(config: RunConfig, on_event: OnEvent = ignore) -> tuple[Outcome, str | None]:
    """Run this machine's ranks of a measurement whose record another machine keeps.

    Returns how they ended and, unless it went well, why. Raises `UserError` where nothing can be
    written to the system's temporary folder.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as here:
        folder, job = RecordFolder.create(Path(here)), Job(config=config)
        folder.write(folder.config, job)
        ended = WorkerWatch(job, folder, on_event).wait()
        ranks = folder.read_ranks()
        if len(ranks) == config.devices and all(each.outcome == "ok" for each in ranks):
            return "ok", None
        return failure_cause(folder, ended.outcome, ended.reason, config.world_size)


def launch_ceilings(
    backend: str, folder: RecordFolder, on_event: OnEvent = ignore
) -> CeilingsRecord:
    """Measure the roofs of `backend` in a fresh process and leave the record in `folder`."""
    folder.claim(os.getpid())
    job = Job(kind="ceilings", config=RunConfig.model_validate({"backend": backend}))
    folder.write(folder.config, job)
    watch = WorkerWatch(job, folder, on_event)
    account = watch.wait()
    telemetry = watch.telemetry_between("device", "ended")
    return finish_roofs(folder, watch.started, account, telemetry, datetime.now(timezone.utc))


def finish_run(
    folder: RecordFolder,
    config: RunConfig,
    created: datetime,
    account: Account,
    process: ProcessFigures | Unknown,
    telemetry: Telemetry | Unknown,
) -> RunRecord:
    """Write the record of a measurement, with its exports, and return it."""
    outcome, reason = failure_cause(folder, account.outcome, account.reason, config.world_size)
    parts = ("resolved", "measurement", "environment", "complexity", "ops", "script")
    record = RunRecord.of(
        reason or "the outcome is ok",
        account.missing,
        record_id=folder.record_id,
        created=created,
        config=config,
        config_id=config.config_id,
        outcome=outcome,
        reason=reason,
        process=process,
        telemetry=telemetry,
        **{name: getattr(account, name) for name in parts},
    )
    whole = _closed(folder, record)
    write_exports(folder, whole)
    return whole


def finish_roofs(
    folder: RecordFolder,
    created: datetime,
    account: Account,
    telemetry: Telemetry | Unknown,
    ended: datetime | Unknown,
) -> CeilingsRecord:
    """Write the record of measured roofs and return it."""
    parts = ("outcome", "reason", "environment", "ceilings", "samples", "cache_roofs")
    record = CeilingsRecord.of(
        account.reason or "the outcome is ok",
        account.missing,
        record_id=folder.record_id,
        created=created,
        telemetry=telemetry,
        ended=ended,
        **{name: getattr(account, name) for name in parts},
    )
    return _closed(folder, record)


def _closed(folder: RecordFolder, record: R) -> R:
    return folder.close(record.replaced(verdict=judge(record)))


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
Table = tuple[str, list[str], list[list[Any]]]


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
        times_s = measurement.iteration_times_s
        waits_s: Sequence[Any] = measurement.data_wait_s or [None] * len(times_s)
        columns = [times_s, waits_s, *phases.values()]
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
    """One row per op or kernel, a column per field; what is missing is an empty cell."""
    tables: tuple[tuple[str, type[Facts], Sequence[Facts] | None], ...] = (
        ("ops.csv", OpTime, record.ops.ops if record.ops else None),
        ("kernels.csv", KernelTotals, record.counters.per_kernel if record.counters else None),
    )
    for name, kind, facts in tables:
        header = [field for field in kind.model_fields if field != "missing"]
        if facts is not None:
            yield name, header, [[getattr(each, field) for field in header] for each in facts]
