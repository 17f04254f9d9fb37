"""A step of a script that is not ours, measured from within by torch's hooks around optimizers.

A step is from the end of one optimizer's step to the end of the next. What has something around
steps is a generator that yields where one runs (`bench.training.window.Around`): at the end of each
step the hook lets it go on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from bench.config import TimeLimits, max_seconds_on
from bench.config.resolved import MathMode
from bench.cost.step_tracer import LiveStepTracer
from bench.errors import Unknown, UserError
from bench.machine import probe, value_or_none
from bench.machine.environment import read_environment
from bench.machine.limits import peak_memory_bytes
from bench.machine.repository import model_code
from bench.profilers.torch_profiler import pairs_within, profiling
from bench.records import Account, ModelCode, Outcome
from bench.records.complexity import CallWork
from bench.records.folders import RecordFolder
from bench.records.journal import JournalWriter
from bench.training.devices import Device
from bench.training.team import Team
from bench.training.window import Window, compiled_graphs
from bench.worker.attempt import outcome_by
from bench.worker.rank_meter import RankMeter, ranks_of_a_batch
from bench.worker.removal import NextBatch, asked_for_batches, put_on_top
from bench.worker.script_model import Batches, StepSize, Training
from bench.worker.turns import Turns, planned, taking_out, to_take_out

#: Of the seconds that are left for the window: before the warm-up, which has a third of that, and
#: before the window. The rest is for what follows it.
_WINDOW_SHARE, _WITHOUT_WARMUP = 0.6, 0.8
#: Of these, and of what is left for a profile, where something is taken out of steps afterwards.
_BEFORE_TURNS = 0.25
#: Of its seconds, how long after them the window waits for the end of a step.
_LATER = 0.25
#: How often a look at steps is begun that a profile of the script may end, and how long the end of
#: such a profile is awaited: one around the whole loop grows until then.
_MOST_TRIES, _PROFILE_S = 3, 5.0
#: How many steps are counted until one is of the usual size.
_MOST_COUNTED = 8
_NO_LOADER = Unknown("no DataLoader of torch gave a batch within the window")
_IN_BACKWARD = "an optimizer steps within the backward pass: no count and no profile begins there"
_PROFILES_ITSELF = Unknown("the script profiles itself, and torch has one profile at a time")
_NOT_OF_A_SCRIPT: dict[str, Any] = {
    "startup_s": {},
    "compile_time_s": Unknown("it compiles before it is measured"),
    "ranks": Unknown("one process trains, or its ranks left no steps"),
    **dict.fromkeys(("hidden_syncs", "work"), Unknown("not looked for in a script")),
    **dict.fromkeys(("first_loss", "last_loss"), Unknown("a script keeps it to itself")),
}
#: The setting that a script's arithmetic comes closest to, where it has another name.
_PRECISIONS: dict[MathMode, str] = {"bf16": "amp-bf16", "fp16": "amp-fp16", "fp64": "fp32"}
Steps = Generator[None, Any, None]


class _ScriptProfilesError(Exception):
    """The script begins a profile of its own."""


class ScriptMeter:
    """Measures the process that it is made in; torch's hooks call `before` and `after`.

    `is_timing` while the end of each step is noted and nothing else done: then nothing is imported.
    """

    def __init__(self, folder: RecordFolder) -> None:
        self.is_timing = self._is_closed = False
        self._folder = folder
        folder.hold()
        self.job = folder.read_job(recorded=True)
        self._journal = JournalWriter(folder.journal)
        self._clock = time.perf_counter  # the script may put another in its place
        self._deadline_s = float(self.job.task["deadline_s"])
        self._counts: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._leader: torch.optim.Optimizer | None = None
        self._tracer: LiveStepTracer | None = None
        self._work: tuple[CallWork, ...] = ()
        self._steps: Steps | None = None
        self._done = self._calls = 0
        self._device: Device | None = None
        self._window: Window | None = None
        self._whole = self._loads = False
        self._samples = 1
        self._batches: Batches | None = None
        self._changed: Any = Unknown("no step was looked at after the window")
        self._account: Account | None = None
        self._found: dict[str, Any] = {"script": {}}  # by the fields of `Account`
        self._turns: list[Turns] = []
        self._rank = RankMeter(folder.path, by_function=bool(self.job.task["step_of"]))
        self._code = _script_code()  # as early as it is imported
        self._lock = threading.Lock()  # held while a step's end is worked on

    @property
    def has_ended(self) -> bool:
        """Whether no step is looked at any more, for rank 0 of another machine either."""
        return self._is_closed and not self._rank.goes_on

    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Note that an optimizer's step begins."""
        if self._tracer is not None:
            self._tracer.begin_update(optimizer, args, kwargs)

    def after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Note that it has ended; of several optimizers the rarest ends a step."""
        self._rank.after(optimizer)
        if self._tracer is not None:
            self._tracer.end_update()
        if self._window is None or self._window.timer is None:  # up to the window
            count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
            if self._leader is None:
                self._leader = optimizer
            elif count == 2 and self._counts[self._leader] > 2:
                self._leader, self._steps, self._done = optimizer, None, 0
        if self.job.task["step_of"]:
            return
        self._calls += 1
        if optimizer is self._leader:
            self.stepped()

    def stepped(self, begins: Exception | None = None) -> None:
        """Go on to the next step, or to what the script `begins` within it.

        Raises nothing: the script's own work goes on.
        """
        if self.job.task["step_of"] and begins is None:
            self._calls += 1
            self._rank.stepped()
        if self._is_closed:
            return
        card = self._device if self._device and self._device.backend == "cuda" else None
        on_card = torch.cuda.device(card.torch_device) if card else contextlib.nullcontext()
        try:
            with self._lock, on_card:
                self._go_on(begins)
        except StopIteration:
            self.close(None, goes_on=True)
        except Exception as error:
            self.close(error, goes_on=True)

    def _go_on(self, begins: Exception | None) -> None:
        if begins is not None and self._steps is not None:
            self._steps.throw(begins)
            return
        self._done += 1
        if self._batches is not None:
            self._batches.ended()
        if self._steps is None:
            self._steps = self._measuring(Training(self._counts))
        elif not self._whole and self._clock() > self._deadline_s:
            self.close(None, why=f"seconds={self.job.task['seconds']}", goes_on=True)
            return
        next(self._steps)

    def _give_up(self) -> None:
        """Write the window as it is: the script has gone on to something that has no steps."""
        with self._lock:
            self.close(None, why=f"no step ended after seconds={self.job.task['seconds']}")

    def close(
        self, error: BaseException | None, *, why: str = "the script ended", goes_on: bool = False
    ) -> Account:
        """Write what was seen so far, and return it.

        `error` is what has ended the script, unless that `goes_on`.
        """
        if not (goes_on and self._rank.node):  # the window of rank 0 may last longer
            self._rank.close()
        if self._account is not None:
            return self._account
        self._is_closed, self.is_timing = True, self._rank.goes_on
        if self._steps is not None:
            self._steps.close()
        if self._batches is not None and self._batches.hook is not None:
            self._batches.hook.remove()
        outcome, reason = outcome_by(None if self._whole else error)
        if not self._whole and self._cut(why) == 0 and outcome == "ok":
            outcome = "refused"
            reason = f"{why} after {self._done} steps, before one was measured: it needs more time"
        self._account = self._write(outcome, reason)
        if peak_bytes := value_or_none(peak_memory_bytes):
            self._journal.note("memory", max_rss_bytes=peak_bytes)
        # Who ends the script ends the whole job: of several machines the first may.
        self._journal.note("ended", outcome=outcome, goes_on=goes_on and not self._rank.node)
        return self._account

    def _cut(self, why: str) -> int:
        """End the window after its last whole iteration; return how many it has."""
        window = self._window
        if window is None or window.timer is None:
            return 0
        window.device.synchronize()
        times_s = window.timer.times_s()
        window.peak_memory_bytes = window.device.peak_memory_bytes()
        window.end_clock_s = window.start_clock_s + sum(times_s)
        window.ended_early = f"{why} after {len(times_s)} iterations"
        return len(times_s)

    def _other_sizes(self) -> list[StepSize]:
        """The sizes of the window's steps, if one has another than the first that was looked at."""
        if self._batches is None or self._batches.hook is None or self._window is None:
            return []
        first, *sizes = self._batches.sizes
        sizes = sizes[: len(self._window.data_wait_s)]
        return sizes if {*sizes} - {first} else []

    def _samples_of_steps(self) -> dict[str, Any]:
        """What a measurement says of its samples; of samples that differ one says nothing of all.

        Where the size of a step is not known, the steps are counted.
        """
        alike = {"samples_per_iteration": self._samples}
        if self._batches is None or not (sizes := self._other_sizes()):
            return alike
        none = dict.fromkeys(("image_size", "seq_len", "tokens_per_sample"))
        resolved = self._found["resolved"]
        if {size.shapes for size in sizes} - {self._batches.sizes[0].shapes}:
            self._found["resolved"] = resolved = resolved.model_copy(update=none)
            why = "its samples differ in size: no step is like others"
            self._found["complexity"] = Unknown(why)
        if self.job.task["samples_per_step"]:
            return {**alike, "iteration_samples": (self._samples,) * len(sizes)}
        if all(size.samples for size in sizes):
            ranks = self._samples // resolved.batch_size
            tokens = sum(size.tokens for size in sizes) * ranks or None
            samples = tuple(size.samples * ranks for size in sizes)
            return {**alike, "iteration_samples": samples, "window_tokens": tokens}
        as_steps = {"sample": "step", "batch_size": 1, **none}
        self._found["resolved"] = resolved.model_copy(update=as_steps)
        self._note_settings(batch_size=1)
        self._samples = 1
        return {"samples_per_iteration": 1}

    def _note_settings(self, **settings: Any) -> None:
        """Put what is known of the script's settings into the folder's configuration."""
        config = self.job.config.model_copy(update=settings)
        self.job = self.job.model_copy(update={"config": config})
        self._folder.write(self._folder.config, self.job)

    def _write(self, outcome: Outcome, reason: str | None) -> Account:
        """Write `worker.json`: what is known up to now."""
        if self._window is not None:
            known = {**_NOT_OF_A_SCRIPT, "changed_switches": self._changed}
            known |= self._samples_of_steps()
            if not self._loads:
                known["data_wait_s"] = _NO_LOADER
            self._found["measurement"] = probe(self._window.measurement, **known)
        if self._device is not None and "environment" not in self._found:
            about = self._device.info(), self._folder.path, self.job.config.env, self._code
            self._found["environment"] = probe(read_environment, *about)
        self._found["removals"] = tuple(turns.removal() for turns in self._turns)
        why = reason or "the script ended before that"
        account = Account.of(why, outcome=outcome, reason=reason, **self._found)
        self._folder.release_reserve()
        self._note_settings()  # again, as the folder may be gone since
        self._folder.write(self._folder.worker, account)
        return account

    # Each of these yields where a step of the script runs.

    def _measuring(self, training: Training) -> Steps:
        yield from self._looking(training)
        config, device = self.job.config, training.device
        limits = TimeLimits.of(config, device.backend)
        window = self._window = Window(time.perf_counter, device, ours=False)
        self._journal.note("warmup_started", **asdict(limits))
        yield from window.warming(limits, lambda s: self._journal.note("warmup", seconds=s))
        left_s = _WITHOUT_WARMUP * max(self._deadline_s - time.perf_counter(), 0.1)
        limits = replace(limits, max_seconds=min(limits.max_seconds or left_s, left_s))
        plan = Team().plan(limits, window.warmup_times_s)
        self._journal.note("window_started", **asdict(replace(limits, iters=plan.iterations)))
        until_s = self._deadline_s + _LATER * float(self.job.task["seconds"])
        alarm = threading.Timer(until_s - time.perf_counter(), self._give_up)
        alarm.daemon = True
        alarm.start()
        self.is_timing = True
        if self._batches is not None:
            del self._batches.sizes[1:]  # of the steps between the first and the window
        with self._timing_loaders(window):
            yield from window.measuring(plan)
        alarm.cancel()
        self.is_timing, self._whole = False, True
        self._journal.note("window_ended")
        yield  # what follows may import modules
        self._write("ok", None)
        yield from self._unprofiled("complexity", partial(self._counting, training))
        if self._other_sizes():
            self._found["ops"] = Unknown("its steps differ in size: one does not stand for all")
        else:
            yield from self._unprofiled("ops", partial(self._profiling, device, window))
        yield from self._taking_out(window)

    def _timing_loaders(self, window: Window) -> contextlib.AbstractContextManager[None]:
        """Time each wait for a batch of a torch DataLoader, in the thread that trains."""
        thread, clock = threading.get_ident(), self._clock

        def timed(next_batch: NextBatch, batches: Any) -> Any:
            begin_s = clock()
            try:
                return next_batch(batches)
            finally:
                if threading.get_ident() == thread:
                    self._loads = True
                    window.waited(clock() - begin_s)

        return asked_for_batches(timed)

    def _unprofiled(self, name: str, look: Callable[[], Steps]) -> Steps:
        """Look at steps while the script has no profile of its own; give way to one that begins."""
        until_s = min(time.perf_counter() + _PROFILE_S, self._deadline_s)
        for _ in range(_MOST_TRIES):
            while _script_profiles():
                self._found[name] = _PROFILES_ITSELF
                if time.perf_counter() > until_s:
                    return
                yield
            self._found.pop(name, None)
            try:
                if torch._C._current_graph_task_id() != -1:
                    raise UserError(_IN_BACKWARD)
                with self._giving_way():
                    yield from look()
                return
            except UserError as error:
                self._found[name] = Unknown(str(error))
                return
            except _ScriptProfilesError:
                self._found[name] = _PROFILES_ITSELF
                yield

    @contextlib.contextmanager
    def _giving_way(self) -> Iterator[None]:
        """End what looks at a step within the block before the script starts a profile there.

        As long as the block lasts, torch's two functions that start one are wrapped.
        """
        thread, profiler = threading.get_ident(), vars(torch.autograd.profiler)
        starts = {name: profiler[name] for name in ("_prepare_profiler", "_enable_profiler")}

        def after_us(start: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread and not self._lock.locked():  # not our own
                is_enabled = profiler["_is_profiler_enabled"]
                self.stepped(_ScriptProfilesError())
                profiler["_is_profiler_enabled"] = is_enabled
            return start(*args, **kwargs)

        profiler.update({name: partial(after_us, start) for name, start in starts.items()})
        try:
            yield
        finally:
            profiler.update(starts)

    def _taking_out(self, window: Window) -> Steps:
        """Take what `--without` names out of steps, by turns."""
        if window.timer is None or not (asked := self.job.task["without"]):
            return
        account = (self._found.get(name) or None for name in ("measurement", "ops"))
        names, now_s, alone = to_take_out(asked, *account), self._clock(), _ranks() == (1, 1)
        self._turns = planned(
            *(names, (self._deadline_s - now_s) / max(len(names), 1)),
            *(statistics.fmean(window.timer.times_s()), self._found["resolved"].workers),
            now_s if alone else None,
        )
        none = "the account names nothing of 5 % or more to take out"
        self._journal.note("notice", text="; ".join(map(str, self._turns)) or none)
        self.is_timing = True  # nothing is imported
        about = window.device, self._counts, self._clock
        yield from taking_out(self._turns, *about, None if alone else self._place)
        self.is_timing = False

    def _place(self) -> tuple[int, int]:
        """How many calls of optimizers there were, and the number of the one that ends a step."""
        optimizers: list[Any] = [] if self.job.task["step_of"] else [*self._counts]
        return self._calls, optimizers.index(self._leader) if optimizers else 0

    def _profiling(self, device: Device, window: Window) -> Steps:
        step_s = max(statistics.median(window.warmup_times_s), 1e-3)
        part = _BEFORE_TURNS if self.job.task["without"] else 1
        pairs = pairs_within(part * (self._deadline_s - time.perf_counter()), step_s)
        self._found["ops"] = yield from profiling(device, self._work, pairs)

    def _looking(self, training: Training) -> Steps:
        """Look at what the model is given in one step, and at what the script has set."""
        device = self._device = training.open_device()
        self._journal.note("device", backend=device.backend, uuid=device.info().uuid)
        with training.watched(int(self.job.task["samples_per_step"] or 0)) as seen:
            yield
        usual = max_seconds_on(device.backend, self.job.config)
        part = _WINDOW_SHARE * (_BEFORE_TURNS if self.job.task["without"] else 1)
        left_s = part * max(self._deadline_s - time.perf_counter(), 1.0)
        max_seconds = round(min(left_s, left_s if usual == "none" else usual), 1)
        resolved = training.resolved(seen, max_seconds)
        mode, (local, nodes) = resolved.math_mode, _ranks()
        self._note_settings(
            **{name: getattr(resolved, name) for name in ("backend", "batch_size", "max_seconds")},
            **{"devices": local, "nodes": nodes},
            precision=_PRECISIONS.get(mode, mode),
            compile="default" if compiled_graphs() else "none",
        )
        alike = 1 if resolved.sample == "step" else local * nodes // ranks_of_a_batch(training)
        self._samples = resolved.batch_size * max(alike, 1)
        self._found |= {"resolved": resolved, "script": training.names}
        self._batches = seen
        self._journal.note("notice", text=f"{training.names['model']}; a step: {seen}")

    def _counting(self, training: Training) -> Steps:
        """Count what one step computes and moves; each op runs once, as without it."""
        try:
            if torch._C._len_torch_dispatch_stack():
                raise UserError("the script looks at torch's ops itself")
            outer = (frame.f_code.co_name for frame, _ in traceback.walk_stack(None))
            if "compile_wrapper" in outer:  # where it ends, torch puts its own state back
                raise UserError("its step ends within a function that torch.compile has")
            if compiled_graphs() and self.job.task["keep_going"]:
                raise UserError("a compiled model is counted uncompiled: not with --keep-going")
            for _ in range(_MOST_COUNTED):  # until one has the size of the first that was seen
                self._tracer = LiveStepTracer()
                eager = torch.compiler.set_stance("force_eager")
                with training.watched(1) as seen, eager, self._tracer:
                    try:
                        yield
                    finally:
                        put_on_top(self._tracer)
                if seen.hook is not None:
                    seen.hook.remove()
                sizes = self._batches.sizes if self._batches and self._batches.hook else []
                if sizes[-1:] == sizes[:1]:
                    break
            else:
                raise UserError("its steps differ in size: none was like the first")
            old = self._batches.switches if self._batches else {}
            both = ((name, old.get(name, now), now) for name, now in seen.switches.items())
            self._changed = tuple(f"{name} to {now}" for name, then, now in both if now != then)
            self._found["complexity"], self._work = training.counted(
                self._tracer, self.job.config, self._found["resolved"]
            )
        finally:
            self._tracer = None


def _script_profiles() -> bool:
    """Whether a profile of the script records or warms up, or can be asked for from outside."""
    profiler = torch.autograd.profiler
    return (
        profiler._is_profiler_enabled
        or torch._C._autograd._profiler_enabled()
        or "KINETO_USE_DAEMON" in os.environ
        or any(
            alive.enabled and alive.entered and alive.kineto_results is None
            for alive in gc.get_objects()
            if issubclass(type(alive), profiler.profile)
        )
    )


def _ranks() -> tuple[int, int]:
    """How many processes train together on this machine, and on how many machines."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 1, 1
    world = distributed.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return local, max(world // local, 1)


def _script_code() -> ModelCode | Unknown:
    """The source of the script of this process, and of what it imports from beside it."""
    main = sys.modules.get("__mp_main__") or sys.modules["__main__"]
    if (name := getattr(main, "__file__", None)) is None:
        return Unknown("no file is known of the script")
    file, spec = Path(name).resolve(), getattr(main, "__spec__", None)
    if spec is None:
        return model_code(file.stem, file.parent)
    return model_code(spec.name, file.parents[spec.name.count(".")])
