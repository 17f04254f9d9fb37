"""From a model to what one training step of it must compute, move and hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from bench.cost.cached import DEFAULT_CACHE_BYTES, StepSpec
from bench.cost.fake_step import RecordedStep, record_step
from bench.cost.passes import Pass, Traffic
from bench.cost.tracing.step_tracer import RecordedPasses
from bench.cost.traffic.floor import compulsory_bytes
from bench.cost.traffic.fusion import fused_bytes
from bench.records import Complexity, OpCost, Phase
from bench.records.complexity import CallWork


def step_complexity(spec: StepSpec, *, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Complexity:
    """Return what one training step must compute, move and hold; nothing is allocated.

    Raises `UserError` where the model cannot be built or run at this size.

    FLOP are algorithmic, elementwise ones counted separately (see `flops`). Traffic is counted
    three ways: eager (every pass over memory reads its inputs and writes its outputs), fused
    (see `fusion`) and compulsory (see `floor`); compulsory <= fused <= eager.
    """
    return complexity_of(spec, record_step(spec), cache_bytes=cache_bytes)


def complexity_of(
    spec: StepSpec, step: RecordedStep, *, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> Complexity:
    """Return the complexity of `step`, which was recorded of `spec`."""
    workload = step.workload
    followed = "CUDA" if spec.backend == "cuda" else "a CPU"
    ops = ops_of(calls_of(step))
    totals = totals_of(ops)
    return Complexity(
        arch=spec.arch,
        batch_size=spec.batch_size,
        image_size=None if workload.image is None else workload.image.size,
        sample=workload.sample,
        tokens_per_sample=workload.tokens_per_sample,
        precision=spec.precision,
        math_mode=spec.resolved_math_mode,
        parameters=step.parameters,
        activations=step.activations // spec.batch_size,
        forward_macs=sum(item.macs for item in step.passes if item.phase == "forward"),
        step_flops=totals.pop("flops"),
        recomputed_flops=2 * sum(item.recomputed_macs for item in step.passes),
        causal_skipped_flops=2 * sum(item.causal_skipped_macs for item in step.passes),
        **totals,
        compulsory_bytes=compulsory_bytes(step.passes, step.lasting, cache_bytes),
        cache_bytes=cache_bytes,
        memory=step.memory,
        ops=ops,
        method=f"fake-tensor step, aten dispatch as on {followed}, torch {torch.__version__}",
    )


def op_work(spec: StepSpec, *, grad_accum_steps: int = 1) -> tuple[CallWork, ...]:
    """Return the work of every dispatched call of one training step, in order.

    The totals of `step_complexity` are the sums of these calls; `grad_accum_steps` as in
    `record_step`. Raises `UserError`.
    """
    return calls_of(record_step(spec, grad_accum_steps=grad_accum_steps))


def ops_of(calls: Iterable[CallWork]) -> tuple[OpCost, ...]:
    """Return the calls added up by op and phase, in the order in which they first occur."""
    groups: dict[tuple[str, Phase], list[CallWork]] = {}
    for call in calls:
        groups.setdefault((call.op, call.phase), []).append(call)
    return tuple(
        OpCost(op=op, phase=phase, calls=len(group), **totals_of(group))
        for (op, phase), group in groups.items()
    )


def totals_of(items: Sequence[CallWork | OpCost]) -> dict[str, Any]:
    """Return the sums of the counts of `items`, by name."""
    names = ("flops", "elementwise_flops", "eager_bytes", "fused_bytes")
    return {name: sum(getattr(item, name) for item in items) for name in names}


def calls_of(step: RecordedPasses) -> tuple[CallWork, ...]:
    """Return the calls of `step`, the work of each summed over its passes."""
    shares = fused_bytes(step.passes, step.sizes_bytes, step.lasting)
    groups: list[list[tuple[Pass, int]]] = []
    for item, share in zip(step.passes, shares, strict=True):
        if item.first_of_call:
            groups.append([])
        groups[-1].append((item, share))
    return tuple(
        CallWork(
            **vars(call),
            flops=sum(2 * item.macs for item, _ in group),
            elementwise_flops=sum(item.elementwise_flops for item, _ in group),
            eager_bytes=sum(eager_bytes(item, step.sizes_bytes) for item, _ in group),
            fused_bytes=sum(share for _, share in group),
            causal_skipped_flops=sum(2 * item.causal_skipped_macs for item, _ in group),
        )
        for call, group in zip(step.calls, groups, strict=True)
    )


def eager_bytes(item: Pass, sizes_bytes: Sequence[int]) -> int:
    """Return what one pass reads and writes by itself; `sizes_bytes` are those of all values."""
    return Traffic().add(item.reads, sizes_bytes) + Traffic().add(item.writes, sizes_bytes)
