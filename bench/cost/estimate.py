"""From a model to what one training step of it must compute, move and hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from typing import Any

import torch
from pydantic import ValidationError

from bench.config import RunConfig
from bench.cost.fake_step import RecordedStep, StepSpec, record_step
from bench.cost.floor import compulsory_bytes
from bench.cost.fusion import fused_bytes
from bench.cost.passes import Pass, Traffic
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

    FLOP are algorithmic, elementwise ones counted separately (see `flops`). Traffic is counted
    three ways: eager (every pass over memory reads its inputs and writes its outputs), fused
    (see `fusion`) and compulsory (see `floor`); compulsory <= fused <= eager.
    """
    step = record_step(spec)
    ops = _ops(calls_of(step))
    totals = _totals(ops)
    return Complexity(
        arch=spec.arch,
        batch_size=spec.batch_size,
        image_size=spec.resolved_image_size,
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


def _ops(calls: Iterable[CallWork]) -> tuple[OpCost, ...]:
    """Add up the calls by op and phase, in the order in which they first occur."""
    groups: dict[tuple[str, Phase], list[CallWork]] = {}
    for call in calls:
        groups.setdefault((call.op, call.phase), []).append(call)
    return tuple(
        OpCost(op=op, phase=phase, calls=len(group), **_totals(group))
        for (op, phase), group in groups.items()
    )


def _totals(items: Sequence[CallWork | OpCost]) -> dict[str, Any]:
    names = ("flops", "elementwise_flops", "eager_bytes", "fused_bytes")
    return {name: sum(getattr(item, name) for item in items) for name in names}


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

    Counts per image are whole where the images of a batch share nothing; they share the weights
    and their update. `bytes_per_image_min` is the fused traffic, `bytes_per_image_max` the eager.
    Keys that begin with a phase are its part of the step's.
    """

    def per_image(total: int) -> int | float:
        images, rest = divmod(total, complexity.batch_size)
        return total / complexity.batch_size if rest else images

    return {
        "arch": complexity.arch,
        "batch_size": complexity.batch_size,
        "image_size": complexity.image_size,
        "precision": complexity.precision,
        "math_mode": complexity.math_mode,
        "parameters": complexity.parameters,
        "activations_per_image": complexity.activations,
        "forward_macs_per_image": per_image(complexity.forward_macs),
        "step_flops_per_image": per_image(complexity.step_flops),
        "elementwise_flops_per_image": per_image(complexity.elementwise_flops),
        "bytes_per_image_min": per_image(complexity.fused_bytes),
        "bytes_per_image_max": per_image(complexity.eager_bytes),
        "bytes_per_image_compulsory": per_image(complexity.compulsory_bytes),
        **{
            f"{phase.phase}_{name}": per_image(total)
            for phase in complexity.phases
            for name, total in (
                ("flops_per_image", phase.flops),
                ("elementwise_flops_per_image", phase.elementwise_flops),
                ("bytes_per_image_min", phase.fused_bytes),
                ("bytes_per_image_max", phase.eager_bytes),
            )
        },
        "cache_bytes": complexity.cache_bytes,
        "intensity_min": complexity.intensity_min,
        "intensity_max": complexity.intensity_max,
        **complexity.memory.model_dump(),
        "method": complexity.method,
    }


def cached_complexity(spec: StepSpec, *, cache_bytes: int) -> Complexity:
    """Return `step_complexity` of the same arguments, from this user's cache if it is there.

    It depends on nothing but its arguments, torch, torchvision and this project's code, and takes
    a second, much of it to import what fake tensors need. A user's own model is computed
    each time: what its code depends on is not known.
    """
    if ":" in spec.arch:
        return step_complexity(spec, cache_bytes=cache_bytes)
    versions = [metadata.version(name) for name in ("torch", "torchvision")]
    asked = json.dumps([code_id(), *versions, asdict(spec), cache_bytes])
    key = hashlib.sha256(asked.encode()).hexdigest()[:24]
    path = cache_folder() / "complexity" / f"{key}.json"
    with contextlib.suppress(OSError, ValidationError):
        return Complexity.model_validate_json(path.read_bytes())
    found = step_complexity(spec, cache_bytes=cache_bytes)
    with contextlib.suppress(OSError):  # a home that cannot be written to costs time, no result
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, found.model_dump_json())
    return found
