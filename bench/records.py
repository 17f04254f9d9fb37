"""What was measured: the frozen records that are the whole interface to everything after.

Raw values are stored and statistics derived (`bench.summary`). Times are seconds, sizes bytes,
rates per second; a multiply-add is 2 FLOP, and a MAC count is called MAC. Instants named
`*_clock_s` are readings of `time.perf_counter`, whose zero every process of one boot shares.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from bench.config import RunConfig

#: refused: an input found unusable only once the worker had opened it (a corrupt image, a model
#: that is not a module). unsupported: valid, but not on this device.
Outcome = Literal["ok", "oom", "unsupported", "refused", "crashed", "interrupted"]
MathMode = Literal["fp32", "tf32", "bf16", "fp16"]
Phase = Literal["forward", "backward", "optimizer"]
Level = Literal["clean", "suspect", "invalid"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
PositiveRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Record(BaseModel):
    """Frozen, no unknown fields, and no infinity or NaN in its floats."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Facts(Record):
    """A record whose facts may be unknown: every None has its reason in `missing`."""

    missing: dict[str, str] = {}

    @model_validator(mode="after")
    def _none_has_reason(self) -> Self:
        absent = {name for name in type(self).model_fields if getattr(self, name) is None}
        if unexplained := sorted(absent - self.missing.keys()):
            raise ValueError(f"None without a reason in missing: {', '.join(unexplained)}")
        fields = type(self).model_fields.keys()
        if contradicted := sorted((self.missing.keys() & fields) - absent):
            raise ValueError(f"a value and a reason for its absence: {', '.join(contradicted)}")
        return self


class ResolvedConfig(Record):
    """What `auto` became on this device, and the arithmetic that really ran."""

    backend: Literal["cpu", "cuda", "mps"]
    math_mode: MathMode  # of convolutions and matrix products: it picks the roof
    convolution_fp32: Literal["ieee", "tf32"]
    matmul_fp32: Literal["ieee", "tf32"]
    autocast_dtype: Literal["none", "bf16", "fp16"]
    loss_scaling: bool
    native_math: bool  # False where the device emulates math_mode
    batch_size: int
    image_size: int
    max_seconds: float | Literal["none"]
    workers: int
    pin_memory: bool
    channels_last: bool
    fused_optimizer: bool
    threads: int


class Measurement(Facts):
    """Raw times of one measured window. Per-iteration tuples are in order and of equal length."""

    iteration_times_s: Annotated[tuple[Seconds, ...], Field(min_length=1)]
    iteration_clock: Literal["wall", "cuda_events", "mps_events"]
    data_wait_s: tuple[Seconds, ...]  # host time inside next(loader); zeros for synthetic data
    phase_times_s: dict[str, tuple[Seconds, ...]] | None  # data, forward, backward, optimizer
    warmup_times_s: tuple[Seconds, ...]
    window_start_clock_s: float
    window_end_clock_s: float
    window_start_unix_s: float
    images_per_iteration: Annotated[int, Field(ge=1)]
    ended_early: str | None  # why the window closed before `iters`
    compile_time_s: Seconds | None
    startup_s: dict[str, Seconds]  # import, model, data: what passed before the first warm-up
    peak_memory_allocated_bytes: Count | None
    peak_memory_reserved_bytes: Count | None
    hidden_syncs: Count | None  # synchronisations the probe iteration saw inside the step
    first_loss: float | None
    last_loss: float | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        iterations = len(self.iteration_times_s)
        if len(self.data_wait_s) != iterations:
            raise ValueError("data_wait_s and iteration_times_s differ in length")
        for phase, times in (self.phase_times_s or {}).items():
            if len(times) != iterations:
                raise ValueError(f"phase {phase} and iteration_times_s differ in length")
        if self.window_end_clock_s <= self.window_start_clock_s:
            raise ValueError("the window ends before it starts")
        return self

    @property
    def window_s(self) -> float:
        """Wall time of the measured window, the device synchronised at both ends."""
        return self.window_end_clock_s - self.window_start_clock_s

    @property
    def images(self) -> int:
        """Images of the measured window."""
        return self.images_per_iteration * len(self.iteration_times_s)

    @property
    def throughput_images_per_s(self) -> float:
        """Images of the window over the wall time of the window."""
        return self.images / self.window_s


class ProcessFigures(Facts):
    """What `/usr/bin/time -v` tells of the worker and the loader processes it waited for."""

    real_s: Seconds
    user_s: Seconds | None
    system_s: Seconds | None
    max_rss_bytes: Count | None  # of the largest single process


class Series(Record):
    """One sampled quantity; `name` carries the unit, `times_s` count from the window's start."""

    name: str
    source: str
    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.times_s) != len(self.values):
            raise ValueError(f"series {self.name}: times and values differ in length")
        return self


class Telemetry(Facts):
    """Series sampled by the launching process during the window, and what could not be read."""

    interval_s: PositiveRate
    series: tuple[Series, ...]
    energy_j: float | None  # by the device's own counter over the window
    throttle_share: dict[str, float] | None  # throttle reason -> share of samples; {} means never
    foreign_processes: tuple[str, ...] | None  # others on the device, "pid name", before or after


