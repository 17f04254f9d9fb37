"""A line of text as the cells of a row, or as something that is none of the table's."""

from __future__ import annotations

import csv
import re

from bench.profilers.files.layout import Layout

_NUMBER = "[0-9][0-9., \u00a0\u202f]*"
_QUOTED_ROW = re.compile(f'"{_NUMBER}","')
_ROW = re.compile(f'"?{_NUMBER}"?,')
_ROW_WITHIN = re.compile(r'(?<!,)"[0-9]+","[0-9]+","')


class DamagedRowError(ValueError):
    """A row that cannot be what ncu wrote; the text says why."""


def row_in(line: str, layout: Layout, *, awaits_units: bool) -> str:
    """Return the row that `line` is or ends with, or nothing if it is output of the program.

    Raises `DamagedRowError` for a line that has a row's cells and not its beginning.
    """
    if layout.quoted and _QUOTED_ROW.match(line):
        return line
    between = '","' if layout.quoted else ","
    if line.count(between) + 1 < layout.likely_row_cells:
        return ""
    if _ROW.match(line) or awaits_units:
        return line
    if not layout.quoted:
        return ""
    if within := _ROW_WITHIN.search(line):
        return line[within.start() :]
    raise DamagedRowError(f"a damaged row: {line[:60]!r}")


def is_open(row: str, layout: Layout) -> bool:
    """Whether a quoted cell of `row` goes on in the next line."""
    return layout.quoted and row.count('"') % 2 == 1


def cells_of(row: str, layout: Layout) -> list[str]:
    """Return the cells of a row, which may hold line ends within quotes.

    Raises `DamagedRowError` if a quote is out of place, or if the row is too short for its figure
    or longer than the header.
    """
    ends_early = layout.quoted and row.endswith(",")  # no cell: even an empty one has quotes
    end = -2 if ends_early else -1
    cells = row[1:end].split('","')
    plain = row[0] == row[end] == '"' and row.count('"') == 2 * len(cells)
    if not plain:
        cells = _parsed(row)[: -1 if ends_early else None]
    columns = len(layout.columns)
    if not layout.least_cells <= len(cells) <= columns:
        raise DamagedRowError(f"the row has {len(cells)} cells, the header {columns}")
    return cells


def _parsed(row: str) -> list[str]:
    lines = [f"{line}\n" for line in row.split("\n")]
    lines[-1] = lines[-1][:-1]
    try:
        rows = list(csv.reader(lines, strict=True))
    except csv.Error as error:
        raise DamagedRowError(f"a damaged row ({error})") from None
    if len(rows) != 1:
        raise DamagedRowError("a damaged row (it ends outside of a cell)")
    return rows[0]
