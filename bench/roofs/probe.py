"""One way to load a device: a launch that can be repeated, and the work it is counted as."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bench.records import MathMode

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
