"""Starts a script that is not ours, which measures itself by hooks, and makes a record of that."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from typing_extensions import override

from bench.config import check_field, recorded_config
from bench.errors import UserError
from bench.launcher.device_lock import held_locks
from bench.launcher.measurement import finish_run
from bench.launcher.processes import terminate_tree
from bench.launcher.watch import WorkerWatch
from bench.records import Account, Job, RunRecord
from bench.records.folders import RecordFolder
from bench.records.journal import Event, OnEvent

_HOOK = Path(__file__).resolve().parents[1] / "worker" / "hook"
#: A script that is told to end, as it is after its measurement, may save its work.
_GRACE_S = 20.0
#: After its seconds a script may end the step that it is in, and look into some more.
_LATER, _LAST_S = 0.25, 30.0
#: Values of options that are nobody's business, but no numbers; keys that are known as such.
_WORD = r"[\w.-]*(?:key|token|secret|passw(?:or)?d|pwd|auth)"
_SECRET = re.compile(
    rf"((?<!\S)(?:-{_WORD} +|{_WORD}=))(?![\d.]+(?: |$))(?:'[^']*'|\S+)"
    r"|()\S*(?:://[^/ ]*@|\b(?:hf_|sk-|gh[pousr]_)\w{8})\S*",
    re.IGNORECASE,
)
#: What ends a script, and by what batch systems ask for a checkpoint.
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_REMEDY = "give a larger --seconds, or --step-of module:function, which is called once a step"
_NO_HOOK = "ran no Python with our hook, which Python's options -I, -E and -S leave out"


def script_of(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the name of the script in a command, or of the module behind -m, and its arguments.

    Raises `UserError` for a command that cannot be run.
    """
    if shutil.which(command[0]) is None:
        raise UserError(f"{command[0]!r}: no such program; give the command that trains")
    after_m = [number + 1 for number, word in enumerate(command[:-1]) if word == "-m"]
    files = [number for number, word in enumerate(command) if word.endswith(".py")]
    place = (files[:1] or after_m[-1:] or [0])[0]
    return Path(command[place]).name, command[place + 1 :]


def script_job(
    name: str,
    arguments: Sequence[str],
    seconds: float,
    *,
    keep_going: bool = False,
    samples_per_step: int | None = None,
    step_of: str | None = None,
    env: str = "auto",
    campaign: str = "none",
) -> Job:
    """Return what is to be measured of a script. Raises `UserError` for a label that is none."""
    for field, label in {"env": env, "campaign": campaign}.items():
        check_field(field, label)
    task = {
        "seconds": f"{seconds:g}",
        "keep_going": "true" if keep_going else "",
        "samples_per_step": f"{samples_per_step or ''}",
        "step_of": step_of or "",
        "arguments": _SECRET.sub(r"\1(left out)", shlex.join(arguments)),
    }
    config = recorded_config({"arch": f"script:{name}", "env": env, "campaign": campaign})
    return Job(config=config, task=task)


def begun(job: Job, folder: RecordFolder) -> Job:
    """Note in `folder` that this process measures from now on, and until when."""
    deadline_s = f"{time.perf_counter() + float(job.task['seconds'])}"
    job = job.model_copy(update={"task": {**job.task, "deadline_s": deadline_s}})
    folder.claim(os.getpid())
    folder.write(folder.config, job)
    return job


def launch_script(
    command: Sequence[str], job: Job, folder: RecordFolder, on_event: OnEvent
) -> tuple[RunRecord, int]:
    """Run a command, let its first process that trains measure itself, and leave the record.

    Returns the record and the command's exit code: 0 where it was ended after its measurement. Its
    output is its own. Signals are passed on.
    """
    watch = ScriptWatch(command, begun(job, folder), folder, on_event)
    before = {
        number: signal.signal(number, watch.pass_on)
        for name in _PASSED_ON
        if (number := getattr(signal, name, None)) is not None
    }
    try:
        account = watch.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if watch.was_cut and account.outcome == "ok":
        account = account.replaced(outcome="interrupted", reason="interrupted from outside")
    account = account.replaced(script={"arguments": job.task["arguments"], **account.script})
    telemetry = watch.window_telemetry(account.measurement)
    config = folder.read_job(recorded=True).config
    record = finish_run(folder, config, watch.started, account, watch.figures(), telemetry)
    return record, watch.exit_code


