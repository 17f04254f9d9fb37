"""What a configuration became on its device, and what its samples are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Backend = Literal["cpu", "cuda", "mps"]
MathMode = Literal["fp32", "tf32", "bf16", "fp16", "fp64", "fp8"]
#: What each precision multiplies in; `amp` in the first that the device has.
MODES_OF: Mapping[str, tuple[MathMode, ...]] = MappingProxyType(
    {"fp32": ("fp32",), "tf32": ("tf32",), "amp": ("bf16", "fp16"), "amp-bf16": ("bf16",),
     "amp-fp16": ("fp16",), "fp8": ("fp8",)}
)  # fmt: skip
#: step: of a script whose samples are not known.
Sample = Literal["image", "sequence", "sample", "step"]


@dataclass(frozen=True)
class Legacy:
    """Marks a field with the value that reproduces records older than the field.

    Such a record is read with that value. In a `RunConfig` the value does not enter `config_id`:
    old records keep theirs and stay comparable.
    """

    value: object


@cache
def legacy_defaults(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the value of each field that `Legacy` marks."""
    marked = {
        name: mark.value
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Legacy)
    }
    return MappingProxyType(marked)


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
    batch_size: Annotated[int, Field(ge=1, lt=2**31)]
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

    def departure(self, precision: str) -> str | None:
        """Return the code of how the run departs from `precision`, as it was asked for."""
        if self.math_mode not in (precision, self.autocast_dtype, "fp32"):
            return "own-arithmetic"
        if precision == "amp" and self.autocast_dtype == "none":
            return "amp-in-fp32"
        return None if self.native_math else "emulated"


#: Metrics of samples in general: each kind may have them under a name of its own.
THROUGHPUT = "throughput_samples_per_s"
ENERGY = "energy_j_per_sample"


def column_noun(sample: Sample) -> str:
    """Return what names of metrics and columns call a sample: image or step, else sample."""
    return sample if sample in ("image", "step") else "sample"


def rate_metric(sample: Sample) -> str:
    """Return the metric of samples per second."""
    return f"throughput_{rate_column(sample)}"


def rate_column(sample: Sample) -> str:
    """Return what a column of samples per second is called: images_per_s or samples_per_s."""
    return f"{column_noun(sample)}s_per_s"


def energy_metric(sample: Sample) -> str:
    """Return the metric of joules per sample."""
    return f"energy_j_per_{column_noun(sample)}"


def cost_metric(sample: Sample) -> str:
    """Return the metric of what a million samples cost."""
    return f"cost_per_million_{column_noun(sample)}s"


@cache
def own_metric(name: str, sample: Sample) -> str:
    """Return the metric `name` as samples of this kind have it, if it is of samples in general."""
    return {THROUGHPUT: rate_metric(sample), ENERGY: energy_metric(sample)}.get(name, name)


def rate_unit(sample: Sample) -> str:
    """Return the unit of samples per second: images/s, sequences/s or samples/s."""
    return f"{sample}s/s"


def a_sample(sample: Sample) -> str:
    """Return the noun with its article: an image, a sequence or a sample."""
    return f"{'an' if sample == 'image' else 'a'} {sample}"


def common_sample(samples: Iterable[Sample]) -> Sample:
    """Return the kind that all of `samples` are of; of several kinds they are just samples."""
    kinds = set(samples)
    return kinds.pop() if len(kinds) == 1 else "sample"
