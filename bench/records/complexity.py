"""What decides one training step, and what it, or one op of it, must compute, move and hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from typing_extensions import Self

from bench.config import RunConfig, Sample
from bench.config.resolved import MODES_OF, Backend, MathMode, ResolvedConfig
from bench.records.base import NEWER, Count, Phase, PositiveCount, Record

#: L2 of an H200, the largest single last-level cache among the devices this was made for: where a
#: device's own is not known, a floor that is too low is still a floor.
DEFAULT_CACHE_BYTES = 60 * 2**20

#: Of a step's FLOP in 16 bits: a smaller part in fp32 (positions, gates) says nothing of its pace.
LEAST_IN_FP32 = 0.01


@dataclass(frozen=True)
class StepSpec:
    """All that decides what one training step computes, moves and holds.

    `arch` is as `--arch` has it; `image_size` is in pixels a side and `seq_len` in tokens, by
    default the model's own; `math_mode` is what `precision` became on a device, by default bf16 for
    `amp`, which is fp32 on a device with neither bf16 nor fp16. `backend` decides what autocast
    does. `cache_bytes` is the last-level cache that compulsory bytes allow for.
    """

    arch: str
    batch_size: int
    precision: str
    image_size: int | None = None
    math_mode: MathMode | None = None
    fused_optimizer: bool = True
    depthwise_fp32: bool = False
    backend: Backend = "cpu"
    seq_len: int | None = None
    optimizer: str = "sgd"
    cache_bytes: int = DEFAULT_CACHE_BYTES

    @classmethod
    def of(
        cls,
        config: RunConfig,
        resolved: ResolvedConfig | None = None,
        *,
        batch_size: int | None = None,
        cache_bytes: int | None = None,
    ) -> Self:
        """Return what decides the step of a configuration, as a device has `resolved` it.

        Without `resolved` a backend `auto` is a CPU, and `batch_size` replaces one of `auto`.
        """
        if resolved is not None:
            names = ("batch_size", "image_size", "seq_len", "math_mode", "fused_optimizer")
            facts = {name: getattr(resolved, name) for name in names}
            facts |= {"depthwise_fp32": resolved.depthwise_fp32, "backend": resolved.backend}
        else:
            facts = {
                "batch_size": int(config.batch_size) if batch_size is None else batch_size,
                "image_size": None if config.image_size == "auto" else config.image_size,
                "seq_len": None if config.seq_len == "auto" else config.seq_len,
                "backend": "cpu" if config.backend == "auto" else config.backend,
            }
        facts["cache_bytes"] = cache_bytes or DEFAULT_CACHE_BYTES
        return cls(config.arch, precision=config.precision, optimizer=config.optimizer, **facts)

    @property
    def resolved_math_mode(self) -> MathMode:
        """The arithmetic of convolutions and products."""
        return self.math_mode or MODES_OF[self.precision][0]


class Work(Record):
    """What an op, a phase or a step must compute and move; works can be added and repeated.

    `flops` are algorithmic: of convolutions, matrix products and attention. `elementwise_flops`
    are all others. `eager_bytes`: each op reads its inputs and writes its outputs in DRAM.
    `fused_bytes`: elementwise and normalisation chains folded into their neighbours.
    """

    flops: Count
    elementwise_flops: Count
    eager_bytes: Count
    fused_bytes: Count

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in WORK})

    def __mul__(self, times: int) -> Work:
        return Work(**{name: times * getattr(self, name) for name in WORK})


#: The counts of `Work`, by name.
WORK = tuple(Work.model_fields)
NO_WORK = Work(**dict.fromkeys(WORK, 0))


class OpCost(Work):
    """Work of all calls of one op in one phase of one step."""

    op: str
    phase: Phase
    calls: Count


class OpWork(Work):
    """Work of one call.

    Attention counts whole under a causal mask; `causal_skipped_flops` are the part that a fused
    kernel may leave out, `fp32_flops` that of 32-bit numbers. `fused_bytes` are the call's share of
    a step's fused traffic, or of an op by itself the least that it can move.
    """

    label: str
    causal_skipped_flops: Count = 0
    fp32_flops: Count = 0


class CallWork(OpWork):
    """Work of one call of a step that moves something, or of each of so many equal `calls`.

    `op` is aten's name, `shapes` are those of its tensor arguments in order, lists of tensors and
    tensors without dimensions left out. `module` is the path in the model of the module that made
    the call, or whose backward pass it is; None outside of the model, or where it is not followed.
    """

    op: str
    phase: Phase
    shapes: tuple[tuple[int, ...], ...]
    module: str | None = None
    calls: Count = 1


def by_phase(ops: Iterable[OpCost]) -> dict[Phase, Work]:
    """Return the work of forward, backward and optimizer; their sum is the step's."""
    ops = tuple(ops)
    return {
        phase: sum((op for op in ops if op.phase == phase), NO_WORK) for phase in get_args(Phase)
    }


