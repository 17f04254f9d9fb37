"""Files of Nsight Compute as records: its CSV, its reports, and several passes of one profile.

Reports (`.ncu-rep`) are read by NVIDIA's own module `ncu_report`, which is installed separately.
Their numbers are in base units and know no locale.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.profilers.files.exact_decimals import EXACT
from bench.profilers.files.ncu_csv.numbers import unit_power
from bench.profilers.files.ncu_csv.rows import Form
from bench.profilers.files.ncu_csv.scan import BLOCK_BYTES, NcuCsv, scan
from bench.profilers.files.ncu_csv.totals import DoubtfulError, RefusedError
from bench.profilers.files.ncu_figures import MetricTotal, ProfileTotals, counters_of
from bench.profilers.files.ncu_metrics import WANTED, chip_of_capability
from bench.records import Counters

_MAGIC = b"NVR\0"
_CAPABILITY = "device__attribute_compute_capability_"
_FORMS: dict[Form, str] = {
    "long": "a row per metric",
    "raw": "a column per metric",
    "summary": "a summary per kernel",
}


def read_counters(path: Path) -> Counters:
    """Add up one file of Nsight Compute: its CSV in any form, or an `.ncu-rep` report.

    Raises `UserError`, naming the line where there is one, for a file that holds no table, that is
    damaged, or that holds a number of two readings.
    """
    return counters_of(read_totals(path))


def read_counters_of(paths: Sequence[Path]) -> Counters:
    """Add up the files of one profile: the same launches, collected in several passes.

    A metric that one file lacks comes from another; one that several have is taken from the first
    that has it for every launch. Raises `UserError` as `read_counters` does, and where the files
    differ in their kernels' names or how often each was launched, or in the chip.
    """
    return counters_of(_merged([read_totals(path) for path in paths]))


def read_totals(path: Path, block_bytes: int = BLOCK_BYTES) -> ProfileTotals:
    """Read one file, before figures are made of its metrics."""
    try:
        return _read_report(path) if _is_report(path) else _totals(path, scan(path, block_bytes))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except RefusedError as error:
        remedy = "copy or write the file again"
        if isinstance(error, DoubtfulError):
            remedy = "write the file again with LC_ALL=C ncu"
        raise UserError(f"{path}:{error.fault.line}: {error}; {remedy}") from None


def _totals(path: Path, found: NcuCsv) -> ProfileTotals:
    launches = sum(table.launches.total() for table in found.tables)
    if not launches:
        raise UserError(_nothing_in(path, found))
    forms = dict.fromkeys(_FORMS[table.form] for table in found.tables)
    totals = ProfileTotals(source=f"ncu CSV, {' and '.join(forms)}", files=(str(path),))
    for table in found.tables:
        totals.launches.update(table.launches)
        totals.names |= table.names
        totals.chips |= {_chip(capability) for capability in table.capabilities}
        for kernel, metric, counted, total in table.settled():
            totals.add(kernel, metric, counted, total)
    return totals


def _chip(capability: str) -> str:
    """The chip of a compute capability as printed, or that capability where it is unknown."""
    found = re.fullmatch(r"([0-9]+)[.,]([0-9]+)", capability.strip())
    chip = chip_of_capability((int(found[1]), int(found[2]))) if found else None
    return chip or capability


def _nothing_in(path: Path, found: NcuCsv) -> str:
    if found.errors:
        return f"{path}: ncu failed: {'; '.join(found.errors)}; mlproject doctor names the remedy"
    if found.tables:
        return f"{path}: a header and no launch below it: profile a step that launches kernels"
    return (
        f'{path}: no table of Nsight Compute (no line begins with "ID"); write one with'
        " ncu --csv, or ncu --import FILE --csv --page raw"
    )


# Several passes of one profile


def _merged(passes: Sequence[ProfileTotals]) -> ProfileTotals:
    """Put the metrics of all passes side by side; nothing is added up twice.

    Raises `UserError` where the passes differ in their launches or their chip.
    """
    first, *others = passes
    for other in others:
        _refuse_other_work(first, other)
    chips = set().union(*(part.chips for part in passes))
    if len(chips) > max(len(part.chips) for part in passes):
        raise UserError(
            f"{_files(passes)}: collected on different chips: {', '.join(sorted(chips))}"
        )
    result = ProfileTotals(
        source="; ".join(dict.fromkeys(part.source for part in passes)),
        files=tuple(file for part in passes for file in part.files),
        chips=chips,
        launches=first.launches,
        names=set().union(*(part.names for part in passes)),
    )
    for part in passes:
        for (kernel, metric), total in part.metrics.items():
            before = result.metrics.get((kernel, metric), MetricTotal(0, total.total))
            if total.launches > before.launches:
                result.metrics[kernel, metric] = total
    return result


def _refuse_other_work(first: ProfileTotals, other: ProfileTotals) -> None:
    """Raise unless both launched the same kernels equally often."""
    differing = {
        kernel: (first.launches[kernel], other.launches[kernel])
        for kernel in first.launches | other.launches
        if first.launches[kernel] != other.launches[kernel]
    }
    if differing:
        kernel, (here, there) = min(differing.items())
        raise UserError(
            f"{_files([first, other])}: not the same work: {len(differing)} kernels differ, such as"
            f" {kernel[:80]!r}, launched {here} times and {there}; profile both passes again"
        )


def _files(passes: Sequence[ProfileTotals]) -> str:
    return " and ".join(file for part in passes for file in part.files)


# Reports


def _is_report(path: Path) -> bool:
    """Whether `path` is a report rather than text, by its name or its first bytes."""
    if path.suffix == ".ncu-rep":
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def _read_report(path: Path) -> ProfileTotals:
    """Add up the launches of a report.

    Raises `UserError` if the module is not installed, or the report holds no launch, or a metric
    has a unit that is not known.
    """
    try:
        module = importlib.import_module("ncu_report")
    except ImportError:
        raise UserError(
            f"{path}: to read reports install NVIDIA's module (pip install ncu-report), or turn it"
            f" into CSV: LC_ALL=C ncu --import {path.name} --csv --page raw --print-units base"
        ) from None
    totals = ProfileTotals(source="ncu report", files=(str(path),))
    try:
        for kernels in module.load_report(str(path)):
            for action in kernels:
                _add_launch(totals, action, module)
    except (RuntimeError, OSError) as error:
        raise UserError(f"{path}: ncu_report cannot read it ({error})") from None
    if not totals.launches:
        raise UserError(f"{path}: no kernel launch in it, or damaged; profile again")
    return totals


def _add_launch(totals: ProfileTotals, action: Any, module: Any) -> None:
    kernel = action.name(module.IAction.NameBase_DEMANGLED)
    names = action.metric_names()
    totals.launches[kernel] += 1
    totals.names.update(names)
    major, minor = (_number(action, f"{_CAPABILITY}{part}") for part in ("major", "minor"))
    if major is not None and minor is not None:
        capability = (int(major), int(minor))
        totals.chips.add(chip_of_capability(capability) or f"{capability[0]}.{capability[1]}")
    for metric in WANTED.intersection(names):
        value = _number(action, metric)
        if value is not None:
            power = _power(totals.files[0], metric, action.metric_by_name(metric).unit(), value)
            totals.add(kernel, metric, 1, EXACT.scaleb(value, power))


def _number(action: Any, name: str) -> Decimal | None:
    """The value, or None where the launch has none; a float is taken to the last bit."""
    metric = action.metric_by_name(name)
    value = metric.value() if metric is not None and metric.has_value() else None
    if not isinstance(value, int | float) or value != value or value < 0:
        return None
    return Decimal(value)


def _power(path: str, metric: str, unit: str, value: Decimal) -> int:
    try:
        return unit_power(metric, unit) if value else 0
    except ValueError:
        raise UserError(f"{path}: {metric} is in {unit!r}, a unit that is not known") from None
