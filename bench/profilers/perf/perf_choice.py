"""Which of the events that are understood here perf can count on this machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine.probes import ROOT, UnknownFactError, text_of
from bench.profilers.files.perf_events import CORE_EVENTS, FLOP_EVENTS, MEMORY_EVENTS
from bench.profilers.perf.perf_obstacle import paranoia
from bench.profilers.perf.perf_program import Trial, try_events

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
    flops = tuple(event for event in _flop_candidates() if _trial_of(event).exit_code == 0)
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
    try:
        return 8 * int(text_of(root / "proc/sys/abi/sve_default_vector_length"))
    except (UnknownFactError, ValueError):
        return None


def _flop_candidates() -> list[str]:
    makers = _MAKERS.get(platform.machine(), ())
    return [event for each in FLOP_EVENTS if each.maker in makers for event in each.weights]


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
