"""Profiles in fresh worker processes, one per tool and pass, and makes one record of it all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.config import RunConfig
from bench.errors import Unknown, UserError, one_line
from bench.launcher.measurement import failure_cause, finish, finish_roofs, finish_run
from bench.launcher.watch import WorkerWatch
from bench.machine import UnknownFactError, probe
from bench.profilers.base import Section, Tool, ToolWorker, TorchTool
from bench.profilers.ncu.read import read_counters
from bench.profilers.ncu.tool import NcuTool
from bench.profilers.perf import PerfTool
from bench.records import (
    Account,
    Backend,
    CounterCheck,
    Job,
    Outcome,
    ProfileRecord,
    RunRecord,
    Telemetry,
    ToolName,
)
from bench.records.environment import same_device
from bench.records.folders import AnyRecord, RecordFolder, readable_records
from bench.records.journal import Event, OnEvent, ignore
from bench.records.step_settings import is_of_step
from bench.records.verdict import kernel_set

TOOLS: dict[ToolName, type[Tool]] = {"torch": TorchTool, "ncu": NcuTool, "perf": PerfTool}
#: Which section of the record holds what a tool found.
SECTIONS: dict[ToolName, str] = {"torch": "ops", "ncu": "counters", "perf": "cpu_counters"}
#: What `auto` tries on a backend; PyTorch's own profiler works everywhere.
_AUTO: dict[Backend, tuple[ToolName, ...]] = {"cuda": ("ncu",), "cpu": ("perf",), "mps": ()}


def obstacle_to(tool: Tool, config: RunConfig, backend: Backend) -> str | None:
    """Return why `tool` cannot examine a step of `config` on `backend`; None: worth trying."""
    if config.world_size > 1 and not tool.counts_ranks:
        return f"devices={config.devices}: {tool.name} counts one process; use devices=1"
    return tool.obstacle(backend)


@dataclass
class _Profile:
    """What has been found so far, kept where an interrupt leaves it usable."""

    config: RunConfig
    folder: RecordFolder
    on_event: OnEvent = ignore
    outcome: Outcome = "ok"
    reason: str | None = None
    sections: dict[ToolName, Section | Unknown] = field(default_factory=dict)
    steps: list[Account] = field(default_factory=list)
    telemetry: dict[ToolName, Telemetry] = field(default_factory=dict)

    def first(self, name: str) -> Any:
        """The first fact of that name in the workers' accounts."""
        return next((fact for step in self.steps if (fact := getattr(step, name))), None)

    def look(self, name: ToolName) -> Section | Unknown:
        """Look into a step with one more tool."""
        if self.outcome != "ok":
            return Unknown(str(self.reason))
        tool, resolved = TOOLS[name](), self.first("resolved")
        # While `auto` is not resolved, the backend that the tool is made for.
        meant: Backend = "cuda" if name == "ncu" else "cpu"
        asked = meant if self.config.backend == "auto" else self.config.backend
        if reason := obstacle_to(tool, self.config, resolved.backend if resolved else asked):
            return Unknown(reason)
        self.on_event(Event("tool", 0.0, {"tool": name}))
        worker = tool.worker(self.folder.path)
        step = self._step(tool, worker)
        self.steps.append(step)
        why = tool.explain(RecordFolder(self.folder.path / worker.name).said())
        if step.outcome != "ok" or why is not None:
            # A tool's own refusal concerns its section alone, as does a step that went well before.
            went_well = any(self.sections.values())
            if step.outcome == "interrupted" or (why is None and not went_well):
                self.outcome, self.reason = step.outcome, step.reason
            return Unknown(why or str(step.reason))
        try:
            return tool.read(self.folder.path, step)
        except UserError as error:
            return Unknown(str(error))

    def _step(self, tool: Tool, worker: ToolWorker) -> Account:
        """Run one worker under the tool; return its account, and keep what was sampled."""
        inside = RecordFolder.create(self.folder.path, worker.name)
        job = Job(kind="profile", config=self.config, tool=tool.name, task=dict(worker.task))
        how: Any = {"prefix": worker.prefix, "environment": worker.environment}
        watch = WorkerWatch(job, inside, self.on_event, **how)
        step = watch.wait()
        inside.leave()
        if telemetry := watch.telemetry_between("device", "ended"):
            self.telemetry[tool.name] = telemetry
        if step.outcome == "ok":
            return step
        cause = failure_cause(inside, step.outcome, step.reason, self.config.world_size)
        return step.replaced(outcome=cause[0], reason=cause[1])

    def finish(
        self, created: datetime, ended: datetime | Unknown, timed: RunRecord | None = None
    ) -> ProfileRecord:
        """Write the record and return it; by default `timed` is the newest run of the step."""
        found: dict[str, Any] = {
            section: self.sections.get(tool, Unknown(f"{tool} was not tried"))
            for tool, section in SECTIONS.items()
        }
        found |= {n: self.first(n) for n in ("resolved", "environment", "complexity", "work")}
        why_missing = {
            "timed_record_id": "no device was opened",
            "tool_telemetry": "no worker had a device until it ended",
        }
        record = _of_step(
            self.folder,
            self.config,
            self.reason or "no worker reported it",
            why_missing,
            created=created,
            ended=ended,
            outcome=self.outcome,
            reason=self.reason,
            tool_telemetry=self.telemetry or None,
            timed_record_id=timed and timed.record_id,
            **found,
        )
        if timed is None and record.resolved is not None:
            twin = find_timed(self.folder.path.parent, record)
            timed = twin or None
            record = record.replaced(timed_record_id=timed.record_id if timed else twin)
        return finish(self.folder, record, timed)


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
    profile = _Profile(config, folder, on_event)
    for name in tools or ("torch",):
        profile.sections[name] = profile.look(name)
    if tools is None and (resolved := profile.first("resolved")) is not None:
        for name in _AUTO[resolved.backend]:
            profile.sections[name] = profile.look(name)
    failed = [section for section in profile.sections.values() if isinstance(section, Unknown)]
    if tools is not None and failed and profile.outcome == "ok":
        profile.outcome, profile.reason = "unsupported", failed[0].reason
    return profile.finish(started, datetime.now(timezone.utc), timed)