class MemoryFootprint(Record):
    """Bytes a training step holds, by what they are for."""

    weights_bytes: Count
    gradients_bytes: Count
    optimizer_bytes: Count
    activations_bytes: Count  # saved for the backward pass
    peak_bytes: Count | None = None  # the most at once, passing tensors too; of fake steps

    @property
    def total_bytes(self) -> int:
        """All parts together, which are never held at once."""
        parts = self.weights_bytes, self.gradients_bytes, self.optimizer_bytes
        return sum(parts) + self.activations_bytes

    @property
    def needed_bytes(self) -> int:
        """The peak, else all parts together."""
        return self.total_bytes if self.peak_bytes is None else self.peak_bytes


class Complexity(Record):
    """What one training step (forward, backward, optimizer) of a model must do and move.

    All counts are per step of `batch_size` samples: images, or what else the model is trained on.
    Pixels and tokens are None where a sample has none. `eager_bytes` and `fused_bytes` are those of
    `Work`. `compulsory_bytes`: what the step finds (batch, weights, momentum) and leaves, each but
    for what a last-level cache of `cache_bytes` can keep from step to step.
    """

    arch: str
    batch_size: PositiveCount
    image_size: PositiveCount | None
    sample: Sample
    tokens_per_sample: PositiveCount | None
    precision: str
    math_mode: MathMode
    parameters: Count
    activations: Count | None  # elements saved for the backward pass, per sample; of fake steps
    forward_macs: Count
    step_flops: Count  # algorithmic: convolution, linear, matrix product, attention
    recomputed_flops: Count  # by checkpoints, not in step_flops
    #: part of step_flops that the mathematics needs, without what masks hide and experts that no
    #: token was sent to; None for the reason beside it
    required_flops: Count | None = None
    required_missing: str | None = NEWER.reason
    causal_skipped_flops: Count  # part of step_flops that fused attention may skip
    fp32_flops: Count = 0  # part of step_flops; records of before say nothing
    elementwise_flops: Count
    eager_bytes: PositiveCount
    fused_bytes: PositiveCount
    compulsory_bytes: Count
    cache_bytes: Count
    memory: MemoryFootprint
    ops: tuple[OpCost, ...]
    method: str

    @property
    def phases(self) -> dict[Phase, Work]:
        """Work of forward, backward and optimizer; their sum is the step's."""
        return by_phase(self.ops)

    @property
    def needed_flops(self) -> int | None:
        """The required FLOP; of an older record too, if it has neither attention nor experts."""
        may_hide = ("bmm", "baddbmm", "_grouped_mm")
        hides = any(is_attention(op.op) or op.op in may_hide for op in self.ops)
        is_whole = self.required_flops is None and not (hides or self.causal_skipped_flops)
        return self.step_flops if is_whole else self.required_flops

    @property
    def step_flops_per_sample(self) -> float:
        """Algorithmic FLOP of one training step, per sample."""
        return self.step_flops / self.batch_size

    @property
    def intensity_max(self) -> float:
        """FLOP per byte if every fusable chain is fused."""
        return self.step_flops / self.fused_bytes

    @property
    def intensity_min(self) -> float:
        """FLOP per byte if every op goes through DRAM."""
        return self.step_flops / self.eager_bytes

    @property
    def fp32_share(self) -> float:
        """The part of a step's FLOP that autocast has left in 32 bits."""
        mixed = self.math_mode in ("bf16", "fp16", "fp8") and self.step_flops
        return self.fp32_flops / self.step_flops if mixed else 0.0

    @property
    def half_share(self) -> float:
        """The part of an fp8 step's FLOP that is left in 16 bits."""
        if self.math_mode != "fp8" or not self.step_flops:
            return 0.0
        scaled = sum(op.flops for op in self.ops if op.op == SCALED_PRODUCT)
        return 1 - (scaled + self.fp32_flops) / self.step_flops

    def per_sample(self, total: int) -> int | float:
        """Return the part of one sample of a step's `total`, an integer where it is whole."""
        samples, rest = divmod(total, self.batch_size)
        return total / self.batch_size if rest else samples

    def row(self) -> dict[str, Any]:
        """Return the facts for JSON; counts per sample are integers where they are whole.

        A key says what a sample is: `bytes_per_image_min`, the fused traffic, is
        `bytes_per_sequence_min` of a model that takes tokens; `..._max` is the eager traffic. Keys
        that begin with a phase are its part of the step's.
        """
        each = f"per_{self.sample}"
        names = ("arch", "batch_size", "image_size", "tokens_per_sample", "precision", "math_mode")
        facts = {name: getattr(self, name) for name in (*names, "parameters")}
        facts[f"activations_{each}"] = self.activations
        counts = {
            f"forward_macs_{each}": self.forward_macs,
            f"step_flops_{each}": self.step_flops,
            f"required_flops_{each}": self.required_flops,
            f"recomputed_flops_{each}": self.recomputed_flops,
            f"causal_skipped_flops_{each}": self.causal_skipped_flops,
            f"elementwise_flops_{each}": self.elementwise_flops,
            f"bytes_{each}_min": self.fused_bytes,
            f"bytes_{each}_max": self.eager_bytes,
            f"bytes_{each}_compulsory": self.compulsory_bytes,
        }
        for phase, work in self.phases.items():
            counts |= {
                f"{phase}_flops_{each}": work.flops,
                f"{phase}_elementwise_flops_{each}": work.elementwise_flops,
                f"{phase}_bytes_{each}_min": work.fused_bytes,
                f"{phase}_bytes_{each}_max": work.eager_bytes,
            }
        facts |= {
            n: None if total is None else self.per_sample(total) for n, total in counts.items()
        }
        for name in ("cache_bytes", "intensity_min", "intensity_max"):
            facts[name] = getattr(self, name)
        return facts | self.memory.model_dump() | {"method": self.method}


