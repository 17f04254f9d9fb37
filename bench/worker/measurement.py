"""One measurement, or one step under a tool: from the configuration to the worker's account."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from bench.errors import Unknown, UnsupportedError, UserError
from bench.machine.probes import probe
from bench.profilers.perf import counting
from bench.profilers.torch_profiler import pairs_within, work_set
from bench.records import Measurement, OpProfile, ToolName
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device
from bench.training.step import NO_MODEL
from bench.training.team import Team
from bench.training.window import Step
from bench.worker.attempt import Attempt
from bench.worker.step_setup import ReadyStep, StepSetup

#: Of the time so far, for steps that are profiled afterwards.
_EXPLAIN_SHARE = 0.15


class MeasurementAttempt(Attempt):
    """Measures the job's configuration.

    `before_warm_up` is called when all is ready: by default this waits for a launcher that is at
    work until it closes our input.
    """

    def __init__(
        self,
        folder: RecordFolder,
        journal: JournalWriter,
        team: Team | None = None,
        *,
        before_warm_up: Callable[[], object] = lambda: sys.stdin.buffer.read(),
    ) -> None:
        super().__init__(folder, journal)
        self._before_warm_up = before_warm_up
        self.setup = StepSetup(self.job.config, journal, team)
        self._whole: Measurement | None = None  # as the window left it
        why = NO_MODEL if self.job.config.data_only else "the run ended before a step was profiled"
        self._ops: OpProfile | Unknown = Unknown(why)
        #: Of `hidden_syncs`, `work` and `ranks` those that were looked into.
        self.probed: dict[str, Any] = {}

    @override
    def run(self) -> None:
        """Prepare, warm up, measure; count outside the window what a step launches and waits for.

        What a profiler leaves in the process must not enter the window: where it leaves nothing,
        the warm-up's second iteration is profiled, else one more after the window. The first is
        like no other: it makes gradients and momentum. Nor is the second of several ranks, in
        which DistributedDataParallel orders its buckets.

        A probe that fails leaves its fact missing: it does not decide how the run ended.
        """
        with self.setup.opened() as ready:
            has_model = not ready.config.data_only
            in_warm_up = (
                has_model
                and ready.limits.warmup_iters > 1
                and ready.config.world_size == 1
                and not ready.device.profiler_stays
            )
            ready.journal.note("notice", text=str(ready.limits))
            self._before_warm_up()
            profile = partial(self._profile, ready.device)
            ready.warm_up(profile if in_warm_up else None)
            ready.measure()
            self._whole = self.measurement()
            if has_model:
                self._look_into_step(ready, with_profiler=not in_warm_up)
                self._explain(ready)

    def _look_into_step(self, ready: ReadyStep, *, with_profiler: bool) -> None:
        """Look into the step after the window; after a failure ranks are no longer in step."""
        probes: dict[str, Callable[[], Any]] = {
            "hidden_syncs": lambda: ready.device.hidden_syncs(ready.step)
        }
        if with_profiler:
            probes["work"] = lambda: work_set(ready.step, ready.device)
        probes["ranks"] = lambda: self.compare_ranks(ready)
        for name, look in probes.items():
            with self.setup.looked_into():
                found = probe(look)
            if found is not None:
                self.probed[name] = found
            if isinstance(found, Unknown) and ready.config.world_size > 1:
                return

    def _explain(self, ready: ReadyStep) -> None:
        """Time the ops of a few more steps; whatever happens there, the measurement stands.

        They take at most `_EXPLAIN_SHARE` of the time so far, where that is enough for two pairs.
        """
        why = "" if ready.config.explain else "explain=false"
        if ready.config.world_size > 1:
            why = "of several ranks, which must stay in step; mlproject profile looks at them"
        elif ready.device.backend == "mps":
            why = "on MPS ops can only be waited for one by one; mlproject profile does"
        if why or self._whole is None:
            self._ops = Unknown(why or "no iteration was measured")
            return
        self._ops = Unknown("the worker ended while it profiled a step")
        self.write_account("ok", None)
        before_s = sum(self._whole.startup_s.values()) + sum(self._whole.warmup_times_s)
        spent_s = before_s + self._whole.window_s
        pairs = pairs_within(_EXPLAIN_SHARE * spent_s, self._whole.step_s)
        try:
            self._ops = probe(ready.profile_ops, pairs)
        except BaseException as error:  # an interrupt, or an exit of the model's own code
            self._ops = Unknown(f"cut off: {type(error).__name__}")

    def _profile(self, device: Device, step: Step) -> None:
        """Run one step of the warm-up and keep what it launched.

        Raises what the step raises without a profiler: it runs in any case.
        """
        ran = False

        def once() -> None:
            nonlocal ran
            step()
            ran = True

        with self.setup.looked_into():
            self.probed["work"] = probe(work_set, once, device)
        if not ran:
            step()

    def compare_ranks(self, ready: ReadyStep) -> Any:
        """Collect what the other ranks measured; a single process has no others."""
        return None

    def measurement(self) -> Measurement | None:
        """Return the window's times, whole or up to where it was cut; None if it never began."""
        found, ready = self._whole, self.setup.ready
        if found is None and ready is not None:
            config = ready.config
            batches = config.grad_accum_steps * config.world_size
            found = ready.window.measurement(
                samples_per_iteration=ready.resolved.batch_size * batches,
                compiled=config.compile != "none",
                startup_s=self.setup.startup_s,
                changed_switches=self.setup.changed_switches(),
                no_model=NO_MODEL if config.data_only else None,
            )
        return found and found.replaced(**self.probed)

    @override
    def facts(self) -> Mapping[str, Any]:
        measurement = probe(self.measurement)
        complexity: Any = None
        if self.job.config.data_only:
            complexity = Unknown(NO_MODEL)
        elif isinstance(measurement, Measurement):  # else no step was measured
            complexity = probe(self.setup.complexity)
        return {
            "resolved": self.setup.resolved,
            "measurement": measurement,
            "environment": probe(self.setup.environment, self.folder),
            "complexity": complexity,
            "ops": self._ops,
        }


