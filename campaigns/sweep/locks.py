"""One benchmark on a device at a time.

A lock on the machine and not a claim on the server: two measurements that share a device spoil
each other even when they belong to different campaigns or servers, the operating system frees the
lock of a process that dies, and a machine without network can sweep too. Machines never contend:
each measures its own environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bench.records import DeviceInfo
from bench.records.folders import cache_folder

_FIRST_TRY_S = 0.1


def device_lock_path(device: DeviceInfo) -> Path:
    """Return the lock file of a device, the same for all sweeps of this user on this machine.

    A CPU's benchmark has the whole host.
    """
    name = device.uuid or device.backend
    plain = "".join(letter if letter.isalnum() else "-" for letter in name)
    return cache_folder() / "locks" / f"{plain}.lock"


@contextmanager
def exclusive(device: DeviceInfo, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the device; `waiting` is called once if another process has it."""
    path = device_lock_path(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=_FIRST_TRY_S)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
