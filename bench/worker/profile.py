"""One configuration's step, profiled by the tool named in its folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.config import RunConfig
from bench.cost.estimate import op_work
from bench.errors import UnsupportedError, UserError
from bench.profilers.ops.torch_profiler import profile_ops, work_set
from bench.profilers.perf.program import counting
from bench.records import Outcome, ProfiledStep, ToolName
from bench.records.complexity import CallWork
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device
from bench.training.team import Team
from bench.worker.outcome import attempt, or_reason
from bench.worker.step_setup import ReadyStep, StepSetup

#: What one tool found, by the fields of `ProfiledStep`; the launcher reads the tool's files.
Found = dict[str, Any]


def profile(folder: RecordFolder, journal: JournalWriter) -> None:
    """Profile the configuration in `folder` and write `worker.json`, however it ends."""
    step = StepProfile(folder, journal)
    outcome, reason = attempt(step.run)
    journal.note("ended", outcome=outcome)
    step.write_account(outcome, reason)


def asked_config(folder: RecordFolder) -> RunConfig:
    """Return the configuration whose step is profiled in `folder`."""
    return RunConfig.model_validate(_asked(folder)["config"])


def _asked(folder: RecordFolder) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(folder.config.read_text(encoding="utf-8"))
    return asked


class StepProfile:
    """One step under one tool, kept where an interrupt or a crash leaves its parts readable."""

    def __init__(
        self, folder: RecordFolder, journal: JournalWriter, team: Team | None = None
    ) -> None:
        asked = _asked(folder)
        self._folder = folder
        self._tool: ToolName = asked["tool"]
        self._task: dict[str, str] = asked["task"]
        self._setup = StepSetup(RunConfig.model_validate(asked["config"]), journal, team)
        self._found: Found = dict.fromkeys(("work", "iterations", "window_s", "ops"))
        self._why: dict[str, str] = {}

    def run(self) -> None:
        """Warm up, then run the step under the tool."""
        with self._setup.opened() as ready:
            ready.warm_up(window=self._tool == "perf")
            _TOOLS[self._tool](ready, self._found, self._why, self._task)

    def write_account(self, outcome: Outcome, reason: str | None) -> None:
        """Write `worker.json`: what was found up to where it ended."""
        why, setup = self._why, self._setup
        account = ProfiledStep.of(
            reason or f"{self._tool} does not give it to the worker",
            why,
            tool=self._tool,
            outcome=outcome,
            reason=reason,
            resolved=setup.resolved,
            environment=or_reason("environment", lambda: setup.environment(self._folder), why),
            complexity=or_reason("complexity", setup.complexity, why),
            **self._found,
        )
        self._folder.release_reserve()
        self._folder.write(self._folder.worker, account)


def _torch(ready: ReadyStep, found: Found, why: dict[str, str], task: dict[str, str]) -> None:
    """PyTorch's profiler: time per op, beside the cost model's work of the same op.

    Of several ranks each profiles its own step, so that none is slower than the others; the trace
    is kept of rank 0 alone.
    """
    look = partial(work_set, ready.step, ready.device)
    # of several ranks one that goes on after a failure is no longer in step with the others
    found["work"] = look() if ready.config.world_size > 1 else or_reason("work", look, why)
    is_first = ready.team.shard.rank == 0
    try:
        found["ops"] = ops = profile_ops(
            ready.step,
            ready.device,
            _op_work(ready),
            trace_file=Path(task["trace"]) if is_first else None,
        )
        found["iterations"] = ops.iterations
    except UserError as error:  # kernels may not be seen; counters perhaps may
        why["ops"] = str(error)


def _op_work(ready: ReadyStep) -> tuple[CallWork, ...]:
    """The cost model's calls; none where it cannot follow a model, as the complexity then says."""
    try:
        return op_work(ready.spec(), grad_accum_steps=ready.config.grad_accum_steps)
    except UserError:
        return ()


def _ncu(ready: ReadyStep, found: Found, why: dict[str, str], task: dict[str, str]) -> None:
    """Nsight Compute replays the kernels of one step; its time is not the training's."""
    with profiled_range(ready.device):
        ready.step()
        ready.device.synchronize()
    found["iterations"] = 1
    why["window_s"] = "ncu replays each kernel: the time says nothing of training"


def _perf(ready: ReadyStep, found: Found, why: dict[str, str], task: dict[str, str]) -> None:
    """Perf counts the measured window alone."""
    with counting(task):
        begin = time.perf_counter()
        ready.measure()
        found["window_s"] = time.perf_counter() - begin
    found["iterations"] = len(ready.window.data_wait_s)


_TOOLS: dict[ToolName, Callable[[ReadyStep, Found, dict[str, str], dict[str, str]], None]] = {
    "torch": _torch,
    "ncu": _ncu,
    "perf": _perf,
}


@contextmanager
def profiled_range(device: Device) -> Iterator[None]:
    """Let ncu count what is launched inside: only that, and all of it.

    The device is synchronised at both ends. ncu must run with `--profile-from-start off`,
    and the CUDA context must exist, as it does after a warm-up. Raises `UnsupportedError` on
    another backend.
    """
    if device.backend != "cuda":
        raise UnsupportedError(f"tool=ncu: counts on CUDA devices alone, not on {device.backend}")
    device.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    try:
        yield
        device.synchronize()
    finally:
        torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
