"""Tables with a row per result: ledgers of runs, published tables, timm's benchmark results."""

from __future__ import annotations

import re

from bench.records import SourceFormat
from tracking.importing.columns import COUNT_FACTS, TEXT_FACTS, TIMM, Meaning, meanings, plain
from tracking.importing.facts import Told
from tracking.importing.numerals import count, instant, not_negative, positive
from tracking.importing.tables import Row, Table

_TIMM_NAME = re.compile(
    r"benchmark-train-(?P<precision>[a-z0-9_]+)-n(?:chw|hwc)-pt\d+-(?:cu\d+-|cpu-)?(?P<env>[\w-]+)"
)
_EMPTY = frozenset(("", "-", "n/a", "na", "none", "null"))
#: Deviations, and shares of a processor's time, may be zero.
_MAY_BE_ZERO = ("_std", "user_s", "system_s")


def is_timm(table: Table) -> bool:
    """Whether timm's benchmark.py wrote the table."""
    names = {plain(column) for column in table.columns}
    return bool(names & {"train_samples_per_sec", "infer_samples_per_sec"})


def told_by_row(table: Table, row: Row, known: dict[str, Meaning], kind: SourceFormat) -> Told:
    """Return what a row says. Raises `ValueError` with the column for a cell that cannot be."""
    told = Told(kind, row.line)
    for column, cell in row.cells.items():
        if cell.lower() in _EMPTY:
            continue
        meaning = known.get(column)
        try:
            if meaning is None or not _take(told, meaning, cell, table):
                told.extra[column] = cell
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None
    if kind == "timm" and "throughput_images_per_s" not in told.numbers:
        why = told.extra.get("error")
        raise ValueError(f"no training result ({why or 'inference alone'})"[:300])
    return told


def told_by_timm_name(name: str) -> dict[str, str]:
    """Return what timm's own name for a result file says: benchmark-train-amp-nhwc-...-rtx3090."""
    found = _TIMM_NAME.fullmatch(name)
    return {"precision": found["precision"], "env": found["env"]} if found else {}


def known_columns(table: Table, kind: SourceFormat) -> dict[str, Meaning]:
    """Return what the table's columns mean."""
    return meanings(table.columns, TIMM if kind == "timm" else None)


def _take(told: Told, meaning: Meaning, cell: str, table: Table) -> bool:
    """Take a cell's fact; False where it is none after all, and the cell is kept as it is."""
    if meaning.fact == "measured_at":
        try:
            told.measured_at = instant(cell)
        except ValueError:  # in a form, or a time zone, that nobody can know
            return False
    elif meaning.fact in TEXT_FACTS:
        told.texts[meaning.fact] = cell
    elif meaning.fact == "repeat":
        try:
            told.counts["repeat"] = count(cell)
        except ValueError:  # a run's name, not its number
            told.texts.setdefault("label", cell)
    elif meaning.fact in COUNT_FACTS:
        told.counts[meaning.fact] = count(cell)
        if meaning.fact != "warmup_iters" and told.counts[meaning.fact] == 0:
            raise ValueError("'0' is not above zero")
    else:
        read = not_negative if meaning.fact.endswith(_MAY_BE_ZERO) else positive
        number = read(cell, decimal_comma=table.delimiter != ",")
        told.numbers[meaning.fact] = number * meaning.factor
    return True
