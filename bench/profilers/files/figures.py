"""The figures that sums of metrics make, and why one that they do not make is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from bench.profilers.files import legacy
from bench.profilers.files.metrics import (
    CHIPS,
    PACKED_FLOPS,
    SASS_FLOPS,
    TENSOR,
    WAYS,
    sass_metric,
    sass_ops,
    tensor_metrics,
)
from bench.profilers.files.table import EXACT

#: Key of `missing` for kinds of tensor work that were not counted although a total is given.
OTHER_TENSOR = "other_tensor_flops"
#: Whose tensor metrics to name where neither the chip nor any of them is known: most chips' own.
_USUAL = "ga100"


class Figure(NamedTuple):
    """The sum of a metric over launches, and over how many of them."""

    counted: int
    total: Decimal


class Sums:
    """Figures of one kernel, or of all together in `whole`, made from sums of metrics."""

    def __init__(
        self,
        figures: Mapping[str, Figure],
        launches: int,
        chip: str | None,
        names: Iterable[str],
        whole: Sums | None = None,
    ) -> None:
        self.figures = figures
        self.launches = launches
        self.chip = chip
        self._names = names
        self._whole = whole or self

    def facts(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The figures by field, and why those that are None are."""
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name, ways in WAYS.items():
            way = next((way for way in ways if all(map(self._complete, way))), None)
            if way is None:
                nearest = max(ways, key=lambda way: sum(metric in self.figures for metric in way))
                values[name], missing[name] = None, self._why(nearest)
            else:
                values[name] = sum((self.figures[metric].total for metric in way), Decimal())
        values["tensor_flops"], reason, others = self._tensor()
        if reason:
            missing["tensor_flops"] = reason
        if others:
            missing[OTHER_TENSOR] = others
        values["flops"], reason = self._flops(values["tensor_flops"], reason)
        if reason:
            missing["flops"] = reason
        for name, value in values.items():
            if value is not None:
                seconds = name == "duration_s"
                values[name] = float(value) if seconds else round(value)
        return values, missing

    def _tensor(self) -> tuple[Decimal | None, str, str]:
        """The tensor cores' FLOP, or why not; and which kinds of them were not counted.

        n/a of a metric that the chip has leaves the total unknown; of one that it lacks, nothing.

        A total of nought proves nothing while a kind of input is uncounted: fp32 that silently
        runs as TF32 counts nought fp16.
        """
        counted = {metric for metric in TENSOR if metric in self._whole.figures}
        uncounted = self._uncounted(counted)
        if not counted:
            return None, self._why(uncounted), ""
        asked = counted.union(self._names).intersection(
            tensor_metrics(self.chip) if self.chip else ()
        )
        if not all(map(self._complete, counted | asked)):
            return None, self._why(tuple(sorted(counted | asked))), ""
        others = self._why(uncounted) if uncounted else ""
        if others and not any(self._whole.figures[metric].total for metric in counted):
            return None, f"0 in the kinds counted, but {others}", ""
        total = sum((self.figures[metric].total for metric in counted), Decimal())
        return total, "", others if self is self._whole else ""

    def _uncounted(self, counted: set[str]) -> tuple[str, ...]:
        """The tensor metrics that the chip has besides; an unknown one is the likeliest."""
        chips = [self.chip] if self.chip else CHIPS if counted else [_USUAL]
        kinds = [set(tensor_metrics(chip)) for chip in chips]
        likeliest = max(kinds, key=lambda kind: (len(kind & counted), -len(kind - counted)))
        return tuple(metric for metric in TENSOR if metric in likeliest - counted)

    def _flops(self, tensor: Decimal | None, reason: str) -> tuple[Decimal | None, str]:
        """Executed FLOP: every width's adds, multiplies and multiply-adds, and tensor cores'."""
        total = tensor or Decimal()
        absent = []
        for op, flops in {**SASS_FLOPS, **PACKED_FLOPS}.items():
            metrics = (sass_metric(op), sass_metric(op, "sm"))
            metric = next(filter(self._complete, metrics), None)
            if metric:
                total = EXACT.add(total, EXACT.multiply(self.figures[metric].total, Decimal(flops)))
            elif op in sass_ops(self.chip) or any(m in self._whole.figures for m in metrics):
                absent.append(next((m for m in metrics if m in self.figures), metrics[0]))
        reasons = [self._why(tuple(absent)) + self._legacy()] if absent else []
        if reason:
            reasons.append(reason)
        return (None, "; ".join(reasons)) if reasons else (total, "")

    def _legacy(self) -> str:
        """A word on nvprof's names, which ncu answers with n/a."""
        olds = sorted(name for name in self._names if name.startswith("flop_count"))
        return f" ({', '.join(olds)}: {legacy.NO_SUCH_METRIC})" if olds else ""

    def _complete(self, metric: str) -> bool:
        return metric in self.figures and self.figures[metric].counted == self.launches

    def _why(self, metrics: tuple[str, ...]) -> str:
        """Why a figure made of `metrics` is missing, each by its full name."""
        reasons: dict[str, list[str]] = {}
        for metric in metrics:
            if not self._complete(metric):
                reasons.setdefault(self._reason(metric), []).append(metric)
        return "; ".join(f"{', '.join(group)}: {reason}" for reason, group in reasons.items())

    def _reason(self, metric: str) -> str:
        if metric in self.figures:
            lacking = self.launches - self.figures[metric].counted
            return f"no value in {lacking} of {self.launches} launches"
        if metric in self._names:
            return "n/a"
        base = metric.removesuffix("sum")
        others = sorted(name for name in self._names if name.startswith(base))
        return f"not in the file, and {others[0]} is no sum" if others else "not in the file"
