"""From a model's name to what one training step of it must compute, move and hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from bench.config import RunConfig
from bench.cost.calls import CallWork, calls_of
from bench.cost.fake_step import StepSpec, record_step
from bench.cost.floor import compulsory_bytes
from bench.records import Complexity, OpCost, Phase

#: L2 of an H200, the largest single last-level cache among the devices this was made for: where a
#: device's own is not known, a floor that is too low is still a floor.
DEFAULT_CACHE_BYTES = 60 * 2**20


def config_complexity(config: RunConfig, *, batch_size: int | None = None) -> Complexity:
    """Return the complexity of a configuration's step, before it is known how a device runs it.

    `batch_size` replaces the configuration's, which may be `auto`. Raises as `step_complexity`.
    """
    spec = StepSpec(
        config.arch,
        batch_size=int(config.batch_size) if batch_size is None else batch_size,
        precision=config.precision,
        image_size=None if config.image_size == "auto" else int(config.image_size),
    )
    return step_complexity(spec)


def step_complexity(spec: StepSpec, *, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Complexity:
    """Return what one training step must compute, move and hold; nothing is allocated.

    Raises `UserError` where the model cannot be built or run at this size.

    FLOP are algorithmic: `contractions` defines them, `elementwise` the rest. Traffic is counted
    three ways: eager (every pass over memory reads its inputs and writes its outputs), fused
    (see `fusion`) and compulsory (see `floor`); compulsory <= fused <= eager.
    """
    step = record_step(spec)
    ops = _ops(calls_of(step))
    return Complexity(
        arch=spec.arch,
        batch_size=spec.batch_size,
        image_size=spec.resolved_image_size,
        precision=spec.precision,
        math_mode=spec.resolved_math_mode,
        parameters=step.parameters,
        activations=step.activations // spec.batch_size,
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


def op_work(spec: StepSpec, *, grad_accum_steps: int = 1) -> tuple[CallWork, ...]:
    """Return the work of every dispatched call of one training step, in order.

    The totals of `step_complexity` are the sums of these calls; `grad_accum_steps` as in
    `record_step`. Raises `UserError`.
    """
    return calls_of(record_step(spec, grad_accum_steps=grad_accum_steps))


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
