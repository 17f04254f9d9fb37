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
    OtherLocaleError,
    is_base,
    read_number,
    unit_power,
)

Form = Literal["long", "summary", "raw"]

_FIGURE = ("Kernel Name", "Metric Name", "Metric Unit")
#: The columns that each form is known by, besides those of the raw form's metrics.
_KNOWN_BY: Mapping[Form, tuple[str, ...]] = {
    "summary": ("Invocations", *_FIGURE, "Average"),
    "long": ("ID", *_FIGURE, "Metric Value"),
    "raw": ("ID", "Kernel Name"),
}
#: The columns that are read where they are there.
_OPTIONAL = ("Process ID", "CC", "Section Name")
_SECTION = "Speed Of Light"
#: What wanted metrics are sums of: of dram__bytes.avg the report says that it is no sum.
_FAMILIES = frozenset(name.partition(".")[0] for name in WANTED)
_LONGEST_NAME = 200
#: The least columns besides the values that distinguish a row from other text.
_FEWEST = 4
#: In any locale: a row whose ID is spelled otherwise is refused, and not passed over.
_NUMBER = "[0-9][0-9., \u00a0\u202f]*"
_WHOLE = re.compile("[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+")
_MOST_DIGITS = 12
_HEADER = re.compile(r'"(?:Process )?ID",".*|^(?:Process )?ID,.*')
_LIKE_A_ROW = re.compile('"[0-9].*"')
_QUOTED_ROW = re.compile(f'"{_NUMBER}","')
_ROW = re.compile(f'"?{_NUMBER}"?,')
_ROW_WITHIN = re.compile(r'(?<!,)"[0-9]+","[0-9]+","')
_LONGEST_LINE = 64 << 20
#: A quoted cell may hold line ends; one that never closes is a damaged row.
_LONGEST_ROW = 1 << 16
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

_IN_C = "write the file again: LC_ALL=C ncu --import FILE.ncu-rep --csv"


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
    """A sum over the launches that have a number."""

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


class NcuTable:
    """One table while its rows are read, and what they add up to.

    `sums` goes by kernel, metric and its unit's power of ten.
    """

    def __init__(
        self, form: Form, columns: Sequence[str], quoted: bool, seen: set[tuple[object, ...]]
    ) -> None:
        self.form = form
        self.columns = columns
        self.quoted = quoted
        self.awaits_units = form == "raw"
        self.launches: Counter[str] = Counter()
        self.sums: dict[tuple[str, str, int], Sum] = {}
        self.names: set[str] = set()
        self.capabilities: set[str] = set()
        self._shows_mark = False
        self._doubt: RefusedError | None = None  # at the first number of two readings
        wanted = (*_KNOWN_BY[form], *_OPTIONAL)
        read = {name: columns.index(name) for name in wanted if name in columns}
        self._at = read
        self._first = read[_KNOWN_BY[form][0]]
        self._least = len(columns) if form == "raw" else 1 + max(read.values())
        self._units: Sequence[str] = ()  # the raw form's second row
        self._metrics: list[tuple[int, str]] = []  # the raw form's wanted columns
        self._values: list[int] = []  # the columns of figures
        if form == "raw":
            self._note_names(columns)
            named = ((index, metric_in(name)) for index, name in enumerate(columns))
            self._metrics = [(index, name) for index, name in named if name]
        else:
            self._values = [read[_KNOWN_BY[form][-1]]]
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
            if not cells[index].isdigit() and (self.form == "raw" or unit.strip()):
                self._note_locale(cells[index])
        for index, metric in self._metrics:
            self._figure(metric, self._units[index], cells[index], line)
        if self.form == "raw":
            return
        name = cells[self._at["Metric Name"]]
        self._note_names([name])
        wanted = metric_in(name)
        section = cells[self._at["Section Name"]] if "Section Name" in self._at else _SECTION
        if wanted is None or (wanted == DURATION_LABEL and _SECTION not in section):
            return
        text = cells[self._values[0]]
        self._figure(wanted, unit, text, line, number if is_summary else 1)

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

    def _note_locale(self, text: str) -> None:
        """Look at how a figure with a unit is spelled: those without one are alike anywhere."""
        try:
            number = read_number(text)
        except OtherLocaleError as error:
            raise RefusedError(f"{text[:40]!r}: {error}", remedy=_IN_C) from None
        except ValueError:
            return
        self._shows_mark |= number is not None and number.shows_mark

    def _figure(self, metric: str, unit: str, text: str, line: int, weight: int = 1) -> None:
        if before := self._figures.get(metric):
            if before != (text, unit):
                was = f"{metric} is {before[0]!r} and then {text!r}"
                raise RefusedError(f"{was} for the same launch")
            return
        self._figures[metric] = (text, unit)
        try:
            number = read_number(text)
        except ValueError as error:
            raise RefusedError(f"{metric}: {text[:40]!r} is {error}", remedy=_IN_C) from None
        if number is None:
            return
        power = unit_power(metric, unit)
        if power is None and number.value:
            raise RefusedError(f"{metric}: unknown unit {unit[:20]!r}")
        self._shows_mark |= number.shows_mark
        if number.doubtful:
            self._note_doubt(metric, unit, text, line)
        key = (self._kernel, metric, power or 0)  # a zero is one in any unit
        result = self.sums.get(key)
        if result is None:
            result = self.sums[key] = Sum()
        result.launches += weight
        value = number.value if weight == 1 else EXACT.multiply(number.value, Decimal(weight))
        result.total = EXACT.add(result.total, value)

    def _note_doubt(self, metric: str, unit: str, text: str, line: int) -> None:
        """Note a number of two readings. A launch's sum in a base unit is whole.

        So a comma in it groups thousands, as no locale ends whole numbers with one. A dot in it is
        refused even where the table shows the mark: what printed it was not C. A summary's means
        may be fractions.
        """
        is_whole = is_base(metric, unit) and self.form != "summary"
        if is_whole and "," in text:
            return
        whole, fraction = (re.sub("[.,]", to, text.strip()) for to in ("", "."))
        message = f"{metric}: {text!r} {unit} may mean {whole} or {fraction}"
        doubt = RefusedError(f"{message}, and nothing in the file decides", line, _IN_C)
        if is_whole:
            raise doubt
        self._doubt = self._doubt or doubt

    def settled(self) -> Iterator[tuple[str, str, int, Decimal]]:
        """Yield kernel, metric, launches with a number, and their sum in base units.

        Raises `RefusedError` where a number has two readings and nothing in the table decides.
        """
        if self._doubt and not self._shows_mark:
            raise self._doubt
        for (kernel, metric, power), result in self.sums.items():
            yield kernel, metric, result.launches, EXACT.scaleb(result.total, power)


def _whole(text: str, name: str) -> int:
    """An ID or a count, in which a dot would group thousands."""
    digits = text.strip().replace(",", "")
    is_number = _WHOLE.fullmatch(text.strip())
    if not is_number or len(digits) > _MOST_DIGITS:
        raise RefusedError(f"{name}: {text[:40]!r} is not a whole number", remedy=_IN_C)
    return int(digits)


# Files


def tables_of(path: Path) -> tuple[list[NcuTable], list[str]]:
    """Add up the tables of a file; return them and ncu's `==ERROR==` lines.

    Raises `RefusedError` with the line that cannot be read, and `OSError`.
    """
    tables: list[NcuTable] = []
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


def _table_in(line: str, seen: set[tuple[object, ...]]) -> NcuTable | None:
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
    return form and NcuTable(form, columns, header[0].startswith('"'), seen)
