"""Probes: matrix products and convolutions of random operands, and arrays that no cache holds.

FLOP are algorithmic, by the formulas of the complexity model: a multiply-add is 2, and those with
the padding's zeros count, whether or not a library skips them. Never zeros: a GPU multiplies
zeros up to 15 % faster, because fewer bits toggle and power allows a higher clock.

Bytes are counted as McCalpin's STREAM and the complexity model count them: each array an
operation reads, once, and each it writes, once. A processor that must first read the cache line
it is going to overwrite (write-allocate) moves up to 3/2 of that in `copy` and 4/3 in `triad`.
`update` overwrites what it has read anyway, so there the count is the traffic: the roof that no
operation passes, in the model's bytes and in a memory controller's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from bench.records import CeilingSample, MathMode
from bench.training.step import Fp32, Tf32

Layout = Literal["NN", "NT", "TN"]

DTYPES: dict[MathMode, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


#: (m x k) times (k x n), given as m, n, k and whether each operand is stored transposed (T).
Product = tuple[int, int, int, Layout]
#: Batch, channels, size and filters of a square convolution of stride 1, padded to keep the size.
Convolution = tuple[int, int, int, int]
_KERNEL = 3

Launch = Callable[[], object]


@dataclass
class Probe:
    """What is launched again and again, and the rates of its repetitions.

    `prepare` makes the operands and returns the launch; nothing is allocated before it.
    """

    name: str
    math_mode: MathMode | None  # None: it moves bytes, whatever they mean
    work_per_launch: int  # FLOP or bytes
    operand_bytes: int
    prepare: Callable[[], Launch]
    launch: Launch | None = None  # None before its start and when it is given up
    launches: int = 1  # of one repetition
    rates: list[float] = field(default_factory=list)
    waiting: bool = True

    @property
    def live(self) -> bool:
        """Whether it still takes turns."""
        return self.waiting or self.launch is not None

    def give_up(self) -> None:
        """Take no more turns, and free the operands."""
        self.launch, self.waiting = None, False

    def rate_text(self, rate: float) -> str:
        """Return the rate in its unit."""
        return f"{rate / 1e9:.1f} {'GFLOP/s' if self.math_mode else 'GB/s'}"

    def sample(self, addition: str, rates: Iterable[float]) -> CeilingSample:
        """Return these rates as the probe's, with `addition` to its name."""
        return CeilingSample(
            probe=self.name + addition,
            math_mode=self.math_mode,
            quantity="flops_per_s" if self.math_mode else "bytes_per_s",
            rates=tuple(rates),
        )


def product_probe(shape: Product, mode: MathMode, device: torch.device) -> Probe:
    """Return `torch.mm` into an existing result, in fp8 `torch._scaled_mm`: 2 m n k FLOP."""
    m, n, k, layout = shape
    how: Any = {"dtype": torch.bfloat16 if mode == "fp8" else DTYPES[mode], "device": device}

    def prepare() -> Launch:
        a = torch.randn(k, m, **how).t() if layout[0] == "T" else torch.randn(m, k, **how)
        b = torch.randn(n, k, **how).t() if layout[1] == "T" else torch.randn(k, n, **how)
        if mode == "fp8":
            scales = (torch.ones((), device=device),) * 2
            of_forward: Any = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
            a, b = a.to(DTYPES[mode]), b.to(DTYPES[mode])
            return lambda: torch._scaled_mm(a, b, *scales, **of_forward)
        result = torch.empty(m, n, **how)
        return lambda: torch.mm(a, b, out=result)

    name = f"matmul {mode} {m}x{n}x{k} {layout}"
    return _compute_probe(name, mode, 2 * m * n * k, m * k + k * n + m * n, prepare)


def linear_probe(shape: Product) -> Probe:
    """Return oneDNN's fp32 linear layer on the CPU, a product of layout NT.

    `torch.mm` calls the BLAS that torch was built with, whose fp32 is not always the fastest: on
    an AMD Zen 5 oneDNN, which also computes the convolutions there, reaches 2.2 times MKL's rate.
    """
    m, n, k, _ = shape

    def prepare() -> Launch:
        x = torch.randn(m, k).to_mkldnn()
        weight = torch.randn(n, k)
        return lambda: functional.linear(x, weight)

    name = f"oneDNN linear fp32 {m}x{n}x{k}"
    return _compute_probe(name, "fp32", 2 * m * n * k, m * k + k * n + m * n, prepare)