#: Of the line that a cache miss fetches; what is fetched ahead of its use is no miss.
_LINE_BYTES = 64


def count_known_work(name: ToolName, backend: Backend) -> Iterator[CounterCheck]:
    """Have a tool count each work of `bench.roofs.known_work`, in a worker of its own.

    Raises `UserError` where the tool cannot count on `backend`.
    """
    tool = TOOLS[name]()
    if reason := tool.obstacle(backend):
        raise UserError(reason)
    for work in ("copy", "read", "matmul"):
        with TemporaryDirectory(ignore_cleanup_errors=True) as here:
            worker = tool.worker(Path(here))
            folder = RecordFolder.create(Path(here), worker.name)
            task = {**worker.task, "work": work}
            job = Job(kind="ceilings", config=RunConfig(backend=backend), tool=name, task=task)
            how: Any = {"prefix": worker.prefix, "environment": worker.environment}
            step = WorkerWatch(job, folder, ignore, **how).wait()
            if not step.counter_checks:
                why = tool.explain(folder.said()) or step.reason or "its worker did no work"
                raise UserError(f"{name}: {why}")
            for check in step.counter_checks:
                yield check.replaced(counted=probe(_counted, tool, Path(here), step, check))


def _counted(tool: Tool, folder: Path, step: Account, check: CounterCheck) -> float:
    section = tool.read(folder, step)
    of_bytes = ("dram_bytes", 1) if tool.name == "ncu" else ("cache_misses", _LINE_BYTES)
    figure, factor = ("flops", 1) if check.quantity == "flops" else of_bytes
    if (count := getattr(section, figure)) is None:
        raise UnknownFactError(section.missing[figure])
    return float(factor * count)


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
    for _, record in readable_records(records, newest_first=True):
        if (
            isinstance(record, RunRecord)
            and record.outcome == "ok"
            and record.environment is not None
            and profile.environment is not None
            and record.environment.torch == profile.environment.torch
            and same_device(record.environment, profile.environment)
            and is_of_step(profile, record)
        ):
            return record
    return Unknown(f"no measurement of this step on this device and torch in {records}")


def _of_step(
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
    record = _of_step(
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
    return folder, finish(folder, record, timed)


def recover(folder: RecordFolder) -> AnyRecord | None:
    """Return the folder's record, made from the worker's account if the launcher died.

    Where neither process got to write, the record says that the attempt was interrupted. None
    while the processes still run. Raises `UserError` for what this version cannot read.
    """
    if folder.in_use():
        return folder.read_record()
    if (record := folder.read_record()) is not None:
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
    why = Unknown("the launching process ended before the measurement did")
    if job.kind == "profile":
        why = Unknown("the launching process ended before the profile")
        profile = _Profile(job.config, folder, outcome="interrupted", reason=why.reason)
        profile.sections = dict.fromkeys(SECTIONS, why)
        for path in sorted(folder.path.glob("*/worker.json")):
            if (step := RecordFolder(path.parent).read_worker()) is not None:
                profile.steps.append(step)
                profile.sections["torch"] = step.ops or profile.sections["torch"]
        return profile.finish(created, why)
    account = folder.read_worker()
    if job.kind == "ceilings":  # without an account, nothing was asked for that could be named
        why = Unknown("the worker did not get that far")
        return None if account is None else finish_roofs(folder, created, account, why, why)
    account = account or Account.of_none("interrupted", why.reason)
    return finish_run(folder, job, created, account, why)
