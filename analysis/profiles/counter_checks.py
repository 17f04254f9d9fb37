"""Counters above a ceiling: a kernel, or a step, that did more than its device can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.profiles.kernel_places import short_kernel_name
from analysis.roofs.roof import CEILING_MARGIN, Roof
from bench.records import CacheRoof, Counters, Finding, KernelTotals

#: A cache's roof is measured by reading. Reads and writes have paths of their own, so up to twice
#: of it can be, and is only suspect.
_READ_AND_WRITE = 2.0


@dataclass(frozen=True)
class _Limit:
    """A ceiling, the counter that is held against it, and from how much of it on it cannot be."""

    which: str
    field: str
    peak: float
    possible: float = 1.0

    def finding(self, scope: str, share: float, what: str) -> Finding:
        """Return the finding for `share` of the ceiling."""
        if share > CEILING_MARGIN * self.possible:
            level: Literal["invalid", "suspect"] = "invalid"
            why = "impossible; the counters or the ceiling are wrong"
        else:
            level = "suspect"
            why = "more than reading alone, by which that ceiling was measured"
        return Finding(
            code=f"{scope}-above-{self.which}-roof",
            level=level,
            message=f"{what} {100 * share:.0f} % of the {self.which} ceiling: {why}",
        )


def check_counters(
    counters: Counters, roof: Roof, cache_roofs: Sequence[CacheRoof], step_s: float | None
) -> tuple[Finding, ...]:
    """Return findings for rates over 103 % of a ceiling; cache levels count where measured.

    A kernel's rate is its own counts over its own duration, both of the profile. The step's is
    the counts over `step_s`, the timed run's; None where no run was timed.
    """
    return tuple(
        finding
        for limit in _limits(roof, cache_roofs)
        for finding in (*_of_kernels(counters, limit), *_of_step(counters, limit, step_s))
    )


def _limits(roof: Roof, cache_roofs: Sequence[CacheRoof]) -> Iterator[_Limit]:
    yield _Limit("compute", "flops", roof.peak_flops_per_s)
    yield _Limit("memory", "dram_bytes", roof.peak_bytes_per_s)
    for cache in cache_roofs:
        if cache.level in ("L1", "L2") and cache.peak_bytes_per_s is not None:
            field = f"{cache.level.lower()}_bytes"
            yield _Limit(cache.level, field, cache.peak_bytes_per_s, _READ_AND_WRITE)


def _of_kernels(counters: Counters, limit: _Limit) -> Iterator[Finding]:
    shares = {kernel.name: _share(kernel, limit) for kernel in counters.per_kernel}
    above = {name: share for name, share in shares.items() if share > CEILING_MARGIN}
    if not above:
        return
    worst = max(above, key=lambda name: above[name])
    others = f", the first of {len(above)} above it," if len(above) > 1 else ""
    yield limit.finding("kernel", above[worst], f"kernel {short_kernel_name(worst)}{others} at")


def _share(kernel: KernelTotals, limit: _Limit) -> float:
    """Of the ceiling; 0 where a counter or the duration is not known, which is found elsewhere."""
    count: int | None = getattr(kernel, limit.field)
    if count is None or not kernel.duration_s:
        return 0.0
    return count / kernel.duration_s / limit.peak


def _of_step(counters: Counters, limit: _Limit, step_s: float | None) -> Iterator[Finding]:
    count: int | None = getattr(counters, limit.field)
    if count is None or not step_s or count / step_s <= CEILING_MARGIN * limit.peak:
        return
    share = count / step_s / limit.peak
    yield limit.finding("step", share, "the counts in the timed step's duration would be")
