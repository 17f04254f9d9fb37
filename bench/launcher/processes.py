"""A child process watched to its end: what it used, how it ended, and ending it with its kin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil

from bench.errors import Unknown
from bench.machine import value_or_none
from bench.records import ProcessFigures
from bench.records.folders import is_running
from bench.records.journal import Clock

Popen = subprocess.Popen[Any]
_POLL_S = 0.02
#: SIGKILL works at once, save on a process that waits inside a driver.
_KILL_WAIT_S = 10.0
_SHELLS = frozenset({"bash", "dash", "sh", "zsh", "cmd.exe"})
_MAKES = frozenset({"make", "gmake"})


class WatchedProcess:
    """A child with its times, as `/usr/bin/time -v` gives them.

    Wrap the `Popen` as soon as it is made: `real_s` counts from there to the `poll` that finds
    the child ended. Ask this object, not the `Popen`, whether it has ended: only the one
    that reaps a child can read its usage.
    """

    def __init__(self, popen: Popen, clock: Clock = time.perf_counter) -> None:
        self._popen = popen
        self._clock = clock
        self._start_s = clock()
        self._end_s: float | None = None
        unread = Unknown("the process was reaped before its usage was read")
        if not hasattr(os, "wait4"):  # Windows
            unread = Unknown("this system does not add up a process and its children")
        self._used: dict[str, float | Unknown] = dict.fromkeys(("user_s", "system_s"), unread)

    def poll(self) -> int | None:
        """Return the exit code once the child has ended, negative for a signal, else None."""
        if self._popen.returncode is None:
            self._reap()
        if self._popen.returncode is not None and self._end_s is None:
            self._end_s = self._clock()
        return self._popen.returncode

    def _reap(self) -> None:
        try:
            pid, status, usage = os.wait4(self._popen.pid, os.WNOHANG)
        except (AttributeError, ChildProcessError):  # on Windows, or reaped elsewhere
            self._popen.poll()
            return
        if pid:
            self._used = {"user_s": usage.ru_utime, "system_s": usage.ru_stime}
            self._popen.returncode = os.waitstatus_to_exitcode(status)

    def figures(self, max_rss_bytes: int | Unknown) -> ProcessFigures:
        """Return what the ended child and those it waited for used, with its peak as it says."""
        real_s = (self._end_s or self._clock()) - self._start_s
        return ProcessFigures(real_s=real_s, max_rss_bytes=max_rss_bytes, **self._used)


#: Variable of a process that is to end when the one that started it has ended.
ENDS_WITH_STARTER = "MLPROJECT_ENDS_WITH_STARTER"


@cache
def starters() -> tuple[psutil.Process, ...]:
    """Return the `mlflow run` that started this process, a `make` that started that, and shells.

    Each of them leaves what it started running when SIGTERM ends it. Empty for a process that
    neither `mlflow run` nor Ray started: that may outlive the shell it was typed into. Looked up
    once: after their end this process has another parent.
    """
    with suppress(psutil.Error):
        me = psutil.Process()
        # As it was at the start: a sweep takes the variable for itself.
        if not me.environ().keys().isdisjoint(("MLFLOW_RUN_ID", ENDS_WITH_STARTER)):
            parents = me.parents()
            names = [parent.name() for parent in parents]
            programs = [n for n, name in enumerate(names) if name not in _SHELLS][:2]
            if len(programs) == 2 and names[programs[1]] not in _MAKES:
                programs.pop()
            return tuple(parents[: programs[-1] + 1]) if programs else tuple(parents)
    return ()


def terminate_tree(popen: Popen, grace_s: float, leaders: Collection[psutil.Process] = ()) -> None:
    """End a child and all its descendants, and return when none runs any more.

    The child is asked with SIGTERM and has `grace_s` seconds to save its work and to end its own
    children, who are not asked: a loader that vanishes would look like a crash to it. Then
    whatever is left is killed, orphans too if the child led a session (`start_new_session=True`).
    `leaders` are descendants that lead sessions of their own: they are asked in the child's place,
    which ends when they have. A process that the kernel cannot end (a hung driver) is left after a
    while. The child stays to be reaped by its `WatchedProcess`.
    """
    family = _family(popen, leaders)  # which an ended child can no longer name
    child = [process for process in family if process.pid == popen.pid]
    _ask(leaders or child, signal.SIGTERM)
    _await([*child, *leaders], grace_s)
    deadline_s = time.monotonic() + _KILL_WAIT_S
    while left := list(filter(is_running, family | _family(popen, leaders))):
        _ask(left, getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows kills by either
        if time.monotonic() > deadline_s:
            return
        time.sleep(_POLL_S)


def interrupt(popen: Popen, grace_s: float, others: Iterable[psutil.Process] = ()) -> None:
    """Ask a child with its process group, and `others`, as Ctrl-C does; wait for those asked."""
    if sys.platform == "win32":
        return
    groups = {
        process: value_or_none(partial(os.getpgid, process.pid)) for process in _family(popen)
    }
    asked = {*others, *(process for process, group in groups.items() if group == popen.pid)}
    _ask(asked, signal.SIGINT)
    _await(asked, grace_s)


def _ask(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.Error):  # it has ended since
            process.send_signal(number)


def _await(processes: Collection[psutil.Process], seconds: float) -> None:
    deadline_s = time.monotonic() + seconds
    while any(map(is_running, processes)) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def pythons_of(folder: Path) -> list[psutil.Process]:
    """Return the Pythons that run under the hook of the watch that writes into `folder`.

    Where none is seen the table of processes is read once more: one may have forked and ended while
    it was read.
    """
    return _hooked(folder) or _hooked(folder)


def _hooked(folder: Path) -> list[psutil.Process]:
    pythons = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or it has ended
            watch = process.environ().get("MLPROJECT_WATCH")
            if watch == str(folder.resolve()) and "python" in process.name():
                pythons.append(process)
    return list(filter(is_running, pythons))


def _family(popen: Popen, leaders: Iterable[psutil.Process] = ()) -> set[psutil.Process]:
    """The child, its descendants, and on POSIX every member of the sessions they lead."""
    pid = popen.pid
    sessions = {pid, *(leader.pid for leader in leaders if is_running(leader))}
    members = {
        process
        for process in psutil.process_iter()
        if value_or_none(partial(os.getsid, process.pid)) in sessions
    }
    if popen.returncode is not None:  # Reaped: its number may already be another process's.
        return members
    try:
        root = psutil.Process(pid)
        return members | {root, *root.children(recursive=True)}
    except psutil.NoSuchProcess:
        return members