class DeviceInfo(Facts):
    """The device that ran the step."""

    backend: Literal["cpu", "cuda", "mps"]
    name: str
    uuid: str | None
    memory_bytes: Count | None
    last_level_cache_bytes: Count | None
    compute_capability: str | None
    driver: str | None
    power_limit_w: PositiveRate | None
    max_clock_mhz: PositiveRate | None
    cores: Count | None  # CPU: physical cores usable here; CUDA: multiprocessors


class Environment(Facts):
    """The machine and the software a run was measured on."""

    label: str  # `{env}` of run names
    os: str
    kernel: str
    machine: str  # x86_64, arm64
    python: str
    torch: str
    torchvision: str
    packages: dict[str, str]
    cuda: str | None
    cudnn: str | None
    cpu_model: str | None
    cpu_cores_physical: Count | None
    cpu_cores_usable: Count
    memory_bytes: Count
    storage: str | None  # file system of the records folder
    git_commit: str | None
    git_dirty: bool | None
    container: str | None  # "none" when known to be none
    virtualization: str | None  # "none", "wsl2", "kvm", ...
    cloud_provider: str | None
    cloud_machine_type: str | None
    cloud_zone: str | None
    power_source: str | None  # "mains" or "battery"
    device: DeviceInfo


class OpCost(Record):
    """Cost of all calls of one op in one phase of one step; `flops` is algorithmic."""

    op: str
    phase: Phase
    calls: Count
    flops: Count
    elementwise_flops: Count
    eager_bytes: Count
    fused_bytes: Count


class MemoryFootprint(Record):
    """Bytes a training step holds, by what they are for."""

    weights_bytes: Count
    gradients_bytes: Count
    optimizer_bytes: Count
    activations_bytes: Count  # saved for the backward pass


class Complexity(Record):
    """What one training step (forward, backward, optimizer) of a model must do and move.

    All counts are per step of `batch_size` images. `eager_bytes`: each op reads its inputs and
    writes its outputs in DRAM. `fused_bytes`: elementwise and normalisation chains folded into
    their neighbours. `compulsory_bytes`: only what cannot stay in a last-level cache of
    `cache_bytes` between its write and its next read.
    """

    arch: str
    batch_size: Annotated[int, Field(ge=1)]
    image_size: Annotated[int, Field(ge=1)]
    precision: str
    math_mode: MathMode
    parameters: Count
    activations: Count  # elements saved for the backward pass, per image
    forward_macs: Count
    step_flops: Count  # algorithmic: convolution, linear, matrix product, attention
    elementwise_flops: Count
    eager_bytes: Count
    fused_bytes: Count
    compulsory_bytes: Count
    cache_bytes: Count
    memory: MemoryFootprint
    ops: tuple[OpCost, ...]
    method: str

    @property
    def step_flops_per_image(self) -> float:
        """Algorithmic FLOP of one training step, per image."""
        return self.step_flops / self.batch_size

    @property
    def intensity_max(self) -> float:
        """FLOP per byte if every fusable chain is fused."""
        return self.step_flops / self.fused_bytes

    @property
    def intensity_min(self) -> float:
        """FLOP per byte if every op goes through DRAM."""
        return self.step_flops / self.eager_bytes


class Ceiling(Facts):
    """The most a device can do in one math mode, measured there or from its maker's document."""

    device: str
    backend: Literal["cpu", "cuda", "mps"]
    math_mode: MathMode
    peak_flops_per_s: PositiveRate | None
    peak_bytes_per_s: PositiveRate | None
    kind: Literal["measured", "datasheet"]
    source: str
    date: str


class CeilingSample(Record):
    """One probe of a ceiling: `rates` in FLOP/s or B/s, one per repetition."""

    probe: str  # "matmul bf16 4096x4096x4096", "copy 512 MiB"
    math_mode: MathMode | None
    quantity: Literal["flops_per_s", "bytes_per_s"]
    rates: Annotated[tuple[PositiveRate, ...], Field(min_length=1)]


class Finding(Record):
    """One thing a reader of the run must know, and how much it weighs."""

    code: str
    level: Literal["note", "suspect", "invalid"]
    message: str


class Verdict(Record):
    """Whether the numbers of a run can be trusted, and why not."""

    level: Level
    findings: tuple[Finding, ...]


class RunRecord(Facts):
    """One configuration, measured once: the file `record.json` of a record folder."""

    schema_version: Literal[1] = 1
    kind: Literal["measurement"] = "measurement"
    record_id: str
    created: datetime  # UTC
    config: RunConfig
    config_id: str
    outcome: Outcome
    reason: str | None  # why the outcome is not ok
    resolved: ResolvedConfig | None
    measurement: Measurement | None
    process: ProcessFigures | None
    telemetry: Telemetry | None
    environment: Environment | None
    complexity: Complexity | None
    verdict: Verdict | None

    @model_validator(mode="after")
    def _ok_is_whole(self) -> Self:
        if self.outcome == "ok" and (self.measurement is None or self.resolved is None):
            raise ValueError("outcome ok without a measurement")
        return self


class CeilingsRecord(Facts):
    """One machine's measured roofs: the file `record.json` of a record folder."""

    schema_version: Literal[1] = 1
    kind: Literal["ceilings"] = "ceilings"
    record_id: str
    created: datetime  # UTC
    outcome: Outcome
    reason: str | None
    environment: Environment | None
    ceilings: tuple[Ceiling, ...]
    samples: tuple[CeilingSample, ...]
    telemetry: Telemetry | None
    verdict: Verdict | None
