"""Marks around the parts of a step: nothing by default, times or NVTX ranges on request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from bench.records.journal import Clock
from bench.training.devices import Device


class Phases:
    """The base: phases pass unmarked, at the cost of one empty context."""

    _nothing = nullcontext()

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Context of one phase: data, forward, backward or optimizer."""
        return self._nothing

    def lap(self) -> None:
        """Close an iteration."""

    def clear(self) -> None:
        """Forget what was marked so far: the window begins."""

    def times_s(self) -> dict[str, tuple[float, ...]] | None:
        """Seconds per phase and iteration, or None if phases were not timed."""
        return None


class TimedPhases(Phases):
    """Wall time of each phase, the device synchronised at every phase's end."""

    def __init__(self, device: Device, clock: Clock) -> None:
        self._device = device
        self._clock = clock
        self._laps: dict[str, list[float]] = defaultdict(list)
        self._current: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the phase's time to this iteration's."""
        begin = self._clock()
        yield
        self._device.synchronize()
        self._current[name] += self._clock() - begin

    def lap(self) -> None:
        """Keep the phases of one iteration."""
        for name, seconds in self._current.items():
            self._laps[name].append(seconds)
        self._current.clear()

    def clear(self) -> None:
        """Forget the warm-up."""
        self._laps.clear()
        self._current.clear()

    def times_s(self) -> dict[str, tuple[float, ...]] | None:
        """Seconds per phase and iteration."""
        return {name: tuple(times) for name, times in self._laps.items()}


class NvtxPhases(Phases):
    """A range per phase for Nsight Systems and Nsight Compute."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Push and pop a range."""
        torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
        yield
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