class ProfileAttempt(Attempt):
    """One step under the job's tool, whose files the launcher reads."""

    def __init__(
        self, folder: RecordFolder, journal: JournalWriter, team: Team | None = None
    ) -> None:
        super().__init__(folder, journal)
        self._tool: ToolName = self.job.tool or "torch"
        self.not_given = f"{self._tool} does not give it to the worker"
        self._setup = StepSetup(self.job.config, journal, team)

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
            **self.found,
        }

    def _torch(self, ready: ReadyStep) -> None:
        """PyTorch's profiler: time per op, beside the cost model's work of the same op.

        Of several ranks each profiles its own step, so that none is slower than the others; the
        trace is kept of rank 0 alone.
        """
        look = partial(work_set, ready.step, ready.device)
        # of several ranks one that goes on after a failure is no longer in step with the others
        self.found["work"] = look() if ready.config.world_size > 1 else probe(look)
        is_first = ready.team.shard.rank == 0
        try:
            ops = ready.profile_ops(5, Path(self.job.task["trace"]) if is_first else None)
        except UserError as error:  # kernels may not be seen; counters perhaps may
            self.found["ops"] = Unknown(str(error))
        else:
            self.found |= {"ops": ops, "iterations": ops.iterations}

    def _ncu(self, ready: ReadyStep) -> None:
        """Nsight Compute replays the kernels of one step; its time is not the training's."""
        with profiled_range(ready.device):
            ready.step()
            ready.device.synchronize()
        replays = Unknown("ncu replays each kernel: the time says nothing of training")
        self.found |= {"iterations": 1, "window_s": replays}

    def _perf(self, ready: ReadyStep) -> None:
        with counting(self.job.task):
            begin = time.perf_counter()
            ready.measure()
            self.found["window_s"] = time.perf_counter() - begin
        self.found["iterations"] = len(ready.window.data_wait_s)


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
