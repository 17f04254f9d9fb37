"""One configuration's step, looked into by the tool named in its folder."""

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
from bench.profilers.ncu.window import profiled_range
from bench.profilers.ops.profile import profile_ops
from bench.profilers.perf.control import counting
from bench.records import OpProfile, ProfiledStep, ToolName, WorkSet
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.worker.outcome import attempt, or_reason
from bench.worker.rig import OpenRig, Rig


@dataclass
class Look:
    """What one tool's turn leaves behind; the tool's own files are read by the launcher."""

    work: WorkSet | None = None
    iterations: int | None = None
    window_s: float | None = None
    ops: OpProfile | None = None
    missing: dict[str, str] = field(default_factory=dict)


def profile(folder: RecordFolder, journal: JournalWriter) -> None:
    """Profile the configuration in `folder` and write `worker.json`, however it ends."""
    asked = json.loads(folder.config.read_text(encoding="utf-8"))
    tool: ToolName = asked["tool"]
    rig = Rig(RunConfig.model_validate(asked["config"]), journal)
    look = Look()

    def work() -> None:
        with rig.opened() as ready:
            ready.warm_up()
            _LOOKS[tool](ready, look, asked["task"])

    outcome, reason = attempt(work)
    journal.note("ended", outcome=outcome)
    missing = dict(look.missing)
    facts: dict[str, Any] = {
        "reason": reason,
        "resolved": rig.resolved,
        "environment": or_reason("environment", lambda: rig.environment(folder), missing),
        "complexity": or_reason("complexity", rig.complexity, missing),
        "work": look.work,
        "iterations": look.iterations,
        "window_s": look.window_s,
        "ops": look.ops,
    }
    for name, value in facts.items():
        if value is None:
            missing.setdefault(name, reason or f"{tool} does not tell it to the worker")
    folder.release_reserve()
    folder.write(folder.worker, ProfiledStep(tool=tool, outcome=outcome, missing=missing, **facts))


def _torch(rig: OpenRig, look: Look, task: dict[str, str]) -> None:
    """PyTorch's profiler: time per op, beside the cost model's work of the same op."""
    look.work = work_set(rig.step, rig.device)
    try:
        look.ops = profile_ops(rig.step, rig.device, _op_work(rig))
    except UserError as error:  # no leave to see kernels: the device's counters may still have it
        look.missing["ops"] = str(error)
        return
    look.iterations = look.ops.iterations


def _op_work(rig: OpenRig) -> tuple[CallWork, ...]:
    """The cost model's calls; none where it cannot follow a model, as the complexity then says."""
    try:
        return op_work(rig.spec(), grad_accum_steps=rig.config.grad_accum_steps)
    except UserError:
        return ()


def _ncu(rig: OpenRig, look: Look, task: dict[str, str]) -> None:
    """Nsight Compute replays the kernels of one step; its time is not the training's."""
    with profiled_range(rig.device):
        rig.step()
        rig.device.synchronize()
    look.iterations = 1
    look.missing["window_s"] = "ncu replays each kernel: the time says nothing of training"


def _perf(rig: OpenRig, look: Look, task: dict[str, str]) -> None:
    """Perf counts the measured window alone."""
    with counting(task):
        begin = time.perf_counter()
        rig.measure()
        look.window_s = time.perf_counter() - begin
    look.iterations = len(rig.window.data_wait_s)


_LOOKS: dict[ToolName, Callable[[OpenRig, Look, dict[str, str]], None]] = {
    "torch": _torch,
    "ncu": _ncu,
    "perf": _perf,
}
