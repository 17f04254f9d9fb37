"""Records with arithmetic for the head: a roof of 200 GFLOP/s and 50 GB/s, one-second steps.

The step does 100 GFLOP on 10 images, moves 10 GB fused (intensity 10) and 25 GB eager
(intensity 4, which is the ridge): half of the roof, compute-bound.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import samples

from bench.config import RunConfig
from bench.records import (
    CacheRoof,
    Ceiling,
    CeilingsRecord,
    Complexity,
    DeviceInfo,
    Environment,
    KernelTotals,
    Measurement,
    MemoryFootprint,
    OpCost,
    ProcessFigures,
    ProfileRecord,
    ResolvedConfig,
    RunRecord,
    Verdict,
    WorkSet,
)

NOON = datetime(2025, 6, 1, 12, tzinfo=timezone.utc)
GIGA = 10**9
MEASURED = "measured by mlproject ceilings"


def device(**changes: Any) -> DeviceInfo:
    values: dict[str, Any] = {
        "backend": "cpu",
        "name": "Example CPU",
        "uuid": None,
        "memory_bytes": 16 * GIGA,
        "last_level_cache_bytes": 32_000_000,
        "compute_capability": None,
        "driver": None,
        "power_limit_w": None,
        "max_clock_mhz": None,
        "cores": 4,
        **changes,
    }
    return DeviceInfo(**values, missing=_reasons(values))


def gpu(**changes: Any) -> DeviceInfo:
    return device(
        **{
            "backend": "cuda",
            "name": "Example GPU",
            "uuid": "GPU-1",
            "driver": "570.1",
            "power_limit_w": 300.0,
            **changes,
        }
    )


def environment(**changes: Any) -> Environment:
    values: dict[str, Any] = {
        "label": "lab",
        "os": "Linux",
        "kernel": "6.1",
        "machine": "x86_64",
        "python": "3.11.7",
        "torch": "2.15.0",
        "torchvision": "0.29.0",
        "packages": {},
        "variables": {},
        "cuda": None,
        "cudnn": None,
        "cpu_model": "Example CPU",
        "cpu_signature": "family 25 model 17 stepping 1",
        "cpu_cores_physical": 4,
        "cpu_cores_usable": 8,
        "memory_bytes": 16 * GIGA,
        "storage": "ext4",
        "git_commit": "0123456789abcdef",
        "git_dirty": False,
        "container": "none",
        "virtualization": "none",
        "cloud_provider": None,
        "cloud_machine_type": None,
        "cloud_zone": None,
        "power_source": "mains",
        "device": device(),
        **changes,
    }
    return Environment(**values, missing=_reasons(values))


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
    values: dict[str, Any] = {
        "iteration_times_s": times_s,
        "iteration_clock": "wall",
        "data_wait_s": (wait_s,) * len(times_s),
        "warmup_times_s": (step_s, step_s),
        "window_start_clock_s": 100.0,
        "window_end_clock_s": 100.0 + sum(times_s),
        "window_start_unix_s": NOON.timestamp(),
        "images_per_iteration": images,
        "work": work,
        "startup_s": {"import": 1.0},
        "first_loss": 7.0,
        "last_loss": 6.9,
    }
    return samples.facts(Measurement, "not in this example", **values)


def complexity(**changes: Any) -> Complexity:
    values: dict[str, Any] = {
        "arch": "resnet18",
        "batch_size": 10,
        "image_size": 224,
        "precision": "fp32",
        "math_mode": "fp32",
        "parameters": 11_689_512,
        "activations": 2_000_000,
        "forward_macs": 17 * GIGA,
        "step_flops": 100 * GIGA,
        "elementwise_flops": 1 * GIGA,
        "eager_bytes": 25 * GIGA,
        "fused_bytes": 10 * GIGA,
        "compulsory_bytes": 5 * GIGA,
        "cache_bytes": 32_000_000,
        "memory": MemoryFootprint(
            weights_bytes=1, gradients_bytes=1, optimizer_bytes=1, activations_bytes=1
        ),
        "ops": (
            op_cost("conv", "forward", 40 * GIGA, 10 * GIGA, 4 * GIGA),
            op_cost("conv", "backward", 60 * GIGA, 10 * GIGA, 4 * GIGA),
            op_cost("sgd", "optimizer", 0, 5 * GIGA, 2 * GIGA),
        ),
        "method": "written by hand",
        **changes,
    }
    return Complexity(**values)


def op_cost(op: str, phase: Any, flops: int, eager_bytes: int, fused_bytes: int) -> OpCost:
    return OpCost(
        op=op,
        phase=phase,
        calls=1,
        flops=flops,
        elementwise_flops=0,
        eager_bytes=eager_bytes,
        fused_bytes=fused_bytes,
    )


def resolved(**changes: Any) -> ResolvedConfig:
    values: dict[str, Any] = {
        "backend": "cpu",
        "math_mode": "fp32",
        "convolution_fp32": "ieee",
        "matmul_fp32": "ieee",
        "autocast_dtype": "none",
        "loss_scaling": False,
        "native_math": True,
        "batch_size": 10,
        "image_size": 224,
        "max_seconds": 60.0,
        "workers": 0,
        "pin_memory": False,
        "channels_last": True,
        "fused_optimizer": True,
        "threads": 4,
        "allocator": "system",
        "depthwise_fp32": False,
        **changes,
    }
    return ResolvedConfig(**values)


def run_record(record_id: str = "run-1", **changes: Any) -> RunRecord:
    config = changes.pop("config", None) or RunConfig(arch="resnet18", batch_size=10)
    values: dict[str, Any] = {
        "record_id": record_id,
        "created": NOON,
        "config": config,
        "config_id": config.config_id,
        "outcome": "ok",
        "reason": None,
        "resolved": resolved(),
        "measurement": measurement(),
        "process": ProcessFigures(
            real_s=12.0, user_s=40.0, system_s=1.0, max_rss_bytes=2 * GIGA, missing={}
        ),
        "telemetry": None,
        "environment": environment(),
        "complexity": complexity(),
        "verdict": Verdict(level="clean", findings=()),
        **changes,
    }
    return RunRecord(**values, missing=_reasons(values))


def failed_record(record_id: str = "run-oom", **changes: Any) -> RunRecord:
    return run_record(
        record_id,
        **{
            "outcome": "oom",
            "reason": "CUDA out of memory at batch 512",
            "measurement": None,
            "resolved": None,
            "complexity": None,
            "verdict": None,
            **changes,
        },
    )


def ceiling(**changes: Any) -> Ceiling:
    values: dict[str, Any] = {
        "device": "Example CPU",
        "backend": "cpu",
        "math_mode": "fp32",
        "peak_flops_per_s": 200e9,
        "peak_bytes_per_s": 50e9,
        "kind": "measured",
        "source": MEASURED,
        "date": "2025-06-01",
        **changes,
    }
    return Ceiling(**values, missing=_reasons(values))


def ceilings_record(
    record_id: str = "ceilings-1", *, hours: float = 0, ceilings: Any = None, **changes: Any
) -> CeilingsRecord:
    values: dict[str, Any] = {
        "record_id": record_id,
        "created": NOON + timedelta(hours=hours),
        "outcome": "ok",
        "reason": None,
        "environment": environment(),
        "ceilings": (ceiling(),) if ceilings is None else ceilings,
        "samples": (),
        "telemetry": None,
        "verdict": None,
        **changes,
    }
    return CeilingsRecord(**values, missing=_reasons(values))


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
    config = changes.pop("config", None) or RunConfig(arch="resnet18", batch_size=10)
    values: dict[str, Any] = {
        "record_id": record_id,
        "created": NOON + timedelta(hours=1),
        "config": config,
        "config_id": config.config_id,
        "timed_record_id": "run-1",
        "outcome": "ok",
        "reason": None,
        "resolved": resolved(),
        "environment": environment(),
        "complexity": complexity(),
        "work": WORK,
        "ops": None,
        "counters": samples.counters(*kernels()),
        "cpu_counters": None,
        "verdict": Verdict(level="clean", findings=()),
        **changes,
    }
    return ProfileRecord(**values, missing=_reasons(values))


def cache_roof(level: Any, peak_bytes_per_s: float | None) -> CacheRoof:
    values: dict[str, Any] = {"size_bytes": 2**20, "peak_bytes_per_s": peak_bytes_per_s}
    return CacheRoof(level=level, source=MEASURED, **values, missing=_reasons(values))


def _reasons(values: dict[str, Any]) -> dict[str, str]:
    return {name: "not in this example" for name, value in values.items() if value is None}