class ScriptWatch(WorkerWatch):
    """A script, from its start to the end of its measurement, or to its own."""

    what = "script"

    def __init__(
        self, command: Sequence[str], job: Job, folder: RecordFolder, on_event: OnEvent
    ) -> None:
        self._command = command
        self._keeps_going = bool(job.task["keep_going"])
        self._first_step_by_s = math.inf if self._keeps_going else float(job.task["deadline_s"])
        self._ends_at_s = self._first_step_by_s + _LATER * float(job.task["seconds"]) + _LAST_S
        self._ended_by_us = self._signalled = False
        self._tell = on_event
        super().__init__(job, folder, self._look_at_clock)
        self._last = "its start"

    @property
    def was_cut(self) -> bool:
        """Whether a signal has ended the script before the end of its window."""
        return self._signalled and "window_ended" not in self._reached

    @property
    def exit_code(self) -> int:
        """The script's own; 0 where it ended because it was measured."""
        code = self._process.poll() or 0
        return 0 if self._ended_by_us else 128 - code if code < 0 else code

    @override
    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: int
    ) -> subprocess.Popen[bytes]:
        paths = [str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        hooked = {
            "PYTHONPATH": os.pathsep.join(paths),
            "MLPROJECT_WATCH": str(self._folder.path.resolve()),
            "MLPROJECT_STEP_OF": self._job.task["step_of"],
        }
        variables = {**os.environ, **hooked}
        return subprocess.Popen(
            self._command, env=variables, start_new_session=True, pass_fds=held_locks()
        )

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Send the script a signal that we got; what it is told to end by it does in time."""
        with suppress(OSError):  # it has ended
            os.killpg(self._popen.pid, number)
        if number in (signal.SIGINT, signal.SIGTERM):
            self._signalled, self._ends_at_s = True, time.perf_counter() + _GRACE_S

    @override
    def _take(self, event: Event) -> None:
        super()._take(event)
        if event.name == "ended":
            self._sampler.stop()
            if event.facts["goes_on"] and not self._keeps_going:
                self._end()

    def _look_at_clock(self, event: Event) -> None:
        """Tell of the event; on a tick end what takes too long."""
        self._tell(event)
        has_begun = "device" in self._reached or self._signalled
        limit_s = self._ends_at_s if has_begun else self._first_step_by_s
        if event.name == "tick" and event.clock_s > limit_s:
            self._end()

    def _end(self) -> None:
        self._ended_by_us = not self._signalled
        raise KeyboardInterrupt  # as `TimeLimit` ends a worker

    @override
    def _finish(self) -> None:
        """A script that has ended by itself may have left processes that are to go on."""
        if self._process.poll() is None:
            terminate_tree(self._popen, _GRACE_S)

    @override
    def _death(self) -> Account:
        """Why a script has left no account."""
        claimed = self._folder.path / "claimed"
        if problem := claimed.read_text("utf-8") if claimed.exists() else "":
            return Account.of_none("unsupported", problem)
        if not (self._folder.path / "hooked").exists():
            return Account.of_none("refused", f"{self._command[0]!r} {_NO_HOOK}")
        if not self._ended_by_us and (self._signalled or self._process.poll()):
            self._interrupted = self._signalled
            return super()._death()
        after = f"seconds={self._job.task['seconds']}" if self._ended_by_us else "the script ended"
        none = "step ended in time" if "device" in self._reached else "optimizer of torch stepped"
        return Account.of_none("refused", f"{after}, and no {none}: {_REMEDY}")
