"""The measured window: warm-up, then iterations timed without stopping the device between them."""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from bench.config import MIN_ITERATIONS, TimeLimits, rounded_s
from bench.records import Measurement
from bench.records.journal import Clock
from bench.statistics.steady_state import is_warm, iterations_needed
from bench.training.devices import Device, IterationTimer
from bench.training.inputs import NextBatch
from bench.training.step import Phases
from bench.training.workloads import Batch

T = TypeVar("T")
Step = Callable[[], torch.Tensor]
#: Code around steps that may be somebody else's: one runs wherever it yields.
Around = Generator[None, Any, T]

#: Iterations in which torch.compile may compile or capture.
_COMPILING = 3


def driven(around: Around[T], step: Callable[[], object]) -> T:
    """Run `step` wherever `around` yields, give it the result, and return what it returns."""
    with closing(around):
        try:
            next(around)
            while True:
                around.send(step())
        except StopIteration as end:
            value: T = end.value
            return value


@dataclass(frozen=True)
class WindowPlan:
    """How many iterations the window holds, and why not all that were asked for.

    With `max_seconds` the clock may end it earlier still.
    """

    iterations: int
    max_seconds: float | None = None
    ended_early: str | None = None
    most: int = 0  # as far as it goes on until its pace is known


@dataclass
class Window:
    """What the loop keeps while it runs, so that an interrupt finds whatever was measured.

    Of a process that is not `ours` neither memory nor Python's collector is touched, and the peak
    of memory is that of the process.
    """

    clock: Clock
    device: Device
    barrier: Callable[[], None] = lambda: None  # returns when all ranks have reached it
    most: Callable[[int], int] = int  # the largest of all ranks
    phases: Phases = field(default_factory=Phases)
    warmup_times_s: list[float] = field(default_factory=list)
    data_wait_s: list[float] = field(default_factory=list)
    timer: IterationTimer | None = None
    start_clock_s: float = 0.0
    end_clock_s: float = 0.0
    start_unix_s: float = 0.0
    ended_early: str | None = None
    warmup_ended_early: str | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    warmup_peak_memory_bytes: tuple[int, int] | None = None  # allocated, reserved
    peak_memory_bytes: tuple[int, int] | None = None  # of the window alone, likewise
    other_cpu_cores: float | None = None  # set by who watches the machine around `measure`
    replays_graphs: bool = False
    ours: bool = True
    garbage_collections_s: float = 0.0
    _waited_s: float = 0.0
    _collection_began_s: float = 0.0

    def waiting(self, next_batch: NextBatch) -> NextBatch:
        """Wrap `next_batch` so that the host's time inside it is added to the iteration's."""
        clock = self.clock

        def timed() -> Batch:
            begin = clock()
            batch = next_batch()
            self.waited(clock() - begin)
            return batch

        return timed

    def waited(self, seconds: float) -> None:
        """Add time in which the host waited for the next batch of this iteration."""
        self._waited_s += seconds

    def warm_up(self, step: Step, limits: TimeLimits, on_lap: Callable[[float], None]) -> None:
        """Run the warm-up's steps, each synchronised; none of them enters the window.

        The first iteration, in which libraries and compilers start, shows no pace, nor does any up
        to the last that compiled or obtained memory. The others must have taken `limits.settle_s`
        seconds and, with `limits.until_steady`, be of one pace. With a time limit, which the first
        iteration is outside of, the warm-up ends before an iteration that would pass it if it took
        as long as the one before, but not before `limits.min_warmup` iterations.
        """
        driven(self.warming(limits, on_lap), step)

    def warming(self, limits: TimeLimits, on_lap: Callable[[float], None]) -> Around[None]:
        """Yield where a step of the warm-up is to run; its loss is sent."""
        begin_s, times_s, limit_s = self.clock(), self.warmup_times_s, limits.warmup_s
        settling = limits.settle_s > 0 or limits.until_steady
        made, unpaced = (0, 0), 0

        def is_steady() -> bool:
            return not limits.until_steady or is_warm(times_s[unpaced:])

        def is_cold() -> bool:
            return sum(times_s[unpaced:]) < limits.settle_s or not is_steady()

        while (done := len(times_s)) < limits.warmup_iters or (settling and self.most(is_cold())):
            if (
                limit_s is not None
                and done >= limits.min_warmup
                and self.most(self.clock() - begin_s + times_s[-1] > limit_s)
            ):
                if done < limits.warmup_iters or not is_steady():
                    self.warmup_ended_early = f"{done} of {_asked(limits, limit_s)}"
                break
            lap_begin_s = self.clock()
            loss = yield
            self.device.synchronize()
            times_s.append(self.clock() - lap_begin_s)
            on_lap(times_s[-1])
            before, made = made, (compiled_graphs(), self.device.memory_obtained())
            if made != before or done == 0:
                unpaced = done + 1
            if done == 0:
                self.first_loss = None if loss is None else float(loss)
                if self.ours:
                    # The search for algorithms took more memory than the step itself needs.
                    self.device.release_cached_memory()
                begin_s = self.clock()
        if self.ours:
            # Collected now, so that no collection of what the start-up left falls into the window.
            gc.collect()

    def measure(self, step: Step, plan: WindowPlan) -> None:
        """Time the planned steps; synchronise, all ranks, only at the window's two ends.

        With `plan.max_seconds` the window ends after the first iteration that the host closes past
        the limit, but not before `MIN_ITERATIONS`. Without one it goes on after `plan.iterations`
        until its pace is known well enough, at most to `plan.most`.
        """
        driven(self.measuring(plan), step)

    def measuring(self, plan: WindowPlan) -> Around[None]:
        """Yield where a step of the window is to run; its loss is sent."""
        iterations, max_seconds, done = plan.iterations, plan.max_seconds, 0
        loss = None
        self.phases.clear()
        self.device.synchronize()
        self.warmup_peak_memory_bytes = self.device.peak_memory_bytes()
        if self.ours:
            self.device.reset_peak_memory()
            # What the start-up made stays: a collection in the window need not look through it.
            gc.freeze()
        self.timer = self.device.timer(self.clock)
        self._waited_s = 0.0
        gc.callbacks.append(self._on_collection)
        self.barrier()
        self.start_unix_s = time.time()
        self.start_clock_s = self.clock()
        self.timer.mark()
        try:
            while done < iterations:
                loss = yield
                done += 1
                self.timer.mark()
                self.phases.lap()
                self.data_wait_s.append(self._waited_s)
                self._waited_s = 0.0
                if done == iterations < plan.most:
                    needed = self.most(iterations_needed(self.timer.ended_times_s()))
                    iterations = max(done, min(needed, plan.most))
                if (
                    max_seconds is not None
                    and MIN_ITERATIONS <= done < iterations
                    and self.clock() - self.start_clock_s >= max_seconds
                ):
                    self.ended_early = f"max_seconds={max_seconds:g} after {done} of {iterations}"
                    break
        finally:
            gc.callbacks.remove(self._on_collection)
            if self.ours:
                gc.unfreeze()
        self.device.synchronize()
        # Before the probes that follow a window: steps of other kinds may need more.
        self.peak_memory_bytes = self.device.peak_memory_bytes()
        self.barrier()
        self.end_clock_s = self.clock()
        self.last_loss = None if loss is None else float(loss)
        self.ended_early = self.ended_early or plan.ended_early

    def measurement(
        self, *, compiled: bool = False, no_model: str | None = None, **known: Any
    ) -> Measurement | None:
        """Return the raw times, up to where an interrupt cut them; None without an iteration.

        `known` are the fields of `Measurement` that a window does not know. `no_model` says why
        there was no model, and so no loss and no work.
        """
        if self.timer is None:
            return None
        if not self.end_clock_s:
            self.device.synchronize()
            self.peak_memory_bytes = self.device.peak_memory_bytes()
            self.end_clock_s = self.clock()
        times = self.timer.times_s()[: len(self.data_wait_s)]
        if not times:
            return None
        allocated, reserved = self.peak_memory_bytes or (None, None)
        warmup_allocated, _ = self.warmup_peak_memory_bytes or (None, None)
        if self.replays_graphs and allocated is not None and warmup_allocated is not None:
            # A replay allocates nothing: its tensors were counted when they were captured.
            allocated = max(allocated, warmup_allocated)
        phase_times = self.phases.times_s()
        known = {
            "data_wait_s": tuple(self.data_wait_s[: len(times)]),
            "compile_time_s": self._compile_time_s(times) if compiled else None,
            "first_loss": _finite(self.first_loss),
            "last_loss": _finite(self.last_loss),
            **known,
        }
        return Measurement.of(
            "",
            _WHY_MISSING | (dict.fromkeys(_MODEL_FACTS, no_model) if no_model else {}),
            iteration_times_s=tuple(times),
            iteration_clock=self.timer.kind,
            phase_times_s=phase_times
            and {name: phase[: len(times)] for name, phase in phase_times.items()},
            warmup_times_s=tuple(self.warmup_times_s),
            window_start_clock_s=self.start_clock_s,
            window_end_clock_s=self.end_clock_s,
            window_start_unix_s=self.start_unix_s,
            ended_early=self.ended_early,
            warmup_ended_early=self.warmup_ended_early,
            peak_memory_allocated_bytes=allocated,
            peak_memory_reserved_bytes=reserved,
            warmup_peak_memory_bytes=warmup_allocated,
            other_cpu_cores=self.other_cpu_cores,
            garbage_collections_s=self.garbage_collections_s,
            **known,
        )

    def _on_collection(self, phase: str, _: object) -> None:
        """Python's garbage collector calls this at both ends of a collection."""
        if phase == "start":
            self._collection_began_s = self.clock()
        else:
            self.garbage_collections_s += self.clock() - self._collection_began_s

    def _compile_time_s(self, window_times_s: Sequence[float]) -> float:
        """Time of the first iterations beyond the warm-up's fastest one.

        The first compiles, and a second one where it finds a size that varies; a graph is captured
        in the one after. Later iterations differ by what else the machine does. A warm-up without
        later ones is held against the window's too.
        """
        is_short = len(self.warmup_times_s) <= _COMPILING
        fastest = min([*self.warmup_times_s, *(window_times_s if is_short else ())])
        return sum(seconds - fastest for seconds in self.warmup_times_s[:_COMPILING])


