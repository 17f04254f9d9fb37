"""Profiles in fresh worker processes, one per tool and pass, and makes one record of it all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.config import RunConfig
from bench.errors import Unknown, UserError, one_line
from bench.launcher.measurement import failure_cause, finish_roofs, finish_run, write_exports
from bench.launcher.watch import WorkerWatch
from bench.profilers.base import Section, Tool, ToolWorker, TorchTool
from bench.profilers.ncu.read import read_counters
from bench.profilers.ncu.tool import NcuTool
from bench.profilers.perf import PerfTool
from bench.records import (
    Account,
    Backend,
    Job,
    Outcome,
    ProfileRecord,
    ResolvedConfig,
    RunRecord,
    Telemetry,
    ToolName,
)
from bench.records.environment import same_device
from bench.records.folders import AnyRecord, RecordFolder, readable_records
from bench.records.journal import Event, OnEvent, ignore
from bench.records.profile_verdict import judge_profile, kernel_set
from bench.records.step_settings import other_settings

TOOLS: dict[ToolName, type[Tool]] = {"torch": TorchTool, "ncu": NcuTool, "perf": PerfTool}
#: Which section of the record holds what a tool found.
SECTIONS: dict[ToolName, str] = {"torch": "ops", "ncu": "counters", "perf": "cpu_counters"}
#: What `auto` tries on a backend; PyTorch's own profiler works everywhere.
_AUTO: dict[Backend, tuple[ToolName, ...]] = {"cuda": ("ncu",), "cpu": ("perf",), "mps": ()}


@dataclass
class _Findings:
    """What has been found so far, kept where an interrupt leaves it usable."""

    sections: dict[ToolName, Section | Unknown] = field(default_factory=dict)
    steps: list[Account] = field(default_factory=list)
    telemetry: dict[ToolName, Telemetry] = field(default_factory=dict)
    outcome: Outcome = "ok"
    reason: str | None = None

    def first(self, name: str) -> Any:
        """The first fact of that name in the workers' accounts."""
        return next((fact for step in self.steps if (fact := getattr(step, name))), None)


def launch_profile(
    config: RunConfig,
    folder: RecordFolder,
    tools: Sequence[ToolName] | None = None,
    timed: RunRecord | None = None,
    on_event: OnEvent = ignore,
) -> ProfileRecord:
    """Look into one step of `config` with `tools` and leave the record in `folder`.

    `tools` None: PyTorch's profiler, and the device's own counters where it has any; a tool that
    cannot work here is then no failure, its section says why. A tool named in `tools` that fails
    makes the outcome `unsupported`. `timed` is the measurement to explain; by default the newest
    of the same step and device beside `folder`.

    Always returns a record that is safe on disk; Ctrl-C keeps the sections found until then.
    """
    started = datetime.now(timezone.utc)
    folder.claim(os.getpid())
    folder.write(folder.config, Job(kind="profile", config=config))
    found = _Findings()
    for name in tools or ("torch",):
        found.sections[name] = _section(name, config, folder, found, on_event)
    if tools is None and (resolved := found.first("resolved")) is not None:
        for name in _AUTO[resolved.backend]:
            found.sections[name] = _section(name, config, folder, found, on_event)
    failed = [each for each in found.sections.values() if isinstance(each, Unknown)]
    if tools is not None and failed and found.outcome == "ok":
        found.outcome, found.reason = "unsupported", failed[0].reason
    return _finish(folder, config, timed, found, started, datetime.now(timezone.utc))


def obstacle_to(tool: Tool, config: RunConfig, backend: Backend) -> str | None:
    """Return why `tool` cannot examine a step of `config` on `backend`; None: worth trying."""
    if config.world_size > 1 and not tool.counts_ranks:
        return f"devices={config.devices}: {tool.name} counts one process; use devices=1"
    return tool.obstacle(backend)


