"""One configuration's step, profiled by the tool named in its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.config import RunConfig
from bench.cost import CallWork, op_work
from bench.errors import UserError
from bench.profilers.fingerprint import work_set
from bench.profilers.ncu.profiled_range import profiled_range
from bench.profilers.ops.op_profile import profile_ops
from bench.profilers.perf.perf_control import counting
from bench.records import OpProfile, ProfiledStep, ToolName, WorkSet
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.worker.outcome import attempt, or_reason
from bench.worker.step_setup import ReadyStep, StepSetup


@dataclass
class ProfileResult:
    """What one tool found in the worker; the tool's files are read by the launcher."""

    work: WorkSet | None = None
    iterations: int | None = None
    window_s: float | None = None
    ops: OpProfile | None = None
    missing: dict[str, str] = field(default_factory=dict)


def profile(folder: RecordFolder, journal: JournalWriter) -> None:
    """Profile the configuration in `folder` and write `worker.json`, however it ends."""
    asked = json.loads(folder.config.read_text(encoding="utf-8"))
    tool: ToolName = asked["tool"]
    setup = StepSetup(RunConfig.model_validate(asked["config"]), journal)
    found = ProfileResult()

    def run() -> None:
        with setup.opened() as ready:
            ready.warm_up()
            _TOOLS[tool](ready, found, asked["task"])

    outcome, reason = attempt(run)
    journal.note("ended", outcome=outcome)
    missing = dict(found.missing)
    facts: dict[str, Any] = {
        "reason": reason,
        "resolved": setup.resolved,
        "environment": or_reason("environment", lambda: setup.environment(folder), missing),
        "complexity": or_reason("complexity", setup.complexity, missing),
        "work": found.work,
        "iterations": found.iterations,
        "window_s": found.window_s,
        "ops": found.ops,
    }
    for name, value in facts.items():
        if value is None:
            missing.setdefault(name, reason or f"{tool} does not give it to the worker")
    folder.release_reserve()
    folder.write(folder.worker, ProfiledStep(tool=tool, outcome=outcome, missing=missing, **facts))


def _torch(ready: ReadyStep, found: ProfileResult, task: dict[str, str]) -> None:
    """PyTorch's profiler: time per op, beside the cost model's work of the same op."""
    found.work = work_set(ready.step, ready.device)
    try:
        found.ops = profile_ops(ready.step, ready.device, _op_work(ready))
    except UserError as error:  # kernels may not be seen; counters perhaps may
        found.missing["ops"] = str(error)
        return
    found.iterations = found.ops.iterations


def _op_work(ready: ReadyStep) -> tuple[CallWork, ...]:
    """The cost model's calls; none where it cannot follow a model, as the complexity then says."""
    try:
        return op_work(ready.spec(), grad_accum_steps=ready.config.grad_accum_steps)
    except UserError:
        return ()


def _ncu(ready: ReadyStep, found: ProfileResult, task: dict[str, str]) -> None:
    """Nsight Compute replays the kernels of one step; its time is not the training's."""
    with profiled_range(ready.device):
        ready.step()
        ready.device.synchronize()
    found.iterations = 1
    found.missing["window_s"] = "ncu replays each kernel: the time says nothing of training"


def _perf(ready: ReadyStep, found: ProfileResult, task: dict[str, str]) -> None:
    """Perf counts the measured window alone."""
    with counting(task):
        begin = time.perf_counter()
        ready.measure()
        found.window_s = time.perf_counter() - begin
    found.iterations = len(ready.window.data_wait_s)


_TOOLS: dict[ToolName, Callable[[ReadyStep, ProfileResult, dict[str, str]], None]] = {
    "torch": _torch,
    "ncu": _ncu,
    "perf": _perf,
}
