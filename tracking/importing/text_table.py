"""A table in a text file: its cells and numbers; nothing is executed, expanded or guessed."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from bench.errors import UserError

_MOST_COLUMNS = 500
_CELL_CHARACTERS = 10_000
_DELIMITERS = ",;\t|"


_PLAIN = re.compile(r"\+?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_DECIMAL_COMMA = re.compile(r"[0-9]{1,30},[0-9]{1,30}")
_THOUSANDS = re.compile(r"[0-9]{1,3}([,.' ][0-9]{3})+")


@dataclass(frozen=True)
class Row:
    """One row: the line it begins on, and its cells by column; or why it is none."""

    line: int
    cells: dict[str, str]
    problem: str | None = None


@dataclass(frozen=True)
class Table:
    """Columns as the header names them, in order, and what parts the cells."""

    columns: tuple[str, ...]
    delimiter: str
    rows: tuple[Row, ...]

    @cached_property
    def _has_decimal_commas(self) -> bool:
        """Whether a cell can only be a number with a decimal comma."""
        cells = (cell for row in self.rows for cell in row.cells.values())
        return any(_DECIMAL_COMMA.fullmatch(c) and not _THOUSANDS.fullmatch(c) for c in cells)

    def number(self, text: str, *, may_be_zero: bool = False) -> float:
        """Return a cell's number above zero, or from zero; `12,5` is one where it can be.

        Raises `ValueError` as `positive` does, and for `1.234` beside decimal commas, which may be
        1234.
        """
        if self._has_decimal_commas and "." in text and _THOUSANDS.fullmatch(text.strip()):
            raise ValueError(
                f"{text[:40]!r} can be read two ways beside decimal commas: write it without the "
                "point"
            )
        read = not_negative if may_be_zero else positive
        return read(text, decimal_comma=self.delimiter != ",")


def parse_table(text: str, path: Path) -> Table:
    """Return the table in `text`. Raises `UserError` where its header cannot be understood."""
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    delimiter = max(_DELIMITERS, key=first.count)
    rows = _cells(lines, delimiter)
    header = next(rows, None)
    if header is None or isinstance(header[1], str):
        raise UserError(f"{path}: no header: name the columns in the first line")
    columns = tuple(name.strip() for name in header[1])
    if len(columns) > _MOST_COLUMNS:
        raise UserError(f"{path}: {len(columns)} columns; a ledger has at most {_MOST_COLUMNS}")
    named = [name for name in columns if name]
    if twice := {name for name in named if named.count(name) > 1}:
        raise UserError(f"{path}: column {min(twice)!r} is there twice: rename one")
    return Table(columns, delimiter, tuple(_row(columns, *row) for row in rows))


def _row(columns: tuple[str, ...], line: int, cells: list[str] | str) -> Row:
    if isinstance(cells, str):
        return Row(line, {}, cells)
    if len(cells) != len(columns):
        return Row(line, {}, f"{len(cells)} cells under {len(columns)} columns")
    named = zip(columns, cells, strict=True)
    return Row(line, {name: cell.strip() for name, cell in named if name})


def _cells(lines: list[str], delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """The rows that are not empty, with the line that each begins on; a reason for a bad one."""
    before = csv.field_size_limit(_CELL_CHARACTERS)
    try:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, f"not a row of a table ({error})"
                continue
            if any(cell.strip() for cell in cells):
                yield line, cells
    finally:
        csv.field_size_limit(before)


def positive(text: str, *, decimal_comma: bool = False) -> float:
    """Return a finite number above zero.

    `decimal_comma`: the file's cells are parted by something else, so that `12,5` can be one
    number. Raises `ValueError` with the reason: a formula, a word, a negative or ambiguous number.
    """
    number = not_negative(text, decimal_comma=decimal_comma)
    if number == 0:
        raise ValueError(f"{text!r} is not above zero")
    return number


def not_negative(text: str, *, decimal_comma: bool = False) -> float:
    """Return a finite number from zero; otherwise like `positive`."""
    text = text.strip()
    shown = text[:40]
    if text.startswith(("=", "@")):
        raise ValueError(f"{shown!r} is a formula: save the file with its values")
    if text.startswith("-") and _PLAIN.fullmatch(text[1:]):
        raise ValueError(f"{shown!r} is negative")
    if "," in text:
        if _THOUSANDS.fullmatch(text):
            raise ValueError(f"{shown!r} can be read two ways: write it without the comma")
        if not decimal_comma or not _DECIMAL_COMMA.fullmatch(text):
            raise ValueError(f"{shown!r} is not a number: write a decimal point")
        text = text.replace(",", ".")
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"{shown!r} is not a number")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{shown!r} is too large")
    return number


def count(text: str) -> int:
    """Return a whole number from zero; a spreadsheet's `64.0` is one. Raises `ValueError`."""
    number = not_negative(text)
    if number != int(number) or number > 2**53:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(number)


def instant(text: str) -> datetime:
    """Return an ISO 8601 instant that names its time zone, in UTC. Raises `ValueError`."""
    found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError("no time zone")
    if not 2000 <= found.year <= 2200:
        raise ValueError("no year of a benchmark")
    return found.astimezone(timezone.utc)
