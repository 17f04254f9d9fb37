"""What a configuration became on its device."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict

from bench.config.legacy import Legacy
from bench.config.samples import Sample

Backend = Literal["cpu", "cuda", "mps"]
MathMode = Literal["fp32", "tf32", "bf16", "fp16"]


class ResolvedConfig(BaseModel):
    """What `auto` became on this device, and the arithmetic of its convolutions and products.

    A field for each setting of `RunConfig` that can be `auto`. Pixels and tokens are None where the
    model takes none; a user's own step says itself how many tokens a sample has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    backend: Backend
    math_mode: MathMode  # of convolutions and matrix products: it picks the roof
    convolution_fp32: Literal["ieee", "tf32"]
    matmul_fp32: Literal["ieee", "tf32"]
    autocast_dtype: Literal["none", "bf16", "fp16"]
    loss_scaling: bool
    native_math: bool  # False where the device emulates math_mode
    batch_size: int
    image_size: int | None
    seq_len: Annotated[int | None, Legacy(None)]
    sample: Annotated[Sample, Legacy("image")]  # what a batch has `batch_size` of
    tokens_per_sample: Annotated[int | None, Legacy(None)]
    max_seconds: float | Literal["none"]
    workers: int
    pin_memory: bool
    channels_last: bool
    fused_optimizer: bool
    threads: int
    # Of the host; preloaded: by LD_PRELOAD.
    allocator: Annotated[Literal["system", "retain", "preloaded"], Legacy("system")]
    depthwise_fp32: Annotated[bool, Legacy(False)]  # strided depthwise convolutions, under autocast

    def precision_note(self, precision: str) -> str | None:
        """Return how the device departs from `precision`, as asked for; None where it does not."""
        device = "processor" if self.backend == "cpu" else "device"
        if precision == "amp" and self.autocast_dtype == "none":
            return (
                f"this {device} has no bf16 or fp16 arithmetic; measured in fp32 "
                "(precision=amp-bf16 emulates it)"
            )
        if not self.native_math:
            return f"this {device} computes {self.math_mode} by emulation"
        return None
