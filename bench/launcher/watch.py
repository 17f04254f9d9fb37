"""Starts a worker, or a script that measures itself, and watches it from outside until it ends."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import IO, cast

import psutil
from typing_extensions import override

from bench.errors import Unknown
from bench.launcher.device_lock import held_locks
from bench.launcher.processes import (
    WatchedProcess,
    interrupt,
    pythons_of,
    starters,
    terminate_tree,
)
from bench.launcher.rank_steps import say_who_was_killed
from bench.launcher.telemetry import Devices, Sampler
from bench.launcher.telemetry.devices import HostSource, device_source
from bench.machine.limits import allocator_settings, describe_exit, oom_kills
from bench.records import Account, Job, Measurement, ProcessFigures, Telemetry
from bench.records.folders import SPARE, RecordFolder, is_running
from bench.records.journal import Event, JournalReader, OnEvent

_PROJECT = Path(__file__).resolve().parents[2]
_WORKER = _PROJECT / "bench" / "worker" / "__main__.py"
#: How often the launcher looks at its worker. Telemetry has its own, longer interval.
_POLL_S = 0.05
_TICK_S = 1.0
#: A worker that is asked to end may finish an operation and write what it has, a script its work.
_GRACE_S, _INTERRUPT_S = 20.0, 60.0


class WorkerWatch:
    """The worker of a job, from its start to its end, with everything that was seen of it.

    The worker runs in its own session: a Ctrl-C in the terminal reaches the launcher alone,
    which then asks the worker to write what it has measured. Of a job on several devices the worker
    is torch's elastic launcher, which starts every rank in a session of its own; rank 0 reports the
    progress. `prefix` is the command of a tool under which the worker runs. `while_preparing` is
    called in a thread as the worker prepares, and must not raise; a measurement begins its warm-up
    when it has returned. At `deadline_s`, a reading of `time.perf_counter`, it is ended as by
    Ctrl-C, but that the folder does not say so.
    """

    what = "worker"

    def __init__(
        self,
        job: Job,
        folder: RecordFolder,
        on_event: OnEvent,
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        while_preparing: Callable[[], object] | None = None,
        deadline_s: float = math.inf,
    ) -> None:
        self.started = datetime.now(timezone.utc)
        self._job = job
        self._folder = folder
        self._on_event = on_event
        self._deadline_s = deadline_s
        self._journal = JournalReader(folder.journal)
        self._oom_kills_before = oom_kills()
        self._reached: dict[str, float] = {}
        self._last = "the start of Python"
        self._peak_bytes = 0
        self._interrupted = False
        # They are asked to end in the worker's place: it would ask their image loaders too.
        self._ranks: list[psutil.Process] = []
        self._devices: Devices | None = None
        self._sampler = Sampler()
        folder.claim(os.getpid())  # before the configuration: from then on sync sees the folder
        folder.write(folder.config, job)
        popen = self._popen = self._start(prefix, environment or {}, while_preparing)
        self._process = WatchedProcess(popen)
        self._pid = popen.pid  # of the tree that is measured
        folder.claim(os.getpid(), popen.pid)
        self._sampler.add(HostSource(popen.pid))

    def _start(
        self,
        prefix: Sequence[str],
        environment: Mapping[str, str],
        while_preparing: Callable[[], object] | None,
    ) -> subprocess.Popen[bytes]:
        config, role = self._job.config, str(self._job.kind)
        variables = {**project_environment(), SPARE: str(self._folder.spare or "")}
        if role in ("measurement", "profile"):
            variables |= allocator_settings(config)
        role = "ranks" if config.world_size > 1 else role
        with self._folder.console.open("wb") as console:
            popen = subprocess.Popen(
                [*prefix, sys.executable, str(_WORKER), role, str(self._folder.path.resolve())],
                stdin=subprocess.PIPE if while_preparing else subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**variables, **environment},
                start_new_session=True,
                pass_fds=held_locks(),
            )
        if prepare := while_preparing:

            def call_and_close() -> None:
                with cast(IO[bytes], popen.stdin):
                    prepare()

            threading.Thread(target=call_and_close, daemon=True).start()
        return popen

    def wait(self) -> Account:
        """Sample and report until the worker has ended; return its account.

        Ctrl-C or SIGTERM ends it early, and so does the end of the `mlflow run` that started us.
        """
        next_tick_s = 0.0
        try:
            while self._goes_on():
                self._report()
                self._sampler.sample()
                if (now_s := time.perf_counter()) >= next_tick_s:
                    self._folder.is_interrupted = not all(map(is_running, starters()))
                    if self._folder.is_interrupted or now_s > self._deadline_s:
                        self._interrupted = True
                        break
                    next_tick_s = now_s + _TICK_S
                    self._on_event(Event("tick", now_s, {}))
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            self._interrupted = self._folder.is_interrupted = True
        finally:
            self._finish()
        # A zombie whose other threads are still ending cannot be reaped at once.
        while self._process.poll() is None:
            time.sleep(_POLL_S)
        self._report()
        return self._folder.read_worker() or self._death()

    def _goes_on(self) -> bool:
        return self._process.poll() is None

    def _finish(self) -> None:
        terminate_tree(self._popen, _GRACE_S, self._ranks)

    def _report(self) -> None:
        for event in self._journal.new_events():
            rank = event.facts.get("rank")
            if event.name == "started" and rank is not None:
                with suppress(psutil.NoSuchProcess):  # one of them may have ended already
                    self._ranks.append(psutil.Process(event.facts["pid"]))
                    pids = (process.pid for process in self._ranks)
                    self._folder.claim(os.getpid(), self._popen.pid, *pids)
            if event.name == "device":
                self._sample_device(event)
            if not rank:  # of rank 0, of the elastic launcher, or of one device
                self._take(event)

    def _take(self, event: Event) -> None:
        self._last = event.name
        self._reached.setdefault(event.name, event.clock_s)
        if event.name.endswith(("_started", "_ended")):
            self._sampler.sample_now()
        if event.name == "memory":
            self._peak_bytes = max(self._peak_bytes, event.facts["max_rss_bytes"])
        self._on_event(event)

    def _sample_device(self, event: Event) -> None:
        """Every GPU of this machine; its processor only once."""
        backend = event.facts["backend"]
        if self._devices is None:
            self._devices = Devices()
            self._sampler.add(self._devices)
        elif backend == "cpu":
            return
        source = device_source(backend, event.facts["uuid"], self._pid)
        self._devices.join(event.facts.get("rank", 0), source)

    def figures(self) -> ProcessFigures | Unknown:
        """Return the ended worker's times and memory."""
        unknown = Unknown("the worker ended before it could say")
        return self._process.figures(self._peak_bytes or unknown)

    def window_telemetry(self, window: Measurement | None) -> Telemetry | Unknown:
        """Return what was sampled on this machine inside the measured window, if there was one."""
        if window is None:
            return Unknown("no window was measured")
        found = self._sampler.telemetry(window.window_start_clock_s, window.window_end_clock_s)
        if self._job.config.nodes == 1:
            return found
        others = Unknown("the other machines' devices are not sampled")
        return found.replaced(energy_j=others, dram_bytes=others)

    def telemetry_between(self, first: str, last: str) -> Telemetry | Unknown:
        """Return what was sampled between two events, if the worker reached both."""
        if first not in self._reached or last not in self._reached:
            return Unknown("the worker did not get that far")
        return self._sampler.telemetry(self._reached[first], self._reached[last])

    def _death(self) -> Account:
        if self._interrupted:
            return Account.of_none("interrupted", f"interrupted from outside after {self._last!r}")
        before, after = self._oom_kills_before, oom_kills()
        how = describe_exit(self._process.poll() or 0, before, after)
        last_words = _last_words(self._folder.said())  # a script's output is its own
        reason = ": ".join(filter(None, [f"{self.what} {how} after {self._last!r}", last_words]))
        struck = before is not None and after is not None and after > before
        return Account.of_none("oom" if struck else "crashed", reason[:1000])


