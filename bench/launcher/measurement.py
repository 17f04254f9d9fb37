"""Measures in a fresh worker, or in a script of others, and makes a record of what it saw.

`measure` and `measure_roofs` are for Python: what `mlproject run` and `mlproject ceilings` do,
without the upload.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from bench.config import RunConfig
from bench.config.run_config import node_rank
from bench.errors import Unknown, UnsupportedError, UserError
from bench.launcher.device_lock import crowding, device_names, exclusive
from bench.launcher.rank_steps import with_ranks
from bench.launcher.watch import ScriptWatch, WorkerWatch
from bench.machine import value_or_none
from bench.machine.cpu import cpu_model, cpu_signature
from bench.machine.gpu_drivers import device_uuid, management_facts
from bench.records import (
    Account,
    CeilingsRecord,
    CounterCheck,
    DeviceInfo,
    Facts,
    Job,
    KernelTotals,
    OpTime,
    Outcome,
    ProfileRecord,
    RunRecord,
    Telemetry,
)
from bench.records.environment import instruction_limits, same_power_limit
from bench.records.folders import (
    DEFAULT_RECORDS,
    MeasuredRecord,
    RecordFolder,
    readable_records,
    write_atomically,
)
from bench.records.journal import OnEvent, ignore, steps_of_rank
from bench.records.measurement import RankAccount
from bench.records.slow_rank import rank_rows
from bench.records.verdict import judge

R = TypeVar("R", RunRecord, CeilingsRecord, ProfileRecord)


def launch_measurement(
    config: RunConfig,
    folder: RecordFolder,
    on_event: OnEvent = ignore,
    *,
    while_preparing: Callable[[], object] | None = None,
    without: str | None = None,
    deadline_s: float = math.inf,
) -> RunRecord:
    """Measure `config` in a fresh process and leave the record in `folder`.

    What `without` names (`input,sync`) is taken out of steps after the window. At `deadline_s`, a
    reading of `time.perf_counter`, the worker is ended; `folder` then is not interrupted.

    `while_preparing` is called in a thread while a worker on one device imports and prepares; its
    warm-up begins once that has returned. It must not raise. With several devices it is not called.

    Always returns a record that is safe on disk, whatever became of the worker; Ctrl-C ends the
    worker, keeps what it had measured, and gives a record with the outcome `interrupted`.
    """
    job = Job(config=config, task={"without": without} if without else {})
    if crowded := crowding(config):
        folder.claim(os.getpid())
        folder.write(folder.config, job)
        refused, now = Account.of_none("unsupported", crowded), datetime.now(timezone.utc)
        return finish_run(folder, job, now, refused, Unknown(crowded))
    prepares = while_preparing if config.world_size == 1 else None
    watch = WorkerWatch(job, folder, on_event, while_preparing=prepares, deadline_s=deadline_s)
    return finish_run(folder, job, watch.started, watch.wait(), watch)


def take_part(config: RunConfig, on_event: OnEvent = ignore) -> tuple[Outcome, str | None]:
    """Run this machine's ranks of a measurement whose record another machine keeps.

    Returns how they ended and, unless it went well, why. Raises `UserError` where nothing can be
    written to the system's temporary folder.
    """
    with TemporaryDirectory(ignore_cleanup_errors=True) as here:
        folder = RecordFolder.create(Path(here))
        ended = WorkerWatch(Job(config=config), folder, on_event).wait()
        ranks = folder.read_ranks()
        if len(ranks) == config.devices and all(account.outcome == "ok" for account in ranks):
            return "ok", None
        return failure_cause(folder, ended.outcome, ended.reason, config.world_size)


def launch_ceilings(
    backend: str,
    folder: RecordFolder,
    on_event: OnEvent = ignore,
    deadline_s: float = math.inf,
    devices: int = 1,
) -> CeilingsRecord:
    """Measure the roofs of `backend` in a fresh process and leave the record in `folder`.

    Of several `devices` what joins them too. At `deadline_s`, a reading of `time.perf_counter`, the
    worker is ended.
    """
    config = RunConfig.model_validate({"backend": backend, "devices": devices})
    job = Job(kind="ceilings", config=config)
    watch = WorkerWatch(job, folder, on_event, deadline_s=deadline_s)
    account = watch.wait()
    telemetry = watch.telemetry_between("device", "ended")
    if account.outcome != "ok":
        cause = failure_cause(folder, account.outcome, account.reason, devices)
        account = account.replaced(outcome=cause[0], reason=cause[1])
    if account.counter_checks:
        device = account.environment.device if account.environment else None
        checks = (
            _by_gpm(check, watch.telemetry_between(f"{name}_started", f"{name}_ended"), device)
            for check in account.counter_checks
            for name in [check.work.partition(" ")[0]]
        )
        account = account.replaced(counter_checks=tuple(checks))
    return finish_roofs(folder, watch.started, account, telemetry, datetime.now(timezone.utc))


#: FLOP per clock of a multiprocessor's tensor cores, 16-bit and dense, by compute capability.
#: H100 whitepaper: 989.4 TFLOP/s on 132 multiprocessors at 1830 MHz.
_TENSOR_FLOPS_PER_CLOCK = {"9.0": 4096}


def _by_gpm(
    check: CounterCheck, seen: Telemetry | Unknown, device: DeviceInfo | None
) -> CounterCheck:
    """What NVML's counters say of known work: of a product by the time its tensor cores worked."""
    if isinstance(seen, Unknown):
        return check.replaced(counted=seen)
    if check.quantity == "bytes":
        return check.replaced(counted=seen.dram_bytes or Unknown(seen.missing["dram_bytes"]))
    active = [one.values for one in seen.series if one.name == "gpu_tensor_active_percent"]
    clock_mhz = seen.mean("gpu_sm_clock_mhz")
    per_clock = _TENSOR_FLOPS_PER_CLOCK.get(device.compute_capability or "") if device else None
    if not (active and clock_mhz and per_clock and device and device.cores):
        why = "a clock's FLOP are known of compute capability 9.0 alone"
        return check.replaced(counted=Unknown(seen.missing.get("dram_bytes", why)))
    flops_per_s = median(active[0]) / 100 * per_clock * device.cores * 1e6 * clock_mhz
    return check.replaced(counted=flops_per_s * check.took_s)


