"""perf as a tool of a profile: one worker whose whole measured window is counted."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.errors import UserError
from bench.machine.probes import output_of, value_or_none
from bench.profilers.base import Attempt, Tool
from bench.profilers.files.perf_events import FLOP_EVENTS
from bench.profilers.files.perf_stat import Collection, read_perf_stat
from bench.profilers.perf.perf_choice import Choice, choose_events, vector_bits
from bench.profilers.perf.perf_obstacle import find_obstacle, of_complaint
from bench.profilers.perf.perf_program import Gate, perf_stat
from bench.records import Backend, CpuCounters, ProfiledStep, ResolvedConfig, ToolName

_ATTEMPT = "perf"
_CORES = "perf_stat.csv"
_MEMORY = "perf_stat_memory.csv"


class PerfTool(Tool):
    """Counts the worker's threads between two commands, and beside it all memory controllers."""

    name: ClassVar[ToolName] = "perf"
    whole_window: ClassVar[bool] = True

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
