"""Numbered tables: exact values for CSV, short ones for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from analysis.report.markup import latex_text, markdown_text
from analysis.runs.quantities import percent, three_digits

ABSENT = "-"

#: Spreadsheets run a text that starts like this as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class Column:
    """One column: its heading, where its value comes from, and its names in the CSV.

    Of several `keys` (with units) the value is a tuple: the two ends of an interval, say.
    """

    heading: str
    keys: tuple[str, ...]
    read: Callable[[Any], Any]
    show: Callable[[Any], str] = str
    numeric: bool = False
    wraps_em: int = 0  # long text wraps, but not narrower than this

    def exact(self, value: Any) -> list[Any]:
        """Return the value's CSV cells: all digits, ISO times, nothing where there is nothing."""
        if value is None:
            return [None] * len(self.keys)
        return [_exact(part) for part in (value if len(self.keys) > 1 else (value,))]


@dataclass(frozen=True)
class Table:
    """A table with its number in the report; `name` is its CSV file's.

    People see the first `shown` rows of a long one; the CSV holds all.
    """

    number: int
    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    shown: int | None = None

    @property
    def hidden(self) -> int:
        """Rows that only the CSV holds."""
        return 0 if self.shown is None else max(0, len(self.rows) - self.shown)

    @property
    def cells(self) -> list[list[str]]:
        """What people read; a dash where there is nothing."""
        return [
            [
                ABSENT if value is None else column.show(value)
                for column, value in zip(self.columns, row, strict=True)
            ]
            for row in self.rows[: self.shown]
        ]

    def csv(self) -> str:
        """Return the table with all digits for programs."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([key for column in self.columns for key in column.keys])
        for row in self.rows:
            pairs = zip(self.columns, row, strict=True)
            writer.writerow([cell for column, value in pairs for cell in column.exact(value)])
        return out.getvalue()

    def markdown(self) -> str:
        """Return all rows as a Markdown table with its title, as people read them."""
        lines = [
            f"**Table {self.number}. {markdown_text(self.title)}**",
            "",
            _markdown_row(column.heading for column in self.columns),
            "|" + "".join(" ---: |" if column.numeric else " --- |" for column in self.columns),
            *map(_markdown_row, replace(self, shown=None).cells),
        ]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return all rows as a LaTeX table that needs the package booktabs, as people read them."""
        alignment = "".join("r" if column.numeric else "l" for column in self.columns)
        lines = [
            r"\begin{table}",
            rf"\caption{{{latex_text(self.title)}}}\label{{tab:{self.name}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            _latex_row(column.heading for column in self.columns),
            r"\midrule",
            *map(_latex_row, replace(self, shown=None).cells),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(markdown_text, cells))} |"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def make_table(
    number: int,
    name: str,
    title: str,
    columns: Sequence[Column],
    items: Iterable[Any],
    *,
    shown: int | None = None,
) -> Table:
    """Return a table with one row per item."""
    rows = tuple(tuple(column.read(item) for column in columns) for item in items)
    return Table(number, name, title, tuple(columns), rows, shown)


def quantity(heading: str, key: str, read: Callable[[Any], float | None]) -> Column:
    """Return a column of numbers, three digits for people."""
    return Column(heading, (key,), read, three_digits, numeric=True)


def share_of(heading: str, key: str, read: Callable[[Any], float | None]) -> Column:
    """Return a column of fractions of 1, percent for people."""
    return Column(heading, (key,), read, percent, numeric=True)


def scaled(value: float | None, factor: float) -> float | None:
    """Return `value` in another unit; what is not known stays so."""
    return None if value is None else value * factor


def _exact(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return value
