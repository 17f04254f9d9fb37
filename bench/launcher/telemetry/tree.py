"""The worker and the processes it started: image loaders, above all."""

from __future__ import annotations

import contextlib
import time

import psutil

from bench.machine.probes import UnknownFactError
from bench.records.journal import Clock
from bench.records.owners import is_running

#: Listing descendants reads the whole process table; they seldom change after the start.
_REFRESH_S = 2.0
_BYTES_PER_MB = 1e6


class ProcessTree:
    """CPU time and memory of a process and its descendants, as far as they still run."""

    def __init__(self, pid: int, clock: Clock = time.perf_counter) -> None:
        self._pid = pid
        self._clock = clock
        self._listed_s = -_REFRESH_S
        self._processes: list[psutil.Process] = []
        self._cpu_s: dict[psutil.Process, float] = {}
        self._cpu_read_s: float | None = None
        self._seen: set[int] = {pid}

    @property
    def seen(self) -> frozenset[int]:
        """Process ids of every member met so far, ended ones too."""
        self._members()
        return frozenset(self._seen)

    @property
    def alive(self) -> bool:
        """Whether the root of the tree still runs."""
        return is_running(self._pid)

    def rss_mb(self) -> float:
        """Return the resident memory of all members in MB; pages they share count in each.

        Raises `UnknownFactError` once the tree has ended.
        """
        sizes = []
        for process in self._members():
            with contextlib.suppress(psutil.Error):
                sizes.append(process.memory_info().rss)
        if not sum(sizes):
            raise UnknownFactError("the worker has ended")
        return sum(sizes) / _BYTES_PER_MB

    def cpu_percent(self) -> float:
        """Return the CPU time used since the last call over the wall time, 100 being one core.

        Raises `UnknownFactError` on the first call and once the tree has ended.
        """
        now = self._clock()
        before, self._cpu_s = self._cpu_s, {}
        for process in self._members():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu_s[process] = times.user + times.system
        began, self._cpu_read_s = self._cpu_read_s, now
        if not self._cpu_s:
            raise UnknownFactError("the worker has ended")
        if began is None or now <= began:
            raise UnknownFactError("CPU time needs two readings")
        used = sum(seconds - before.get(process, 0.0) for process, seconds in self._cpu_s.items())
        return 100 * used / (now - began)

    def _members(self) -> list[psutil.Process]:
        now = self._clock()
        if now - self._listed_s >= _REFRESH_S:
            self._listed_s = now
            try:
                root = psutil.Process(self._pid)
                self._processes = [root, *root.children(recursive=True)]
            except psutil.Error:
                self._processes = []
            self._seen.update(process.pid for process in self._processes)
        return self._processes
