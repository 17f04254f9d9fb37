"""What one training step must compute, move and hold, from the cost model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, get_args

from pydantic import Field
from typing_extensions import Self

from bench.config.resolved import MathMode
from bench.records.base import Count, Phase, Record


class OpCost(Record):
    """Cost of all calls of one op in one phase of one step; `flops` is algorithmic."""

    op: str
    phase: Phase
    calls: Count
    flops: Count
    elementwise_flops: Count
    eager_bytes: Count
    fused_bytes: Count


class PhaseCost(Record):
    """Cost of one phase of one step, all its ops together; the fields as in `OpCost`."""

    phase: Phase
    flops: Count
    elementwise_flops: Count
    eager_bytes: Count
    fused_bytes: Count

    @classmethod
    def of(cls, phase: Phase, ops: Iterable[OpCost]) -> Self:
        """Add up the ops of `phase`."""
        own = [op for op in ops if op.phase == phase]
        names = cls.model_fields.keys() - {"phase"}
        return cls(phase=phase, **{name: sum(getattr(op, name) for op in own) for name in names})


class MemoryFootprint(Record):
    """Bytes a training step holds, by what they are for."""

    weights_bytes: Count
    gradients_bytes: Count
    optimizer_bytes: Count
    activations_bytes: Count  # saved for the backward pass

    @property
    def total_bytes(self) -> int:
        """All of them together."""
        return sum(size_bytes for _, size_bytes in self)


class Complexity(Record):
    """What one training step (forward, backward, optimizer) of a model must do and move.

    All counts are per step of `batch_size` images. `eager_bytes`: each op reads its inputs and
    writes its outputs in DRAM. `fused_bytes`: elementwise and normalisation chains folded into
    their neighbours. `compulsory_bytes`: only what cannot stay in a last-level cache of
    `cache_bytes` between its write and its next read.
    """

    arch: str
    batch_size: Annotated[int, Field(ge=1)]
    image_size: Annotated[int, Field(ge=1)]
    precision: str
    math_mode: MathMode
    parameters: Count
    activations: Count  # elements saved for the backward pass, per image
    forward_macs: Count
    step_flops: Count  # algorithmic: convolution, linear, matrix product, attention
    elementwise_flops: Count
    eager_bytes: Count
    fused_bytes: Count
    compulsory_bytes: Count
    cache_bytes: Count
    memory: MemoryFootprint
    ops: tuple[OpCost, ...]
    method: str

    @property
    def phases(self) -> tuple[PhaseCost, ...]:
        """Forward, backward and optimizer; their sums are the totals of the step."""
        return tuple(PhaseCost.of(phase, self.ops) for phase in get_args(Phase))

    @property
    def step_flops_per_image(self) -> float:
        """Algorithmic FLOP of one training step, per image."""
        return self.step_flops / self.batch_size

    @property
    def intensity_max(self) -> float:
        """FLOP per byte if every fusable chain is fused."""
        return self.step_flops / self.fused_bytes

    @property
    def intensity_min(self) -> float:
        """FLOP per byte if every op goes through DRAM."""
        return self.step_flops / self.eager_bytes
