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
from typing import Any, NamedTuple

from bench.errors import printable

_MOST_COLUMNS = 500
_CELL_CHARACTERS = 10_000
_DELIMITERS = ",;\t|"
_PLAIN = re.compile(r"\+?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_DECIMAL_COMMA = re.compile(r"[0-9]{1,30},[0-9]{1,30}")
_THOUSANDS = re.compile(r"[0-9]{1,3}([,.' ][0-9]{3})+")


class OtherFileError(ValueError):
    """A file that holds no results of training on images, whatever else it holds."""


@dataclass(frozen=True)
class Problem:
    """What could not be taken, and why; `line` None for a whole file, `path` for the file read."""

    reason: str
    line: int | None = None
    path: Path | None = None

    def __str__(self) -> str:
        where = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return printable(f"{where}: {self.reason}")


class Row(NamedTuple):
    """The line that a row begins on, and its cells by column."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class Table:
    """Columns as the header names them, in order; the rows; and the lines that are no row."""

    columns: tuple[str, ...]
    delimiter: str
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]

    @cached_property
    def _has_decimal_commas(self) -> bool:
        """Whether a cell can only be a number with a decimal comma."""
        cells = (cell for row in self.rows for cell in row.cells.values())
        return any(_DECIMAL_COMMA.fullmatch(c) and not _THOUSANDS.fullmatch(c) for c in cells)

    def number(self, text: str, *, may_be_zero: bool = False) -> float:
        """Return a cell's number as `number` does; `12,5` is one where it can be.

        Raises `ValueError` for `1.234` beside decimal commas too, which may be 1234.
        """
        if self._has_decimal_commas and "." in text and _THOUSANDS.fullmatch(text.strip()):
            raise ValueError(
                f"{text[:40]!r} can be read two ways beside decimal commas: write it without the "
                "point"
            )
        return number(text, may_be_zero=may_be_zero, decimal_comma=self.delimiter != ",")


def parse_table(text: str, *, index: str = "") -> Table:
    """Return the table in `text`; `index` names a first column that has no name.

    Raises `OtherFileError` where its header cannot be understood.
    """
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    delimiter = max(_DELIMITERS, key=first.count)
    rows = _cells(lines, delimiter)
    _, header = next(rows, (0, ""))
    if isinstance(header, str):
        raise OtherFileError("no header: name the columns in the first line")
    columns = [name.strip() for name in header]
    if len(columns) > _MOST_COLUMNS:
        raise OtherFileError(f"{len(columns)} columns; a ledger has at most {_MOST_COLUMNS}")
    if index not in columns:
        columns[0] = columns[0] or index
    if twice := {name for name in columns if name and columns.count(name) > 1}:
        raise OtherFileError(f"column {min(twice)!r} is there twice: rename one")
    good, problems = [], []
    for line, cells in rows:
        if isinstance(cells, str):
            problems.append(Problem(cells, line))
        elif len(cells) != len(columns):
            problems.append(Problem(f"{len(cells)} cells under {len(columns)} columns", line))
        else:
            named = zip(columns, cells, strict=True)
            good.append(Row(line, {name: cell.strip() for name, cell in named if name}))
    return Table(tuple(columns), delimiter, tuple(good), tuple(problems))


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


def number(text: str, *, may_be_zero: bool = False, decimal_comma: bool = False) -> float:
    """Return a finite number above zero, or from zero.

    `decimal_comma`: the file's cells are parted by something else, so that `12,5` can be one
    number. Raises `ValueError` with the reason: a formula, a word, a negative or ambiguous number.
    """
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
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{shown!r} is too large")
    if not found and not may_be_zero:
        raise ValueError(f"{shown!r} is not above zero")
    return found


def count(text: str) -> int:
    """Return a whole number from zero; a spreadsheet's `64.0` is one. Raises `ValueError`."""
    found = number(text, may_be_zero=True)
    if found != int(found) or found > 2**53:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(found)


def instant(text: str) -> datetime:
    """Return an ISO 8601 instant that names its time zone, in UTC. Raises `ValueError`."""
    found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError("no time zone")
    if not 2000 <= found.year <= 2200:
        raise ValueError("no year of a benchmark")
    return found.astimezone(timezone.utc)


def part(whole: Any, *names: str) -> dict[str, Any]:
    """Return the object that a way of names leads to in JSON; an empty one where none is there."""
    for name in names:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole if isinstance(whole, dict) else {}
