"""Numbered tables: exact values for CSV, short ones for people.

A table is rows, mappings from keys to values, and a list of columns. A column has one key or
several, such as the two ends of an interval: they are the columns of the CSV, with the unit in the
name. What people read is its heading, and one text of the values. `columns.py` has them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

from analysis.presentation.words import three_digits
from bench.errors import UserError

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


Larger = Literal["faster", "slower", "worse"]
Show = Callable[..., str]

ABSENT = "-"
#: Spreadsheets run a text that starts like this as a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class RunList:
    """Runs behind a row: names in the CSV, their numbers in the report for people."""

    names: tuple[str, ...]
    numbers: str = ""

    def __str__(self) -> str:
        return self.numbers


@dataclass(frozen=True)
class RunNumbers:
    """Number of each run in a report by its name (a run id, or a record's)."""

    by_name: dict[str, int]

    def words(self, names: Iterable[str]) -> str:
        """Return `1 to 3, 7` for the runs of these names."""
        numbers = sorted({self.by_name[name] for name in names if name in self.by_name})
        spans: list[str] = []
        for _, successive in groupby(enumerate(numbers), key=lambda one: one[1] - one[0]):
            span = [f"{number}" for _, number in successive]
            spans += [f"{span[0]} to {span[-1]}"] if len(span) > 2 else span
        return ", ".join(spans)

    def named(self, names: Sequence[str]) -> str:
        """Return `run 7` or `runs 1 to 3, 7`."""
        return f"{'run' if len(names) == 1 else 'runs'} {self.words(names)}"

    def put_in(self, rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return rows of a table with the numbers of the runs behind each."""

        def numbered(runs: RunList) -> RunList:
            return replace(runs, numbers=self.words(runs.names))

        return [{**row, "runs": numbered(row["runs"])} if "runs" in row else row for row in rows]


def utc(moment: datetime) -> str:
    """Format a time to the minute."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def first_value(value: object, *_: object) -> str:
    """Show the first of a column's values: times in UTC, three digits of what is no whole number.

    Several texts have semicolons between them.
    """
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    return three_digits(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Column:
    """A heading over the values of one or several `keys`, the columns of the CSV.

    `show` makes one text of a row's values of these keys. `larger` says what a larger value is,
    of a metric that can be compared, and `unit` its unit in words. `csv_only` is what people
    have elsewhere on the page.
    """

    heading: str
    keys: tuple[str, ...]
    show: Show = first_value
    numeric: bool = False
    wraps_em: int = 0  # long text wraps, but not narrower than this
    unit: str = ""
    larger: Larger | None = None
    csv_only: bool = False


@dataclass(frozen=True)
class Table:
    """A table; `name` is its CSV file's, `number` the one in the report.

    Rows are mappings from the keys of columns to values; what a row lacks is not known. People see
    the first `shown` rows of a long table, and the columns that have a value in some row; the CSV
    holds all.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, Any]]
    columns: tuple[Column, ...]
    shown: int | None = None
    number: int = 1

    @cached_property
    def visible(self) -> tuple[Column, ...]:
        """The columns that people see; all of them in a table without rows."""
        firsts = ((column, column.keys[0]) for column in self.columns)
        return tuple(
            column
            for column, key in firsts
            if not column.csv_only
            and (not self.rows or not all(_is_absent(row.get(key)) for row in self.rows))
        )

    @property
    def keys(self) -> list[str]:
        """The columns of the CSV."""
        return [key for column in self.columns for key in column.keys]

    @property
    def hidden(self) -> int:
        """Rows that only the CSV holds."""
        return 0 if self.shown is None else max(0, len(self.rows) - self.shown)

    @cached_property
    def _all_cells(self) -> list[list[str]]:
        return [[_cell(column, row) for column in self.visible] for row in self.rows]

    @property
    def cells(self) -> list[list[str]]:
        """What people read of the rows that they see; a dash where there is nothing."""
        return self._all_cells[: self.shown]

    def without(self, *keys: str) -> Table:
        """Return the table without the columns of these keys."""
        kept = tuple(column for column in self.columns if column.keys[0] not in keys)
        return replace(self, columns=kept)

    def facts(self) -> list[dict[str, Any]]:
        """Return the rows with all digits, ready for JSON."""
        return [{key: _for_json(row.get(key)) for key in self.keys} for row in self.rows]

    def csv(self) -> str:
        """Return the table with all digits for programs."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.keys)
        writer.writerows([[_exact(row.get(key)) for key in self.keys] for row in self.rows])
        return out.getvalue()

    def text(self, width: int) -> str:
        """Return the table for a terminal of so many columns."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        rich = RichTable(
            title=self.title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
        )
        for index, column in enumerate(self.visible):
            widest = max((len(cells[index]) for cells in self.cells), default=0)
            breaks = column.numeric and len(column.heading) > max(widest, 8)
            rich.add_column(
                column.heading.replace(" ", "\n") if breaks else column.heading,
                justify="right" if column.numeric else "left",
                no_wrap=column.numeric or not index,
                overflow="fold",
            )
        for cells in self.cells:
            rich.add_row(*map(Text, cells))
        out = io.StringIO()
        Console(file=out, width=width, no_color=True).print(rich)
        more = f"{self.hidden} more: csv and json have them all\n" if self.hidden else ""
        return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines()) + more

    def markdown_lines(self, shown: int | None = None) -> list[str]:
        """Return the heading and the first `shown` rows, by default all, as people read them."""
        return [
            _markdown_row(column.heading for column in self.visible),
            "|" + "".join(" ---: |" if column.numeric else " --- |" for column in self.visible),
            *map(_markdown_row, self._all_cells[:shown]),
        ]

    def markdown(self) -> str:
        """Return all rows as people read them, below the title if there is one."""
        title = [f"**Table {self.number}. {markdown_text(self.title)}**", ""] if self.title else []
        return "\n".join([*title, *self.markdown_lines(), ""])

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
            *map(_latex_row, self._all_cells),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    values = [row.get(key) for key in column.keys]
    return ABSENT if _is_absent(values[0]) else column.show(*values)


def _is_absent(value: object) -> bool:
    return value is None or value == ()


def _for_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    names = value.names if isinstance(value, RunList) else value
    return list(names) if isinstance(names, tuple) else names


def _exact(value: object) -> object:
    """A CSV's cell: all digits, ISO times, nothing where there is nothing."""
    if isinstance(value, datetime):
        return value.isoformat()
    text = " ".join(value.names) if isinstance(value, RunList) else value
    if isinstance(text, tuple):
        text = "; ".join(map(str, text))
    if isinstance(text, str) and text.startswith(_FORMULA_STARTS):
        return f"'{text}"
    return text


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(markdown_text, cells))} |"


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Parsed = TypeVar("Parsed")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key, in the order in which they come."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def read_rows(
    path: Path,
    where: str,
    columns: Iterable[str],
    parse: Callable[[dict[str, str]], Iterable[Parsed]],
    keys: Callable[[Parsed], Mapping[Hashable, str]],
) -> list[Parsed]:
    """Return what `parse` makes of each row of a CSV file that has a heading.

    `keys` are what no two lines may have in common, each with words for it. Raises `UserError` that
    begins with `where` for a file that is no text, and with the line for what `parse` refuses by a
    `ValueError`, for a key of an earlier line, and for no row.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: cannot be read as UTF-8 text ({error})") from None
    reader = csv.DictReader(text.splitlines(), strict=True, restkey="a value too many", restval="")
    lines: dict[Hashable, int] = {}
    found: list[Parsed] = []
    try:
        for one in (one for row in reader for one in parse(row)):
            for key, words in keys(one).items():
                if lines.setdefault(key, reader.line_num) != reader.line_num:
                    raise ValueError(f"{words} is in line {lines[key]} too: keep one of them")
            found.append(one)
        if not found:
            raise ValueError(f"no row follows: the columns are {','.join(columns)}")
    except (ValueError, csv.Error) as error:
        raise UserError(f"{where}, line {max(reader.line_num, 1)}: {error}") from None
    return found
