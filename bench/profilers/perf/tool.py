"""perf as a tool of a profile: a worker whose whole measured window is counted.

Where perf cannot count here, perf itself says so, asked with the very options of a profile: a
version, a package, a setting of the kernel, a container and a hypervisor may each stand in its way.
"""

from __future__ import annotations

import os
import platform
import re
import select
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import ClassVar

from bench.errors import Problem, UserError
from bench.machine.probes import ROOT, UnknownFactError, output_of, text_of, value_or_none
from bench.machine.surroundings import container
from bench.profilers.base import Tool, ToolWorker
from bench.profilers.perf.stat import (
    CORE_EVENTS,
    FLOP_EVENTS,
    SEPARATOR,
    PerfRow,
    read_perf_stat,
    read_rows,
)
from bench.records import Account, Backend, CpuCounters, ToolName

#: FIFOs by name: perf reads commands from `control` and answers each in `acknowledge`.
Gate = Mapping[str, str]


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
        *("perf", "stat", "-x", SEPARATOR, "-o", str(output)),
        *(("-D", "-1", "--control", control) if gate else ()),
        *(option for event in events for option in ("-e", event)),
        "--",
    )


def try_event(event: str, *, gated: bool = False) -> PerfRow:
    """Have `event` counted over `true`, behind a gate that stays shut if `gated`.

    Beside it stands an event that needs no counter: of none that is supported perf makes an error.
    Raises `UnknownFactError` with perf's own words, `OSError` where there is no place for the gate,
    and `UserError` or `LookupError` for a file that is not perf's.
    """
    with tempfile.TemporaryDirectory(prefix="mlproject-perf-") as folder:
        output = Path(folder) / "trial.csv"
        gate = make_gate(Path(folder)) if gated else None
        output_of(*perf_stat(output, ("task-clock", event), gate), "true", timeout_s=20.0)
        return read_rows(output)[-1]


#: perf answers within a millisecond; a machine that swaps may take its time.
ANSWER_S = 30.0


@contextmanager
def counting(gate: Gate, answer_s: float = ANSWER_S) -> Iterator[None]:
    """Let the perf that listens count while the body runs, and only then.

    Raises `UserError` where it does not answer within `answer_s`. A body that raises leaves it
    counting: its counts are of no use.
    """
    # Both ways at once: neither open nor write then waits for perf.
    with (
        Path(gate["control"]).open("r+b", buffering=0) as commands,
        Path(gate["acknowledge"]).open("r+b", buffering=0) as answers,
    ):
        _send(b"enable\n", commands, answers, answer_s)
        yield
        _send(b"disable\n", commands, answers, answer_s)


def _send(command: bytes, commands: RawIOBase, answers: RawIOBase, answer_s: float) -> None:
    commands.write(command)
    poll = select.poll()
    poll.register(answers, select.POLLIN)
    answer = b""
    while b"ack\n" not in answer:  # perf sends a NUL after it, which may come with the next
        if not poll.poll(1000 * answer_s):
            raise UserError(
                f"perf did not answer {command.decode().strip()!r} in {answer_s:g} s; console.log "
                "has its words; profile again, or without perf"
            )
        answer += answers.read(64) or b""


_WORKER = "perf"
_COUNTS = "perf_stat.csv"
_ON_ANOTHER = "perf counts the processor, and the step runs on {}; profile with backend=cpu"


class PerfTool(Tool):
    """Counts the worker's threads between two commands."""

    name: ClassVar[ToolName] = "perf"

    def obstacle(self, backend: Backend) -> str | None:
        """Return why the processor's events cannot be counted, or would not be the step's."""
        if backend != "cpu":
            return _ON_ANOTHER.format(backend)
        problem = find_obstacle()
        return str(problem) if problem else None

    def worker(self, folder: Path) -> ToolWorker:
        """Return the worker under perf."""
        # Not in `folder`: records may lie on NTFS or on a network's file system, without FIFOs.
        fifos = Path(tempfile.mkdtemp(prefix="mlproject-perf-"))
        weakref.finalize(self, shutil.rmtree, fifos, ignore_errors=True)
        gate = make_gate(fifos)
        prefix = perf_stat((folder / _WORKER).resolve() / _COUNTS, choose_events(), gate)
        return ToolWorker(_WORKER, prefix, {"LC_ALL": "C"}, gate)

    def explain(self, console: str) -> str | None:
        """Return the obstacle that perf's words in `console` name, or None."""
        problem = _named_in(console, ROOT)
        return str(problem) if problem else None

    def read(self, folder: Path, step: Account) -> CpuCounters:
        """Return what was counted in the window of the step.

        Raises `UserError` where the step ran on another device, where its window did not end, and
        where nothing was counted in it.
        """
        if step.resolved is not None and step.resolved.backend != "cpu":
            raise UserError(_ON_ANOTHER.format(step.resolved.backend))
        if step.iterations is None or step.window_s is None:
            raise UserError(f"{folder / _WORKER}: the window did not end; its counts mean nothing")
        version = value_or_none(lambda: output_of("perf", "--version")) or "perf"
        source = version.replace("perf version", "perf")
        return read_perf_stat(folder / _WORKER / _COUNTS, source, step, vector_bits())


