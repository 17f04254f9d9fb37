"""perf as a tool of a profile: one worker whose whole measured window is counted.

Where perf cannot count here, perf itself says so, asked with the very options of a profile: a
version, a package, a setting of the kernel, a container and a hypervisor may each stand in its way.
"""

from __future__ import annotations

import os
import platform
import re
import select
import shutil
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from bench.errors import Problem, UserError
from bench.machine.limits import profiling_capabilities
from bench.machine.probes import ROOT, UnknownFactError, output_of, text_of, value_or_none
from bench.machine.surroundings import container
from bench.profilers.base import Tool, ToolWorker
from bench.profilers.perf.stat import (
    CORE_EVENTS,
    FLOP_EVENTS,
    SEPARATOR,
    Collection,
    PerfRow,
    read_perf_stat,
    read_rows,
)
from bench.records import Account, Backend, CpuCounters, ResolvedConfig, ToolName

#: FIFOs by name: perf reads commands from `control` and answers each in `acknowledge`.
Gate = Mapping[str, str]

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
        *("perf", "stat", "-x", SEPARATOR, "-o", str(output)),
        *(("-D", "-1", "--control", control) if gate else ()),
        *(option for event in events for option in ("-e", event)),
        "--",
    )


class PerfTrial(NamedTuple):
    """A perf that counted a program which does nothing: what it printed, and what it said."""

    rows: list[PerfRow]
    exit_code: int
    complaint: str

    @property
    def unsupported(self) -> list[bool]:
        """Of each row, whether this machine cannot count its event."""
        return [row.count == "not supported" for row in self.rows]


def try_events(events: Sequence[str], *, gated: bool = False) -> PerfTrial:
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
        return PerfTrial(rows, done.returncode, done.stderr.strip())


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


_MAKERS = {"x86_64": ("Intel", "AMD"), "aarch64": ("Arm",)}
_WORKER = "perf"
_COUNTS = "perf_stat.csv"
_ON_ANOTHER = "perf counts the processor, and the step runs on {}; profile with backend=cpu"


class PerfTool(Tool):
    """Counts the worker's threads between two commands."""

    name: ClassVar[ToolName] = "perf"

    def __init__(self) -> None:
        self._events: tuple[str, ...] = ()

    def obstacle(self, backend: Backend) -> str | None:
        """Return why the processor's events cannot be counted, or would not be the step's."""
        if backend != "cpu":
            return _ON_ANOTHER.format(backend)
        found = find_obstacle()
        return str(found) if found else None

    def worker(self, folder: Path) -> ToolWorker:
        """Return the worker under perf."""
        # Not in `folder`: records may lie on NTFS or on a network's file system, without FIFOs.
        fifos = Path(tempfile.mkdtemp(prefix="mlproject-perf-"))
        weakref.finalize(self, shutil.rmtree, fifos, ignore_errors=True)
        self._events = choose_events()
        gate = make_gate(fifos)
        prefix = perf_stat((folder / _WORKER).resolve() / _COUNTS, self._events, gate)
        return ToolWorker(_WORKER, prefix, {"LC_ALL": "C"}, gate)

    def explain(self, console: str) -> str | None:
        """Return the obstacle that perf's words in `console` name, or None."""
        found = _of_complaint(console, ROOT)
        return str(found) if found else None

    def read(self, folder: Path, step: Account) -> CpuCounters:
        """Return what was counted in the window of the one step.

        Raises `UserError` where the step ran on another device, where its window did not end, and
        where nothing was counted in it.
        """
        if step.resolved is not None and step.resolved.backend != "cpu":
            raise UserError(_ON_ANOTHER.format(step.resolved.backend))
        if step.iterations is None or step.window_s is None:
            raise UserError(f"{folder / _WORKER}: the window did not end; its counts mean nothing")
        version = value_or_none(lambda: output_of("perf", "--version")) or "perf"
        collection = Collection(
            version.replace("perf version", "perf"),
            step.iterations,
            step.window_s,
            vector_bits(),
            _uncounted(self._events, step.resolved),
        )
        return read_perf_stat(folder / _WORKER / _COUNTS, collection)


def choose_events() -> tuple[str, ...]:
    """Return the events of this machine; perf is asked for each that is not of every processor.

    Names of floating-point events come from perf's own lists for the very processor, so that one
    which it knows counts what it is believed to. One that it knows and the machine does not
    support is asked for all the same: without it the FLOP would be too few. Takes up to a second.
    """
    makers = _MAKERS.get(platform.machine(), ())
    known = [event for each in FLOP_EVENTS if each.maker in makers for event in each.weights]
    flops = []
    for event in known:
        with suppress(UnknownFactError):
            if try_events((event,)).exit_code == 0:
                flops.append(event)
    return (*CORE_EVENTS.values(), *flops)


