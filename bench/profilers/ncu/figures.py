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

    launches: int = 0
    total: Decimal = Decimal()

    def plus(self, launches: int, total: Decimal) -> MetricTotal:
        """The sum over these launches too."""
        return MetricTotal(self.launches + launches, EXACT.add(self.total, total))


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
        before = self.metrics.get((kernel, metric), MetricTotal())
        self.metrics[kernel, metric] = before.plus(launches, total)


def counters_of(totals: ProfileTotals) -> Counters:
    """Return the record; every figure that the files do not give is None with its metric."""
    chip = next(iter(totals.chips & {*CHIPS}), None) if len(totals.chips) == 1 else None
    by_metric: defaultdict[str, MetricTotal] = defaultdict(MetricTotal)
    by_kernel: defaultdict[str, dict[str, MetricTotal]] = defaultdict(dict)
    for (kernel, metric), total in totals.metrics.items():
        by_metric[metric] = by_metric[metric].plus(*total)
        by_kernel[kernel][metric] = total
    whole = _Figures(dict(by_metric), totals.launches.total(), chip, totals.names)
    values, missing = whole.values_and_reasons()
    if chip is None:
        seen = ", ".join(sorted(totals.chips))
        missing["chip"] = f"not one chip that is known: {seen}" if seen else "not in the file"
    kernels = []
    for kernel, launches in totals.launches.items():
        own = _Figures(by_kernel[kernel], launches, chip, totals.names, whole)
        if launches:
            kernels.append(own.of_kernel(kernel, missing))
    kernels.sort(key=lambda row: (-(row.duration_s or 0), -row.launches, row.name))
    return Counters(
        source=totals.source,
        files=totals.files,
        chip=chip,
        kernels=whole.launches,
        **values,
        missing=missing,
        per_kernel=tuple(kernels),
    )


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
        self._chip = chip
        self._names = names
        self._whole = whole or self

    def of_kernel(self, name: str, reasons_of_all: Mapping[str, str]) -> KernelTotals:
        """The kernel's record."""
        values, reasons = self.values_and_reasons()
        del values["pcie_bytes"]
        missing = {
            field: "as in the total" if why == reasons_of_all.get(field) else why
            for field, why in reasons.items()
            if field in values
        }
        return KernelTotals(name=name, launches=self.launches, **values, missing=missing)

    def values_and_reasons(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The figures by field, and why those that are None are."""
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name, ways in WAYS.items():
            way = next((way for way in ways if all(map(self._complete, way))), None)
            values[name] = way and sum((self.metrics[metric].total for metric in way), Decimal())
            if way is None:
                nearest = max(ways, key=lambda way: sum(metric in self.metrics for metric in way))
                missing[name] = self._why(nearest)
        values["tensor_flops"], reason, others = self._tensor()
        values["flops_at_least"], of_flops = self._flops(reason)
        values["flops"] = None if of_flops else values["flops_at_least"]
        reasons = {"tensor_flops": reason, OTHER_TENSOR: others, "flops": of_flops}
        missing |= {name: why for name, why in reasons.items() if why}
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
        sees_all = self._chip not in SECOND_TENSOR_PIPE and self._complete(TENSOR_INSTRUCTIONS)
        if sees_all and not self.metrics[TENSOR_INSTRUCTIONS].total:
            return Decimal(), "", ""
        counted = {metric for metric in TENSOR if metric in self._whole.metrics}
        uncounted = self._uncounted(counted)
        if not counted:
            return None, self._why(uncounted), ""
        of_chip = tensor_metrics(self._chip) if self._chip else ()
        asked = sorted(counted | ({*of_chip} & {*self._names}))
        if not all(map(self._complete, asked)):
            return None, self._why(asked), ""
        others = self._why(uncounted)
        if others and not any(self._whole.metrics[metric].total for metric in counted):
            return None, f"0 in the kinds counted, but {others}", ""
        total = sum((self.metrics[metric].total for metric in counted), Decimal())
        return total, "", others if self is self._whole else ""

    def _uncounted(self, counted: set[str]) -> tuple[str, ...]:
        """The tensor metrics that the chip has besides; an unknown one is the likeliest."""
        chips = [self._chip] if self._chip else CHIPS if counted else [_USUAL]
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
            asked = op in sass_ops(self._chip) or any(m in self._whole.metrics for m in metrics)
            if asked and not any(map(self._complete, known)):
                absent.append(next(iter(known), metrics[0]))
        reasons = [self._why(absent)] if absent else []
        if absent and (olds := sorted(n for n in self._names if n.startswith("flop_count"))):
            reasons[0] += f" ({', '.join(olds)}: {NO_SUCH_METRIC})"
        return total, "; ".join(filter(None, [*reasons, no_tensor]))

    def _complete(self, metric: str) -> bool:
        return metric in self.metrics and self.metrics[metric].launches == self.launches

    def _why(self, metrics: Iterable[str]) -> str:
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
