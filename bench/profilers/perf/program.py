"""perf's command line, a short trial of it, and what switches it on and off from within."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.errors import UserError
from bench.machine.probes import UnknownFactError
from bench.profilers.perf.stat import PerfRow, read_rows

#: FIFOs by name: perf reads commands from `control` and answers each in `acknowledge`.
Gate = Mapping[str, str]

#: Names of events may hold commas, so that perf's fields had better not be parted by them.
_SEPARATOR = ";"
_LIMIT_S = 20.0


def make_gate(folder: Path) -> dict[str, str]:
    """Make the FIFOs in `folder`. Raises `OSError` where its file system has none."""
    gate = {name: str(folder / f"perf.{name}") for name in ("control", "acknowledge")}
    for fifo in gate.values():
        os.mkfifo(fifo)
    return gate


def perf_stat(output: Path, events: Sequence[str], gate: Gate | None = None) -> tuple[str, ...]:
    """Return the command under which a program runs to have `events` counted into `output`.

    With a gate nothing is counted until it is opened.
    """
    control = "fifo:{control},{acknowledge}".format(**gate) if gate else ""
    return (
        *("perf", "stat", "-x", _SEPARATOR, "-o", str(output)),
        *(("-D", "-1", "--control", control) if gate else ()),
        *(option for event in events for option in ("-e", event)),
        "--",
    )


class Trial(NamedTuple):
    """A perf that counted a program which does nothing: what it printed, and what it said."""

    rows: list[PerfRow]
    exit_code: int
    complaint: str

    @property
    def unsupported(self) -> list[bool]:
        """Of each row, whether this machine cannot count its event."""
        return [row.count == "not supported" for row in self.rows]


def try_events(events: Sequence[str], *, gated: bool = False) -> Trial:
    """Have `events` counted over `true`, behind a gate that stays shut if `gated`.

    Raises `UnknownFactError` where perf does not start or does not end, or where there is no place
    for the gate.
    """
    with tempfile.TemporaryDirectory(prefix="mlproject-perf-") as folder:
        output = Path(folder) / "trial.csv"
        try:
            gate = make_gate(Path(folder)) if gated else None
        except OSError as error:
            raise UnknownFactError(
                f"no FIFO can be made in {tempfile.gettempdir()} ({error.strerror})"
            ) from None
        try:
            done = subprocess.run(
                [*perf_stat(output, events, gate), "true"],
                capture_output=True,
                text=True,
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_LIMIT_S,
                env={**os.environ, "LC_ALL": "C"},
            )
            rows = read_rows(output) if output.exists() else []
        except subprocess.TimeoutExpired:
            raise UnknownFactError(f"perf did not end in {_LIMIT_S:g} s") from None
        except OSError as error:
            raise UnknownFactError(f"perf does not start ({error.strerror})") from None
        except UserError as error:
            raise UnknownFactError(str(error)) from None
        return Trial(rows, done.returncode, done.stderr.strip())


#: perf answers within a millisecond; a machine that swaps may take its time.
ANSWER_S = 30.0


@contextmanager
def counting(gate: Gate, answer_s: float = ANSWER_S) -> Iterator[None]:
    """Let the perf that listens count while the body runs, and only then.

    Raises `UserError` where it does not answer within `answer_s`. A body that raises leaves it
    counting: its counts are of no use.
    """
    with (
        _opened(gate["control"], os.O_WRONLY) as commands,
        _opened(gate["acknowledge"], os.O_RDONLY) as answers,
    ):
        _send("enable", commands, answers, answer_s)
        yield
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
