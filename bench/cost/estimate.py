"""From a model to what one training step of it must compute, move and hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from bench.cost.fake_step import RecordedStep, record_step
from bench.cost.step_tracer import RecordedCalls
from bench.cost.traffic import compulsory_bytes, fused_bytes
from bench.records import Complexity, OpCost, Phase, StepSpec
from bench.records.complexity import DEFAULT_CACHE_BYTES, NO_WORK, CallWork, Work


def step_complexity(spec: StepSpec, *, cache_bytes: int = DEFAULT_CACHE_BYTES) -> Complexity:
    """Return what one training step must compute, move and hold; nothing is allocated.

    Raises `UserError` where the model cannot be built or run at this size.

    FLOP are algorithmic, elementwise ones counted separately (see `flops`). Traffic is counted
    three ways (see `traffic`): eager (every pass over memory reads its inputs and writes its
    outputs), fused and compulsory; compulsory <= fused <= eager.
    """
    return complexity_of(spec, record_step(spec), cache_bytes=cache_bytes)


def complexity_of(
    spec: StepSpec, step: RecordedStep, *, cache_bytes: int = DEFAULT_CACHE_BYTES
) -> Complexity:
    """Return the complexity of `step`, which was recorded of `spec`."""
    workload = step.workload
    followed = "CUDA" if spec.backend == "cuda" else "a CPU"
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
        **counts_of(step, cache_bytes),
        cache_bytes=cache_bytes,
        memory=step.memory,
        method=f"fake-tensor step, aten dispatch as on {followed}, torch {torch.__version__}",
    )


def counts_of(step: RecordedCalls, cache_bytes: int) -> dict[str, Any]:
    """Return the counts of `step` by their names in `Complexity`, its ops with them."""
    ops = ops_of(calls_of(step))
    work: Work = sum(ops, NO_WORK)
    passes = step.passes
    return {
        "forward_macs": sum(item.macs for item in passes if item.phase == "forward"),
        "step_flops": work.flops,
        "recomputed_flops": 2 * sum(item.recomputed_macs for item in passes),
        "causal_skipped_flops": 2 * sum(item.causal_skipped_macs for item in passes),
        **work.model_dump(exclude={"flops"}),
        "compulsory_bytes": compulsory_bytes(passes, step.sizes_bytes, step.lasting, cache_bytes),
        "ops": ops,
    }


def op_work(spec: StepSpec, *, grad_accum_steps: int = 1) -> tuple[CallWork, ...]:
    """Return the work of every dispatched call of one training step, in order.

    The totals of `step_complexity` are the sums of these calls; `grad_accum_steps` as in
    `record_step`. Raises `UserError`.
    """
    return calls_of(record_step(spec, grad_accum_steps=grad_accum_steps))


def calls_of(step: RecordedCalls) -> tuple[CallWork, ...]:
    """Return the calls of `step`, the work of each summed over its passes."""
    shares = iter(fused_bytes(step.passes, step.sizes_bytes, step.lasting))
    return tuple(
        CallWork(
            op=call.op,
            phase=call.phase,
            shapes=call.shapes,
            label=call.label,
            module=call.module,
            fused_bytes=sum(next(shares) for _ in call.passes),
            **call.work(step.sizes_bytes),
        )
        for call in step.calls
    )


def ops_of(calls: Iterable[CallWork]) -> tuple[OpCost, ...]:
    """Return the calls added up by op and phase, in the order in which they first occur."""
    groups: dict[tuple[str, Phase], list[CallWork]] = {}
    for call in calls:
        groups.setdefault((call.op, call.phase), []).append(call)
    return tuple(
        OpCost(op=op, phase=phase, calls=len(group), **dict(sum(group, NO_WORK)))
        for (op, phase), group in groups.items()
    )
