"""perf as a tool of a profile: one worker whose whole measured window is counted."""

from __future__ import annotations

import platform
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bench.errors import UserError
from bench.machine.probes import ROOT, UnknownFactError, output_of, text_of, value_or_none
from bench.profilers.base import Attempt, Tool
from bench.profilers.files.perf_events import CORE_EVENTS, FLOP_EVENTS, MEMORY_EVENTS
from bench.profilers.files.perf_stat import Collection, read_perf_stat
from bench.profilers.perf.perf_obstacle import find_obstacle, of_complaint, paranoia
from bench.profilers.perf.perf_program import Gate, Trial, perf_stat, try_events
from bench.records import Backend, CpuCounters, ProfiledStep, ResolvedConfig, ToolName

_MAKERS = {"x86_64": ("Intel", "AMD"), "aarch64": ("Arm",)}
_DEVICES = "sys/bus/event_source/devices"


@dataclass(frozen=True)
class Choice:
    """What perf is asked for, and why not for the rest: `withheld` by figure."""

    core: tuple[str, ...]
    memory: tuple[str, ...]
    withheld: dict[str, str] = field(default_factory=dict)


def choose_events(root: Path = ROOT) -> Choice:
    """Return the events of this machine; perf is asked for each that is not of every processor.

    Names of floating-point events come from perf's own lists for the very processor, so that one
    which it knows counts what it is believed to. One that it knows and the machine does not
    support is asked for all the same: without it the FLOP would be too few. Takes up to a second.
    """
    withheld = {}
    makers = _MAKERS.get(platform.machine(), ())
    known = [event for each in FLOP_EVENTS if each.maker in makers for event in each.weights]
    flops = tuple(event for event in known if _trial_of(event).exit_code == 0)
    if not flops:
        withheld["flops"] = "perf knows no floating-point events of this processor"
    memory = _memory_events(root)
    if not memory:
        withheld["dram_bytes"] = "no memory controller here shows its counters"
    elif not _trial_of(*memory, everywhere=True).counts:
        withheld["dram_bytes"] = (
            "memory controllers count the whole machine, which takes root or "
            f"perf_event_paranoid 0 (it is {paranoia(root)})"
        )
        memory = ()
    return Choice((*(names[0] for names in CORE_EVENTS.values()), *flops), memory, withheld)


def vector_bits(root: Path = ROOT) -> int | None:
    """Return the length of Arm's scalable vectors in a new process, or None where there are none.

    Linux, Documentation/arch/arm64/sve.rst: /proc/sys/abi/sve_default_vector_length, in bytes.
    """
    length = root / "proc/sys/abi/sve_default_vector_length"
    return value_or_none(lambda: 8 * int(text_of(length)))


def _memory_events(root: Path) -> tuple[str, ...]:
    """The first whole account of reads and writes that the kernel or perf has here."""
    devices = root / _DEVICES
    for account in MEMORY_EVENTS:
        by_event = [list(devices.glob(f"*imc*/events/{event}")) for event in account]
        if all(by_event):
            files = [file for found in by_event for file in found]
            return tuple(sorted(f"{file.parent.parent.name}/{file.name}/" for file in files))
    if any(devices.glob("amd_umc*")):  # named by perf's lists, not by the kernel
        return MEMORY_EVENTS[-1]
    return ()


def _trial_of(*events: str, everywhere: bool = False) -> Trial:
    try:
        return try_events(events, everywhere=everywhere)
    except UnknownFactError as error:
        return Trial((), 1, str(error))


_ATTEMPT = "perf"
_CORES = "perf_stat.csv"
_MEMORY = "perf_stat_memory.csv"


class PerfTool(Tool):
    """Counts the worker's threads between two commands, and beside it all memory controllers."""

    name: ClassVar[ToolName] = "perf"

    def __init__(self) -> None:
        self._choice = Choice((), ())

    def obstacle(self, backend: Backend) -> str | None:
        """Return why the processor's events cannot be counted, or would not be the step's."""
        if backend != "cpu":
            return _elsewhere(backend)
        found = find_obstacle()
        return str(found) if found else None

    def attempts(self, folder: Path) -> Sequence[Attempt]:
        """Return one worker under one perf, or two: memory controllers need a system-wide one."""
        # Not in `folder`: records may lie on NTFS or on a network's file system, without FIFOs.
        fifos = Path(tempfile.mkdtemp(prefix="mlproject-perf-"))
        weakref.finalize(self, shutil.rmtree, fifos, ignore_errors=True)
        self._choice = choose_events()
        inside = (folder / _ATTEMPT).resolve()
        gate = Gate.make(fifos, "cores")
        prefix = perf_stat(inside / _CORES, self._choice.core, gate)
        task = {"control": str(gate.control), "acknowledge": str(gate.acknowledge)}
        if self._choice.memory:
            gate = Gate.make(fifos, "memory")
            around = perf_stat(inside / _MEMORY, self._choice.memory, gate, everywhere=True)
            prefix = (*around, *prefix)
            task |= {
                "memory_control": str(gate.control),
                "memory_acknowledge": str(gate.acknowledge),
            }
        return (Attempt(_ATTEMPT, prefix, {"LC_ALL": "C"}, task),)

    def explain(self, console: str) -> str | None:
        """Return the obstacle that perf's words in `console` name, or None."""
        found = of_complaint(console)
        return str(found) if found else None

    def read(self, folder: Path, steps: Sequence[ProfiledStep]) -> CpuCounters:
        """Return what was counted in the window of the one step.

        Raises `UserError` where the step ran on another device, where its window did not end, and
        where nothing was counted in it.
        """
        (step,) = steps
        if step.resolved is not None and step.resolved.backend != "cpu":
            raise UserError(_elsewhere(step.resolved.backend))
        if step.iterations is None or step.window_s is None:
            raise UserError(f"{folder / _ATTEMPT}: the window did not end; its counts mean nothing")
        version = value_or_none(lambda: output_of("perf", "--version")) or "perf"
        return read_perf_stat(
            folder / _ATTEMPT / _CORES,
            step.iterations,
            step.window_s,
            memory=folder / _ATTEMPT / _MEMORY if self._choice.memory else None,
            collection=Collection(
                source=version.replace("perf version", "perf"),
                whole=True,
                computed=True,
                vector_bits=vector_bits(),
                withheld=self._choice.withheld | _uncounted(self._choice, step.resolved),
            ),
        )


def _elsewhere(backend: Backend) -> str:
    return f"perf counts the processor, and the step runs on {backend}; profile with backend=cpu"


def _uncounted(choice: Choice, resolved: ResolvedConfig | None) -> dict[str, str]:
    """16-bit products that a processor has instructions for may be in none of its events."""
    events = next((each for each in FLOP_EVENTS if each.weights.keys() & set(choice.core)), None)
    if events is None or resolved is None:
        return {}
    counted = resolved.math_mode == "bf16" and events.counts_bf16
    if resolved.math_mode in ("fp32", "tf32") or not resolved.native_math or counted:
        return {}
    return {
        "flops": f"{events.maker}'s floating-point events do not count products of "
        f"{resolved.math_mode}"
    }
