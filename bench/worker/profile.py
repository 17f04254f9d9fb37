"""One configuration's step, profiled by the tool named in its folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from bench.errors import Unknown, UnsupportedError, UserError
from bench.machine.probes import probe
from bench.profilers.ops.torch_profiler import work_set
from bench.profilers.perf.program import counting
from bench.records import ToolName
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device
from bench.training.team import Team
from bench.worker.attempt import Attempt
from bench.worker.step_setup import ReadyStep, StepSetup


class ProfileAttempt(Attempt):
    """One step under the job's tool, whose files the launcher reads."""

    def __init__(
        self, folder: RecordFolder, journal: JournalWriter, team: Team | None = None
    ) -> None:
        super().__init__(folder, journal)
        self._tool: ToolName = self.job.tool or "torch"
        self.not_given = f"{self._tool} does not give it to the worker"
        self._setup = StepSetup(self.job.config, journal, team)
        #: By the fields of `Account`.
        self._found: dict[str, Any] = {}

    @override
    def run(self) -> None:
        """Warm up, then run the step under the tool."""
        under = {"torch": self._torch, "ncu": self._ncu, "perf": self._perf}[self._tool]
        with self._setup.opened() as ready:
            ready.warm_up(window=self._tool == "perf")
            under(ready)

    @override
    def facts(self) -> dict[str, Any]:
        setup = self._setup
        return {
            "resolved": setup.resolved,
            "environment": probe(setup.environment, self.folder),
            "complexity": probe(setup.complexity),
            **self._found,
        }

    def _torch(self, ready: ReadyStep) -> None:
        """PyTorch's profiler: time per op, beside the cost model's work of the same op.

        Of several ranks each profiles its own step, so that none is slower than the others; the
        trace is kept of rank 0 alone.
        """
        look = partial(work_set, ready.step, ready.device)
        # of several ranks one that goes on after a failure is no longer in step with the others
        self._found["work"] = look() if ready.config.world_size > 1 else probe(look)
        is_first = ready.team.shard.rank == 0
        try:
            ops = ready.profile_ops(5, Path(self.job.task["trace"]) if is_first else None)
        except UserError as error:  # kernels may not be seen; counters perhaps may
            self._found["ops"] = Unknown(str(error))
        else:
            self._found |= {"ops": ops, "iterations": ops.iterations}

    def _ncu(self, ready: ReadyStep) -> None:
        """Nsight Compute replays the kernels of one step; its time is not the training's."""
        with profiled_range(ready.device):
            ready.step()
            ready.device.synchronize()
        replays = Unknown("ncu replays each kernel: the time says nothing of training")
        self._found |= {"iterations": 1, "window_s": replays}

    def _perf(self, ready: ReadyStep) -> None:
        with counting(self.job.task):
            begin = time.perf_counter()
            ready.measure()
            self._found["window_s"] = time.perf_counter() - begin
        self._found["iterations"] = len(ready.window.data_wait_s)


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
