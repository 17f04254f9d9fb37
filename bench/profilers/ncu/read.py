"""Files of Nsight Compute as records: its CSV in any form, and several passes of one profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.errors import UserError
from bench.profilers.ncu.figures import MetricTotal, ProfileTotals, counters_of
from bench.profilers.ncu.metrics import chip_of_capability
from bench.profilers.ncu.rows import Form
from bench.profilers.ncu.scan import DoubtfulError, NcuCsv, RefusedError, scan
from bench.records import Counters

_MAGIC = b"NVR\0"
_FORMS: dict[Form, str] = {
    "long": "a row per metric",
    "raw": "a column per metric",
    "summary": "a summary per kernel",
}


def read_counters(path: Path) -> Counters:
    """Add up one file of Nsight Compute: its CSV in any form.

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


def read_totals(path: Path) -> ProfileTotals:
    """Read one file, before figures are made of its metrics."""
    try:
        if _is_report(path):
            raise UserError(
                f"{path}: a report of ncu: turn it into CSV: LC_ALL=C ncu --import {path.name}"
                " --csv --page raw --print-units base"
            )
        return _totals(path, scan(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except RefusedError as error:
        remedy = "copy or write the file again"
        if isinstance(error, DoubtfulError):
            remedy = "write the file again with LC_ALL=C ncu"
        raise UserError(f"{path}:{error.line}: {error}; {remedy}") from None


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


def _is_report(path: Path) -> bool:
    """Whether `path` is a report rather than text, by its name or its first bytes."""
    if path.suffix == ".ncu-rep":
        return True
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