class ListedStep(Record):
    """The ops of a training step, each with its sizes, and what the step holds in memory."""

    sample: Sample
    tokens_per_sample: PositiveCount | None
    memory: MemoryFootprint
    ops: tuple[CallWork, ...]


@dataclass(frozen=True)
class CalledOp:
    """An op as a profiler prints it, and what it was given; equal ones do equal work.

    `name` is without `aten::`. `dims`, `types`, `concrete` (values of arguments that are no
    tensors, as text) and `strides` are the profiler's, one entry per argument, None where it wrote
    none. `result` is the shape of what it returned and `output_mask` says which gradients it
    computed, both only where other ops of the trace show it.
    """

    name: str
    phase: Phase | None = None
    dims: tuple[Any, ...] | None = None
    types: tuple[str, ...] | None = None
    concrete: tuple[Any, ...] | None = None
    strides: tuple[Any, ...] | None = None
    result: tuple[int, ...] | None = None
    output_mask: tuple[bool, ...] | None = None


def is_attention(op: str) -> bool:
    """Return whether `op` is a variant of scaled-dot-product attention, forward or backward."""
    return "scaled_dot_product" in op and "attention" in op


#: torch's product of 8-bit floats.
SCALED_PRODUCT = "_scaled_mm"
#: Parts of names that say nothing about the kind of an op.
_PREFIXES = ("_", "native_", "cudnn_", "miopen_", "mps_", "fused_")
_SUFFIXES = ("_", "_data", "_backward", "_forward", "_with_indices")
#: What is left of a name where a more usual one exists.
_USUAL = {
    "threshold": "relu",
    "to_copy": "cast",
    "clone": "copy",
    "mm": "linear",
    "addmm": "linear",
    "scaled_mm": "linear",
    "bmm": "batched product",
    "baddbmm": "batched product",
}


@cache
def plain_label(name: str) -> str:
    """Return the kind that an op's name alone shows: `native_batch_norm_backward` is batch_norm."""
    if is_attention(name):
        return "attention"
    while kept := next((p for p in _PREFIXES if name.startswith(p) and name != p), ""):
        name = name.removeprefix(kept)
    while kept := next((s for s in _SUFFIXES if name.endswith(s) and name != s), ""):
        name = name.removesuffix(kept)
    return _USUAL.get(name, name)
