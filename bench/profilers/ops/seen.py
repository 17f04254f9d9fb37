"""One op of a step as a tool saw it: its time, and the ops that it called."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from bench.records import Phase


class Kind(Enum):
    """What decides how an op's own time is told."""

    OP = "an operator of torch or of a library"
    REGION = "a graph that torch.compile made: what was fused into it cannot be told apart"
    KERNEL = "a kernel or copy that no operator launched"
    WRAPPER = "autograd, or a mark: its own time belongs to no op"


@dataclass
class SeenOp:
    """`own_s` is the time that passed in none of `inner`. `name` is without torch's `aten::`."""

    name: str
    kind: Kind
    phase: Phase | None
    shapes: tuple[tuple[int, ...], ...]
    own_s: float
    inner: list[SeenOp] = field(default_factory=list)

    @property
    def total_s(self) -> float:
        """Own time and that of everything inside."""
        return self.own_s + sum(op.total_s for op in self.inner)
