"""Which probes suit a backend: shapes that fill it, and how long to look."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.records import MathMode
from bench.roofs.probe import Probe
from bench.roofs.products import (
    Convolution,
    Product,
    convolution_probe,
    linear_probe,
    product_probe,
)
from bench.training.devices import Device

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
