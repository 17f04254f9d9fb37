"""A device is measured by one process of a machine at a time.

A device is held by a lock on the machine and not by a claim on the server: two measurements that
share a device spoil each other even when they belong to different campaigns or servers, and a
machine without network can measure too. The workers inherit the lock: one that outlives its
launcher, killed with SIGKILL, still holds the device. A watched script does not: what it starts may
live on. Windows gives the lock to the launcher alone.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path

from bench.config import RunConfig
from bench.errors import one_line
from bench.launcher.processes import starters
from bench.machine import value_or_none
from bench.machine.cpu import usable_cores
from bench.machine.gpu_drivers import device_uuid
from bench.records.folders import cache_folder, is_running

_POLL_S = 0.2
#: Descriptors of the locks that this process holds, which its workers inherit.
_held: list[int] = []


def held_locks() -> tuple[int, ...]:
    """Return the descriptors that a worker has to inherit."""
    return () if sys.platform == "win32" else tuple(_held)


def device_names(backend: str, devices: int = 1) -> tuple[str, ...]:
    """Return the names of the devices that a measurement takes here, found without torch.

    CUDA's are UUIDs as torch spells them. A CPU's measurement has the whole host.
    """
    torch = value_or_none(partial(metadata.version, "torch")) or ""
    may_be_cuda = backend == "cuda" or (backend == "auto" and "+cpu" not in torch)
    uuids = (value_or_none(partial(device_uuid, number=n)) for n in range(devices))
    cards = tuple(uuid for uuid in uuids if uuid) if may_be_cuda else ()
    if cards or backend != "auto":
        return cards or (backend,)
    if "rocm" in torch:
        return ("cuda",)  # which AMD device it takes is not known without torch
    return ("mps" if platform.system() == "Darwin" and platform.machine() == "arm64" else "cpu",)


def crowding(config: RunConfig) -> str | None:
    """Return why this machine's processor cannot carry so many processes, or None."""
    if config.devices == 1 or device_names(config.backend) != ("cpu",):
        return None
    cores = usable_cores()
    if config.devices <= cores:
        return None
    asked = f"devices={config.devices}"
    return f"{asked}: a process each, and this machine has {cores} cores; use devices={cores}"


def say_waiting(holder: str) -> None:
    """Say on the error output for whom this process waits."""
    print(f"mlproject: waiting for {holder}; wait=false measures beside it", file=sys.stderr)


@contextmanager
def exclusive(
    devices: Iterable[str], waiting: Callable[[str], None] = say_waiting, *, wait: bool = True
) -> Iterator[None]:
    """Hold the devices; `waiting` is called once for each that another process has.

    It receives that process. Without `wait`, a device that another process has is not held. Where
    no lock can be made the devices are not held either, and the error output says so.
    """
    folder = cache_folder() / "locks" / (platform.node() or "host")  # hosts may share a home
    with ExitStack() as mine:
        for name in sorted(set(devices)):  # in one order, so that no two wait for each other
            path = folder / f"{''.join(c if c.isalnum() else '-' for c in name)}.lock"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = _taken(path, waiting, wait=wait)
            except OSError as error:
                print(f"mlproject: no lock on {name}: {one_line(error)}", file=sys.stderr)
                continue
            if file is not None:
                _held.append(file)
                for release in (os.close, _unlock, _held.remove):  # the last one first
                    mine.callback(release, file)
        yield


def _taken(path: Path, waiting: Callable[[str], None], *, wait: bool) -> int | None:
    """The descriptor of the locked file; None where another process has it and `wait` is false."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        told = False
        while not _lock(file):
            if not wait:
                os.close(file)
                return None
            if not told:
                waiting(_holder(path))
                told = True
            if not all(map(is_running, starters())):  # `mlflow run` has ended
                raise KeyboardInterrupt
            time.sleep(_POLL_S)
        with suppress(OSError):  # a full disk
            os.ftruncate(file, 0)
            command = one_line(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))
            os.write(file, os.fsencode(f"{os.getpid()} {command}"))
    except BaseException:
        os.close(file)
        raise
    return file


def _holder(path: Path) -> str:
    try:
        pid, _, command = path.read_text("utf-8", "replace").partition(" ")
        ended = "" if is_running(int(pid)) else ", which has ended and whose worker measures on"
    except (OSError, ValueError):  # Windows shows nobody a locked file
        return "another process"
    return f"process {pid} ({command}){ended}"


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> bool:
        os.lseek(file, 0, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(file: int) -> None:
        os.lseek(file, 0, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
