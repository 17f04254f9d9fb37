"""What the tools that time ops have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.profilers.ops.seen import SeenOp
from bench.records import Copies

#: Fields of `bench.records.OpProfile` that only a tool which sees the device can tell.
DEVICE_FIGURES = ("device_busy_share", "launch_gap_s", "copies")


@dataclass
class TimedStep:
    """One step under a tool; `missing` says why one of `DEVICE_FIGURES` is None."""

    wall_s: float
    ops: Sequence[SeenOp]
    busy_s: float | None = None
    launch_gap_s: float | None = None
    copies: tuple[Copies, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)


class Recorder(Protocol):
    """Runs one step and times its ops."""

    method: str

    def record(self) -> TimedStep:
        """Run the step once, the device synchronised at both ends."""
