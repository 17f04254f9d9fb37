"""A child process watched to its end: what it used, how it ended, and ending it with its kin."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from bench.machine.probes import UnknownFactError, probe, text_of, value_or_none
from bench.records import ProcessFigures
from bench.records.folders import is_running
from bench.records.journal import Clock

Popen = subprocess.Popen[Any]
_POLL_S = 0.02
#: Windows has no wait4, which reaps a child together with its usage.
_HAS_WAIT4 = hasattr(os, "wait4")
#: Kernel counts of resident pages are batched per core, so equal peaks differ a little.
_NEAR = 1.05
#: SIGKILL works at once, save on a process that waits inside a driver.
_KILL_WAIT_S = 10.0
_SHELLS = frozenset({"bash", "dash", "sh", "zsh", "cmd.exe"})
_MAKES = frozenset({"make", "gmake"})
#: `ru_maxrss` counts KiB on Linux and bytes on macOS (getrusage(2) of each).
_MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


class WatchedProcess:
    """A child with its resource usage, as `/usr/bin/time -v` gives it.

    Wrap the `Popen` as soon as it is made: `real_s` counts from there to the `poll` that finds
    the child ended. Ask this object, not the `Popen`, whether it has ended: only the one
    that reaps a child can read its usage.
    """

    def __init__(self, popen: Popen, clock: Clock = time.perf_counter) -> None:
        self._popen = popen
        self._clock = clock
        self._start_s = clock()
        self._end_s: float | None = None
        self._usage: Any = None
        self._peak_seen_bytes: int | None = None
        self._launcher_peak_bytes = value_or_none(_own_peak_bytes) or 0

    def poll(self) -> int | None:
        """Return the exit code once the child has ended, negative for a signal, else None."""
        if self._end_s is None:
            code = self._reap() if _HAS_WAIT4 else self._poll_alone()
            if code is not None:
                self._end_s = self._clock()
        return self._popen.returncode

    def figures(self) -> ProcessFigures:
        """Return what the child and the processes it waited for used.

        Raises `RuntimeError` while the child runs.
        """
        self.poll()
        if self._end_s is None:
            raise RuntimeError("the process has not ended: poll until it has")
        return ProcessFigures(
            real_s=self._end_s - self._start_s,
            user_s=probe(lambda: self._used().ru_utime),
            system_s=probe(lambda: self._used().ru_stime),
            max_rss_bytes=probe(self._max_rss_bytes),
        )

    def _reap(self) -> int | None:
        if self._popen.returncode is not None:
            return self._popen.returncode
        try:
            pid, status, usage = os.wait4(self._popen.pid, os.WNOHANG)
        except ChildProcessError:
            return self._popen.poll()  # Reaped elsewhere, and its usage with it.
        if pid == 0:
            return None
        self._usage = usage
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        return self._popen.returncode

    def _poll_alone(self) -> int | None:
        """Without wait4 the child's own peak, last seen alive, has to do."""
        peak = value_or_none(lambda: _working_set_peak_bytes(self._popen.pid))
        self._peak_seen_bytes = max(filter(None, (self._peak_seen_bytes, peak)), default=None)
        return self._popen.poll()

    def _used(self) -> Any:
        if self._usage is None:
            raise UnknownFactError(
                "the process was reaped before its usage was read"
                if _HAS_WAIT4
                else "this system does not add up a process and its children"
            )
        return self._usage

    def _max_rss_bytes(self) -> int:
        """The kernel's figure, unless it is the launcher's own.

        Linux hands the peak of the process that forked down to the child, through exec
        (setmax_mm_hiwater_rss in fs/exec.c), so a child smaller than its launcher shows the
        launcher's peak.
        """
        if not _HAS_WAIT4:
            if self._peak_seen_bytes is None:
                raise UnknownFactError("the process ended before its memory was read")
            return self._peak_seen_bytes
        peak = int(self._used().ru_maxrss) * _MAXRSS_UNIT_BYTES
        if peak <= _NEAR * self._launcher_peak_bytes:
            raise UnknownFactError(f"hidden by the launcher's own peak of {peak / 1e6:.0f} MB")
        return peak


