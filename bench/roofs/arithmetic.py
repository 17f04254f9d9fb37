"""The process's switches for 32-bit arithmetic, set for a probe and put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.records import MathMode
from bench.training.precision import Fp32
from bench.training.precision.tf32 import Tf32


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
