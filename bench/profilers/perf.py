"""perf as a tool of a profile: a worker whose whole measured window is counted.

perf scales a count up to the whole time by the share of it in which the event had a counter. On a
processor with two kinds of cores that share is mostly the time spent on the other kind, so perf's
numbers add up to far too much: 25.5e9 cycles at 98.11 % and 12.6e9 at 1.89 %, of which the latter
were 0.24e9. The largest share of any event on a kind is the time that was spent there; each count
is multiplied by that, and the kinds added up.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from bench.errors import Problem, UserError
from bench.machine import UnknownFactError, output_of, value_or_none
from bench.profilers.base import Tool, ToolWorker
from bench.records import Account, Backend, CpuCounters, ResolvedConfig, ToolName

#: Names of events may hold commas, so that perf's fields had better not be parted by them.
SEPARATOR = ";"
_VALUE = re.compile(r"\d+(?:\.\d+)?|<not \w+>")
_EVENT = re.compile(r"(?:([\w.-]+)/)?(.+?)(?:[/:]([ukhHGIpPSDWeRb]*))?")
#: What perf-list(1)'s modifiers u and k leave of both modes; neither and both leave both.
_SCOPES = {(True, False): "user", (False, True): "kernel"}


@dataclass(frozen=True)
class PerfRow:
    """One event: its count as perf scales it up from a `share` of the time, or perf's own word.

    `pmu` is empty where perf names none.
    """

    pmu: str
    event: str
    scope: str
    count: float | str
    share: float


def read_rows(path: Path) -> list[PerfRow]:
    """Return the events of a file of `perf stat -x` with our separator and `LC_ALL=C`, in order.

    Raises `UserError` with file and line where it is not what perf writes.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if line.startswith("#") or not fields[0]:  # no event, or metrics of the one before
            continue
        try:
            value, _, event, _, percent, *_ = fields
            share, name = float(percent) / 100, _EVENT.fullmatch(event)
            if not name or not _VALUE.fullmatch(value) or not 0 <= share <= 1:
                raise ValueError
        except ValueError:
            raise UserError(
                f"{path}, line {number}: {line[:80]!r} is no row of perf stat; profile again"
            ) from None
        pmu, plain, modifiers = (part or "" for part in name.groups())
        scope = _SCOPES.get(("u" in modifiers, "k" in modifiers), "user and kernel")
        count = value.strip("<>") if value.startswith("<") else float(value)
        rows.append(PerfRow(pmu, plain.lower(), scope, count, share))
    return rows


# Their figures