def vector_bits(root: Path = ROOT) -> int | None:
    """Return the length of Arm's scalable vectors in a new process, or None where there are none.

    Linux, Documentation/arch/arm64/sve.rst: /proc/sys/abi/sve_default_vector_length, in bytes.
    """
    length = root / "proc/sys/abi/sve_default_vector_length"
    return value_or_none(lambda: 8 * int(text_of(length)))


def _uncounted(asked: Sequence[str], resolved: ResolvedConfig | None) -> dict[str, str]:
    """Why the FLOP are not all: no events, or 16-bit products that are in none of them."""
    events = next((each for each in FLOP_EVENTS if each.weights.keys() & set(asked)), None)
    if events is None:
        return {"flops": "perf knows no floating-point events of this processor"}
    if resolved is None or resolved.math_mode not in ("bf16", "fp16") or not resolved.native_math:
        return {}
    if resolved.math_mode == "bf16" and events.counts_bf16:
        return {}
    mode = resolved.math_mode
    return {"flops": f"{events.maker}'s floating-point events do not count products of {mode}"}


# What stands in the way, and the remedy: shown before a profile, by doctor, and after

#: Up to this level users may count their own processes in user mode (kernel,
#: Documentation/admin-guide/perf-security.rst); Debian's and Ubuntu's higher ones forbid it.
_HIGHEST_PARANOIA = 2
#: What perf says (tools/perf/util/evsel.c); a worker's own output may lie beside it.
_NO_PERMISSION = re.compile(
    "No permission to enable|Access to performance monitoring|permission to collect"
)
_INSTALL = (
    "install the package of the running kernel (5.10 or later): sudo apt install linux-perf "
    "(Debian), linux-tools-$(uname -r) (Ubuntu; in a container or WSL2 linux-tools-generic, and "
    "/usr/lib/linux-tools/<version> first on PATH), sudo dnf install perf (Fedora, Red Hat)"
)
_CANNOT_START = (
    "try `perf stat -e instructions -- true` by hand, with TMPDIR on a file system of Linux"
)
_NO_COUNTERS = (
    "a virtual machine has those its host passes on (a cloud's setting or size of machine, "
    "<pmu state='on'/> in libvirt), and a new processor needs a new kernel; else use a machine of "
    "your own"
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
        # task-clock needs no counter: it works where counters are absent and perf is allowed.
        trial = try_events(("task-clock", "instructions"), gated=True)
    except UnknownFactError as error:
        return Problem(str(error), _CANNOT_START)
    if trial.exit_code == 0 and trial.rows and not any(trial.unsupported):
        return None
    return _of_complaint(trial.complaint, root) or _of_counts(trial)


def _of_complaint(complaint: str, root: Path) -> Problem | None:
    if found := re.search(r"perf not found for kernel \S+|option `(control|delay)'.*", complaint):
        return Problem(f"this perf is of another kernel, or too old ({found[0]})", _INSTALL)
    return _forbidden(root) if _NO_PERMISSION.search(complaint) else None


def _of_counts(trial: PerfTrial) -> Problem:
    if trial.exit_code or all(trial.unsupported):
        lines = (line.strip() for line in trial.complaint.splitlines())
        said = (line for line in lines if line.strip(" :") not in ("", "Error"))
        words = next(said, f"not even time; exit code {trial.exit_code}")
        return Problem(f"perf cannot count: {words}", _CANNOT_START)
    return Problem("this machine shows no hardware counters", _NO_COUNTERS)


def _forbidden(root: Path) -> Problem:
    """The kernel said no: by its own setting, or by a filter in front of it."""
    level = value_or_none(lambda: int(text_of(root / "proc/sys/kernel/perf_event_paranoid"))) or 0
    if level > _HIGHEST_PARANOIA and not profiling_capabilities(root):
        return Problem(
            f"perf_event_paranoid is {level}: users may not count",
            f"on the host, sudo sysctl kernel.perf_event_paranoid={_HIGHEST_PARANOIA} (a file in "
            "/etc/sysctl.d keeps it over a restart), or profile as root",
        )
    around = value_or_none(lambda: container(root)) or "none"
    return Problem(
        f"perf_event_open is forbidden (container: {around})",
        "profile as root outside of any sandbox; start a container with --cap-add=PERFMON (a pod "
        "with securityContext.capabilities.add: [PERFMON]), and as root in it",
    )
