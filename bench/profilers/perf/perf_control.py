"""The worker's side of perf's control FIFOs: count from here to there, and nothing else.

perf opens both FIFOs before it starts the worker and for reading and writing, so that opening them
here can neither block nor succeed without a perf (tools/perf/util/evlist.c). What it enables it
enables in every thread of the worker, those started before included.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from bench.errors import UserError

#: perf answers within a millisecond; a machine that swaps may take its time.
ANSWER_S = 30.0


@contextmanager
def counting(task: Mapping[str, str], answer_s: float = ANSWER_S) -> Iterator[None]:
    """Let every perf that listens count while the body runs, and only then.

    `task` names the FIFOs of each: `control` and `acknowledge`, and `memory_control` and
    `memory_acknowledge` where the memory controllers have a perf of their own. Raises `UserError`
    where a perf does not answer within `answer_s`. A body that raises leaves it counting: its
    counts are of no use.
    """
    with ExitStack() as stack:
        listeners = [
            (
                stack.enter_context(_opened(task[f"{whose}control"], os.O_WRONLY)),
                stack.enter_context(_opened(task[f"{whose}acknowledge"], os.O_RDONLY)),
            )
            for whose in ("memory_", "")
            if f"{whose}control" in task
        ]
        for commands, answers in listeners:
            _send("enable", commands, answers, answer_s)
        yield
        for commands, answers in reversed(listeners):
            _send("disable", commands, answers, answer_s)


@contextmanager
def _opened(fifo: str, flags: int) -> Iterator[int]:
    try:
        end = os.open(fifo, flags | os.O_NONBLOCK)
    except OSError as error:  # ENXIO: no process reads from it
        raise _silent(f"perf does not listen at {fifo} ({error.strerror})") from None
    try:
        yield end
    finally:
        os.close(end)


def _silent(cause: str) -> UserError:
    return UserError(f"{cause}; its own words are in console.log; profile again, or without perf")


def _send(command: str, commands: int, answers: int, answer_s: float) -> None:
    """Send a command and wait until perf has carried it out; the FIFOs are open files."""
    try:
        os.write(commands, f"{command}\n".encode())
    except OSError as error:
        raise _silent(f"perf has ended before {command!r} ({error.strerror})") from None
    poll = select.poll()
    poll.register(answers, select.POLLIN)
    answer = b""
    deadline = time.monotonic() + answer_s
    while b"ack\n" not in answer:  # perf sends a NUL after it, which may come with the next
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s):
            raise _silent(f"perf did not answer {command!r} in {answer_s:g} s")
        piece = os.read(answers, 64)
        if not piece:
            raise _silent(f"perf has ended without an answer to {command!r}")
        answer += piece
