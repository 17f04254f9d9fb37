"""What was asked for became, and the raw times of one measured window."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from bench.records.base import Backend, Count, Facts, MathMode, Record, Seconds
from bench.records.ranks import DistributedFigures
from bench.records.work import WorkSet


class ResolvedConfig(Record):
    """What `auto` became on this device, and the arithmetic that really ran."""

    backend: Backend
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
    allocator: Literal["system", "retain", "preloaded"]  # of the host; preloaded: by LD_PRELOAD
    depthwise_fp32: bool  # strided depthwise convolutions, beside autocast


class Measurement(Facts):
    """Raw times of one measured window. Per-iteration tuples are in order and of equal length.

    On several devices the images are those of all, the times and the memory those of rank 0; the
    window begins and ends with a barrier of all ranks.
    """

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
    work: WorkSet | None  # what one step launched, counted outside the window
    ranks: DistributedFigures | None  # None on one device

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