def convolution_probe(
    shape: Convolution, mode: MathMode, device: torch.device, channels_last: bool
) -> Probe:
    """Return the forward convolution, which in some libraries outruns every matrix product.

    Its FLOP are 2 x outputs x (channels x 3 x 3).
    """
    batch, channels, size, filters = shape
    images, weights = (batch, channels, size, size), (filters, channels, _KERNEL, _KERNEL)
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def prepare() -> Launch:
        x, w = (
            torch.randn(*of, dtype=DTYPES[mode], device=device).contiguous(memory_format=layout)
            for of in (images, weights)
        )
        return lambda: torch.conv2d(x, w, padding=_KERNEL // 2)

    outputs, sums = batch * filters * size**2, math.prod(weights[1:])
    elements = math.prod(images) + math.prod(weights) + outputs
    name = (
        f"conv {mode} {_KERNEL}x{_KERNEL} {'x'.join(map(str, images))} to {filters} "
        f"{'NHWC' if channels_last else 'NCHW'}"
    )
    return _compute_probe(name, mode, 2 * outputs * sums, elements, prepare)


def _compute_probe(
    name: str, mode: MathMode, flops: int, elements: int, prepare: Callable[[], Launch]
) -> Probe:
    return Probe(name, mode, flops, elements * DTYPES[mode].itemsize, prepare)


ARRAYS = 3
_ELEMENT_BYTES = 4
#: STREAM's rule: each array at least four times the last-level cache.
_CACHE_MULTIPLE = 4
#: Below this a launch is too short to fill a large device, and a system cache that the machine
#: keeps to itself (Apple's, up to 96 MB) would still hold a good part.
_SMALLEST_BYTES = 128 * 2**20
#: Where the last-level cache is unknown: four times the largest that a desktop chip has (128 MB).
_UNKNOWN_CACHE_BYTES = 512 * 2**20
#: Random elements, repeated to an array's length: far quicker than drawing each one.
_RANDOM_ELEMENTS = 2**20
_TRIAD_SCALE = 3.0
#: Small, so that an array updated many thousand times stays of the size it was.
_UPDATE_SCALE = 2.0**-20
#: What is launched on three arrays, and how many it reads plus how many it writes.
_STREAMS: dict[str, tuple[int, Callable[[Tensor, Tensor, Tensor], object]]] = {
    "copy": (2, lambda a, b, c: a.copy_(b)),
    "triad": (3, lambda a, b, c: torch.add(b, c, alpha=_TRIAD_SCALE, out=a)),
    "update": (3, lambda a, b, c: c.add_(b, alpha=_UPDATE_SCALE)),
    "read": (1, lambda a, b, c: torch.amax(c)),
    "write": (1, lambda a, b, c: a.fill_(_UPDATE_SCALE)),
}
BOTH_WAYS = ("copy", "triad", "update")
#: Memory that need not turn its bus around may be faster.
ONE_WAY = ("read", "write")


def array_sizes(cache_bytes: int | None, steps: Sequence[int], free_bytes: int) -> tuple[int, ...]:
    """Return bytes per array: `steps` times the smallest past the cache, as far as memory goes.

    All three arrays together take at most a quarter of `free_bytes`; empty if none fits.
    """
    known = max(_SMALLEST_BYTES, _CACHE_MULTIPLE * (cache_bytes or 0))
    smallest = _UNKNOWN_CACHE_BYTES if cache_bytes is None else known
    block = _RANDOM_ELEMENTS * _ELEMENT_BYTES
    sizes = (-(-smallest // block) * block * step for step in steps)
    return tuple(size for size in sizes if ARRAYS * size <= free_bytes // 4)


def stream_probes(
    sizes: Sequence[int], device: torch.device, kinds: Sequence[str] = BOTH_WAYS
) -> list[Probe]:
    """Return probes of `kinds` over the first `size` bytes of three arrays that all share."""

    @functools.cache
    def arrays() -> list[Tensor]:
        blocks = max(sizes) // _ELEMENT_BYTES // _RANDOM_ELEMENTS
        return [torch.randn(_RANDOM_ELEMENTS, device=device).repeat(blocks) for _ in range(ARRAYS)]

    def probe(kind: str, size: int) -> Probe:
        moved, operation = _STREAMS[kind]

        def prepare() -> Launch:
            a, b, c = (array[: size // _ELEMENT_BYTES] for array in arrays())
            return lambda: operation(a, b, c)

        return Probe(f"{kind} {size // 2**20} MiB", None, moved * size, 0, prepare)

    return [probe(kind, size) for size in sizes for kind in kinds]


def set_arithmetic(mode: MathMode | None) -> None:
    """Let 32-bit products and convolutions be TF32 in the mode tf32, and IEEE in every other."""
    (Tf32() if mode == "tf32" else Fp32()).apply()


#: A probe repeated less often does not set a roof: it was given up as slower, or its few
#: repetitions may all lie in one burst.
MINIMUM_REPETITIONS = 5
_QUANTILE = 0.75


def sustained_rate(rates: Sequence[float]) -> float:
    """Return the upper quartile of `rates` by nearest rank: always one that was measured."""
    return sorted(rates)[math.ceil(_QUANTILE * len(rates)) - 1]


def best_sample(samples: Iterable[CeilingSample]) -> CeilingSample | None:
    """Return the sample of the highest sustained rate, or None if none was repeated enough."""
    repeated = [sample for sample in samples if len(sample.rates) >= MINIMUM_REPETITIONS]
    return max(repeated, key=lambda sample: sustained_rate(sample.rates), default=None)


def account_of(sample: CeilingSample) -> str:
    """Return the winning probe, how often it was repeated, and how far its repetitions spread."""
    peak = sustained_rate(sample.rates)
    low, high = (
        f"{100 * (extreme / peak - 1):+.1f} %" for extreme in (min(sample.rates), max(sample.rates))
    )
    return f"{sample.probe}, upper quartile of {len(sample.rates)}, spread {low} to {high}"
