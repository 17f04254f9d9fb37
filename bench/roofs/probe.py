"""One way to load a device, the work it is counted as, and the rate that it sustains.

A repetition is the mean rate over a group of launches. Interference only ever slows one down, so
on a busy machine the median lies below what the device can do; a burst (boost clocks, an idle
neighbour on the same host) makes single ones faster than anything it sustains: 114 GB/s against
70 on one virtual machine. The upper quartile is blind to both, as long as neither lasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.records import CeilingSample, MathMode

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
    low, high = (f"{extreme / peak - 1:+.1%}" for extreme in (min(sample.rates), max(sample.rates)))
    return f"{sample.probe}, upper quartile of {len(sample.rates)}, spread {low} to {high}"
