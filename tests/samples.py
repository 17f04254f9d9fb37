"""Small whole records for tests of what handles them; the numbers are easy to work with by hand."""

from datetime import datetime, timezone
from functools import partial

from bench.config import RunConfig
from bench.records import (
    AllReduce,
    Ceiling,
    CeilingSample,
    CeilingsRecord,
    Complexity,
    CpuCounters,
    DeviceInfo,
    DistributedFigures,
    Environment,
    Facts,
    GpuCounters,
    IdleTime,
    KernelTotals,
    Measurement,
    MemoryFootprint,
    ModelCode,
    OpCost,
    OpProfile,
    OpTime,
    ProcessFigures,
    ProfileRecord,
    RankFigures,
    ResolvedConfig,
    RunRecord,
    SampledSeries,
    Telemetry,
    TracedOp,
    TracedStep,
    TraceRecord,
    WorkSet,
)

NOW = datetime(2026, 11, 20, 10, 0, tzinfo=timezone.utc)


def facts(record_class, why_missing="not in this sample", **known):
    """Make a record in which everything not named, or None, is missing for `why_missing`."""
    return record_class.of(why_missing, **known)


def sample(record_class, *names, **defaults):
    """Return a function that makes such a record of `defaults` and of what it is called with.

    `names` are the fields whose values it takes without their names too.
    """
    make = partial(facts, record_class) if issubclass(record_class, Facts) else record_class
    return lambda *values, **changes: make(
        **{**defaults, **dict(zip(names, values, strict=False)), **changes}
    )


def measurement(times_s=(0.5, 0.5, 0.5, 0.5, 0.5, 0.5), images=8, **changes):
    known = {
        "iteration_times_s": tuple(times_s),
        "iteration_clock": "wall",
        "data_wait_s": (0.0,) * len(times_s),
        "warmup_times_s": (1.0,),
        "window_start_clock_s": 1000.0,
        "window_end_clock_s": 1000.0 + sum(times_s),
        "window_start_unix_s": NOW.timestamp(),
        "samples_per_iteration": images,
        "startup_s": {"model": 0.5},
        "first_loss": 7.0,
        "last_loss": 6.9,
    }
    return facts(Measurement, **{**known, **changes})


def rank_figures(rank=0, times_s=(0.5,) * 6, **changes):
    known = {
        "rank": rank,
        "node": 0,
        "device": "Sample CPU",
        "iteration_times_s": tuple(times_s),
        "data_wait_s": (0.0,) * len(times_s),
    }
    return facts(RankFigures, **{**known, **changes})


distributed_figures = sample(
    DistributedFigures,
    communication="gloo",
    ranks=(rank_figures(0), rank_figures(1)),
    synced_step_s=(0.5, 0.5, 0.5),
    local_step_s=(0.4, 0.4, 0.4),
)


device_info = sample(DeviceInfo, backend="cpu", name="Sample CPU")


model_code = sample(
    ModelCode, digest="0" * 12, modules=("mynet",), git_commit="c" * 40, git_dirty=True
)

environment = sample(
    Environment,
    label="sample-cpu",
    os="Linux",
    kernel="6.1",
    machine="x86_64",
    python="3.11.7",
    torch="2.15.0",
    torchvision="0.29.2",
    packages={},
    variables={},
    cpu_cores_usable=2,
    memory_bytes=2**34,
    device=device_info(),
)


resolved = sample(
    ResolvedConfig,
    backend="cpu",
    math_mode="fp32",
    convolution_fp32="ieee",
    matmul_fp32="ieee",
    autocast_dtype="none",
    loss_scaling=False,
    native_math=True,
    batch_size=8,
    image_size=224,
    seq_len=None,
    sample="image",
    tokens_per_sample=None,
    max_seconds="none",
    workers=0,
    pin_memory=False,
    channels_last=True,
    fused_optimizer=True,
    threads=2,
    allocator="system",
    depthwise_fp32=False,
)