#: Variable of a process that is to end when the one that started it has ended.
ENDS_WITH_STARTER = "MLPROJECT_ENDS_WITH_STARTER"


@cache
def starters() -> tuple[psutil.Process, ...]:
    """Return the `mlflow run` that started this process, a `make` that started that, and shells.

    Each of them leaves what it started running when SIGTERM ends it. Empty for a process that
    neither `mlflow run` nor Ray started: that may outlive the shell it was typed into. Looked up
    once: after their end this process has another parent.
    """
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        me = psutil.Process()
        # As it was at the start: a sweep takes the variable for itself.
        if me.environ().keys().isdisjoint(("MLFLOW_RUN_ID", ENDS_WITH_STARTER)):
            return ()
        parents = iter(me.parents())
        found += _up_to_a_program(parents)
        if (above := _up_to_a_program(parents)) and above[-1].name() in _MAKES:
            found += above
    return tuple(found)


def _up_to_a_program(parents: Iterator[psutil.Process]) -> list[psutil.Process]:
    """The next of `parents` that is no shell, and the shells before it."""
    found: list[psutil.Process] = []
    for parent in parents:
        found.append(parent)
        if parent.name() not in _SHELLS:
            break
    return found


def terminate_tree(popen: Popen, grace_s: float, leaders: Sequence[psutil.Process] = ()) -> None:
    """End a child and all its descendants, and return when none runs any more.

    The child is asked with SIGTERM and has `grace_s` seconds to save its work and to end its own
    children, who are not asked: a loader that vanishes would look like a crash to it. Then
    whatever is left is killed, orphans too if the child led a session (`start_new_session=True`).
    `leaders` are descendants that lead sessions of their own: they are asked in the child's place,
    which ends when they have. A process that the kernel cannot end (a hung driver) is left after a
    while. The child stays to be reaped by its `WatchedProcess`.
    """
    child = [process for process in _family(popen, ()) if process.pid == popen.pid]
    for process in leaders or child:
        _send(process.terminate)
    deadline_s = time.monotonic() + grace_s
    while any(map(is_running, (*child, *leaders))) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    deadline_s = time.monotonic() + _KILL_WAIT_S
    while left := [process for process in _family(popen, leaders) if is_running(process)]:
        for process in left:
            _send(process.kill)
        if time.monotonic() > deadline_s:
            return
        time.sleep(_POLL_S)


def _own_peak_bytes() -> int:
    """The most memory that this process itself has held (VmHWM of proc(5)); Linux only.

    Not our own ru_maxrss: that may be our launcher's, handed down to us in the same way.
    """
    for line in text_of(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _MAXRSS_UNIT_BYTES
    raise UnknownFactError("the kernel shows no high-water mark")


def _working_set_peak_bytes(pid: int) -> int:
    memory = psutil.Process(pid).memory_info()
    return int(getattr(memory, "peak_wset", memory.rss))


def _family(popen: Popen, leaders: Sequence[psutil.Process]) -> set[psutil.Process]:
    """The child, its descendants, and on POSIX every member of the sessions they lead."""
    pid = popen.pid
    sessions = {pid, *(leader.pid for leader in leaders if is_running(leader))}
    members = {process for process in psutil.process_iter() if _session(process.pid) in sessions}
    if popen.returncode is not None:  # Reaped: its number may already be another process's.
        return members
    try:
        root = psutil.Process(pid)
        return members | {root, *root.children(recursive=True)}
    except psutil.NoSuchProcess:
        return members


def _session(pid: int) -> int | None:
    if sys.platform == "win32":
        return None
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _send(signal_it: Callable[[], None]) -> None:
    with contextlib.suppress(psutil.Error):  # It has ended since.
        signal_it()