_HOOK = _PROJECT / "bench" / "worker" / "hook"
#: After its seconds a script may end the step that it is in, and look into some more.
_LATER, _LAST_S = 0.25, 30.0
#: What ends a script, and by what batch systems ask for a checkpoint.
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_REMEDY = "give a larger --seconds, or --step-of module:function, which is called once a step"
_STEP_OF = "give module:function, or module:Class.method, of what is not made within a function"
_NO_HOOK = "ran no Python with our hook, which Python's options -I, -E and -S leave out"


class ScriptWatch(WorkerWatch):
    """A script, from its start to the end of its measurement, or to its own."""

    what = "script"

    def __init__(
        self, command: Sequence[str], job: Job, folder: RecordFolder, on_event: OnEvent
    ) -> None:
        self._command = command
        self._keeps_going = bool(job.task["keep_going"])
        self._begins_by_s = float(job.task["deadline_s"])
        first_step_by_s = math.inf if self._keeps_going else self._begins_by_s
        #: When it is ended where no step was seen, and where one was.
        self._limits_s = [
            first_step_by_s,
            first_step_by_s + _LATER * float(job.task["seconds"]) + _LAST_S,
        ]
        self._ended_by_us = self._signalled = self._is_measured = False
        #: What goes on where the script's first process has ended, such as a daemon.
        self._left: list[psutil.Process] = []
        super().__init__(job, folder, on_event)
        self._last = "its start"

    @property
    def exit_code(self) -> int:
        """The script's own; 0 where it ended because it was measured."""
        code = self._process.poll() or 0
        return 0 if self._ended_by_us else 128 - code if code < 0 else code

    @override
    def _start(self, *_: object) -> subprocess.Popen[bytes]:
        paths = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        hooked = {
            "PYTHONPATH": os.pathsep.join(paths),
            "MLPROJECT_WATCH": str(self._folder.path.resolve()),
            "MLPROJECT_STEP_OF": self._job.task["step_of"],
            "MLPROJECT_WITHOUT": self._job.task["without"],
            SPARE: str(self._folder.spare or ""),
        }
        # The script hears Ctrl-C, which a shell's `&` has us ignore. Our locks it does not get:
        # what it leaves in the background would hold them.
        ours = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            variables = {**os.environ, **hooked}
            return subprocess.Popen(self._command, env=variables, start_new_session=True)
        finally:
            signal.signal(signal.SIGINT, ours)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Send the script a signal that we got; what it is told to end by it does in time."""
        with suppress(OSError):  # it has ended
            os.killpg(self._popen.pid, number)
        if number in (signal.SIGINT, signal.SIGTERM):
            self._signalled, self._limits_s = True, [time.perf_counter() + _GRACE_S] * 2

    @override
    def wait(self) -> Account:
        """Return the account, but for one that saw no step, or our own interrupt alone."""
        numbers = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
        heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._pass_on) for number in heard}
        try:
            account = super().wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if account.outcome != "ok" and not (self._signalled or self._ended_by_us):
            with suppress(OSError, ValueError):  # the folder is gone
                say_who_was_killed(self._folder)
        unseen = account.outcome == "refused" and "device" not in self._reached
        if unseen or (account.outcome == "interrupted" and self._ended_by_us):
            return self._death()
        if account.outcome == "ok" and self._signalled and "window_ended" not in self._reached:
            return account.replaced(outcome="interrupted", reason="interrupted from outside")
        return account

    @override
    def _goes_on(self) -> bool:
        """Whether the script runs; if it ended well, whether a Python that it left may measure."""
        runs, has_begun = super()._goes_on(), "device" in self._reached
        is_late = time.perf_counter() > self._limits_s[has_begun]
        if (runs or has_begun) and (is_late or self._is_measured):
            self._ended_by_us = not self._signalled
            return False
        if runs:
            return True
        if self._process.poll() or self._signalled or "ended" in self._reached:
            return False
        if not any(map(is_running, self._left)) and (left := pythons_of(self._folder.path)):
            self._left = left
            self._folder.claim(os.getpid(), *(process.pid for process in left))
        may_begin = has_begun or time.perf_counter() <= self._begins_by_s
        return may_begin and any(map(is_running, self._left))

    @override
    def _take(self, event: Event) -> None:
        super()._take(event)
        if event.name == "ended" and (event.facts["goes_on"] or event.facts["outcome"] == "ok"):
            self._sampler.stop()
            self._is_measured = event.facts["goes_on"] and not self._keeps_going

    @override
    def _sample_device(self, event: Event) -> None:
        if self._left:
            self._pid = int((self._folder.path / "claimed").read_text("utf-8"))
            self._sampler = Sampler()
            self._sampler.add(HostSource(self._pid))
        super()._sample_device(event)

    @override
    def _finish(self) -> None:
        """A script that has ended by itself may have left processes that are to go on."""
        if self._process.poll() is None or (self._left and self._ended_by_us):
            if not self._signalled:
                interrupt(self._popen, _INTERRUPT_S, self._left)
            terminate_tree(self._popen, _GRACE_S, self._left)

    @override
    def figures(self) -> ProcessFigures | Unknown:
        left = Unknown("the script went on in a process that its first one did not wait for")
        return left if self._left else super().figures()

    @override
    def _death(self) -> Account:
        """Why a script has left no account."""
        problem = self._folder.path / "problem"
        if problem.exists():
            return Account.of_none("unsupported", problem.read_text("utf-8"))
        if not (self._folder.path / "hooked").exists():
            return Account.of_none("refused", f"{self._command[0]!r} {_NO_HOOK}")
        if not self._ended_by_us and (self._signalled or self._process.poll()):
            self._interrupted = self._signalled
            return super()._death()
        after = f"seconds={self._job.task['seconds']}" if self._ended_by_us else "the script ended"
        why = f"{after}, and no optimizer of torch stepped: {_REMEDY}"
        if "device" in self._reached:
            why = f"{after}, and no step ended in time: {_REMEDY}"
        elif step_of := self._job.task["step_of"]:
            why = f"{after}, and no call of step-of={step_of} was seen: {_STEP_OF}"
        return Account.of_none("refused", why)


def _last_words(console: str) -> str:
    """The last line; of an abort in C++ what it says, and not the frames of its stack."""
    lines = [line.strip() for line in console.split("\n") if line.strip()]
    said = [line for line in lines if not line.startswith(("frame #", "Exception raised from"))]
    thrown = [line for line in said if line.startswith("what():")]
    return (thrown or said or [""])[-1]


def project_environment() -> dict[str, str]:
    """Return this process's environment, with this project importable, for one of its programs."""
    paths = [str(_PROJECT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONSAFEPATH": "1",  # from Python 3.11 on, `-m` and `-c` leave the working folder out
        "PYTHONUNBUFFERED": "1",
    }