CONVOLUTION = OpCost(
    op="aten.convolution",
    phase="forward",
    calls=1,
    flops=10**9,
    elementwise_flops=0,
    eager_bytes=10**8,
    fused_bytes=5 * 10**7,
)
complexity = sample(
    Complexity,
    arch="resnet18",
    batch_size=8,
    image_size=224,
    sample="image",
    tokens_per_sample=None,
    precision="fp32",
    math_mode="fp32",
    parameters=100,
    activations=100,
    forward_macs=10**9 // 2,
    step_flops=10**9,
    recomputed_flops=0,
    causal_skipped_flops=0,
    elementwise_flops=0,
    eager_bytes=10**8,
    fused_bytes=5 * 10**7,
    compulsory_bytes=10**7,
    cache_bytes=0,
    memory=MemoryFootprint(
        weights_bytes=400, gradients_bytes=400, optimizer_bytes=400, activations_bytes=400
    ),
    ops=(CONVOLUTION,),
    method="sample",
)


CPU_PERCENT = SampledSeries(
    name="cpu_percent", source="psutil", times_s=(0.0, 0.5), values=(90.0, 95.0)
)
telemetry = sample(Telemetry, interval_s=0.5, series=(CPU_PERCENT,))


process_figures = sample(ProcessFigures, real_s=10.0, user_s=8.0, system_s=1.0, max_rss_bytes=10**9)


def _of_config(record_class, config, **known):
    config = config or RunConfig()
    always = {"created": NOW, "config": config, "config_id": config.config_id}
    return facts(record_class, **{**always, **known})


def run_record(config=None, **changes):
    batches = 1 if config is None else config.world_size * config.grad_accum_steps
    known = {
        "record_id": "20261120T100000Z-00000001",
        "outcome": "ok",
        "resolved": resolved(),
        "measurement": measurement(images=8 * batches),
        "process": process_figures(),
        "telemetry": telemetry(),
        "environment": environment(),
        "complexity": complexity(),
    }
    return _of_config(RunRecord, config, **{**known, **changes})


ceiling = sample(
    Ceiling,
    "math_mode",
    device="Sample CPU",
    backend="cpu",
    math_mode="fp32",
    peak_flops_per_s=2e11,
    peak_bytes_per_s=5e10,
    kind="measured",
    source="matmul",
    date="2026-11-20",
)


def ceilings_record(*modes, **changes):
    sample = CeilingSample(
        probe="matmul", math_mode="fp32", quantity="flops_per_s", rates=(2e11, 1.9e11)
    )
    known = {
        "record_id": "20261120T100000Z-00000003",
        "created": NOW,
        "outcome": "ok",
        "environment": environment(),
        "ceilings": tuple(map(ceiling, modes or ("fp32",))),
        "samples": (sample,),
    }
    return facts(CeilingsRecord, **{**known, **changes})


def all_reduce(message_bytes=2**20, time_s=0.001, devices=2):
    return AllReduce(
        communication="gloo", devices=devices, message_bytes=message_bytes, times_s=(time_s,)
    )


def failed_record(outcome="crashed", why="RuntimeError: no", config=None, **changes):
    known = {"record_id": "20261120T100000Z-00000002", "outcome": outcome, "reason": why}
    return _of_config(RunRecord, config, **{**known, **changes})


#: 100 GFLOP/s at 10 FLOP per eager byte and 20 per fused one.
_op_time = sample(
    OpTime,
    *("label", "phase", "time_s", "exclusive_s"),
    op="convolution",
    calls=4,
    flops=10**9,
    elementwise_flops=0,
    eager_bytes=10**8,
    fused_bytes=5 * 10**7,
)


def op_time(label="convolution 1x1", phase="forward", time_s=0.01, exclusive_s=None, **changes):
    """Return an op's time; all of it is exclusive by default."""
    return _op_time(label, phase, time_s, time_s if exclusive_s is None else exclusive_s, **changes)


def op_profile(*ops, **changes):
    ops = ops or (op_time(),)
    known = {
        "method": "torch.profiler",
        "iterations": 5,
        "step_time_s": 1.25 * sum(op.time_s for op in ops) or 1.0,
        "ops": ops,
    }
    return facts(OpProfile, **{**known, **changes})