def _section(
    name: ToolName, config: RunConfig, folder: RecordFolder, found: _Findings, on_event: OnEvent
) -> Section | Unknown:
    if found.outcome != "ok":
        return Unknown(str(found.reason))
    tool = TOOLS[name]()
    # While `auto` is not resolved, the backend that the tool is made for.
    meant: Backend = "cuda" if name == "ncu" else "cpu"
    asked = meant if config.backend == "auto" else config.backend
    resolved: ResolvedConfig | None = found.first("resolved")
    if reason := obstacle_to(tool, config, resolved.backend if resolved else asked):
        return Unknown(reason)
    on_event(Event("tool", 0.0, {"tool": name}))
    worker = tool.worker(folder.path)
    step, telemetry = _run(tool, worker, config, folder, on_event)
    if not isinstance(telemetry, Unknown):
        found.telemetry[name] = telemetry
    found.steps.append(step)
    why = tool.explain(RecordFolder(folder.path / worker.name).said())
    if step.outcome != "ok" or why is not None:
        # A tool's own refusal concerns its section alone, as does a step that went well before.
        went_well = any(found.sections.values())
        if step.outcome == "interrupted" or (why is None and not went_well):
            found.outcome, found.reason = step.outcome, step.reason
        return Unknown(why or str(step.reason))
    try:
        return tool.read(folder.path, step)
    except UserError as error:
        return Unknown(str(error))


def _run(
    tool: Tool, worker: ToolWorker, config: RunConfig, folder: RecordFolder, on_event: OnEvent
) -> tuple[Account, Telemetry | Unknown]:
    """Run one worker under the tool; return its account, and what was sampled beside it."""
    inside = RecordFolder.create(folder.path, worker.name)
    job = Job(kind="profile", config=config, tool=tool.name, task=dict(worker.task))
    inside.write(inside.config, job)
    watch = WorkerWatch(job, inside, on_event, prefix=worker.prefix, environment=worker.environment)
    step = watch.wait()
    inside.leave()
    if step.outcome != "ok":
        cause = failure_cause(inside, step.outcome, step.reason, config.world_size)
        step = step.replaced(outcome=cause[0], reason=cause[1])
    return step, watch.telemetry_between("device", "ended")


def read_timed(records: Path, record_id: str, *, option: str = "of") -> RunRecord:
    """Return the measurement of that id in `records`, or in the folder of that path.

    `option` is what names it. Raises `UserError` where there is none.
    """
    for path in (records / record_id, Path(record_id)):
        if isinstance(record := RecordFolder(path).read_record(), RunRecord):
            return record
    raise UserError(
        f"{option}={record_id!r}: no measurement in {records}, nor a folder of one; give the name "
        "of a folder there that `mlproject run` wrote, or its path"
    )


def find_timed(records: Path, profile: ProfileRecord) -> RunRecord | Unknown:
    """Return the newest whole measurement of the same step, device and torch."""
    nearest: tuple[list[str], str] | None = None
    for _, record in readable_records(records, newest_first=True):
        if (
            isinstance(record, RunRecord)
            and record.outcome == "ok"
            and record.config.arch == profile.config.arch
            and record.environment is not None
            and profile.environment is not None
            and record.environment.torch == profile.environment.torch
            and same_device(record.environment, profile.environment)
        ):
            others = other_settings(profile, record)
            if not others:
                return record
            if nearest is None or len(others) < len(nearest[0]):
                nearest = others, record.record_id
    if nearest is None:
        what = f"{profile.config.arch} on this device and torch in {records}"
        return Unknown(f"no measurement of {what}")
    others, record_id = nearest
    return Unknown(f"no measurement of this step in {records}: {record_id} has {'; '.join(others)}")


def _finish(
    folder: RecordFolder,
    config: RunConfig,
    timed: RunRecord | None,
    found: _Findings,
    started: datetime,
    ended: datetime | Unknown,
) -> ProfileRecord:
    why_missing = {
        "timed_record_id": "no device was opened",
        "tool_telemetry": "no worker had a device until it ended",
    }
    sections = {
        section: found.sections.get(tool, Unknown(f"{tool} was not tried"))
        for tool, section in SECTIONS.items()
    }
    parts = ("resolved", "environment", "complexity", "work")
    record = _profile(
        folder,
        config,
        found.reason or "no worker reported it",
        why_missing,
        created=started,
        ended=ended,
        outcome=found.outcome,
        reason=found.reason,
        tool_telemetry=found.telemetry or None,
        timed_record_id=timed and timed.record_id,
        **{name: found.first(name) for name in parts},
        **sections,
    )
    if timed is None and record.resolved is not None:
        twin = find_timed(folder.path.parent, record)
        timed = twin or None
        record = record.replaced(timed_record_id=timed.record_id if timed else twin)
    return _closed(folder, record, timed)


