"""Numbered tables: exact values for CSV, short ones for people.

A table is a list of columns over rows of any kind. `number("fixed_ms", "ms a step", value)` has the
name in the CSV, with its unit, the heading for people, and the value of a row. A column of several
names, such as `"low_ms high_ms"`, has a tuple of values: the two ends of an interval, say.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Generic, TypeVar

from analysis.runs.groups import Group
from analysis.runs.placed import recorded
from analysis.runs.quantities import three_digits
from analysis.runs.run import Run

#: What Markdown would read as markup inside a line or a table's cell.
_MARKDOWN = re.compile(r"([\\`*\[\]|~$#!])|(?<!\w)(_)|(_)(?!\w)")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
}


def markdown_text(text: str) -> str:
    """Return `text` as one line that Markdown shows as it stands."""
    line = " ".join(text.split())
    line = _MARKDOWN.sub(lambda match: "\\" + match[0], line)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex_text(text: str) -> str:
    """Return `text` as one line that LaTeX prints as it stands."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


ABSENT = "-"
#: Spreadsheets run a text that starts like this as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

Row = TypeVar("Row")


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
class Column(Generic[Row]):
    """A heading over the values of one or several `keys`, the columns of the CSV.

    `value` returns a row's value, for several keys one for each; `show` makes one text of them.
    """

    heading: str
    keys: tuple[str, ...]
    value: Callable[[Row], Any]
    show: Callable[..., str] = _first
    numeric: bool = False
    wraps_em: int = 0  # long text wraps, but not narrower than this

    def values(self, row: Row) -> tuple[Any, ...]:
        """Return a row's value of each key."""
        found = self.value(row)
        return found if len(self.keys) > 1 else (found,)


def text(
    keys: str,
    heading: str,
    value: Callable[[Row], Any],
    show: Callable[..., str] = _first,
    *,
    wraps_em: int = 0,
) -> Column[Row]:
    """Return a column of words; `keys` has spaces between several."""
    return Column(heading, tuple(keys.split()), value, show, wraps_em=wraps_em)


def whole(
    keys: str, heading: str, value: Callable[[Row], Any], show: Callable[..., str] = _first
) -> Column[Row]:
    """Return a column of whole numbers, of which the first of several is shown by default."""
    return Column(heading, tuple(keys.split()), value, show, numeric=True)


def number(
    keys: str, heading: str, value: Callable[[Row], Any], show: Callable[..., str] = three_digits
) -> Column[Row]:
    """Return a column of numbers, of which people see three digits by default."""
    return Column(heading, tuple(keys.split()), value, show, numeric=True)


def scaled(value: float | None, factor: float) -> float | None:
    """Return `value` in another unit; what is not known stays so."""
    return None if value is None else value * factor


def of_run(run: Callable[[Row], Run | Group]) -> list[Column[Row]]:
    """Return the columns of machine, model and precision of a row's run or group of repeats.

    Beside the model stands what distinguishes the row from others of its label, beside the
    precision where it is not the one asked for.
    """

    def model(row: Row) -> tuple[str, str | None]:
        return run(row).arch, run(row).distinction or None

    def precision(row: Row) -> tuple[str, str]:
        return run(row).precision, run(row).precision_label

    return [
        text("machine", "machine", lambda row: run(row).env),
        text("arch differs_in", "model", model,
             lambda arch, differs: f"{arch} ({differs})" if differs else arch),
        text("precision precision_label", "precision", precision, lambda _, label: label),
    ]  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table; `name` is its CSV file's, `number` the one in the report.

    A row holds the values of each column. People see the first `shown` rows of a long table, and
    of a `sparse` one the columns that have a value in some row; the CSV holds all.
    """

    name: str
    title: str
    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[tuple[Any, ...], ...], ...]
    shown: int | None = None
    sparse: bool = False
    number: int = 1

    @cached_property
    def visible(self) -> tuple[Column[Any], ...]:
        """The columns that people see."""
        return tuple(self.columns[place] for place in self._visible_places)

    @cached_property
    def _visible_places(self) -> list[int]:
        """Where those columns are; all of them in a table without rows."""
        return [
            place
            for place in range(len(self.columns))
            if not (self.sparse and self.rows)
            or any(row[place][0] is not None for row in self.rows)
        ]

    @property
    def hidden(self) -> int:
        """Rows that only the CSV holds."""
        return 0 if self.shown is None else max(0, len(self.rows) - self.shown)

    @property
    def cells(self) -> list[list[str]]:
        """What people read; a dash where there is nothing."""
        places = self._visible_places
        return [
            [
                ABSENT if row[place][0] is None else self.columns[place].show(*row[place])
                for place in places
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
            _markdown_row(column.heading for column in self.visible),
            "|" + "".join(" ---: |" if column.numeric else " --- |" for column in self.visible),
            *map(_markdown_row, replace(self, shown=None).cells),
        ]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return all rows as a LaTeX table that needs the package booktabs, as people read them."""
        alignment = "".join("r" if column.numeric else "l" for column in self.visible)
        lines = [
            r"\begin{table}",
            rf"\caption{{{latex_text(self.title)}}}\label{{tab:{self.name}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            _latex_row(column.heading for column in self.visible),
            r"\midrule",
            *map(_latex_row, replace(self, shown=None).cells),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def make_table(
    name: str,
    title: str,
    rows: Iterable[Row],
    *columns: Column[Row],
    shown: int | None = None,
    sparse: bool = False,
) -> Table:
    """Return a table of what `columns` take from each of `rows`."""
    values = tuple(tuple(column.values(row) for column in columns) for row in rows)
    return Table(name, title, columns, values, shown, sparse)


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
