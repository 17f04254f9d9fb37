"""One step as a tool that times ops saw it: its ops, and the ops that each of them called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from bench.profilers.traces import DeviceSpan, HostSpan
from bench.records import Copies, Phase


class Kind(Enum):
    """What decides how an op's own time is found."""

    OP = "an operator of torch or of a library"
    REGION = "a graph that torch.compile made: the fused ops have no times of their own"
    KERNEL = "a kernel or copy that no operator launched"
    WRAPPER = "autograd, or a mark: its own time belongs to no op"


@dataclass(slots=True)
class SeenOp:
    """`own_s` is the time that passed in none of `inner`. `name` is without torch's `aten::`.

    On a device it is the time of `runs`, the kernels and copies that this op itself launched, each
    its own duration. `exclusive_s` is what is left of it where a nanosecond counts for one op only:
    less if the device ran several things at once.
    """

    name: str
    kind: Kind
    phase: Phase | None
    shapes: tuple[tuple[int, ...], ...]
    own_s: float = 0.0
    inner: list[SeenOp] = field(default_factory=list)
    exclusive_s: float = 0.0
    runs: list[DeviceSpan] = field(default_factory=list)
    span: HostSpan | None = None  # where it is from a trace

    def everything(self) -> Iterator[SeenOp]:
        """Yield the op and all inside, outer ones first."""
        yield self
        for op in self.inner:
            yield from op.everything()


#: Fields of `bench.records.OpProfile` that only a tool which sees the device can tell.
DEVICE_FIGURES = ("device_busy_share", "launch_gap_s", "copies")


@dataclass
class TimedStep:
    """One step under a tool; `missing` says why one of `DEVICE_FIGURES` is None.

    `kernels` is the number of those that the device ran, 0 where it has none.
    """

    wall_s: float
    ops: Sequence[SeenOp]
    kernels: int = 0
    busy_s: float | None = None
    launch_gap_s: float | None = None
    copies: tuple[Copies, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)


class Recorder(Protocol):
    """Runs one step and times its ops."""

    method: str

    def record(self) -> TimedStep:
        """Run the step once, the device synchronised at both ends."""