#: Figure -> its event.
CORE_EVENTS: Mapping[str, str] = {
    "cycles": "cycles",
    "instructions": "instructions",
    "cache_references": "cache-references",
    "cache_misses": "cache-misses",
    "branches": "branches",
    "branch_misses": "branch-misses",
}
#: Each maker's floating-point events, and FLOP per count; a multiply-add is 2.
FLOP_EVENTS: Mapping[str, Mapping[str, int]] = {
    # Linux, tools/perf/pmu-events/arch/x86/sapphirerapids/floating-point.json: a count is one
    # instruction, a multiply-add counts twice. Broadwell and later; 512-bit ones only with AVX-512.
    # Half-precision, VDPBF16PS and AMX are in none of them.
    "Intel": {
        f"fp_arith_inst_retired.{width}_{element}": max(bits // bits_of_element, 1)
        for element, bits_of_element in (("single", 32), ("double", 64))
        for width, bits in (
            *(("scalar", 0), ("128b_packed", 128)),
            *(("256b_packed", 256), ("512b_packed", 512)),
        )
    },
    # amdzen2/floating-point.json: all FLOP, of a multiply-add 2; amdzen4's and amdzen5's add the
    # bfloat16 ones. Arm's, which count wrongly predicted paths too, are not asked for.
    "AMD": {"fp_ret_sse_avx_ops.all": 1},
}
#: The 16-bit products that are documented to be among a maker's events.
_COUNTED_16_BIT = {("AMD", "bf16")}

#: An event that had a counter for less of the time is not scaled up to a number of its own.
_MINIMUM_SHARE = 0.1
#: Shares of the kinds of cores that do not add up to the whole time are not the time spent there.
_UNACCOUNTED = 0.05
_NONE_AT_ALL = "counted 0 while a step was trained: the machine does not count it"


def read_perf_stat(path: Path, source: str, step: Account) -> CpuCounters:
    """Return what the file says of the window of `step`; what perf did not count has its reason.

    perf was asked for every floating-point event that the machine has. An event that is 0 was not
    counted, since a step was trained: hypervisors are known to do that. Raises `UserError` with
    the file where nothing was counted.
    """
    rows = read_rows(path)
    cores = _CoreCounts(rows)
    figures = {name: cores.total(event) for name, event in CORE_EVENTS.items()}
    figures["flops"] = cores.flops(step.resolved)
    figures = {name: value or _NONE_AT_ALL for name, value in figures.items()}
    missing = {name: value for name, value in figures.items() if isinstance(value, str)}
    if len(missing) == len(figures):
        causes = "; ".join(sorted({*missing.values()}))
        raise UserError(
            f"{path}: perf counted nothing that is read here: {causes}; mlproject doctor says what "
            "would help"
        )
    return CpuCounters.of(
        "",
        missing,
        source=source,
        scope=rows[0].scope,
        running_share=cores.shares(),
        iterations=step.iterations,
        window_s=step.window_s,
        **{name: round(value) for name, value in figures.items() if not isinstance(value, str)},
    )


class _CoreCounts:
    """The events of cores in one file. Each figure is a number, or the reason why there is none."""

    def __init__(self, rows: Sequence[PerfRow]) -> None:
        self._rows = rows
        shares: dict[str, float] = {}
        for row in rows:
            share = 0.0 if isinstance(row.count, str) else row.share
            if row.pmu not in ("", "cpu"):
                shares[row.pmu] = max(share, shares.get(row.pmu, 0.0))
        self._several = len(shares) > 1 and any(shares.values())
        #: Kind of core -> share of the time spent there.
        self._resident = shares if self._several else {"": 1.0}

    def _share(self, row: PerfRow) -> float:
        """The share of the time on its kind of core in which an event was counted."""
        resident = self._resident.get(row.pmu, 1.0)
        return min(1.0, row.share / resident) if resident else 0.0

    def shares(self) -> dict[str, float]:
        """Return event -> share of its kind of core's time in which it was counted."""
        return {
            f"{row.pmu}/{row.event}/" if self._several else row.event: self._share(row)
            for row in self._rows
            if not isinstance(row.count, str)
        }

    def total(self, event: str) -> float | str:
        """Return the counts of one event on all kinds of cores, each by the time spent there."""
        of_event = [row for row in reversed(self._rows) if row.event == event]
        rows = {row.pmu if self._several else "": row for row in of_event}
        accounted = sum(self._resident.values())
        if rows and abs(accounted - 1) > _UNACCOUNTED:
            return f"the kinds of cores account for {100 * accounted:.0f} % of the time"
        total = 0.0
        for kind, resident in self._resident.items():
            if resident:
                count = self._count(rows[kind]) if kind in rows else "perf was not asked for it"
                if isinstance(count, str):
                    on = f" on {kind}, where {100 * resident:.1f} % of the time was spent"
                    return f"{count}{on if self._several else ''}"
                total += count * resident
        return total

    def _count(self, row: PerfRow) -> float | str:
        if not isinstance(row.count, str) and (share := self._share(row)) < _MINIMUM_SHARE:
            return f"counted for {100 * share:.1f} % of the time, too little to scale up"
        return row.count

    def flops(self, resolved: ResolvedConfig | None) -> float | str:
        """Return executed FLOP, from whichever maker's events are there.

        Without a total where products of 16 bits are in none of them.
        """
        asked = {row.event for row in self._rows}
        maker = next((name for name, events in FLOP_EVENTS.items() if asked & events.keys()), None)
        if maker is None:
            return "perf knows no floating-point events of this processor"
        mode = resolved.math_mode if resolved is not None and resolved.native_math else None
        if mode in ("bf16", "fp16") and (maker, mode) not in _COUNTED_16_BIT:
            return f"{maker}'s floating-point events do not count products of {mode}"
        total = 0.0
        for event, flops in FLOP_EVENTS[maker].items():
            count = self.total(event) if event in asked else 0.0
            if isinstance(count, str):
                return f"{event}: {count}"
            total += count * flops
        return total


# The program

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

        def send(command: str) -> None:
            commands.write(f"{command}\n".encode())
            poll = select.poll()
            poll.register(answers, select.POLLIN)
            answer = b""
            while b"ack\n" not in answer:  # perf sends a NUL after it, which may come later
                if not poll.poll(1000 * answer_s):
                    raise UserError(
                        f"perf did not answer {command!r} in {answer_s:g} s; console.log has its "
                        "words; profile again, or without perf"
                    )
                answer += answers.read(64) or b""

        send("enable")
        yield
        send("disable")


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
        problem = _named_in(console)
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
        return read_perf_stat(folder / _WORKER / _COUNTS, source, step)


def choose_events() -> tuple[str, ...]:
    """Return the events of this machine; perf is asked for each that is not of every processor.

    Names of floating-point events come from perf's own lists for the very processor, so that one
    which it knows counts what it is believed to. One that it knows and the machine does not
    support is asked for all the same: without it the FLOP would be too few. Takes up to a second.
    """
    events = (event for of_maker in FLOP_EVENTS.values() for event in of_maker)
    flops = [event for event in events if value_or_none(partial(try_event, event))]
    return (*CORE_EVENTS.values(), *flops)


# What stands in the way, and the remedy: shown before a profile, by doctor, and after

_INSTALL = (
    "install the package of the running kernel (5.10 or later): sudo apt install linux-perf "
    "(Debian), linux-tools-$(uname -r) (Ubuntu; in a container or WSL2 linux-tools-generic, its "
    "folder first on PATH), sudo dnf install perf (Fedora, Red Hat)"
)
#: At level 2 users may count their own processes in user mode (kernel,
#: Documentation/admin-guide/perf-security.rst); Debian's and Ubuntu's higher ones forbid it.
_PERMIT = (
    "on the host, sudo sysctl kernel.perf_event_paranoid=2; start a container with "
    "--cap-add=PERFMON (a pod with securityContext.capabilities.add: [PERFMON]) and be root in it"
)
_NO_COUNTERS = (
    "in a virtual machine, have the host pass them on (<pmu state='on'/> in libvirt, a cloud's "
    "setting or size of machine); a new processor needs a new kernel"
)
#: Words of perf (tools/perf/util/evsel.c), beside which a worker's own output may lie: what is
#: wrong, and the remedy.
_COMPLAINTS = {
    r"perf not found for kernel \S+|option `(?:control|delay)'.*": (
        "this perf is of another kernel, or too old",
        _INSTALL,
    ),
    "No permission to enable|Access to performance monitoring|permission to collect": (
        "the kernel forbids to count here",
        _PERMIT,
    ),
}


def find_obstacle() -> Problem | None:
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
        return _named_in(str(error)) or Problem(f"no counts ({error})", by_hand)
    if row.count == "not supported":
        return Problem("this machine shows no hardware counters", _NO_COUNTERS)
    return None


def _named_in(console: str) -> Problem | None:
    """What perf's words in `console` name, if it is one that people meet."""
    for pattern, (what, remedy) in _COMPLAINTS.items():
        if words := re.search(pattern, console):
            return Problem(f"{what} ({words[0]})", remedy)
    return None
