"""How a process ended, in words."""

from __future__ import annotations

import signal

_SIGKILL = 9


def describe_exit(
    returncode: int, oom_kills_before: int | None, oom_kills_after: int | None
) -> str:
    """Return in words how a process ended, and whether the out-of-memory killer had a hand in it.

    The counts are `bench.machine.cgroup.oom_kills` before the start and after the end.
    """
    known = oom_kills_before is not None and oom_kills_after is not None
    kills = (oom_kills_after or 0) - (oom_kills_before or 0) if known else 0
    words = _exit_words(returncode)
    if returncode == 0:
        return words
    if kills > 0:
        return f"{words}: the kernel's out-of-memory killer struck ({kills} killed meanwhile)"
    if returncode == -_SIGKILL:
        return f"{words}, not by the out-of-memory killer" if known else words
    return words


def _exit_words(returncode: int) -> str:
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = "an unnamed signal"
        return f"ended by {name} (signal {-returncode})"
    if returncode >= 2**31:  # Windows's NTSTATUS, such as 0xC0000005: access violation
        return f"ended by exception 0x{returncode:08X}"
    return f"exit code {returncode}"
