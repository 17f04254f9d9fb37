"""The work of a step call by call, in the order of dispatch, to be joined with profiled times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.cost.fake_step import RecordedStep
from bench.cost.fusion import fused_bytes
from bench.cost.passes import Pass, Traffic
from bench.records import Phase


@dataclass(frozen=True)
class CallWork:
    """What one dispatched call must compute and move.

    `op` is aten's name, `shapes` are those of its tensor arguments in order, lists of tensors and
    tensors without dimensions left out. `flops` are algorithmic.
    """

    op: str
    phase: Phase
    shapes: tuple[tuple[int, ...], ...]
    label: str
    flops: int
    elementwise_flops: int
    eager_bytes: int
    fused_bytes: int


def calls_of(step: RecordedStep) -> tuple[CallWork, ...]:
    """Return the calls of `step`, the work of each summed over its passes."""
    shares = fused_bytes(step.passes, step.sizes_bytes, step.lasting)
    groups: list[list[tuple[Pass, int]]] = []
    for item, share in zip(step.passes, shares, strict=True):
        if item.first_of_call:
            groups.append([])
        groups[-1].append((item, share))
    return tuple(
        CallWork(
            op=call.op,
            phase=call.phase,
            shapes=call.shapes,
            label=call.label,
            flops=sum(2 * item.macs for item, _ in group),
            elementwise_flops=sum(item.elementwise_flops for item, _ in group),
            eager_bytes=sum(_eager_bytes(item, step.sizes_bytes) for item, _ in group),
            fused_bytes=sum(share for _, share in group),
        )
        for call, group in zip(step.calls, groups, strict=True)
    )


def _eager_bytes(item: Pass, sizes_bytes: Sequence[int]) -> int:
    return Traffic().add(item.reads, sizes_bytes) + Traffic().add(item.writes, sizes_bytes)
