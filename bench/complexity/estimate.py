"""From a model's name to what one training step of it must compute, move and hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench.complexity.fake_step import RecordedStep, record_step
from bench.complexity.floor import compulsory_bytes
from bench.complexity.fusion import fused_bytes
from bench.complexity.passes import Pass, Traffic
from bench.models import default_image_size
from bench.records import Complexity, MathMode, OpCost, Phase

#: L2 of an H200, the largest single last-level cache among the devices this was made for: where a
#: device's own is not known, a floor that is too low is still a floor.
DEFAULT_CACHE_BYTES = 60 * 2**20

_MATH_MODES: dict[str, MathMode] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "amp": "bf16",
    "amp-bf16": "bf16",
    "amp-fp16": "fp16",
}


def step_complexity(
    arch: str,
    *,
    batch_size: int,
    precision: str,
    image_size: int | None = None,
    math_mode: MathMode | None = None,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    fused_optimizer: bool = True,
) -> Complexity:
    """Return what one training step of `arch` must compute, move and hold.

    `arch` is a torchvision name or `module:callable`. `math_mode` is what `precision` became on a
    device; by default `amp` is bf16. `image_size` in pixels a side, by default the model's own.
    Nothing is allocated. Raises `UserError` where the model cannot be built or run at this size.

    FLOP are algorithmic: `contractions` defines them, `elementwise` the rest. Traffic is counted
    three ways: eager (every pass over memory reads its inputs and writes its outputs), fused
    (see `fusion`) and compulsory (see `floor`); compulsory <= fused <= eager.
    """
    mode = math_mode or _MATH_MODES[precision]
    size = image_size or default_image_size(arch)
    step = record_step(
        arch,
        batch_size=batch_size,
        image_size=size,
        math_mode=mode,
        fused_optimizer=fused_optimizer,
    )
    ops = _ops(step)
    return Complexity(
        arch=arch,
        batch_size=batch_size,
        image_size=size,
        precision=precision,
        math_mode=mode,
        parameters=step.parameters,
        activations=step.activations // batch_size,
        forward_macs=sum(item.macs for item in step.passes if item.phase == "forward"),
        step_flops=sum(op.flops for op in ops),
        elementwise_flops=sum(op.elementwise_flops for op in ops),
        eager_bytes=sum(op.eager_bytes for op in ops),
        fused_bytes=sum(op.fused_bytes for op in ops),
        compulsory_bytes=compulsory_bytes(step.passes, step.lasting, cache_bytes),
        cache_bytes=cache_bytes,
        memory=step.memory,
        ops=ops,
        method=f"fake-tensor training step, aten dispatch, torch {torch.__version__}",
    )


@dataclass
class _Sum:
    calls: int = 0
    flops: int = 0
    elementwise_flops: int = 0
    eager_bytes: int = 0
    fused_bytes: int = 0


def _ops(step: RecordedStep) -> tuple[OpCost, ...]:
    """Add up the passes by op and phase, in the order in which they first occur."""
    sums: defaultdict[tuple[str, Phase], _Sum] = defaultdict(_Sum)
    shares = fused_bytes(step.passes, step.sizes_bytes, step.lasting)
    for item, share in zip(step.passes, shares, strict=True):
        total = sums[item.op, item.phase]
        total.calls += item.first_of_call
        total.flops += 2 * item.macs
        total.elementwise_flops += item.elementwise_flops
        total.eager_bytes += _eager_bytes(item, step.sizes_bytes)
        total.fused_bytes += share
    return tuple(OpCost(op=op, phase=phase, **vars(total)) for (op, phase), total in sums.items())


def _eager_bytes(item: Pass, sizes_bytes: Sequence[int]) -> int:
    return Traffic().add(item.reads, sizes_bytes) + Traffic().add(item.writes, sizes_bytes)
