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
from pathlib import Path

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
            stack.enter_context(_listener(Path(control), Path(task[_answer_of(name)]), answer_s))
            for name, control in sorted(task.items(), reverse=True)
            if name.endswith("control")
        ]
        for listener in listeners:
            listener.send("enable")
        yield
        for listener in reversed(listeners):
            listener.send("disable")


def _answer_of(control: str) -> str:
    return control.removesuffix("control") + "acknowledge"


@contextmanager
def _listener(control: Path, acknowledge: Path, answer_s: float) -> Iterator[_Listener]:
    with _opened(control, os.O_WRONLY) as commands, _opened(acknowledge, os.O_RDONLY) as answers:
        yield _Listener(commands, answers, answer_s)


@contextmanager
def _opened(fifo: Path, flags: int) -> Iterator[int]:
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


class _Listener:
    def __init__(self, control: int, acknowledge: int, answer_s: float) -> None:
        self._control, self._acknowledge, self._answer_s = control, acknowledge, answer_s
        self._answers = select.poll()
        self._answers.register(acknowledge, select.POLLIN)

    def send(self, command: str) -> None:
        """Send a command and wait until perf has carried it out."""
        try:
            os.write(self._control, f"{command}\n".encode())
        except OSError as error:
            raise _silent(f"perf has ended before {command!r} ({error.strerror})") from None
        answer = b""
        deadline = time.monotonic() + self._answer_s
        while b"ack\n" not in answer:  # perf sends a NUL after it, which may come with the next
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._answers.poll(1000 * left_s):
                raise _silent(f"perf did not answer {command!r} in {self._answer_s:g} s")
            piece = os.read(self._acknowledge, 64)
            if not piece:
                raise _silent(f"perf has ended without an answer to {command!r}")
            answer += piece
