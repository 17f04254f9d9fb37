"""perf as a tool of a profile: one worker whose whole measured window is counted."""

from __future__ import annotations

import platform
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.errors import UserError
from bench.machine.probes import ROOT, UnknownFactError, output_of, text_of, value_or_none
from bench.profilers.base import Attempt, Tool
from bench.profilers.perf.obstacle import find_obstacle, of_complaint
from bench.profilers.perf.program import Gate, perf_stat, try_events
from bench.profilers.perf.stat import CORE_EVENTS, FLOP_EVENTS, Collection, read_perf_stat
from bench.records import Backend, CpuCounters, ProfiledStep, ResolvedConfig, ToolName

_MAKERS = {"x86_64": ("Intel", "AMD"), "aarch64": ("Arm",)}
_NO_FLOPS = "perf knows no floating-point events of this processor"


def choose_events() -> tuple[str, ...]:
    """Return the events of this machine; perf is asked for each that is not of every processor.

    Names of floating-point events come from perf's own lists for the very processor, so that one
    which it knows counts what it is believed to. One that it knows and the machine does not
    support is asked for all the same: without it the FLOP would be too few. Takes up to a second.
    """
    makers = _MAKERS.get(platform.machine(), ())
    known = [event for each in FLOP_EVENTS if each.maker in makers for event in each.weights]
    return (*(names[0] for names in CORE_EVENTS.values()), *filter(_is_known, known))


def _is_known(event: str) -> bool:
    try:
        return try_events((event,)).exit_code == 0
    except UnknownFactError:
        return False


def vector_bits(root: Path = ROOT) -> int | None:
    """Return the length of Arm's scalable vectors in a new process, or None where there are none.

    Linux, Documentation/arch/arm64/sve.rst: /proc/sys/abi/sve_default_vector_length, in bytes.
    """
    length = root / "proc/sys/abi/sve_default_vector_length"
    return value_or_none(lambda: 8 * int(text_of(length)))


_ATTEMPT = "perf"
_COUNTS = "perf_stat.csv"


class PerfTool(Tool):
    """Counts the worker's threads between two commands."""

    name: ClassVar[ToolName] = "perf"

    def __init__(self) -> None:
        self._events: tuple[str, ...] = ()

    def obstacle(self, backend: Backend) -> str | None:
        """Return why the processor's events cannot be counted, or would not be the step's."""
        if backend != "cpu":
            return _elsewhere(backend)
        found = find_obstacle()
        return str(found) if found else None

    def attempts(self, folder: Path) -> Sequence[Attempt]:
        """Return the one worker, under perf."""
        # Not in `folder`: records may lie on NTFS or on a network's file system, without FIFOs.
        fifos = Path(tempfile.mkdtemp(prefix="mlproject-perf-"))
        weakref.finalize(self, shutil.rmtree, fifos, ignore_errors=True)
        self._events = choose_events()
        gate = Gate.make(fifos, "perf")
        prefix = perf_stat((folder / _ATTEMPT).resolve() / _COUNTS, self._events, gate)
        task = {"control": str(gate.control), "acknowledge": str(gate.acknowledge)}
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
            folder / _ATTEMPT / _COUNTS,
            step.iterations,
            step.window_s,
            Collection(
                source=version.replace("perf version", "perf"),
                whole=True,
                computed=True,
                vector_bits=vector_bits(),
                withheld=_uncounted(self._events, step.resolved),
            ),
        )


def _elsewhere(backend: Backend) -> str:
    return f"perf counts the processor, and the step runs on {backend}; profile with backend=cpu"


def _uncounted(asked: Sequence[str], resolved: ResolvedConfig | None) -> dict[str, str]:
    """Why the FLOP are not all: no events, or 16-bit products that are in none of them."""
    events = next((each for each in FLOP_EVENTS if each.weights.keys() & set(asked)), None)
    if events is None:
        return {"flops": _NO_FLOPS}
    if resolved is None or resolved.math_mode in ("fp32", "tf32") or not resolved.native_math:
        return {}
    if resolved.math_mode == "bf16" and events.counts_bf16:
        return {}
    return {
        "flops": f"{events.maker}'s floating-point events do not count products of "
        f"{resolved.math_mode}"
    }
