"""One measurement, or one step under a tool: from the configuration to the worker's account."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from bench.errors import Unknown, UserError
from bench.machine import probe
from bench.profilers.perf import counting
from bench.profilers.torch_profiler import pairs_within, work_set
from bench.records import DistributedFigures, Measurement, RankFigures
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.step import NO_MODEL
from bench.training.team import Team
from bench.training.window import driven
from bench.worker.attempt import Attempt, profiled_range
from bench.worker.step_setup import ReadyStep, StepSetup
from bench.worker.turns import planned, taking_out, to_take_out

#: Of the time so far, for steps that are profiled afterwards.
_EXPLAIN_SHARE = 0.15
#: Steps with communication, and as many without: each a third of the window's, so that slow steps
#: do not double the time of a run, but not more than this. One or two would show noise alone.
_MAX_PROBES = 10
#: Steps for the turns of each part that is taken out of them, or as long as the window.
_STEPS_OF_TURNS = 150


class StepAttempt(Attempt):
    """Measures the job's configuration, or looks into one step of it under the job's tool.

    Without a `team` of ranks a measurement waits, when all is ready, for a launcher that is at work
    until it closes our input.
    """

    def __init__(
        self, folder: RecordFolder, journal: JournalWriter, team: Team | None = None
    ) -> None:
        super().__init__(folder, journal, team)
        self.setup = StepSetup(self.job.config, journal, team)
        self._whole: Measurement | None = None  # as the window left it
        #: Of `hidden_syncs`, `work` and `ranks` those that were looked into.
        self.probed: dict[str, Any] = {}
        self._measures = self.job.kind == "measurement"
        if self._measures:
            no_step = "the run ended before a step was profiled"
            self.found["ops"] = Unknown(NO_MODEL if self.job.config.data_only else no_step)
        else:
            self.not_given = f"{self.job.tool} does not give it to the worker"

    @override
    def run(self) -> None:
        """Open the step, and measure it or run it under the tool."""
        under = {"torch": self._torch, "ncu": self._ncu, "perf": self._perf}
        with self.setup.opened() as ready:
            if self._measures:
                self._measure(ready)
            else:
                ready.warm_up(window=self.job.tool == "perf")
                under[self.job.tool or "torch"](ready)

    @override
    def facts(self) -> Mapping[str, Any]:
        facts = {"resolved": self.setup.resolved, **self.found}
        facts["environment"] = probe(self.setup.environment, self.folder)
        if self._measures:
            facts["measurement"] = measurement = probe(self.measurement)
            if self.job.config.data_only:
                return {**facts, "complexity": Unknown(NO_MODEL)}
            if not isinstance(measurement, Measurement):  # no step was measured
                return facts
        return {**facts, "complexity": probe(self.setup.complexity)}

    def _measure(self, ready: ReadyStep) -> None:
        """Warm up and measure; look into further steps only then, and whatever happens there.

        What a profiler leaves in the process must not enter the window.
        """
        ready.journal.note("notice", text=str(ready.limits))
        if self.team is None:
            sys.stdin.buffer.read()
        ready.warm_up()
        ready.measure()
        self._whole = self.measurement()
        if ready.config.data_only:
            return
        alone = ready.config.world_size == 1
        try:
            if alone and self._whole is not None:
                self.found["ops"] = Unknown("the worker ended while it profiled a step")
                self.write_account("ok", None)
            self._look_into_step(ready)
            self._explain(ready)
            self._take_out(ready)
        except BaseException as error:  # an interrupt, or an exit of the model's own code
            if not alone:
                raise
            if not self.found["ops"]:
                self.found["ops"] = Unknown(f"cut off: {type(error).__name__}")

    def _look_into_step(self, ready: ReadyStep) -> None:
        """Look into steps after the window; after a failure ranks are no longer in step.

        A probe that fails leaves its fact missing: it does not decide how the run ended.
        """
        probes: dict[str, Callable[[], Any]] = {
            "hidden_syncs": lambda: ready.device.hidden_syncs(ready.step),
            "work": lambda: work_set(ready.step, ready.device),
            **({"ranks": lambda: self._compare_ranks(ready)} if self.team else {}),
        }
        for name, look in probes.items():
            with self.setup.looked_into():
                fact = probe(look)
            if fact is not None:
                self.probed[name] = fact
            if isinstance(fact, Unknown) and ready.config.world_size > 1:
                return

    def _explain(self, ready: ReadyStep) -> None:
        """Time the ops of a few more steps.

        They take at most `_EXPLAIN_SHARE` of the time so far, where that is enough for two pairs.
        """
        why = "" if ready.config.explain else "explain=false"
        if ready.config.world_size > 1:
            why = "of several ranks, which must stay in step; mlproject profile looks at them"
        elif ready.device.backend == "mps":
            why = "on MPS ops can only be waited for one by one; mlproject profile does"
        if why or self._whole is None:
            self.found["ops"] = Unknown(why or "no iteration was measured")
            return
        before_s = sum(self._whole.startup_s.values()) + sum(self._whole.warmup_times_s)
        spent_s = before_s + self._whole.window_s
        pairs = pairs_within(_EXPLAIN_SHARE * spent_s, self._whole.step_s)
        self.found["ops"] = probe(ready.profile_ops, pairs)

    def _take_out(self, ready: ReadyStep) -> None:
        """Take what `--without` names out of further steps, by turns."""
        whole, asked = self.measurement(), self.job.task.get("without", "")
        if whole is None or not asked:
            return
        step_s, several = whole.mean_step_s, ready.config.world_size > 1
        names = to_take_out(asked, whole, self.found.get("ops") or None)
        about = names, max(whole.window_s, _STEPS_OF_TURNS * step_s), step_s
        if several:  # all take the same turns
            about = self.team.gather(about)[0]
        plan = planned(*about, ready.resolved.workers, None if several else time.perf_counter())
        try:
            driven(taking_out(plan, ready.device, ()), ready.step)
        finally:
            self.found["removals"] = tuple(turns.removal() for turns in plan)

    def measurement(self) -> Measurement | None:
        """Return the window's times, whole or up to where it was cut; None if it never began."""
        window, ready = self._whole, self.setup.ready
        if window is None and ready is not None:
            config = ready.config
            window = ready.window.measurement(
                samples_per_iteration=ready.samples,
                compiled=config.compile != "none",
                startup_s=self.setup.startup_s,
                no_model=NO_MODEL if config.data_only else None,
            )
        switches = self.setup.changed_switches()  # also within the steps that were looked into
        return window and window.replaced(changed_switches=switches, **self.probed)

    def _compare_ranks(self, ready: ReadyStep) -> DistributedFigures:
        """Probe what communication costs and collect every rank's figures."""
        communication = self.team.communication  # one process has none, and takes no step here
        steps = max(1, min(_MAX_PROBES, len(ready.window.data_wait_s) // 3))
        synced_s, local_s = (self._times_s(ready, steps, local=local) for local in (False, True))
        ranks = zip(self.team.gather(self._rank_figures(ready)), local_s, strict=True)
        return DistributedFigures(
            communication=communication,
            parallelism="DistributedDataParallel",
            synced_step_s=tuple(map(max, zip(*synced_s, strict=True))),
            local_step_s=tuple(map(max, zip(*local_s, strict=True))),
            ranks=tuple(rank.replaced(local_step_s=own_s) for rank, own_s in ranks),
        )

    def _times_s(self, ready: ReadyStep, steps: int, *, local: bool) -> list[tuple[float, ...]]:
        """Seconds of each of some steps on every rank, begun together.

        One more goes before them: the first local one may compile again, and still sends the
        buffers that the step before it has left behind.
        """
        times_s = []
        with self.team.no_gradient_sync() if local else nullcontext():
            for _ in range(1 + steps):
                self.team.barrier()
                begin = time.perf_counter()
                ready.step()
                ready.device.synchronize()
                times_s.append(time.perf_counter() - begin)
        of_ranks: list[tuple[float, ...]] = self.team.gather(tuple(times_s[1:]))
        return of_ranks

    def _rank_figures(self, ready: ReadyStep) -> RankFigures:
        window, info = self.measurement(), ready.device.info()
        names = RankFigures.model_fields.keys() & Measurement.model_fields.keys() - {"missing"}
        return RankFigures.of(
            "asked of the ranks of a script",
            {**window.missing, "device_uuid": info.missing.get("uuid", "")} if window else {},
            rank=self.team.shard.rank,
            node=self.team.node,
            device=info.name,
            device_uuid=info.uuid,
            **{name: getattr(window, name) for name in names},
        )

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
