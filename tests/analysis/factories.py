"""Records with arithmetic for the head: a roof of 200 GFLOP/s and 50 GB/s, one-second steps.

The step does 100 GFLOP on 10 images, moves 10 GB fused (intensity 10) and 25 GB eager
(intensity 4, which is the ridge): half of the roof, compute-bound.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from bench.config import RunConfig
from bench.records import (
    Ceiling,
    CeilingsRecord,
    Complexity,
    DeviceInfo,
    Environment,
    Measurement,
    MemoryFootprint,
    OpCost,
    ProcessFigures,
    ResolvedConfig,
    RunRecord,
    Verdict,
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
        "cuda": None,
        "cudnn": None,
        "cpu_model": "Example CPU",
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
    *, step_s: float = 1.0, iterations: int = 10, wait_s: float = 0.0, images: int = 10
) -> Measurement:
    values: dict[str, Any] = {
        "iteration_times_s": (step_s,) * iterations,
        "iteration_clock": "wall",
        "data_wait_s": (wait_s,) * iterations,
        "phase_times_s": None,
        "warmup_times_s": (step_s, step_s),
        "window_start_clock_s": 100.0,
        "window_end_clock_s": 100.0 + step_s * iterations,
        "window_start_unix_s": NOON.timestamp(),
        "images_per_iteration": images,
        "ended_early": None,
        "compile_time_s": None,
        "startup_s": {"import": 1.0},
        "peak_memory_allocated_bytes": None,
        "peak_memory_reserved_bytes": None,
        "hidden_syncs": None,
        "first_loss": 7.0,
        "last_loss": 6.9,
    }
    reasons = {**_reasons(values), "ended_early": "every iteration ran"}
    return Measurement(**values, missing=reasons)


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


def _reasons(values: dict[str, Any]) -> dict[str, str]:
    return {name: "not in this example" for name, value in values.items() if value is None}
