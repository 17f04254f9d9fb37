"""From totals per kernel and metric to the record, with the reason of every figure without one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from bench.profilers.ncu.metrics import (
    CHIPS,
    NO_SUCH_METRIC,
    PACKED_FLOPS,
    SASS_FLOPS,
    SECOND_TENSOR_PIPE,
    TENSOR,
    TENSOR_INSTRUCTIONS,
    WAYS,
    sass_metric,
    sass_ops,
    tensor_metrics,
)
from bench.profilers.ncu.numbers import EXACT
from bench.records import Counters, KernelTotals

#: Key of `missing` for kinds of tensor work that were not counted although a total is given.
OTHER_TENSOR = "other_tensor_flops"
#: Whose tensor metrics to name where neither the chip nor any of them is known: most chips' own.
_USUAL = "ga100"


class MetricTotal(NamedTuple):
    """The sum of a metric over launches, and over how many of them."""

    launches: int
    total: Decimal


@dataclass
class ProfileTotals:
    """What some files add up to: launches by kernel, and totals by kernel and metric."""

    source: str
    files: tuple[str, ...]
    chips: set[str] = field(default_factory=set)
    launches: Counter[str] = field(default_factory=Counter)
    metrics: dict[tuple[str, str], MetricTotal] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, kernel: str, metric: str, launches: int, total: Decimal) -> None:
        """Add a metric of more launches."""
        before = self.metrics.get((kernel, metric), MetricTotal(0, Decimal()))
        total = EXACT.add(before.total, total)
        self.metrics[kernel, metric] = MetricTotal(before.launches + launches, total)


def counters_of(totals: ProfileTotals) -> Counters:
    """Return the record; every figure that the files do not give is None with its metric."""
    chip = next(iter(totals.chips & {*CHIPS}), None) if len(totals.chips) == 1 else None
    by_metric: dict[str, MetricTotal] = {}
    by_kernel: dict[str, dict[str, MetricTotal]] = defaultdict(dict)
    for (kernel, metric), (launches, total) in totals.metrics.items():
        before = by_metric.get(metric, MetricTotal(0, Decimal()))
        by_metric[metric] = MetricTotal(before.launches + launches, EXACT.add(before.total, total))
        by_kernel[kernel][metric] = MetricTotal(launches, total)
    whole = _Figures(by_metric, sum(totals.launches.values()), chip, totals.names)
    values, missing = whole.values_and_reasons()
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
    totals: ProfileTotals,
    by_kernel: Mapping[str, Mapping[str, MetricTotal]],
    whole: _Figures,
    reasons_of_all: Mapping[str, str],
) -> tuple[KernelTotals, ...]:
    rows = []
    for kernel, launches in totals.launches.items():
        if not launches:
            continue
        figures = _Figures(by_kernel.get(kernel, {}), launches, whole.chip, totals.names, whole)
        values, reasons = figures.values_and_reasons()
        values.pop("pcie_bytes")
        missing = {
            name: "as in the total" if reason == reasons_of_all.get(name) else reason
            for name, reason in reasons.items()
            if name in values
        }
        rows.append(KernelTotals(name=kernel, launches=launches, **values, missing=missing))
    rows.sort(key=lambda row: (-(row.duration_s or 0), -row.launches, row.name))
    return tuple(rows)


class _Figures:
    """The figures of one kernel, or of all together in `whole`."""

    def __init__(
        self,
        metrics: Mapping[str, MetricTotal],
        launches: int,
        chip: str | None,
        names: Iterable[str],
        whole: _Figures | None = None,
    ) -> None:
        self.metrics = metrics
        self.launches = launches
        self.chip = chip
        self._names = names
        self._whole = whole or self

    def values_and_reasons(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The figures by field, and why those that are None are."""
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name, ways in WAYS.items():
            way = next((way for way in ways if all(map(self._complete, way))), None)
            if way is None:
                nearest = max(ways, key=lambda way: sum(metric in self.metrics for metric in way))
                values[name], missing[name] = None, self._why(nearest)
            else:
                values[name] = sum((self.metrics[metric].total for metric in way), Decimal())
        values["tensor_flops"], reason, others = self._tensor()
        if reason:
            missing["tensor_flops"] = reason
        if others:
            missing[OTHER_TENSOR] = others
        values["flops_at_least"], reason = self._flops(reason)
        values["flops"] = None if reason else values["flops_at_least"]
        if reason:
            missing["flops"] = reason
        for name, value in values.items():
            if value is not None:
                values[name] = float(value) if name == "duration_s" else round(value)
        return values, missing

    def _tensor(self) -> tuple[Decimal | None, str, str]:
        """The tensor cores' FLOP, or why not; and which kinds of them were not counted.

        n/a of a metric that the chip has leaves the total unknown; of one that it lacks, nothing.

        A total of 0 proves nothing while a kind of input is uncounted: fp32 that silently runs as
        TF32 counts 0 fp16.
        """
        if self._has_no_tensor_work():
            return Decimal(), "", ""
        counted = {metric for metric in TENSOR if metric in self._whole.metrics}
        uncounted = self._uncounted(counted)
        if not counted:
            return None, self._why(uncounted), ""
        asked = counted.union(self._names).intersection(
            tensor_metrics(self.chip) if self.chip else ()
        )
        if not all(map(self._complete, counted | asked)):
            return None, self._why(tuple(sorted(counted | asked))), ""
        others = self._why(uncounted) if uncounted else ""
        if others and not any(self._whole.metrics[metric].total for metric in counted):
            return None, f"0 in the kinds counted, but {others}", ""
        total = sum((self.metrics[metric].total for metric in counted), Decimal())
        return total, "", others if self is self._whole else ""

    def _has_no_tensor_work(self) -> bool:
        """Whether the tensor pipe is known to have executed nothing."""
        if self.chip in SECOND_TENSOR_PIPE or not self._complete(TENSOR_INSTRUCTIONS):
            return False
        return not self.metrics[TENSOR_INSTRUCTIONS].total

    def _uncounted(self, counted: set[str]) -> tuple[str, ...]:
        """The tensor metrics that the chip has besides; an unknown one is the likeliest."""
        chips = [self.chip] if self.chip else CHIPS if counted else [_USUAL]
        kinds = [set(tensor_metrics(chip)) for chip in chips]
        likeliest = max(kinds, key=lambda kind: (len(kind & counted), -len(kind - counted)))
        return tuple(metric for metric in TENSOR if metric in likeliest - counted)

    def _flops(self, no_tensor: str) -> tuple[Decimal, str]:
        """Executed FLOP: every width's adds, multiplies and multiply-adds, and tensor cores'.

        With the reason why there are more than these, if not all are counted; `no_tensor` is that
        of the tensor cores'.
        """
        counted = (self.metrics[metric].total for metric in TENSOR if metric in self.metrics)
        total = sum(counted, Decimal())
        absent = []
        for op, flops in {**SASS_FLOPS, **PACKED_FLOPS}.items():
            metrics = (sass_metric(op), sass_metric(op, "sm"))
            known = [m for m in metrics if m in self.metrics]
            count = max((self.metrics[m].total for m in known), default=Decimal())
            total = EXACT.add(total, EXACT.multiply(count, Decimal(flops)))
            asked = op in sass_ops(self.chip) or any(m in self._whole.metrics for m in metrics)
            if asked and not any(map(self._complete, known)):
                absent.append(next(iter(known), metrics[0]))
        reasons = [self._why(tuple(absent)) + self._legacy()] if absent else []
        return total, "; ".join(filter(None, [*reasons, no_tensor]))

    def _legacy(self) -> str:
        """A note on nvprof's names, which ncu answers with n/a."""
        olds = sorted(name for name in self._names if name.startswith("flop_count"))
        return f" ({', '.join(olds)}: {NO_SUCH_METRIC})" if olds else ""

    def _complete(self, metric: str) -> bool:
        return metric in self.metrics and self.metrics[metric].launches == self.launches

    def _why(self, metrics: tuple[str, ...]) -> str:
        """Why a figure made of `metrics` is missing, each by its full name."""
        reasons: dict[str, list[str]] = {}
        for metric in metrics:
            if not self._complete(metric):
                reasons.setdefault(self._reason(metric), []).append(metric)
        return "; ".join(f"{', '.join(group)}: {reason}" for reason, group in reasons.items())

    def _reason(self, metric: str) -> str:
        if metric in self.metrics:
            lacking = self.launches - self.metrics[metric].launches
            return f"no number (n/a, nan) in {lacking} of {self.launches} launches"
        if metric in self._names:
            return "no number (n/a, nan) in any launch"
        base = metric.removesuffix("sum")
        others = sorted(name for name in self._names if name.startswith(base))
        return f"not in the file, and {others[0]} is no sum" if others else "not in the file"
