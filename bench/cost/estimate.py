"""From a model to what one training step of it must compute, move and hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

import torch
from pydantic import ValidationError

from bench.config import RunConfig, package_of
from bench.cost.fake_step import RecordedStep, StepSpec, record_step
from bench.cost.passes import Pass, Traffic
from bench.cost.tracing.step_tracer import RecordedPasses
from bench.cost.traffic.floor import compulsory_bytes
from bench.cost.traffic.fusion import fused_bytes
from bench.machine.repository import code_id
from bench.records import Complexity, OpCost, Phase
from bench.records.complexity import CallWork
from bench.records.folders import cache_folder, write_atomically

#: L2 of an H200, the largest single last-level cache among the devices this was made for: where a
#: device's own is not known, a floor that is too low is still a floor.
DEFAULT_CACHE_BYTES = 60 * 2**20


def config_complexity(config: RunConfig, *, batch_size: int | None = None) -> Complexity:
    """Return the complexity of a configuration's step, before it is known how a device runs it.

    `batch_size` replaces the configuration's, which may be `auto`. Raises as `step_complexity`.
    """
    return step_complexity(config_spec(config, batch_size=batch_size))


def config_spec(config: RunConfig, *, batch_size: int | None = None) -> StepSpec:
    """Return what decides the step of a configuration; `batch_size` as in `config_complexity`."""
    return StepSpec(
        config.arch,
        batch_size=int(config.batch_size) if batch_size is None else batch_size,
        precision=config.precision,
        image_size=None if config.image_size == "auto" else config.image_size,
        seq_len=None if config.seq_len == "auto" else config.seq_len,
        optimizer=config.optimizer,
    )


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
        **totals,
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
        )
        for call, group in zip(step.calls, groups, strict=True)
    )


def eager_bytes(item: Pass, sizes_bytes: Sequence[int]) -> int:
    """Return what one pass reads and writes by itself; `sizes_bytes` are those of all values."""
    return Traffic().add(item.reads, sizes_bytes) + Traffic().add(item.writes, sizes_bytes)


def complexity_row(complexity: Complexity) -> dict[str, Any]:
    """Return the facts of `complexity` for JSON; whole numbers stay integers.

    Counts per sample are whole where the samples of a batch share nothing; they share the weights
    and their update. A key says what a sample is: `bytes_per_image_min`, the fused traffic, is
    `bytes_per_sequence_min` of a model that takes tokens. `..._max` is the eager traffic. Keys that
    begin with a phase are its part of the step's.
    """
    each = f"per_{complexity.sample}"

    def per_each(total: int) -> int | float:
        return per_sample(total, complexity)

    return {
        "arch": complexity.arch,
        "batch_size": complexity.batch_size,
        "image_size": complexity.image_size,
        "tokens_per_sample": complexity.tokens_per_sample,
        "precision": complexity.precision,
        "math_mode": complexity.math_mode,
        "parameters": complexity.parameters,
        f"activations_{each}": complexity.activations,
        f"forward_macs_{each}": per_each(complexity.forward_macs),
        f"step_flops_{each}": per_each(complexity.step_flops),
        f"elementwise_flops_{each}": per_each(complexity.elementwise_flops),
        f"bytes_{each}_min": per_each(complexity.fused_bytes),
        f"bytes_{each}_max": per_each(complexity.eager_bytes),
        f"bytes_{each}_compulsory": per_each(complexity.compulsory_bytes),
        **{
            f"{phase.phase}_{name}": per_each(total)
            for phase in complexity.phases
            for name, total in (
                (f"flops_{each}", phase.flops),
                (f"elementwise_flops_{each}", phase.elementwise_flops),
                (f"bytes_{each}_min", phase.fused_bytes),
                (f"bytes_{each}_max", phase.eager_bytes),
            )
        },
        "cache_bytes": complexity.cache_bytes,
        "intensity_min": complexity.intensity_min,
        "intensity_max": complexity.intensity_max,
        **complexity.memory.model_dump(),
        "method": complexity.method,
    }


def per_sample(total: int, complexity: Complexity) -> int | float:
    """Return the part of one sample of a step's `total`, an integer where it is whole."""
    samples, rest = divmod(total, complexity.batch_size)
    return total / complexity.batch_size if rest else samples


def cached_complexity(spec: StepSpec, *, cache_bytes: int) -> Complexity:
    """Return `step_complexity` of the same arguments, from this user's cache if it is there.

    It depends on nothing but its arguments, torch, the package of the model, timm's setting and
    this project's code, and takes a second, much of it to import what fake tensors need. What is in
    a file of the user's, a model or a configuration, is computed each time.
    """
    package = package_of(spec.arch)
    if package is None:
        return step_complexity(spec, cache_bytes=cache_bytes)
    versions = [metadata.version(name) for name in ("torch", "torchvision", package)]
    # timm reads from it which attention its models have.
    environment = os.environ.get("TIMM_FUSED_ATTN")
    asked = json.dumps([code_id(), *versions, environment, asdict(spec), cache_bytes])
    key = hashlib.sha256(asked.encode()).hexdigest()[:24]
    path = cache_folder() / "complexity" / f"{key}.json"
    with contextlib.suppress(OSError, ValidationError):
        return Complexity.model_validate_json(path.read_bytes())
    found = step_complexity(spec, cache_bytes=cache_bytes)
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, no result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, found.model_dump_json())
    return found
