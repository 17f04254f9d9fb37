"""Files of Nsight Compute as records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.errors import UserError
from bench.profilers.files.layout import Form
from bench.profilers.files.merge import merged
from bench.profilers.files.metrics import chip_of_capability
from bench.profilers.files.proofs import Proofs
from bench.profilers.files.report import is_report, read_report
from bench.profilers.files.scan import Found, Scan
from bench.profilers.files.totals import Totals, counters_of
from bench.records import Counters

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
    return counters_of(merged([read_totals(path) for path in paths]))


def read_totals(path: Path, scan: Callable[..., Scan] = Scan) -> Totals:
    """Read one file, before figures are made of its metrics."""
    try:
        if is_report(path):
            return read_report(path)
        found = scan(path).run()
        if any(table.has_doubts and not table.marks for table in found.tables):
            again = scan(path, reader=Proofs, columns_from=math.inf).run()
            for table, proved in zip(found.tables, again.tables, strict=True):
                table.marks |= proved.marks
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    return _totals(path, found)


def _totals(path: Path, found: Found) -> Totals:
    launches = sum(table.launches.total() for table in found.tables)
    if not launches:
        raise UserError(_nothing_in(path, found))
    forms = dict.fromkeys(_FORMS[layout.form] for layout in found.layouts)
    totals = Totals(source=f"ncu CSV, {' and '.join(forms)}", files=(str(path),))
    for table in found.tables:
        totals.launches.update(table.launches)
        totals.names |= table.names
        totals.chips |= {_chip(capability) for capability in table.capabilities}
        for kernel, metric, counted, total in table.settle():
            totals.add(kernel, metric, counted, total)
    return totals


def _chip(capability: str) -> str:
    """The chip of a compute capability as printed, or that capability where it is unknown."""
    found = re.fullmatch(r"([0-9]+)[.,]([0-9]+)", capability.strip())
    chip = chip_of_capability((int(found[1]), int(found[2]))) if found else None
    return chip or capability


def _nothing_in(path: Path, found: Found) -> str:
    if found.errors:
        return f"{path}: ncu failed: {'; '.join(found.errors)}; mlproject doctor names the remedy"
    if found.tables:
        return f"{path}: a header and no launch below it: profile a step that launches kernels"
    return (
        f'{path}: no table of Nsight Compute (no line begins with "ID"); write one with'
        " ncu --csv, or ncu --import FILE --csv --page raw"
    )
