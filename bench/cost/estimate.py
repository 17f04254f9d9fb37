"""From a model's name to what one training step of it must compute, move and hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bench.cost.calls import CallWork, calls_of
from bench.cost.fake_step import record_step
from bench.cost.floor import compulsory_bytes
from bench.records import Complexity, MathMode, OpCost, Phase
from bench.training.models import default_image_size

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
    depthwise_fp32: bool = False,
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
        depthwise_fp32=depthwise_fp32,
    )
    ops = _ops(calls_of(step))
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


def op_work(
    arch: str,
    *,
    batch_size: int,
    precision: str,
    image_size: int | None = None,
    math_mode: MathMode | None = None,
    fused_optimizer: bool = True,
    depthwise_fp32: bool = False,
    grad_accum_steps: int = 1,
) -> tuple[CallWork, ...]:
    """Return the work of every dispatched call of one training step, in order.

    Arguments as in `step_complexity`, whose totals are the sums of these calls. With
    `grad_accum_steps` forward and backward are there as many times, each of `batch_size` images.
    Raises `UserError`.
    """
    return calls_of(
        record_step(
            arch,
            batch_size=batch_size,
            image_size=image_size or default_image_size(arch),
            math_mode=math_mode or _MATH_MODES[precision],
            fused_optimizer=fused_optimizer,
            depthwise_fp32=depthwise_fp32,
            grad_accum_steps=grad_accum_steps,
        )
    )


@dataclass
class _Sum:
    calls: int = 0
    flops: int = 0
    elementwise_flops: int = 0
    eager_bytes: int = 0
    fused_bytes: int = 0


def _ops(calls: Iterable[CallWork]) -> tuple[OpCost, ...]:
    """Add up the calls by op and phase, in the order in which they first occur."""
    sums: defaultdict[tuple[str, Phase], _Sum] = defaultdict(_Sum)
    for call in calls:
        total = sums[call.op, call.phase]
        total.calls += 1
        total.flops += call.flops
        total.elementwise_flops += call.elementwise_flops
        total.eager_bytes += call.eager_bytes
        total.fused_bytes += call.fused_bytes
    return tuple(OpCost(op=op, phase=phase, **vars(total)) for (op, phase), total in sums.items())