def choose_events() -> tuple[str, ...]:
    """Return the events of this machine; perf is asked for each that is not of every processor.

    Names of floating-point events come from perf's own lists for the very processor, so that one
    which it knows counts what it is believed to. One that it knows and the machine does not
    support is asked for all the same: without it the FLOP would be too few. Takes up to a second.
    """
    events = (event for of_maker in FLOP_EVENTS.values() for event in of_maker)
    flops = [event for event in events if value_or_none(partial(try_event, event))]
    return (*CORE_EVENTS.values(), *flops)


def vector_bits(root: Path = ROOT) -> int | None:
    """Return the length of Arm's scalable vectors in a new process, or None where there are none.

    Linux, Documentation/arch/arm64/sve.rst: /proc/sys/abi/sve_default_vector_length, in bytes.
    """
    length = root / "proc/sys/abi/sve_default_vector_length"
    return value_or_none(lambda: 8 * int(text_of(length)))


# What stands in the way, and the remedy: shown before a profile, by doctor, and after

#: What perf says of another kernel or an old perf, and of a lack of permission
#: (tools/perf/util/evsel.c); a worker's own output may lie beside it.
_VERSION = re.compile(r"perf not found for kernel \S+|option `(?:control|delay)'.*")
_NO_PERMISSION = re.compile(
    "No permission to enable|Access to performance monitoring|permission to collect"
)
_INSTALL = (
    "install the package of the running kernel (5.10 or later): sudo apt install linux-perf "
    "(Debian), linux-tools-$(uname -r) (Ubuntu; in a container or WSL2 linux-tools-generic, and "
    "/usr/lib/linux-tools/<version> first on PATH), sudo dnf install perf (Fedora, Red Hat)"
)
#: At level 2 users may count their own processes in user mode (kernel,
#: Documentation/admin-guide/perf-security.rst); Debian's and Ubuntu's higher ones forbid it.
_PERMIT = (
    "on the host, sudo sysctl kernel.perf_event_paranoid=2 (a file in /etc/sysctl.d keeps it over "
    "a restart); start a container with --cap-add=PERFMON (a pod with "
    "securityContext.capabilities.add: [PERFMON]) and be root in it; or profile as root outside of "
    "any sandbox"
)
_NO_COUNTERS = (
    "in a virtual machine, have the host pass them on (a cloud's setting or size of machine, "
    "<pmu state='on'/> in libvirt); a new processor needs a new kernel; else use a machine of your "
    "own"
)


def find_obstacle(root: Path = ROOT) -> Problem | None:
    """Return why perf cannot count the processor's events here, or None if it can."""
    system = platform.system()
    if system != "Linux":
        return Problem(
            f"perf is a tool of Linux, and this is {system}",
            "time per op needs no counters: mlproject profile --tool torch",
        )
    if shutil.which("perf") is None:
        return Problem("perf is not installed", _INSTALL)
    try:
        row = try_event("instructions", gated=True)
    except (OSError, LookupError, UnknownFactError, UserError) as error:
        by_hand = "try `perf stat -e instructions -- true` by hand"
        return _named_in(str(error), root) or Problem(f"no counts ({error})", by_hand)
    if row.count == "not supported":
        return Problem("this machine shows no hardware counters", _NO_COUNTERS)
    return None


def _named_in(console: str, root: Path) -> Problem | None:
    """What perf's words in `console` name, if it is one that people meet."""
    if words := _VERSION.search(console):
        return Problem(f"this perf is of another kernel, or too old ({words[0]})", _INSTALL)
    if not _NO_PERMISSION.search(console):
        return None
    level = value_or_none(lambda: text_of(root / "proc/sys/kernel/perf_event_paranoid"))
    around = value_or_none(lambda: container(root))
    where = f"perf_event_paranoid {level or 'unknown'}, container: {around or 'none'}"
    return Problem(f"the kernel forbids to count here ({where})", _PERMIT)
