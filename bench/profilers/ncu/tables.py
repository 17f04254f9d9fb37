"""Nsight Compute's tables of text, added up row by row.

A table is known by its header. A row may be surrounded by output of the program, go over several
lines within a quoted cell, stop early after its figure, or lack quotes. It is checked when it is
read, so the first row of the file that is wrong is the one refused.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Literal

from bench.profilers.ncu.metrics import DURATION_LABEL, WANTED
from bench.profilers.ncu.numbers import (
    EXACT,
    decided_mean,
    is_base,
    marks_shown,
    read_number,
    unit_power,
)

Form = Literal["long", "summary", "raw"]

_FIGURE = ("Kernel Name", "Metric Name", "Metric Unit")
_BOUNDS = ("Minimum", "Maximum")
#: The columns that each form is known by, besides those of the raw form's metrics.
_KNOWN_BY: Mapping[Form, tuple[str, ...]] = {
    "summary": ("Invocations", *_FIGURE, "Average"),
    "long": ("ID", *_FIGURE, "Metric Value"),
    "raw": ("ID", "Kernel Name"),
}
#: The columns that are read where they are there.
_OPTIONAL = ("Process ID", "CC", "Section Name", *_BOUNDS)
_SECTION = "Speed Of Light"
#: What wanted metrics are sums of: of dram__bytes.avg the report says that it is no sum.
_FAMILIES = frozenset(name.partition(".")[0] for name in WANTED)
_LONGEST_NAME = 200
#: The least columns besides the values that distinguish a row from other text.
_FEWEST = 4
_NUMBER = "[0-9][0-9., \u00a0\u202f]*"
_HEADER = re.compile(r'"(?:Process )?ID",".*|^(?:Process )?ID,.*')
_LIKE_A_ROW = re.compile('"[0-9].*"')
_QUOTED_ROW = re.compile(f'"{_NUMBER}","')
_ROW = re.compile(f'"?{_NUMBER}"?,')
_ROW_WITHIN = re.compile(r'(?<!,)"[0-9]+","[0-9]+","')
_LONGEST_LINE = 64 << 20
#: A quoted cell may hold line ends; one that never closes is a damaged row.
_LONGEST_ROW = 1 << 16
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

#: Kernel, metric, unit as printed, and the separator whose meaning is in doubt, or nothing.
Key = tuple[str, str, str, str]


class RefusedError(ValueError):
    """A file that is refused at `line`, and what to do about it."""

    def __init__(
        self, message: str, line: int = 0, remedy: str = "copy or write the file again"
    ) -> None:
        super().__init__(message)
        self.line = line
        self.remedy = remedy


@dataclass
class Sum:
    """A sum over launches; `line` and `text` show the first of its numbers."""

    line: int
    text: str
    launches: int = 0
    total: Decimal = Decimal()


@lru_cache(maxsize=4096)
def metric_in(text: str) -> str | None:
    """Return the wanted metric that `text` names, by itself or as `Label (name)`, else None."""
    if text.endswith(")"):
        text = text[text.rfind("(") + 1 : -1]
    return text if text in WANTED else None


@lru_cache(maxsize=4096)
def _explaining(text: str) -> str | None:
    """What `text` names of that which helps to explain why a figure is missing."""
    name = metric_in(text) or text[: _LONGEST_NAME + 1]
    known = name.partition(".")[0] in _FAMILIES or name.startswith("flop_count")
    return name if known and len(name) <= _LONGEST_NAME else None


class Table:
    """One table while its rows are read, and what they add up to.

    `marks` are the decimal marks that wanted figures show, `other_marks` those of all figures.
    """

    def __init__(
        self, form: Form, columns: Sequence[str], quoted: bool, seen: set[tuple[object, ...]]
    ) -> None:
        self.form = form
        self.columns = columns
        self.quoted = quoted
        self.awaits_units = form == "raw"
        self.launches: Counter[str] = Counter()
        self.sums: dict[Key, Sum] = {}
        self.names: set[str] = set()
        self.capabilities: set[str] = set()
        self.marks: set[str] = set()
        self.other_marks: set[str] = set()
        wanted = (*_KNOWN_BY[form], *_OPTIONAL)
        read = {name: columns.index(name) for name in wanted if name in columns}
        self._at = read
        self._first = read[_KNOWN_BY[form][0]]
        self._least = len(columns) if form == "raw" else 1 + max(read.values())
        self._units: Sequence[str] = ()  # the raw form's second row
        self._metrics: list[tuple[int, str]] = []  # the raw form's wanted columns
        self._values: list[int] = []  # the columns of figures; of a summary with both bounds
        if form == "raw":
            self._note_names(columns)
            named = ((index, metric_in(name)) for index, name in enumerate(columns))
            self._metrics = [(index, name) for index, name in named if name]
        else:
            bounds = _BOUNDS if form == "summary" and read.keys() >= {*_BOUNDS} else ()
            self._values = [read[name] for name in (_KNOWN_BY[form][-1], *bounds)]
        self._seen = seen
        self._launch: tuple[object, ...] = ()
        self._kernel = ""
        self._figures: dict[str, tuple[str, str]] = {}  # of this launch: text and unit

    # Which lines are rows

    def row_in(self, line: str) -> str:
        """Return the row that `line` is or ends with, or nothing if it is output of the program.

        Raises `RefusedError` for a line that has a row's cells and not its beginning.
        """
        if self.quoted and _QUOTED_ROW.match(line):
            return line
        between = '","' if self.quoted else ","
        if line.count(between) + 1 < max(_FEWEST, self._least // 2):
            return ""
        if _ROW.match(line) or self.awaits_units:
            return line
        if not self.quoted:
            return ""
        if within := _ROW_WITHIN.search(line):
            return line[within.start() :]
        raise RefusedError(f"a damaged row: {line[:60]!r}")

    def _is_open(self, row: str) -> bool:
        """Whether a quoted cell of `row` goes on in the next line."""
        if not self.quoted or row.count('"') % 2 == 0:
            return False
        if self.awaits_units:
            raise RefusedError(f"a damaged row: {row[:60]!r}")
        if len(row) > _LONGEST_ROW:
            raise RefusedError("a quoted cell does not end")
        return True

    def _cells_of(self, row: str) -> list[str]:
        """Return a row's cells, one per column; those that it stops before are empty.

        Raises `RefusedError` if a quote is out of place, or if the row is too short for its figure
        or longer than the header.
        """
        try:
            [cells] = csv.reader([row], strict=True)
        except (csv.Error, ValueError) as error:
            raise RefusedError(f"a damaged row ({error})") from None
        # A comma at the end begins no cell: even an empty one has quotes.
        cells = cells[:-1] if self.quoted and row.endswith(",") else cells
        lacking = len(self.columns) - len(cells)
        if not 0 <= lacking <= len(self.columns) - self._least:
            raise RefusedError(f"the row has {len(cells)} cells, the header {len(self.columns)}")
        return cells + [""] * lacking

    # What rows add up to

    def takes(self, row: str, line: int) -> bool:
        """Add a row, unless a quoted cell of it goes on in the next line.

        Raises `RefusedError` where it cannot be what ncu wrote.
        """
        if self._is_open(row):
            return False
        cells = self._cells_of(row)
        if not self.awaits_units or not self._take_units(cells):
            self._add(cells, line)
        return True

    def _take_units(self, cells: Sequence[str]) -> bool:
        """Take the raw form's row of units; whether `cells` are it, and not the first launch."""
        has_units = not cells[self._first].strip()
        self._units = [cell.strip() if has_units else "" for cell in cells]
        self._values = [index for index, unit in enumerate(self._units) if unit]
        self.awaits_units = False
        return has_units

    def _add(self, cells: list[str], line: int) -> None:
        is_summary = self.form == "summary"
        number = _whole(cells[self._first], "Invocations" if is_summary else "ID")
        self._note_launch(cells, number)
        unit = "" if self.form == "raw" else cells[self._at["Metric Unit"]]
        for index in self._values:
            if not cells[index].isdigit():
                shown_unit = self._units[index] if self.form == "raw" else unit
                self.other_marks |= marks_shown(cells[index], shown_unit)
        for index, metric in self._metrics:
            self._figure(metric, self._units[index], [cells[index]], line)
        if self.form == "raw":
            return
        name = cells[self._at["Metric Name"]]
        self._note_names([name])
        wanted = metric_in(name)
        section = cells[self._at["Section Name"]] if "Section Name" in self._at else _SECTION
        if wanted is None or (wanted == DURATION_LABEL and _SECTION not in section):
            return
        texts = [cells[index] for index in self._values]
        self._figure(wanted, unit, texts, line, number if is_summary else 1)

    def _note_names(self, names: Iterable[str]) -> None:
        self.names |= {name for text in names if (name := _explaining(text))}

    def _note_launch(self, cells: Sequence[str], number: int) -> None:
        """Count a launch, a (process, ID), or a summary's group: all that is before Invocations."""
        kernel = cells[self._at["Kernel Name"]]
        launch: tuple[object, ...]
        if self.form == "summary":
            launch = (*cells[: self._first], kernel)
            again = f"a second group of rows for kernel {kernel[:60]}"
        else:
            process = cells[self._at["Process ID"]].strip(" ") if "Process ID" in self._at else ""
            process = process.lstrip("0") or process  # however it is padded
            launch = (process, number)
            again = f"launch {number} of process {process} appears twice; two runs are two files"
        if launch == self._launch:
            if self.form == "raw" or kernel != self._kernel:
                raise RefusedError(f"a second row for launch {number}")
            return
        if launch in self._seen:
            raise RefusedError(again)
        self._seen.add(launch)
        self._launch, self._kernel, self._figures = launch, kernel, {}
        self.launches[kernel] += number if self.form == "summary" else 1
        if "CC" in self._at:
            self.capabilities.add(cells[self._at["CC"]])

    def _figure(
        self, metric: str, unit: str, texts: Sequence[str], line: int, weight: int = 1
    ) -> None:
        text, *bounds = texts
        if before := self._figures.get(metric):
            if before != (text, unit):
                was = f"{metric} is {before[0]!r} and then {text!r}"
                raise RefusedError(f"{was} for the same launch")
            return
        self._figures[metric] = (text, unit)
        try:
            number = read_number(text)
        except ValueError:
            raise RefusedError(f"{metric}: {text[:40]!r} is not a number that ncu prints") from None
        if number is None:
            return
        power = unit_power(metric, unit)
        if power is None and number.value:
            raise RefusedError(f"{metric}: unknown unit {unit[:20]!r}")
        if number.doubtful and bounds and power is not None:
            number = decided_mean(number, bounds, whole=is_base(metric, unit))
        if number.mark and not number.doubtful:
            self.marks.add(number.mark)
        key = (self._kernel, metric, unit, number.mark if number.doubtful else "")
        found = self.sums.get(key)
        if found is None:
            found = self.sums[key] = Sum(line, text)
        found.launches += weight
        value = number.value if weight == 1 else EXACT.multiply(number.value, Decimal(weight))
        found.total = EXACT.add(found.total, value)

    # What the table's own locale decides

    def settled(self) -> Iterator[tuple[str, str, int, Decimal]]:
        """Yield kernel, metric, launches with a number, and their sum in base units.

        Raises `RefusedError` where a number has two readings and nothing in the table decides.
        """
        marks = self.marks or self.other_marks
        for (kernel, metric, unit, mark), found in self.sums.items():
            decimals = 3 if mark and not self._groups(marks, metric, unit, mark, found) else 0
            power = unit_power(metric, unit) or 0  # a zero is one in any unit
            yield kernel, metric, found.launches, EXACT.scaleb(found.total, power - decimals)

    def _groups(self, marks: set[str], metric: str, unit: str, mark: str, found: Sum) -> bool:
        """Whether `mark` groups thousands in this table, by the marks that other numbers show.

        A sum of bytes, nanoseconds or instructions is whole, so a comma in it groups thousands: no
        locale ends whole numbers with one. A dot in it may be C's mark in a file that something
        rewrote, so it needs proof. A summary's means may be fractions.
        """
        groups = None
        if len(marks) == 1:
            groups = not marks & {mark, " "}
        elif marks == {mark, " "}:
            groups = False
        if is_base(metric, unit) and self.form != "summary":
            groups = True if mark == "," and groups is None else groups or None
        if groups is None:
            whole, fraction = (found.text.replace(mark, to) for to in ("", "."))
            raise RefusedError(
                f"{metric}: {found.text!r} {unit} may mean {whole} or {fraction}, and nothing in "
                "the file decides",
                found.line,
                "write the file again with LC_ALL=C ncu",
            )
        return groups


