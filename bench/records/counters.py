"""What a device's own counters said of one training step."""

from __future__ import annotations

from bench.records.base import Count, Facts, Seconds, Share


class KernelTotals(Facts):
    """All launches of one kernel name, added up; FLOP are executed ones, tensor cores included."""

    name: str
    launches: Count
    duration_s: Seconds | None
    flops: Count | None
    tensor_flops: Count | None
    dram_bytes: Count | None
    l2_bytes: Count | None
    l1_bytes: Count | None


class Counters(Facts):
    """Nsight Compute's counters of one file or of the files of one profile, added up.

    `flops` are executed: `fadd + fmul + 2 ffma` over every width, plus `tensor_flops`; padding and
    recomputation included, so they are not the algorithmic FLOP of the cost model.
    """

    source: str  # "ncu 2024.1.1" or the form of the file
    files: tuple[str, ...]
    chip: str | None  # "gh100"
    kernels: Count  # launches
    duration_s: Seconds | None
    flops: Count | None
    tensor_flops: Count | None
    dram_bytes: Count | None
    l2_bytes: Count | None
    l1_bytes: Count | None
    pcie_bytes: Count | None
    per_kernel: tuple[KernelTotals, ...]  # longest first

    @property
    def intensity_dram(self) -> float | None:
        """Executed FLOP per DRAM byte, or None where either is unknown or no byte moved."""
        if self.flops is None or not self.dram_bytes:
            return None
        return self.flops / self.dram_bytes


class CpuCounters(Facts):
    """`perf stat` over the measured window alone: totals of `iterations` training steps."""

    source: str  # "perf 6.1.192"
    scope: str  # "user" or "user and kernel"
    iterations: Count | None  # None, like window_s, for a file of perf's alone
    window_s: Seconds | None
    cycles: Count | None
    instructions: Count | None
    cache_references: Count | None
    cache_misses: Count | None
    branches: Count | None
    branch_misses: Count | None
    flops: Count | None  # executed, from floating-point events weighted by their width
    dram_bytes: Count | None  # of the whole machine, from its memory controllers
    running_share: dict[str, Share]  # event -> share of the window in which it was counted

    @property
    def ipc(self) -> float | None:
        """Instructions per cycle."""
        if self.instructions is None or not self.cycles:
            return None
        return self.instructions / self.cycles

    @property
    def cpi(self) -> float | None:
        """Cycles per instruction."""
        if self.cycles is None or not self.instructions:
            return None
        return self.cycles / self.instructions
