"""Files of Nsight Compute as records: its CSV in any form, and several passes of one profile."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from bench.errors import Unknown, UserError
from bench.profilers.ncu.metrics import (
    CHIPS,
    PACKED_FLOPS,
    SASS_FLOPS,
    SECOND_TENSOR_PIPE,
    TENSOR,
    TENSOR_INSTRUCTIONS,
    WAYS,
    Ways,
    chip_of_capability,
    sass_metric,
    sass_ops,
    tensor_metrics,
)
from bench.profilers.ncu.tables import (
    EXACT,
    MetricTotal,
    NcuTableError,
    ProfileTotals,
    add_tables,
)
from bench.records import GpuCounters, KernelTotals

#: Key of `missing` for kinds of tensor work that were not counted although a total is given.
OTHER_TENSOR = "other_tensor_flops"
#: Whose tensor metrics to name where neither the chip nor any of them is known: most chips' own.
_USUAL = "ga100"
_MAGIC = b"NVR\0"
#: Its log, or a list of its metrics.
_OF_NVPROF = re.compile(rb"==\d+== (?:NVPROF|Profiling)|\bflop_count_[shd]p")
_HEAD_BYTES = 1 << 16


# Files


def read_counters(*paths: Path) -> GpuCounters:
    """Add up the files of one profile, CSV of Nsight Compute in any form.

    Several are the same launches, collected in several passes. A metric that one file lacks comes
    from another; one that several have is taken from the first that has it for every launch.

    Raises `UserError`, naming the line where there is one, for a file that holds no table, that is
    damaged, or that holds a number of two readings, and where the files differ in their kernels'
    names or how often each was launched, or in the chip.
    """
    return counters_of(_merged([_read_totals(path) for path in paths]))


def _read_totals(path: Path) -> ProfileTotals:
    totals = ProfileTotals("ncu CSV", (str(path),))
    try:
        with path.open("rb") as file:
            is_report = path.suffix == ".ncu-rep" or file.read(len(_MAGIC)) == _MAGIC
        if is_report:
            raise UserError(
                f"{path}: a report of ncu: turn it into CSV: LC_ALL=C ncu --import {path.name}"
                " --csv --page raw --print-units base"
            )
        has_header, errors = add_tables(path, totals)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except NcuTableError as error:
        raise UserError(f"{path}:{error.line}: {error}; {error.remedy}") from None
    if not totals.launches.total():
        raise UserError(f"{path}: {_nothing(path, has_header, errors)}")
    totals.chips = {_chip(capability) for capability in totals.chips}
    return totals


def _chip(capability: str) -> str:
    numbers = re.fullmatch(r"([0-9]+)[.,]([0-9]+)", capability.strip())
    chip = chip_of_capability((int(numbers[1]), int(numbers[2]))) if numbers else None
    return chip or capability


def _nothing(path: Path, has_header: bool, errors: Sequence[str]) -> str:
    if errors:
        words = "; ".join(error[:300] for error in errors[:3])
        return f"ncu failed: {words}; mlproject doctor names the remedy"
    if has_header:
        return "a header and no launch below it: profile a step that launches kernels"
    if _OF_NVPROF.search(path.read_bytes()[:_HEAD_BYTES]):
        return (
            "names of nvprof, which no ncu knows: collect by the metrics that mlproject counters "
            "--print-metrics CHIP prints"
        )
    return (
        'no table of Nsight Compute (no line begins with "ID"); write one with ncu --csv, or'
        " ncu --import FILE --csv --page raw"
    )


def _merged(passes: Sequence[ProfileTotals]) -> ProfileTotals:
    """Put the metrics of all passes side by side; nothing is added up twice."""
    first, *others = passes
    files = tuple(file for part in passes for file in part.files)
    named = " and ".join(files)
    for launches in (other.launches for other in others):
        differing = [k for k in first.launches | launches if first.launches[k] != launches[k]]
        if differing:
            kernel = min(differing)
            raise UserError(
                f"{named}: not the same work: {len(differing)} kernels differ, such as"
                f" {kernel[:80]!r}, launched {first.launches[kernel]} times and"
                f" {launches[kernel]}; profile all passes again"
            )
    chips = set().union(*(part.chips for part in passes))
    if len(chips) > max(len(part.chips) for part in passes):
        raise UserError(f"{named}: collected on different chips: {', '.join(sorted(chips))}")
    source = "; ".join(dict.fromkeys(part.source for part in passes))
    result = ProfileTotals(source, files, chips, first.launches)
    for part in passes:
        result.names |= part.names
        for key, total in part.metrics.items():
            if key not in result.metrics or total.launches > result.metrics[key].launches:
                result.metrics[key] = total
    return result


# Figures


def counters_of(totals: ProfileTotals) -> GpuCounters:
    """Return the record; every figure that the files do not give is None with its metric."""
    chips = [chip for chip in totals.chips if chip in CHIPS]
    chip = chips[0] if chips and len(totals.chips) == 1 else None
    by_metric: defaultdict[str, MetricTotal] = defaultdict(MetricTotal)
    by_kernel: defaultdict[str, dict[str, MetricTotal]] = defaultdict(dict)
    for (kernel, metric), total in totals.metrics.items():
        by_metric[metric].add(total.launches, total.total)
        by_kernel[kernel][metric] = total
    whole = _Figures(by_metric, totals.launches.total(), chip, totals.names, by_metric)
    fields, others = whole.fields()
    seen = ", ".join(sorted(totals.chips))
    no_chip = Unknown(f"not one chip that is known: {seen}" if seen else "not in the file")
    kernels = []
    for kernel, launches in totals.launches.items():
        if launches:
            of_kernel = _Figures(by_kernel[kernel], launches, chip, totals.names, by_metric)
            own, _ = of_kernel.fields()
            for name, value in own.items():
                if isinstance(value, Unknown) and value == fields[name]:
                    own[name] = Unknown("as in the total")
            del own["pcie_bytes"]
            kernels.append(
                KernelTotals.model_validate(own | {"name": kernel, "launches": launches})
            )
    kernels.sort(key=lambda row: (-(row.duration_s or 0), -row.launches, row.name))
    facts = {
        "source": totals.source,
        "files": totals.files,
        "chip": chip or no_chip,
        "kernels": whole.launches,
        "missing": {OTHER_TENSOR: others} if others else {},
        "per_kernel": tuple(kernels),
    }
    return GpuCounters.model_validate(fields | facts)


@dataclass(frozen=True)
class _Figures:
    """The figures of one kernel, or of all; `of_all` are the metrics of all together."""

    metrics: Mapping[str, MetricTotal]
    launches: int
    chip: str | None
    names: Set[str]
    of_all: Mapping[str, MetricTotal]

    def fields(self) -> tuple[dict[str, object], str]:
        """The figures by field; and which kinds of tensor work were not counted beside a total."""
        figures = {name: self._first_of(ways) for name, ways in WAYS.items()}
        figures["tensor_flops"], others = self._tensor()
        figures["flops_at_least"], reason = self._flops(figures["tensor_flops"])
        figures["flops"] = Unknown(reason) if reason else figures["flops_at_least"]
        rounded: dict[str, object] = {
            name: round(figure) if isinstance(figure, Decimal) else figure
            for name, figure in figures.items()
        }
        if isinstance(duration_s := figures["duration_s"], Decimal):
            rounded["duration_s"] = float(duration_s)
        return rounded, others

    def _first_of(self, ways: Ways) -> Decimal | Unknown:
        for way in ways:
            if all(map(self._complete, way)):
                return sum((self.metrics[metric].total for metric in way), Decimal())
        nearest = max(ways, key=lambda way: sum(metric in self.metrics for metric in way))
        return Unknown(self._why(nearest))

    def _tensor(self) -> tuple[Decimal | Unknown, str]:
        """The tensor cores' FLOP, and which kinds of them were not counted.

        n/a of a metric that the chip has leaves the total unknown; of one that it lacks, nothing.

        A total of 0 proves nothing while a kind of input is uncounted: fp32 that silently runs as
        TF32 counts 0 fp16.
        """
        sees_all = self.chip not in SECOND_TENSOR_PIPE and self._complete(TENSOR_INSTRUCTIONS)
        if sees_all and not self.metrics[TENSOR_INSTRUCTIONS].total:
            return Decimal(), ""
        counted = {metric for metric in TENSOR if metric in self.of_all}
        uncounted = self._uncounted(counted)
        if not counted:
            return Unknown(self._why(uncounted)), ""
        of_chip = tensor_metrics(self.chip) if self.chip else ()
        asked = sorted(counted | ({*of_chip} & self.names))
        if not all(map(self._complete, asked)):
            return Unknown(self._why(asked)), ""
        others = self._why(uncounted)
        if others and not any(self.of_all[metric].total for metric in counted):
            return Unknown(f"0 in the kinds counted, but {others}"), ""
        return sum((self.metrics[metric].total for metric in counted), Decimal()), others

    def _uncounted(self, counted: set[str]) -> tuple[str, ...]:
        """The tensor metrics that the chip has besides; an unknown one is the likeliest."""
        chips = [self.chip] if self.chip else CHIPS if counted else [_USUAL]
        kinds = [set(tensor_metrics(chip)) for chip in chips]
        likeliest = max(kinds, key=lambda kind: (len(kind & counted), -len(kind - counted)))
        return tuple(metric for metric in TENSOR if metric in likeliest - counted)

    def _flops(self, tensor: Decimal | Unknown) -> tuple[Decimal, str]:
        """Executed FLOP: every width's adds, multiplies and multiply-adds, and tensor cores'.

        With the reason why there are more than these, if not all are counted.
        """
        tensors = (self.metrics[metric].total for metric in TENSOR if metric in self.metrics)
        total = sum(tensors, Decimal())
        absent = []
        for op, flops in {**SASS_FLOPS, **PACKED_FLOPS}.items():
            metrics = (sass_metric(op), sass_metric(op, "sm"))
            counted = [m for m in metrics if m in self.metrics]
            count = max((self.metrics[m].total for m in counted), default=Decimal())
            total = EXACT.add(total, EXACT.multiply(count, Decimal(flops)))
            asked = op in sass_ops(self.chip) or any(m in self.of_all for m in metrics)
            if asked and not any(map(self._complete, counted)):
                absent.append(next(iter(counted), metrics[0]))
        reasons = [self._why(absent)] if absent else []
        if isinstance(tensor, Unknown):
            reasons.append(tensor.reason)
        return total, "; ".join(reasons)

    def _complete(self, metric: str) -> bool:
        return metric in self.metrics and self.metrics[metric].launches == self.launches

    def _why(self, metrics: Iterable[str]) -> str:
        reasons: defaultdict[str, list[str]] = defaultdict(list)
        for metric in metrics:
            if not self._complete(metric):
                reasons[self._reason(metric)].append(metric)
        return "; ".join(f"{', '.join(group)}: {reason}" for reason, group in reasons.items())

    def _reason(self, metric: str) -> str:
        if metric in self.metrics:
            lacking = self.launches - self.metrics[metric].launches
            return f"no number (n/a, nan) in {lacking} of {self.launches} launches"
        return "no number (n/a, nan) in any launch" if metric in self.names else "not in the file"
