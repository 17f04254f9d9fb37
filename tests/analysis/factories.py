"""The records of `samples` with arithmetic for the head: a roof of 200 GFLOP/s and 50 GB/s.

A step of one second does 100 GFLOP on 10 images, moves 10 GB fused (intensity 10) and 25 GB eager
(intensity 4, which is the ridge): half of the roof, compute-bound.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import samples

from bench.config import RunConfig
from bench.records import (
    CacheRoof,
    CeilingsRecord,
    Finding,
    KernelTotals,
    Measurement,
    MemoryFootprint,
    OpCost,
    ProfileRecord,
    ResolvedConfig,
    RunRecord,
    Verdict,
    WorkSet,
)

NOON = datetime(2025, 6, 1, 12, tzinfo=timezone.utc)
GIGA = 10**9
MEASURED = "measured by mlproject ceilings"
CLEAN = Verdict(level="clean", findings=())


def suspect(*findings: Finding) -> Verdict:
    return Verdict(level="suspect", findings=findings)


device = partial(
    samples.device_info,
    name="Example CPU",
    memory_bytes=16 * GIGA,
    last_level_cache_bytes=32_000_000,
    cores=4,
)
gpu = partial(
    device,
    backend="cuda",
    name="Example GPU",
    uuid="GPU-1",
    driver="570.1",
    power_limit_w=300.0,
)
environment = partial(
    samples.environment,
    label="lab",
    cpu_model="Example CPU",
    cpu_signature="family 25 model 17 stepping 1",
    cpu_cores_usable=8,
    memory_bytes=16 * GIGA,
    device=device(),
)


def measurement(
    *,
    step_s: float = 1.0,
    iterations: int = 10,
    wait_s: float = 0.0,
    images: int = 10,
    work: WorkSet | None = None,
    times_s: tuple[float, ...] = (),
) -> Measurement:
    times_s = times_s or (step_s,) * iterations
    waits_s = (wait_s,) * len(times_s)
    return samples.measurement(times_s, images, data_wait_s=waits_s, work=work)


def op_cost(op: str, phase: Any, flops: int, eager_gb: int, fused_gb: int) -> OpCost:
    return OpCost(
        op=op,
        phase=phase,
        calls=1,
        flops=flops,
        elementwise_flops=0,
        eager_bytes=eager_gb * GIGA,
        fused_bytes=fused_gb * GIGA,
    )


complexity = partial(
    samples.complexity,
    batch_size=10,
    step_flops=100 * GIGA,
    elementwise_flops=1 * GIGA,
    eager_bytes=25 * GIGA,
    fused_bytes=10 * GIGA,
    compulsory_bytes=5 * GIGA,
    memory=MemoryFootprint(
        weights_bytes=1, gradients_bytes=1, optimizer_bytes=1, activations_bytes=1
    ),
    ops=(
        op_cost("conv", "forward", 40 * GIGA, 10, 4),
        op_cost("conv", "backward", 60 * GIGA, 10, 4),
        op_cost("sgd", "optimizer", 0, 5, 2),
    ),
)
resolved = partial(samples.resolved, batch_size=10, max_seconds=60.0, threads=4)


def run_record(
    record_id: str = "run-1",
    batch: int = 10,
    step_s: float = 1.0,
    *,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """A run of `batch` images in a step of `step_s`; `settings` are of its configuration."""
    config = RunConfig(**{"arch": "resnet18", "batch_size": batch, **(settings or {})})
    fields = set(config.model_fields_set & ResolvedConfig.model_fields.keys())
    used = {name: value for name in fields if (value := getattr(config, name)) != "auto"}
    if config.precision.startswith("amp"):
        used["autocast_dtype"] = "bf16"
    known = {
        "config": config,
        "created": NOON,
        "resolved": resolved(**{"batch_size": batch, **used}),
        "measurement": measurement(step_s=step_s, images=batch),
        "telemetry": None,
        "environment": environment(),
        "complexity": complexity(batch_size=batch),
        "verdict": CLEAN,
    }
    return samples.run_record(record_id=record_id, **{**known, **changes})


def sequence_record(
    record_id: str = "run-tokens",
    batch: int = 10,
    step_s: float = 1.0,
    *,
    seq_len: int = 128,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """A run of `batch` sequences of `seq_len` tokens; else as `run_record`."""
    of_tokens = {"image_size": None, "sample": "sequence", "tokens_per_sample": seq_len}
    arch = "mymodels:gpt"
    asked = {"arch": arch, "optimizer": "adamw", **(settings or {})}
    precision = "bf16" if asked.get("precision", "fp32").startswith("amp") else "none"
    known = {
        "resolved": resolved(
            batch_size=batch, seq_len=seq_len, autocast_dtype=precision, **of_tokens
        ),
        "complexity": complexity(arch=arch, batch_size=batch, **of_tokens),
    }
    return run_record(record_id, batch, step_s, settings=asked, **{**known, **changes})


def failed_record(record_id: str = "run-oom", **changes: Any) -> RunRecord:
    nothing = dict.fromkeys(("measurement", "resolved", "complexity", "verdict"))
    known = {"outcome": "oom", "reason": "CUDA out of memory at batch 512", **nothing}
    return run_record(record_id, **{**known, **changes})


ceiling = partial(samples.ceiling, device="Example CPU", source=MEASURED, date="2025-06-01")


def ceilings_record(
    record_id: str = "ceilings-1", *, hours: float = 0, ceilings: Any = None, **changes: Any
) -> CeilingsRecord:
    known = {
        "created": NOON + timedelta(hours=hours),
        "environment": environment(),
        "ceilings": (ceiling(),) if ceilings is None else ceilings,
        "samples": (),
    }
    return samples.ceilings_record(record_id=record_id, **{**known, **changes})


#: What the step of the profile below launched, and a measurement that launched the same.
WORK = WorkSet(unit="kernels", counts={"conv": 3, "add": 1})


def kernels(
    dram_gb: float = 20.0, executed_gflop: float = 110.0, seconds: float = 0.8
) -> tuple[KernelTotals, ...]:
    """Two kernels: conv takes three quarters of the time, computes and moves nine tenths."""
    moved, flops = int(dram_gb * GIGA), int(executed_gflop * GIGA)
    return (
        samples.kernel(
            "conv",
            0.75 * seconds,
            launches=3,
            flops=flops * 9 // 10,
            dram_bytes=moved * 9 // 10,
            l2_bytes=2 * moved,
            l1_bytes=4 * moved,
        ),
        samples.kernel(
            "add",
            0.25 * seconds,
            launches=1,
            flops=flops // 10,
            dram_bytes=moved // 10,
            l2_bytes=moved // 10,
            l1_bytes=moved // 10,
        ),
    )


def profile(record_id: str = "profile-1", **changes: Any) -> ProfileRecord:
    """A profile of `run_record`: 20 GB counted, twice the fused bytes; 110 GFLOP executed."""
    known = {
        "config": RunConfig(arch="resnet18", batch_size=10),
        "created": NOON + timedelta(hours=1),
        "timed_record_id": "run-1",
        "resolved": resolved(),
        "environment": environment(),
        "complexity": complexity(),
        "work": WORK,
        "ops": None,
        "counters": samples.counters(*kernels()),
        "verdict": CLEAN,
    }
    return samples.profile_record(record_id=record_id, **{**known, **changes})


def cache_roof(level: Any, peak_bytes_per_s: float | None) -> CacheRoof:
    return samples.facts(
        CacheRoof,
        level=level,
        source=MEASURED,
        size_bytes=2**20,
        peak_bytes_per_s=peak_bytes_per_s,
    )


def cells_of(table):
    """A table as people read it: a row is a dictionary by heading."""
    headings = [column.heading for column in table.visible]
    return [dict(zip(headings, cells, strict=True)) for cells in table.cells]


def rows_of(table):
    """A table as its CSV has it: a row is a dictionary of texts by key."""
    return list(csv.DictReader(table.csv().splitlines()))