#: Names of what is nobody's business unless it is a number, and texts that are known as such.
_SECRET_NAME = re.compile(r"[\w.+-]*(?:key|token|secret|passw(?:or)?d|pwd|auth)", re.IGNORECASE)
_SECRET = re.compile(r"://[^/]*@|\b(?:hf_|sk-|gh[pousr]_)[\w-]{8}", re.IGNORECASE)
#: Why the work of all ranks does not follow from what was counted on one.
_OF_STAGES = "stages of a pipeline differ in their work, and rank 0's alone is seen"
#: Options that say what a step of a script is, and what is taken out of it.
_OF_STEP = ("samples_per_step", "step_of", "without")


def script_of(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the name of the script in a command, or of the module behind -m, and its arguments.

    Raises `UserError` for a command that cannot be run.
    """
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]!r}: no such program; give the command that trains")
    after_m = [number + 1 for number, word in enumerate(command[:-1]) if word == "-m"]
    files = [number for number, word in enumerate(command) if word.endswith(".py")]
    place = (files[:1] or after_m[-1:] or [0])[0]
    return Path(command[place]).name, command[place + 1 :]


def _shown(words: Sequence[str]) -> str:
    """The words as a shell has them, secrets left out."""
    shown, before = [], ""
    for word in words:
        name, equals, value = word.partition("=")
        begin = f"{name}=" if equals and _SECRET_NAME.fullmatch(name) else ""
        is_value = begin or (before.startswith("-") and _SECRET_NAME.fullmatch(before))
        text = value if begin else word
        is_secret = (is_value and not re.fullmatch(r"[\d.]*", text)) or _SECRET.search(word)
        shown.append(f"{begin}(left out)" if is_secret else shlex.quote(word))
        before = word
    return " ".join(shown)


def script_job(
    config: RunConfig,
    script: tuple[str, Sequence[str]],
    seconds: float,
    *,
    command: Sequence[str],
    keep_going: bool = False,
    samples_per_step: int | None = None,
    step_of: str | None = None,
    without: str | None = None,
) -> Job:
    """Return what is to be measured of a script, from now on and until when.

    `config` has the labels. `command` measures it again.
    """
    name, arguments = script
    task = {
        "seconds": f"{seconds:g}",
        "deadline_s": f"{time.perf_counter() + seconds}",
        "keep_going": "true" if keep_going else "",
        "samples_per_step": f"{samples_per_step or ''}",
        "step_of": step_of or "",
        "without": without or "",
        "arguments": _shown(arguments),
        "command": _shown(command),
    }
    return Job(config=config.model_copy(update={"arch": f"script:{name}"}), task=task)


def launch_script(
    command: Sequence[str],
    config: RunConfig,
    folder: RecordFolder,
    on_event: OnEvent,
    seconds: float,
    **how: Any,
) -> tuple[RunRecord, int]:
    """Run a command, let its first process that trains measure itself, and leave the record.

    `config` and `how` are as of `script_job`. Returns the record and the command's exit code: 0
    where it was ended after its measurement. Its output is its own. Signals are passed on.
    """
    given = [(f"--{name.replace('_', '-')}", f"{how[name]}") for name in _OF_STEP if how.get(name)]
    again = ["mlproject", "watch", *chain.from_iterable(given), "--", *command]
    job = script_job(config, script_of(command), seconds, command=again, **how)
    watch = ScriptWatch(command, job, folder, on_event)
    account = watch.wait()
    with suppress(OSError, ValueError):  # as the script has it, unless the folder is gone
        job = folder.read_job(recorded=True)
    return finish_run(folder, job, watch.started, account, watch), watch.exit_code


def finish_run(
    folder: RecordFolder,
    job: Job,
    created: datetime,
    account: Account,
    seen: WorkerWatch | Unknown,
) -> RunRecord:
    """Write the record of a measurement, with its exports, and return it.

    `seen` is what watched its process from outside, or why nothing did.
    """
    config = job.config
    if account.measurement is not None and account.script:
        measured = with_ranks(account.measurement, config, folder.path)
        account = account.replaced(measurement=measured)
        if measured.ranks and "pipeline" in (measured.ranks.parallelism or ""):
            account = account.replaced(complexity=Unknown(_OF_STAGES))
    outcome, reason = failure_cause(folder, account.outcome, account.reason, config.world_size)
    known = {name: job.task[name] for name in ("arguments", "command") if name in job.task}
    facts: dict[str, Any] = {
        "config_id": config.config_id,
        "outcome": outcome,
        "reason": reason,
        "process": seen and seen.figures(),
        "telemetry": seen and seen.window_telemetry(account.measurement),
        "script": {**known, **account.script},
    }
    why = reason or "the outcome is ok"
    record = finish(
        folder, _of_account(RunRecord, why, account, folder, created, config=config, **facts)
    )
    for rank in range(config.world_size if folder.problem is None else 0):
        steps_of_rank(folder.path, rank).unlink(missing_ok=True)
    return record


def finish_roofs(
    folder: RecordFolder,
    created: datetime,
    account: Account,
    telemetry: Telemetry | Unknown,
    ended: datetime | Unknown,
) -> CeilingsRecord:
    """Write the record of measured roofs and return it."""
    why, seen = account.reason or "the outcome is ok", {"telemetry": telemetry, "ended": ended}
    return finish(folder, _of_account(CeilingsRecord, why, account, folder, created, **seen))


def _of_account(
    kind: type[R], why: str, account: Account, folder: RecordFolder, created: datetime, **facts: Any
) -> R:
    """A record of an account and of `facts`; what has no reason of its own is missing for `why`."""
    shared = kind.model_fields.keys() & Account.model_fields.keys() - {"missing"}
    seen = {name: getattr(account, name) for name in shared}
    named = {"record_id": folder.record_id, "created": created}
    return kind.of(why, account.missing, **{**seen, **named, **facts})


def finish(folder: RecordFolder, record: R, timed: RunRecord | None = None) -> R:
    """Judge a record, a profile beside the `timed` run; write it with its exports; return it."""
    judged = record.replaced(verdict=judge(record, timed))
    whole = folder.close(judged)
    write_exports(folder, whole)
    return whole


def failure_cause(
    folder: RecordFolder, outcome: Outcome, reason: str | None, ranks: int
) -> tuple[Outcome, str | None]:
    """Return the outcome and the reason of the rank, of so many, that failed first.

    When one rank ends, the others lose their connection to it, and rank 0 reports only that. Work
    on one device, or work that went well, keeps its own `outcome` and `reason`.
    """
    ranks_there = [] if outcome == "ok" else folder.read_ranks()
    failed = [account for account in ranks_there if account.outcome != "ok"]
    if not failed:
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


def write_exports(folder: RecordFolder, record: MeasuredRecord) -> None:
    """Write the tables of what the record holds, and `environment.json`; of roofs nothing.

    Of a run `iterations.csv`, `ranks.csv` and `telemetry.csv`, of a profile `ops.csv` and
    `kernels.csv`.
    """
    if isinstance(record, CeilingsRecord):
        return
    tables = _of_run(record) if isinstance(record, RunRecord) else _of_profile(record)
    with folder.losing():
        for name, *rows in tables:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            write_atomically(folder.path / name, text.getvalue())
        if record.environment is not None:
            folder.write(folder.path / "environment.json", record.environment)


#: A file's name, its header and its rows.
Tables = Iterator[tuple[Any, ...]]


def _of_run(record: RunRecord) -> Tables:
    if (window := record.measurement) is not None:
        phases = window.phase_times_s or {}  # if they were timed
        times_s = window.iteration_times_s
        waits_s: Sequence[Any] = window.data_wait_s or [None] * len(times_s)
        names = ("iteration", "iteration_time_s", "data_wait_s", *(f"{name}_s" for name in phases))
        columns = range(len(times_s)), times_s, waits_s, *phases.values()
        yield "iterations.csv", names, *zip(*columns, strict=True)
        if window.ranks is not None:
            rows = rank_rows(window.ranks.ranks, on_card=window.iteration_clock == "cuda_events")
            yield "ranks.csv", [*rows[0]], *(row.values() for row in rows)
    if record.telemetry is not None and record.telemetry.series:
        samples = (
            (time_s, series.name, value, series.source)
            for series in record.telemetry.series
            for time_s, value in zip(series.times_s, series.values, strict=True)
        )
        yield "telemetry.csv", ("time_s", "series", "value", "source"), *samples


def _of_profile(record: ProfileRecord) -> Tables:
    """One row per op or kernel, a column per field; what is missing is an empty cell."""
    tables: tuple[tuple[str, type[Facts], Sequence[Facts] | None], ...] = (
        ("ops.csv", OpTime, record.ops.ops if record.ops else None),
        ("kernels.csv", KernelTotals, record.counters.per_kernel if record.counters else None),
    )
    for name, kind, rows in tables:
        header = [field for field in kind.model_fields if field != "missing"]
        if rows is not None:
            yield name, header, *([getattr(row, field) for field in header] for row in rows)


def measure(
    config: RunConfig,
    *,
    records: str | Path = DEFAULT_RECORDS,
    on_event: OnEvent = ignore,
    wait: bool = True,
) -> RunRecord:
    """Measure `config` in a fresh process; return its record, which is then on disk in `records`.

    A run that went out of memory or crashed returns its record too: `record.outcome` and
    `record.reason` say so. `on_event` is called with each event of the worker's journal while it
    runs. Another process that measures on the device is waited for, unless `wait` is false. Raises
    `UserError` for what cannot be measured as asked (`UnsupportedError` where this device cannot)
    and for a folder that cannot be written, and `KeyboardInterrupt` after Ctrl-C; the record of
    such a run, with what it had measured, stays in `records`.
    """
    if node_rank(config) > 0:
        raise UserError(
            f"nodes={config.nodes}: the machine whose NODE_RANK is 0 keeps the record; "
            "on this one run `mlproject run` with the same settings"
        )
    devices = device_names(config.backend, config.devices)
    with exclusive(devices, wait=wait and config.nodes == 1):
        return _measured(launch_measurement(config, RecordFolder.create(Path(records)), on_event))


def measure_roofs(
    backend: str = "auto",
    *,
    devices: int = 1,
    records: str | Path = DEFAULT_RECORDS,
    if_missing: bool = False,
    on_event: OnEvent = ignore,
    wait: bool = True,
) -> CeilingsRecord:
    """Measure the roofs of `backend` (auto, cpu, cuda or mps) in a fresh process.

    Of several `devices` what joins them too. With `if_missing`, clean roofs that `records` holds of
    this device and this torch are returned instead. Outcomes and errors as in `measure`.
    """
    known = find_ceilings(Path(records), backend, devices) if if_missing else None
    if known is not None:
        return known
    with exclusive(device_names(backend, devices), wait=wait):
        folder = RecordFolder.create(Path(records))
        return _measured(launch_ceilings(backend, folder, on_event, devices=devices))


def _measured(record: R) -> R:
    if record.outcome == "unsupported":
        raise UnsupportedError(record.reason)
    if record.outcome == "refused":
        raise UserError(record.reason)
    if record.outcome == "interrupted":
        raise KeyboardInterrupt(f"{record.record_id}: {record.reason}")
    return record


def find_ceilings(records: Path, backend: str, devices: int = 1) -> CeilingsRecord | None:
    """Return the newest clean ceilings in `records` of this device and this torch, or None.

    Of several `devices` with what joins so many.

    A processor is known by its name, its signature and the limits of its instructions; a card by
    its UUID, its driver and its power limit besides. `backend` auto is CUDA where CUDA's driver
    shows a device and torch is not a build for processors alone; else the newest of this machine's
    other devices answer.
    """
    torch = metadata.version("torch")
    if "rocm" in torch and backend != "cpu":
        return None  # which AMD device it takes is not known without it
    on_card = backend == "cuda" or (backend == "auto" and "+cpu" not in torch)
    uuid = value_or_none(device_uuid) if on_card else None
    card = None if uuid is None else management_facts(uuid)
    cpu = (value_or_none(cpu_model), value_or_none(cpu_signature), instruction_limits(os.environ))
    for _, record in readable_records(records, newest_first=True):
        if (
            isinstance(record, CeilingsRecord)
            and record.verdict is not None
            and record.verdict.level == "clean"
            and (where := record.environment) is not None
            and (where.cpu_model, where.cpu_signature, where.instruction_limits) == cpu
            and where.torch == torch
            and devices in (1, *(one.devices for one in record.all_reduces))
            and _is_of(backend, card, where.device)
        ):
            return record
    return None


def _is_of(backend: str, card: Mapping[str, Any] | None, device: DeviceInfo) -> bool:
    if device.backend != "cuda" or backend not in ("auto", "cuda"):
        return device.backend == backend or (backend == "auto" and card is None)
    return (
        card is not None
        and (device.uuid, device.driver) == (card["uuid"], card["driver"] or None)
        and same_power_limit(device.power_limit_w, card["power_limit_w"] or None)
    )
