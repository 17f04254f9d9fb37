"""Sums per kernel and metric in base units, and the figures that they make."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from bench.profilers.files.figures import Figure, Sums
from bench.profilers.files.metrics import CHIPS
from bench.profilers.files.table import EXACT
from bench.records import Counters, KernelTotals


@dataclass
class Totals:
    """What some files add up to: launches by kernel, and figures by kernel and metric."""

    source: str
    files: tuple[str, ...]
    chips: set[str] = field(default_factory=set)
    launches: Counter[str] = field(default_factory=Counter)
    figures: dict[tuple[str, str], Figure] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, kernel: str, metric: str, counted: int, total: Decimal) -> None:
        """Add a figure of more launches."""
        before = self.figures.get((kernel, metric), Figure(0, Decimal()))
        total = EXACT.add(before.total, total)
        self.figures[kernel, metric] = Figure(before.counted + counted, total)


def counters_of(totals: Totals) -> Counters:
    """Return the record; every figure that the files do not give is None with its metric."""
    chip = next(iter(totals.chips)) if len(totals.chips) == 1 else None
    chip = chip if chip in CHIPS else None
    by_metric: dict[str, Figure] = {}
    by_kernel: dict[str, dict[str, Figure]] = defaultdict(dict)
    for (kernel, metric), (counted, total) in totals.figures.items():
        before = by_metric.get(metric, Figure(0, Decimal()))
        by_metric[metric] = Figure(before.counted + counted, EXACT.add(before.total, total))
        by_kernel[kernel][metric] = Figure(counted, total)
    whole = Sums(by_metric, sum(totals.launches.values()), chip, totals.names)
    values, missing = whole.facts()
    if chip is None:
        seen = ", ".join(sorted(totals.chips))
        missing["chip"] = f"not one chip that is known: {seen}" if seen else "not in the file"
    return Counters(
        source=totals.source,
        files=totals.files,
        chip=chip,
        kernels=whole.launches,
        **values,
        missing=missing,
        per_kernel=_per_kernel(totals, by_kernel, whole, missing),
    )


def _per_kernel(
    totals: Totals,
    by_kernel: Mapping[str, Mapping[str, Figure]],
    whole: Sums,
    reasons_of_all: Mapping[str, str],
) -> tuple[KernelTotals, ...]:
    rows = []
    for kernel, launches in totals.launches.items():
        if not launches:
            continue
        sums = Sums(by_kernel.get(kernel, {}), launches, whole.chip, totals.names, whole)
        values, reasons = sums.facts()
        values.pop("pcie_bytes")
        missing = {
            name: "as in the total" if reason == reasons_of_all.get(name) else reason
            for name, reason in reasons.items()
            if name in values
        }
        rows.append(KernelTotals(name=kernel, launches=launches, **values, missing=missing))
    rows.sort(key=lambda row: (-(row.duration_s or 0), -row.launches, row.name))
    return tuple(rows)