def _profile(
    folder: RecordFolder, config: RunConfig, why: str, why_missing: dict[str, str], **facts: Any
) -> ProfileRecord:
    """The record, not judged yet; what is not in `facts` is missing for `why`."""
    return ProfileRecord.of(
        why,
        {"reason": "the outcome is ok", "verdict": "not judged yet", **why_missing},
        record_id=folder.record_id,
        config=config,
        config_id=config.config_id,
        **facts,
    )


def _closed(folder: RecordFolder, record: ProfileRecord, timed: RunRecord | None) -> ProfileRecord:
    whole = folder.close(record.replaced(verdict=judge_profile(record, timed)))
    write_exports(folder, whole)
    return whole


def attach_counters(
    files: Sequence[Path], timed: RunRecord, records: Path
) -> tuple[RecordFolder, ProfileRecord]:
    """Keep the counters in `files` of Nsight Compute as a profile of `timed`, in a new folder.

    Several files are passes over the same launches. The launches are held against those of the
    timed step, as a profile's are. Raises `UserError` for a file that cannot be read, or a
    measurement that ran on no CUDA device.
    """
    backend = timed.resolved.backend if timed.resolved is not None else None
    if backend != "cuda":
        raise UserError(
            f"attach={timed.record_id!r}: ncu counts on NVIDIA GPUs, and this step ran on "
            f"{backend or 'no device'}"
        )
    counters = read_counters(*files)
    folder = RecordFolder.create(records)
    (folder.path / "ncu").mkdir()
    names = [f"{n}-{file.name}" if len(files) > 1 else file.name for n, file in enumerate(files, 1)]
    kept = tuple(f"ncu/{name}" for name in names)
    for file, name in zip(files, kept, strict=True):
        shutil.copyfile(file, folder.path / name)
    record = _profile(
        folder,
        timed.config,
        "the counters were collected by hand",
        {},
        created=datetime.now(timezone.utc),
        outcome="ok",
        timed_record_id=timed.record_id,
        **{name: getattr(timed, name) for name in ("environment", "resolved", "complexity")},
        work=kernel_set(counters),
        counters=counters.replaced(files=kept),
    )
    return folder, _closed(folder, record, timed)


def recover(folder: RecordFolder) -> AnyRecord | None:
    """Return the folder's record, made from the worker's account if the launcher died.

    Where neither process got to write, the record says that the attempt was interrupted. None
    while the processes still run. Raises `UserError` for what this version cannot read.
    """
    record = folder.read_record()
    if record is not None or folder.in_use():
        return record
    record = folder.read_record()
    if record is not None:  # written, and the folder left, since the first look
        return record
    created = datetime.fromtimestamp(folder.config.stat().st_mtime, timezone.utc)
    try:
        job = folder.read_job(recorded=True)
    except ValueError as error:
        line = one_line(error)
        raise UserError(
            f"{folder.path}: what its processes left is not of this version ({line[:200]}); "
            "move the folder away, or recover it with the version that wrote it"
        ) from None
    if job.kind == "profile":
        return _recovered_profile(folder, job.config, created)
    account = folder.read_worker()
    if job.kind == "ceilings":  # without an account, nothing was asked for that could be named
        why = Unknown("the worker did not get that far")
        return None if account is None else finish_roofs(folder, created, account, why, why)
    why = Unknown("the launching process ended before the measurement did")
    account = account or Account.of_none("interrupted", why.reason)
    return finish_run(folder, job.config, created, account, why)


def _recovered_profile(folder: RecordFolder, config: RunConfig, created: datetime) -> ProfileRecord:
    why = "the launching process ended before the profile"
    found = _Findings(dict.fromkeys(SECTIONS, Unknown(why)), outcome="interrupted", reason=why)
    for path in sorted(folder.path.glob("*/worker.json")):
        if (step := RecordFolder(path.parent).read_worker()) is not None:
            found.steps.append(step)
            if step.ops is not None:
                found.sections["torch"] = step.ops
    return _finish(folder, config, None, found, created, Unknown(why))
