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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional

from bench.records import CeilingSample, MathMode
from bench.training.precision import Fp32, Tf32

Layout = Literal["NN", "NT", "TN"]

DTYPES: dict[MathMode, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True)
class Product:
    """(m x k) times (k x n); T: that operand is stored transposed."""

    m: int
    n: int
    k: int
    layout: Layout = "NN"

    @property
    def flops(self) -> int:
        """2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        """Elements of both operands and the result."""
        return self.m * self.k + self.k * self.n + self.m * self.n


@dataclass(frozen=True)
class Convolution:
    """A square convolution of stride 1 whose padding keeps the image's size."""

    batch: int
    channels: int
    size: int
    filters: int
    kernel: int = 3

    @property
    def flops(self) -> int:
        """2 x outputs x (channels x kernel x kernel)."""
        outputs = self.batch * self.filters * self.size**2
        return 2 * outputs * self.channels * self.kernel**2

    @property
    def elements(self) -> int:
        """Elements of images, weights and result."""
        images = self.batch * self.size**2 * (self.channels + self.filters)
        return images + self.filters * self.channels * self.kernel**2


def product_probe(shape: Product, mode: MathMode, device: torch.device) -> Probe:
    """Return `torch.mm` into an existing result."""
    dtype = DTYPES[mode]

    def prepare() -> Launch:
        a = _matrix(shape.m, shape.k, shape.layout[0] == "T", dtype, device)
        b = _matrix(shape.k, shape.n, shape.layout[1] == "T", dtype, device)
        result = torch.empty(shape.m, shape.n, dtype=dtype, device=device)
        return lambda: torch.mm(a, b, out=result)

    name = f"matmul {mode} {shape.m}x{shape.n}x{shape.k} {shape.layout}"
    return _compute_probe(name, mode, shape, prepare)


def linear_probe(shape: Product) -> Probe:
    """Return oneDNN's fp32 linear layer on the CPU, a product of layout NT.

    `torch.mm` calls the BLAS that torch was built with, whose fp32 is not always the fastest: on
    an AMD Zen 5 oneDNN, which also computes the convolutions there, reaches 2.2 times MKL's rate.
    """

    def prepare() -> Launch:
        x = torch.randn(shape.m, shape.k).to_mkldnn()
        weight = torch.randn(shape.n, shape.k)
        return lambda: functional.linear(x, weight)

    name = f"oneDNN linear fp32 {shape.m}x{shape.n}x{shape.k}"
    return _compute_probe(name, "fp32", shape, prepare)


def convolution_probe(
    shape: Convolution, mode: MathMode, device: torch.device, channels_last: bool
) -> Probe:
    """Return the forward convolution, which in some libraries outruns every matrix product."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    dtype, kernel = DTYPES[mode], shape.kernel

    def prepare() -> Launch:
        size, channels = shape.size, shape.channels
        images = torch.randn(shape.batch, channels, size, size, dtype=dtype, device=device)
        weights = torch.randn(shape.filters, channels, kernel, kernel, dtype=dtype, device=device)
        x, w = (each.contiguous(memory_format=layout) for each in (images, weights))
        return lambda: torch.conv2d(x, w, padding=kernel // 2)

    name = (
        f"conv {mode} {kernel}x{kernel} {shape.batch}x{shape.channels}x{shape.size}x{shape.size}"
        f" to {shape.filters} {'NHWC' if channels_last else 'NCHW'}"
    )
    return _compute_probe(name, mode, shape, prepare)


def _compute_probe(
    name: str, mode: MathMode, shape: Product | Convolution, prepare: Callable[[], Launch]
) -> Probe:
    operand_bytes = shape.elements * DTYPES[mode].itemsize
    return Probe(name, mode, "flops_per_s", shape.flops, operand_bytes, prepare)


def _matrix(
    rows: int, columns: int, transposed: bool, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    if transposed:
        return torch.randn(columns, rows, dtype=dtype, device=device).t()
    return torch.randn(rows, columns, dtype=dtype, device=device)


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
#: Arrays read plus arrays written: a = b; a = b + s c; c = c + s b.
_ARRAYS_MOVED = {"copy": 2, "triad": 3, "update": 3}
_ONE_WAY = {"read": 1, "write": 1}
_TRIAD_SCALE = 3.0
#: Small, so that an array updated many thousand times stays of the size it was.
_UPDATE_SCALE = 2.0**-20


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
    sizes: Sequence[int], device: torch.device, *, one_way: bool = False
) -> list[Probe]:
    """Return copy, triad and update over the first `size` bytes of three arrays they share.

    With `one_way` those that only read or only write instead: memory that need not turn its bus
    around may be faster.
    """

    @functools.cache
    def arrays() -> list[torch.Tensor]:
        blocks = max(sizes) // _ELEMENT_BYTES // _RANDOM_ELEMENTS
        return [torch.randn(_RANDOM_ELEMENTS, device=device).repeat(blocks) for _ in range(ARRAYS)]

    def probe(kind: str, size: int) -> Probe:
        def prepare() -> Launch:
            a, b, c = (array[: size // _ELEMENT_BYTES] for array in arrays())
            launches: dict[str, Launch] = {
                "copy": lambda: a.copy_(b),
                "triad": lambda: torch.add(b, c, alpha=_TRIAD_SCALE, out=a),
                "update": lambda: c.add_(b, alpha=_UPDATE_SCALE),
                "read": lambda: torch.amax(c),
                "write": lambda: a.fill_(_UPDATE_SCALE),
            }
            return launches[kind]

        moved = kinds[kind] * size
        return Probe(f"{kind} {size // 2**20} MiB", None, "bytes_per_s", moved, 0, prepare)

    kinds = _ONE_WAY if one_way else _ARRAYS_MOVED
    return [probe(kind, size) for size in sizes for kind in kinds]


def set_arithmetic(mode: MathMode | None) -> None:
    """Let 32-bit products and convolutions be TF32 in the mode tf32, and IEEE in every other."""
    (Tf32() if mode == "tf32" else Fp32()).apply()


@contextmanager
def arithmetic_restored() -> Iterator[None]:
    """Put every switch back at the end; cuDNN times its algorithms within, as in training."""
    backends: Any = torch.backends
    switches = [
        backends.cuda.matmul,
        backends.cudnn.conv,
        backends.cudnn.rnn,
        backends.mkldnn.conv,
        backends.mkldnn.matmul,
    ]
    before = [switch.fp32_precision for switch in switches]
    benchmark_before = backends.cudnn.benchmark
    backends.cudnn.benchmark = True
    try:
        yield
    finally:
        backends.cudnn.benchmark = benchmark_before
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


Quantity = Literal["flops_per_s", "bytes_per_s"]
Launch = Callable[[], object]


@dataclass(frozen=True)
class Probe:
    """`prepare` makes the operands and returns the launch; nothing is allocated before it."""

    name: str
    math_mode: MathMode | None  # None: it moves bytes, whatever they mean
    quantity: Quantity
    work_per_launch: int  # FLOP or bytes
    operand_bytes: int
    prepare: Callable[[], Launch]


def rate_text(rate: float, quantity: Quantity) -> str:
    """Return `rate` for a reader, such as `512.3 GFLOP/s`."""
    return f"{rate / 1e9:.1f} {'GFLOP/s' if quantity == 'flops_per_s' else 'GB/s'}"


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
