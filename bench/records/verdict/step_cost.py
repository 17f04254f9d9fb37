"""What one optimizer step costs by the cost model, however many batches it accumulates."""

from __future__ import annotations

from dataclasses import dataclass

from bench.records import Complexity


@dataclass(frozen=True)
class StepCost:
    """Work of one step: algorithmic FLOP, and bytes by the model's three counts."""

    flops: int
    fused_bytes: int
    eager_bytes: int
    compulsory_bytes: int


def step_cost(complexity: Complexity, batches: int) -> StepCost:
    """Return the cost of `batches` forward and backward passes and one optimizer step.

    The compulsory bytes are those of one batch, however many there are: a floor that stays one.
    """
    return StepCost(
        flops=batches * complexity.step_flops,
        fused_bytes=complexity.fused_bytes + (batches - 1) * _per_batch(complexity, "fused_bytes"),
        eager_bytes=complexity.eager_bytes + (batches - 1) * _per_batch(complexity, "eager_bytes"),
        compulsory_bytes=complexity.compulsory_bytes,
    )


def _per_batch(complexity: Complexity, field: str) -> int:
    return sum(getattr(op, field) for op in complexity.ops if op.phase != "optimizer")