def compiled_graphs() -> int:
    """Return how many graphs torch.compile has made in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    return dynamo.utils.counters["stats"]["unique_graphs"] if dynamo else 0


def _asked(limits: TimeLimits, limit_s: float) -> str:
    number = f"{limits.warmup_iters} or more" if limits.until_steady else limits.warmup_iters
    limit = f"max_seconds={limits.max_seconds:g} gives it {rounded_s(limit_s)}"
    return f"{number} iterations ({limit})"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


_MODEL_FACTS = ("hidden_syncs", "work", "first_loss", "last_loss")
_WHY_MISSING = {
    "phase_times_s": "phases=true was not asked for",
    "ended_early": "the window held all its iterations",
    "warmup_ended_early": "the warm-up held all its iterations",
    "compile_time_s": "compile=none",
    "peak_memory_allocated_bytes": "this backend does not count a peak",
    "peak_memory_reserved_bytes": "this backend does not count a peak",
    "warmup_peak_memory_bytes": "this backend does not count a peak",
    "changed_switches": "a window alone does not know them",
    **dict.fromkeys(("iteration_samples", "window_tokens"), "alike, or not looked at"),
    "hidden_syncs": "no probe of synchronisations on this backend, or the run ended before it",
    "work": "the run ended before it was counted, or torch's profiler counts nothing here",
    "other_cpu_cores": "asked of one process on a CPU, and once its window has ended",
    "ranks": "one device, or the run ended before the ranks sent their times",
    "first_loss": "not finite, or no iteration ended",
    "last_loss": "not finite, or the window was cut",
}