def _whole(text: str, name: str) -> int:
    try:
        number = read_number(text)
    except ValueError:
        number = None
    if number is None or number.value % 1 or number.value >= 10**12:
        raise RefusedError(f"{name}: {text[:40]!r} is not a whole number")
    return int(number.value)


# Files


def tables_of(path: Path) -> tuple[list[Table], list[str]]:
    """Add up the tables of a file; return them and ncu's `==ERROR==` lines.

    Raises `RefusedError` with the line that cannot be read, and `OSError`.
    """
    tables: list[Table] = []
    errors: list[str] = []
    seen: set[tuple[object, ...]] = set()
    begun, row = 0, ""  # line and text of a row that goes on
    for number, text, is_ended in _lines(path):
        table = tables[-1] if tables else None
        line = begun if row else number
        try:
            is_row = table and not row and text[:1] == '"' and text[1:2].isdigit()
            if not is_row and (header := _table_in(text, seen)):
                if row:
                    raise RefusedError("the file is cut off")
                tables.append(header)
                continue
            row = f"{row}\n{text}" if row else table.row_in(text) if table else ""
            if not row or not table:
                if text.startswith("==ERROR=="):
                    errors.append(text.strip())
                if not is_ended and text.startswith('"'):
                    raise RefusedError("the file is cut off")
            elif table.takes(row, line):
                row = ""
            else:
                begun = line
        except RefusedError as error:
            error.line = line
            raise
    if row:
        raise RefusedError("the file is cut off", begun)
    return tables, errors


