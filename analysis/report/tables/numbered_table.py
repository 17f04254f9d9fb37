"""Numbered tables: exact values for CSV, short ones for people.

A row is a frozen dataclass. Its fields are the columns of the CSV, with units in their names;
`Annotated[float, Shown("images/s")]` says how people read one. A field without `Shown` belongs to
the column before it: it is the other end of an interval, say.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, get_args, get_type_hints

from analysis.report.markup import latex_text, markdown_text
from analysis.runs.placed import Run, recorded
from analysis.runs.quantities import three_digits

ABSENT = "-"
#: Spreadsheets run a text that starts like this as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class RunList:
    """Runs behind a row: names in the CSV, their numbers in the report for people."""

    names: tuple[str, ...]
    numbers: str

    def __str__(self) -> str:
        return self.numbers


@dataclass(frozen=True)
class RunNumbers:
    """Number of each run in a report by its name (a run id, or a record's)."""

    by_name: dict[str, int]

    def words(self, names: Iterable[str]) -> str:
        """Return `1 to 3, 7` for the runs of these names."""
        numbers = sorted({self.by_name[name] for name in names if name in self.by_name})
        spans: list[list[int]] = []
        for number in numbers:
            if spans and number == spans[-1][-1] + 1:
                spans[-1].append(number)
            else:
                spans.append([number])
        return ", ".join(map(_span, spans))

    def listed(self, names: Iterable[str]) -> RunList:
        """Return the runs of these names for a table."""
        known = tuple(names)
        return RunList(known, self.words(known))


def number_runs(runs: Sequence[Run]) -> RunNumbers:
    """Number recorded runs as they are placed, imported ones after them."""
    found = {run.name: run.number for run in recorded(runs)}
    last = max(found.values(), default=0)
    imported = (run.name for run in runs if run.record is None)
    return RunNumbers(found | {name: number for number, name in enumerate(imported, last + 1)})


def _first(value: object, *_: object) -> str:
    return str(value)


@dataclass(frozen=True)
class Shown:
    """How people read a field: heading, text of the column's values, and its width at least.

    Numbers have three digits and are aligned right where nothing else is said.
    """

    heading: str
    show: Callable[..., str] | None = None
    wraps_em: int = 0  # long text wraps, but not narrower than this
    numeric: bool | None = None


@dataclass(frozen=True)
class Column:
    """A heading over the values of one or several `keys`, the columns of the CSV."""

    heading: str
    keys: tuple[str, ...]
    show: Callable[..., str] = _first
    numeric: bool = False
    wraps_em: int = 0


@dataclass(frozen=True)
class Table:
    """A table; `name` is its CSV file's, `number` the one in the report.

    A row holds the values of each column. People see the first `shown` rows of a long table; the
    CSV holds all.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[tuple[Any, ...], ...], ...]
    shown: int | None = None
    number: int = 1

    @property
    def hidden(self) -> int:
        """Rows that only the CSV holds."""
        return 0 if self.shown is None else max(0, len(self.rows) - self.shown)

    @property
    def cells(self) -> list[list[str]]:
        """What people read; a dash where there is nothing."""
        return [
            [
                ABSENT if values[0] is None else column.show(*values)
                for column, values in zip(self.columns, row, strict=True)
            ]
            for row in self.rows[: self.shown]
        ]

    def csv(self) -> str:
        """Return the table with all digits for programs."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([key for column in self.columns for key in column.keys])
        writer.writerows(
            [[_exact(value) for values in row for value in values] for row in self.rows]
        )
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


def make_table(
    name: str, title: str, row_type: type, rows: Iterable[object], *, shown: int | None = None
) -> Table:
    """Return a table of `rows`, dataclasses of `row_type`."""
    columns = _columns(row_type)
    values = tuple(
        tuple(tuple(getattr(row, key) for key in column.keys) for column in columns) for row in rows
    )
    return Table(name, title, columns, values, shown)


@functools.cache
def _columns(row_type: type) -> tuple[Column, ...]:
    columns: list[Column] = []
    for key, hint in get_type_hints(row_type, include_extras=True).items():
        shown = next((one for one in get_args(hint) if isinstance(one, Shown)), None)
        if shown is None:
            columns[-1] = replace(columns[-1], keys=(*columns[-1].keys, key))
            continue
        kinds = {hint.__origin__, *get_args(hint.__origin__)}  # of `float | None` too
        numeric = bool(kinds & {int, float}) if shown.numeric is None else shown.numeric
        show = shown.show or (_first_three_digits if float in kinds else _first)
        columns.append(Column(shown.heading, (key,), show, numeric, shown.wraps_em))
    return tuple(columns)


def _first_three_digits(value: float, *_: object) -> str:
    return three_digits(value)


def _exact(value: object) -> object:
    """A CSV's cell: all digits, ISO times, nothing where there is nothing."""
    if isinstance(value, datetime):
        return value.isoformat()
    text = " ".join(value.names) if isinstance(value, RunList) else value
    if isinstance(text, str) and text.startswith(_FORMULA_STARTS):
        return f"'{text}"
    return text


def _span(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"{first}"
    return f"{first}, {last}" if last == first + 1 else f"{first} to {last}"


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(markdown_text, cells))} |"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"
