"""What the device's own counters count: of kernels by Nsight Compute, of a window by perf."""

from __future__ import annotations

from typing import Literal

from bench.records.base import Amount, Count, Facts, Seconds, Share, ratio

#: NVML's counters of a running device, in `Telemetry`; the other counters are tools of a profile.
GPM = "GPM"
#: A counter that is further off on work that is known is not used for points.
_MOST_OFF = 0.05


class CounterCheck(Facts):
    """What a counter said of work whose bytes or FLOP are known: `counted` of `known`."""

    counter: Literal["GPM", "ncu", "perf"]
    work: str  # "copy 512 MiB x 1200"
    quantity: Literal["bytes", "flops"]
    known: Amount
    took_s: Seconds
    counted: Amount | None

    @property
    def share(self) -> float | None:
        """What it counted over what is true; None where it counted nothing."""
        return ratio(self.counted, self.known)

    @property
    def is_right(self) -> bool:
        """Whether it is off by 5 % at most."""
        return self.share is not None and abs(self.share - 1) <= _MOST_OFF

    @property
    def sentence(self) -> str:
        """`GPM counted 98.7 % of the bytes of copy 512 MiB x 1200`, or why nothing."""
        of = f"of the {self.quantity} of {self.work}"
        if self.share is None:
            return f"{self.counter} counted nothing {of}: {self.missing['counted']}"
        return f"{self.counter} counted {100 * self.share:.1f} % {of}"


class KernelTotals(Facts):
    """All launches of one kernel name, added up; FLOP are executed ones, tensor cores included."""

    name: str
    launches: Count
    duration_s: Seconds | None
    flops: Count | None
    flops_at_least: Count = 0  # those counted, where the others' counters are not in the file
    tensor_flops: Count | None
    dram_bytes: Count | None
    l2_bytes: Count | None
    l1_bytes: Count | None


class GpuCounters(Facts):
    """Nsight Compute's counters of one file or of the files of one profile, added up.

    `flops` are executed: `fadd + fmul + 2 ffma` over every width, plus `tensor_flops`; padding and
    recomputation included, so they are not the algorithmic FLOP of the cost model. Without some of
    these counters `flops` is None, and `flops_at_least` what the others add up to.
    """

    source: str  # "ncu 2024.1.1" or the form of the file
    files: tuple[str, ...]
    chip: str | None  # "gh100"
    kernels: Count  # launches
    duration_s: Seconds | None
    flops: Count | None
    flops_at_least: Count = 0
    tensor_flops: Count | None
    dram_bytes: Count | None
    l2_bytes: Count | None
    l1_bytes: Count | None
    pcie_bytes: Count | None
    per_kernel: tuple[KernelTotals, ...]  # longest first

    @property
    def intensity_dram(self) -> float | None:
        """Executed FLOP per DRAM byte, or None where either is unknown or no byte moved."""
        return ratio(self.flops, self.dram_bytes)

    @property
    def intensity_dram_missing(self) -> str | None:
        """Why there is no intensity, or None where there is one."""
        if self.intensity_dram is not None:
            return None
        needed = (self.missing.get(name) for name in ("flops", "dram_bytes"))
        return "; ".join(filter(None, needed)) or "dram_bytes is 0"


class CpuCounters(Facts):
    """`perf stat` over the measured window alone: totals of `iterations` training steps."""

    source: str  # "perf 6.1.192"
    scope: str  # "user" or "user and kernel"
    iterations: Count
    window_s: Seconds
    cycles: Count | None
    instructions: Count | None
    cache_references: Count | None
    cache_misses: Count | None
    branches: Count | None
    branch_misses: Count | None
    flops: Count | None  # executed, from floating-point events weighted by their width
    running_share: dict[str, Share]  # event -> share of the window in which it was counted

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle."""
        return ratio(self.instructions, self.cycles)

    @property
    def cpi(self) -> float | None:
        """Cycles per instruction."""
        return ratio(self.cycles, self.instructions)