def _lines(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Number, text without its end, and whether it has one; PowerShell writes UTF-16."""
    with path.open("rb") as file:
        is_utf16 = file.read(2) in _UTF16
    encoding, errors = ("utf-16", "replace") if is_utf16 else ("utf-8-sig", "backslashreplace")
    with path.open(newline="\n", encoding=encoding, errors=errors) as file:
        number = 0
        while text := file.readline(_LONGEST_LINE):
            number += 1
            if len(text) == _LONGEST_LINE:
                raise RefusedError("a line of 64 MiB: no table of Nsight Compute", number)
            yield number, text.removesuffix("\n").removesuffix("\r"), text.endswith("\n")


def _table_in(line: str, seen: set[tuple[object, ...]]) -> Table | None:
    """The table that begins with `line`, or None if it holds no header.

    A header may follow output of the program that did not end its line, but no row.
    """
    header = None if _LIKE_A_ROW.fullmatch(line) else _HEADER.search(line)
    if header is None:
        return None
    try:
        [cells] = csv.reader([header[0]], strict=True)
    except (csv.Error, ValueError):
        return None
    columns = [cell.strip() for cell in cells]
    form = next((form for form, names in _KNOWN_BY.items() if {*names} <= {*columns}), None)
    return form and Table(form, columns, header[0].startswith('"'), seen)