#: 100 GFLOP/s; 5, 10 and 20 FLOP per byte of L1, L2 and DRAM.
kernel = sample(
    KernelTotals,
    *("name", "duration_s"),
    name="sgemm",
    launches=2,
    duration_s=0.01,
    flops=10**9,
    tensor_flops=0,
    dram_bytes=5 * 10**7,
    l2_bytes=10**8,
    l1_bytes=2 * 10**8,
)


def counters(*kernels, **changes):
    """The kernels' sums; what one of them does not know, the whole does not."""
    kernels = kernels or (kernel(),)
    known = {
        "source": "ncu 2026.1",
        "files": ("hardware.csv", "sass.csv"),
        "chip": "gh100",
        "kernels": sum(each.launches for each in kernels),
        "per_kernel": kernels,
    }
    for name in ("duration_s", "flops", "tensor_flops", "dram_bytes", "l2_bytes", "l1_bytes"):
        values = [getattr(each, name) for each in kernels]
        if None not in values:
            known[name] = sum(values)
    return facts(GpuCounters, **{**known, **changes})


cpu_counters = sample(
    CpuCounters,
    source="perf 6.1",
    scope="user",
    iterations=10,
    window_s=5.0,
    cycles=2 * 10**10,
    instructions=3 * 10**10,
    cache_references=10**8,
    cache_misses=10**7,
    branches=10**9,
    branch_misses=10**7,
    running_share={"cycles": 1.0, "instructions": 1.0},
)


def work_set(unit="kernels", **counts):
    return WorkSet(unit=unit, counts=counts or {"sgemm": 2})


def profile_record(config=None, **changes):
    """A profile of the configuration of `run_record`, by PyTorch's profiler and ncu."""
    known = {
        "record_id": "20261120T100000Z-00000004",
        "timed_record_id": "20261120T100000Z-00000001",
        "outcome": "ok",
        "resolved": resolved(),
        "environment": environment(),
        "complexity": complexity(),
        "work": work_set(),
        "ops": op_profile(),
        "counters": counters(),
    }
    return _of_config(ProfileRecord, config, **{**known, **changes})


#: 60 ms of computation and 10 of communication that it does not hide; 30 ms idle.
traced_step = sample(
    TracedStep,
    "name",
    name="ProfilerStep#1",
    wall_s=0.1,
    device_busy_s=0.07,
    computation_s=0.06,
    exposed_communication_s=0.01,
    exposed_copies_s=0.0,
    communication_s=0.02,
    idle_s=0.03,
    idle=(IdleTime(cause="launches", time_s=0.03),),
)
#: 100 GFLOP/s at 10 FLOP per eager byte and 20 per fused one.
traced_op = sample(
    TracedOp,
    label="convolution 1x1",
    op="convolution",
    phase="forward",
    shapes="8x64x56x56, 64x64x1x1",
    calls=4.0,
    time_s=0.01,
    exclusive_s=0.009,
    kernels=("sgemm",),
    flops=1e9,
    elementwise_flops=0.0,
    eager_bytes=1e8,
    fused_bytes=5e7,
)


def trace_record(*steps, **changes):
    """Two equal steps, of resnet50 at batch 32."""
    known = {
        "record_id": "20261120T100000Z-00000005",
        "created": NOW,
        "source_file": "worker0.pt.trace.json.gz",
        "source_sha256": "0" * 64,
        "campaign": "traces",
        "device": "Sample GPU",
        "math_mode": "fp32",
        "arch": "resnet50",
        "batch_size": 32,
        "precision": "fp32",
        "throughput_samples_per_s": 320.0,
        "step_time_s": 0.1,
        "bound": "launches",
        "findings": ("the device is idle for 30 % of a step",),
        "advice": ("capture the step as a CUDA graph",),
        "steps": steps or (traced_step("ProfilerStep#1"), traced_step("ProfilerStep#2")),
        "ops": (traced_op(),),
    }
    return facts(TraceRecord, **{**known, **changes})
