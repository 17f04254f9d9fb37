"""Tables with a row per result: ledgers, published tables, files of timm's `benchmark.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bench.errors import UserError
from bench.records import SourceFormat
from tracking.importing.facts import BadLine, Facts
from tracking.importing.formats.columns import (
    BESIDE,
    COUNTS,
    TEXTS,
    Meaning,
    known_columns,
    plain,
    take_beside,
)
from tracking.importing.source_files import SourceFile
from tracking.importing.text_table import Row, Table, count, instant, parse_table

_TIMM_NAME = re.compile(
    r"benchmark-train-(?P<precision>[a-z0-9_]+)-n(?:chw|hwc)-pt\d+-(?:cu\d+-|cpu-)?(?P<env>[\w-]+)"
)
_EMPTY = frozenset(("", "-", "n/a", "na", "none", "null"))
#: Deviations, and shares of a processor's time, may be zero.
_MAY_BE_ZERO = ("_std", "user_s", "system_s")
_OF_IMAGES = re.compile(r"im(a)?g")
#: A header, after empty lines, is among these.
_HEADER_LINES = 50


def is_rows(file: SourceFile, text: str) -> bool:
    """Whether the text begins with the names of columns, one of them a throughput or a time."""
    try:
        table = parse_table("".join(text.splitlines(keepends=True)[:_HEADER_LINES]), file.shown)
    except UserError:
        return False
    return _has_result(known_columns(table, "table"))


def read_rows(file: SourceFile, text: str, given: Mapping[str, str]) -> Iterator[Facts | BadLine]:
    """Yield the result of each row. Raises `UserError` or `ValueError` where there can be none."""
    table = parse_table(text, file.shown)
    kind: SourceFormat = "timm" if is_timm(table) else "table"
    known = known_columns(table, kind)
    if not _has_result(known):
        raise ValueError(
            f"no column of it is known as a throughput or a time ({', '.join(table.columns)[:200]})"
        )
    in_name = facts_of_timm_name(file.stem) if kind == "timm" else {}
    for row in table.rows:
        try:
            if row.problem is not None:
                raise ValueError(row.problem)
            facts = facts_of_row(table, row, known, kind)
            facts.texts = {**in_name, **facts.texts}
            yield facts
        except ValueError as error:
            yield BadLine(row.line, str(error))


def _has_result(known: Mapping[str, Meaning]) -> bool:
    return any(
        meaning.fact.startswith(("throughput", "iteration_time")) for meaning in known.values()
    )


def is_timm(table: Table) -> bool:
    """Whether timm's benchmark.py wrote the table."""
    names = {plain(column) for column in table.columns}
    return bool(names & {"train_samples_per_sec", "infer_samples_per_sec"})


def facts_of_row(table: Table, row: Row, known: dict[str, Meaning], kind: SourceFormat) -> Facts:
    """Return what a row says. Raises `ValueError` with the column for a cell that cannot be."""
    facts = Facts(kind, row.line)
    for column, cell in row.cells.items():
        if cell.lower() in _EMPTY:
            continue
        meaning = known.get(column)
        try:
            if meaning is None or not _take(facts, meaning, column, cell, table):
                facts.extra[column] = cell
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None
    if kind == "timm" and "throughput_images_per_s" not in facts.numbers:
        why = facts.extra.get("error")
        raise ValueError(f"no training result ({why or 'inference alone'})"[:300])
    return facts


def facts_of_timm_name(name: str) -> dict[str, str]:
    """Return what timm's own name for a result file says: benchmark-train-amp-nhwc-...-rtx3090."""
    found = _TIMM_NAME.fullmatch(name)
    return {"precision": found["precision"], "env": found["env"]} if found else {}


def _take(facts: Facts, meaning: Meaning, column: str, cell: str, table: Table) -> bool:
    """Take a cell's fact; False where the cell is also kept as it is."""
    if meaning.fact in BESIDE:
        take_beside(facts, meaning, cell, table)
        return False
    if meaning.fact == "measured_at":
        try:
            facts.measured_at = instant(cell)
        except ValueError:  # in a form, or a time zone, that is not known
            return False
    elif meaning.fact in TEXTS:
        facts.texts[meaning.fact] = cell
    elif meaning.fact == "repeat":
        try:
            facts.counts["repeat"] = count(cell)
        except ValueError:  # a run's name, not its number
            facts.texts.setdefault("label", cell)
    elif meaning.fact in COUNTS:
        facts.counts[meaning.fact] = count(cell)
        if meaning.fact != "warmup_iters" and facts.counts[meaning.fact] == 0:
            raise ValueError("'0' is not above zero")
    else:
        number = table.number(cell, may_be_zero=meaning.fact.endswith(_MAY_BE_ZERO))
        facts.numbers[meaning.fact] = number * meaning.factor
        is_rate = meaning.fact == "throughput_images_per_s"
        if is_rate and facts.format != "timm" and not _OF_IMAGES.search(column.lower()):
            facts.rate_column = column
    return True
