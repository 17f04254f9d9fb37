"""Files of Nsight Compute as records: its CSV in any form, and several passes of one profile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.errors import UserError
from bench.profilers.ncu.figures import ProfileTotals, counters_of
from bench.profilers.ncu.metrics import chip_of_capability
from bench.profilers.ncu.tables import Form, RefusedError, Table, tables_of
from bench.records import Counters

_MAGIC = b"NVR\0"
_MOST_ERRORS = 3
_LONGEST_ERROR = 300
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
        with path.open("rb") as file:
            is_report = path.suffix == ".ncu-rep" or file.read(len(_MAGIC)) == _MAGIC
        if is_report:
            raise UserError(
                f"{path}: a report of ncu: turn it into CSV: LC_ALL=C ncu --import {path.name}"
                " --csv --page raw --print-units base"
            )
        return _totals(path, *tables_of(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except RefusedError as error:
        raise UserError(f"{path}:{error.line}: {error}; {error.remedy}") from None


def _totals(path: Path, tables: Sequence[Table], errors: Sequence[str]) -> ProfileTotals:
    if not any(table.launches.total() for table in tables):
        raise UserError(f"{path}: {_nothing(tables, errors)}")
    forms = dict.fromkeys(_FORMS[table.form] for table in tables)
    totals = ProfileTotals(source=f"ncu CSV, {' and '.join(forms)}", files=(str(path),))
    for table in tables:
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


def _nothing(tables: Sequence[Table], errors: Sequence[str]) -> str:
    if errors:
        said = "; ".join(error[:_LONGEST_ERROR] for error in errors[:_MOST_ERRORS])
        return f"ncu failed: {said}; mlproject doctor names the remedy"
    if tables:
        return "a header and no launch below it: profile a step that launches kernels"
    return (
        'no table of Nsight Compute (no line begins with "ID"); write one with ncu --csv, or'
        " ncu --import FILE --csv --page raw"
    )


def _merged(passes: Sequence[ProfileTotals]) -> ProfileTotals:
    """Put the metrics of all passes side by side; nothing is added up twice.

    Raises `UserError` where the passes differ in their launches or their chip.
    """
    first, *others = passes
    files = tuple(file for part in passes for file in part.files)
    for launches in (other.launches for other in others):
        differing = [k for k in first.launches | launches if first.launches[k] != launches[k]]
        if differing:
            kernel = min(differing)
            raise UserError(
                f"{' and '.join(files)}: not the same work: {len(differing)} kernels differ, such"
                f" as {kernel[:80]!r}, launched {first.launches[kernel]} times and"
                f" {launches[kernel]}; profile all passes again"
            )
    chips = set().union(*(part.chips for part in passes))
    if len(chips) > max(len(part.chips) for part in passes):
        found = ", ".join(sorted(chips))
        raise UserError(f"{' and '.join(files)}: collected on different chips: {found}")
    result = ProfileTotals(
        source="; ".join(dict.fromkeys(part.source for part in passes)),
        files=files,
        chips=chips,
        launches=first.launches,
        names=set().union(*(part.names for part in passes)),
    )
    for part in passes:
        for key, total in part.metrics.items():
            before = result.metrics.get(key)
            if before is None or total.launches > before.launches:
                result.metrics[key] = total
    return result
