"""Compute probes: matrix products and convolutions of random operands, and each backend's plan.

FLOP are algorithmic, by the formulas of the complexity model: a multiply-add is 2, and those with
the padding's zeros count, whether or not a library skips them. Never zeros: a GPU multiplies
zeros up to 15 % faster, because fewer bits toggle and power allows a higher clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.nn import functional

from bench.records import MathMode
from bench.roofs.probe import Launch, Probe
from bench.training.devices import Device
from bench.training.precision import Fp32
from bench.training.precision.tf32 import Tf32

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


MATH_MODES: tuple[MathMode, ...] = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Plan:
    """What is tried on a backend; `group_s` is the least time of one repetition."""

    products: tuple[Product, ...]
    convolutions: tuple[Convolution, ...]
    stream_steps: tuple[int, ...]
    group_s: float
    budget_s: float


# Square products in each layout that training uses (forward NT, input gradient NN, weight
# gradient TN), and a tall one that a convolution turns into: pixels x filters x (channels x 9).
PLANS = {
    "cpu": Plan(
        products=(
            Product(512, 512, 512, "NT"),
            Product(1024, 1024, 1024, "NN"),
            Product(1024, 1024, 1024, "NT"),
            Product(1024, 1024, 1024, "TN"),
            Product(2048, 2048, 2048, "NT"),
            Product(12544, 256, 2304, "NT"),
            Product(4096, 4096, 4096, "NT"),
        ),
        convolutions=(
            Convolution(16, 128, 28, 128),
            Convolution(16, 256, 14, 256),
            Convolution(64, 256, 28, 256),
        ),
        stream_steps=(1, 2, 4),
        group_s=0.1,
        budget_s=30.0,
    ),
    "cuda": Plan(
        products=(
            Product(4096, 4096, 4096, "NT"),
            Product(8192, 8192, 8192, "NN"),
            Product(8192, 8192, 8192, "NT"),
            Product(8192, 8192, 8192, "TN"),
            Product(200704, 512, 4608, "NT"),
            Product(16384, 16384, 16384, "NT"),
        ),
        convolutions=(
            Convolution(256, 512, 14, 512),
            Convolution(128, 256, 56, 256),
            Convolution(256, 512, 28, 512),
        ),
        stream_steps=(1, 4, 16),
        group_s=0.05,
        budget_s=20.0,
    ),
    "mps": Plan(
        products=(
            Product(2048, 2048, 2048, "NT"),
            Product(4096, 4096, 4096, "NN"),
            Product(4096, 4096, 4096, "NT"),
            Product(4096, 4096, 4096, "TN"),
            Product(50176, 256, 2304, "NT"),
            Product(8192, 8192, 8192, "NT"),
        ),
        convolutions=(
            Convolution(64, 256, 14, 256),
            Convolution(32, 256, 28, 256),
            Convolution(64, 512, 28, 512),
        ),
        stream_steps=(1, 2, 4),
        group_s=0.05,
        budget_s=20.0,
    ),
}


def compute_probes(device: Device, plan: Plan, mode: MathMode) -> list[Probe]:
    """Return the probes of `mode`, those of least work first."""
    where = device.torch_device
    probes = [product_probe(shape, mode, where) for shape in plan.products]
    probes += [
        convolution_probe(shape, mode, where, device.prefers_channels_last)
        for shape in plan.convolutions
    ]
    if device.backend == "cpu" and mode == "fp32" and _has_onednn():
        probes += [linear_probe(shape) for shape in plan.products if shape.layout == "NT"]
    return sorted(probes, key=lambda probe: probe.work_per_launch)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


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
