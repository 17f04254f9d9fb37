"""From a file of Nsight Compute to the totals of its tables, row by row.

A row is checked when it is read, so the first row of the file that is wrong is the one refused.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from bench.errors import UserError
from bench.profilers.ncu.metrics import DURATION_LABEL
from bench.profilers.ncu.numbers import (
    EXACT,
    decided_mean,
    is_base,
    is_unit,
    marks_shown,
    read_number,
    unit_power,
)
from bench.profilers.ncu.rows import (
    DamagedRowError,
    Form,
    Layout,
    cells_of,
    explaining_names,
    header_in,
    is_open,
    metric_in,
    row_in,
)

_LONGEST_LINE = 64 << 20
_MOST_ERRORS = 3
_LONGEST_ERROR = 300
_SECTION = "Speed Of Light"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


#: Kernel, metric, unit as printed, and the separator whose meaning is in doubt, or nothing.
Key = tuple[str, str, str, str]


class RefusedError(Exception):
    """A file that is refused at `line`."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class DoubtfulError(RefusedError):
    """A number of two readings, by the locale in which it may have been written."""


@dataclass
class Sum:
    """A sum over launches; `line` and `text` show the first of numbers of two readings."""

    line: int
    text: str
    launches: int = 0
    whole: int = 0  # of the numbers that are digits alone
    rest: Decimal = Decimal()

    @property
    def total(self) -> Decimal:
        """Of all numbers."""
        return EXACT.add(self.rest, Decimal(self.whole))


@dataclass
class TableTotals:
    """What a table adds up to; `other_marks` are shown by figures that nobody asked for."""

    form: Form
    launches: Counter[str] = field(default_factory=Counter)
    sums: dict[Key, Sum] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    capabilities: set[str] = field(default_factory=set)
    marks: set[str] = field(default_factory=set)
    other_marks: set[str] = field(default_factory=set)

    def add(self, key: Key, value: Decimal | int, weight: int, line: int, text: str) -> None:
        """Add one figure, which counts `weight` times."""
        one = self.sums.get(key)
        if one is None:
            one = self.sums[key] = Sum(line, text)
        one.launches += weight
        if isinstance(value, int):
            one.whole += value * weight
        else:
            one.rest = EXACT.add(one.rest, EXACT.multiply(value, Decimal(weight)))

    def settled(self) -> Iterator[tuple[str, str, int, Decimal]]:
        """Yield kernel, metric, launches with a number, and their sum in base units.

        Raises `RefusedError` where a number has two readings and nothing in the table decides.
        """
        if not self.marks and any(mark for *_, mark in self.sums):
            self.marks |= self.other_marks
        for (kernel, metric, unit, mark), one in self.sums.items():
            decimals = 3 if mark and not self._groups_thousands(metric, unit, mark, one) else 0
            power = unit_power(metric, unit) if one.total else 0  # a zero is one in any unit
            yield kernel, metric, one.launches, EXACT.scaleb(one.total, power - decimals)

    def _groups_thousands(self, metric: str, unit: str, mark: str, one: Sum) -> bool:
        """Whether `mark` groups thousands in this table.

        Other numbers of the table show it. Besides, a sum of bytes, nanoseconds or instructions is
        whole, so a comma in it groups thousands: no locale ends whole numbers with one. A dot in
        it may be C's mark in a file that something rewrote, so it needs proof. A summary's means
        may be fractions.
        """
        shown = None
        if len(self.marks) == 1:
            shown = not self.marks & {mark, " "}
        elif self.marks == {mark, " "}:
            shown = False
        if is_base(metric, unit) and self.form != "summary":
            shown = True if mark == "," and shown is None else shown or None
        if shown is None:
            whole, fraction = (one.text.replace(mark, to) for to in ("", "."))
            message = f"{metric}: {one.text!r} {unit} may mean {whole} or {fraction}"
            raise DoubtfulError(one.line, f"{message}, and nothing in the file decides")
        return shown


@dataclass
class NcuCsv:
    """The tables of a file and, for one without any, what ncu's `==ERROR==` lines say."""

    tables: list[TableTotals] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def scan(path: Path) -> NcuCsv:
    """Add up the tables of a file.

    Raises `RefusedError` with the line that cannot be read, `UserError` and `OSError`.
    """
    return _Scan(path).run()


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
                raise UserError(f"{path}: a line of 64 MiB: no table of Nsight Compute")
            yield number, text.removesuffix("\n").removesuffix("\r"), text.endswith("\n")


class _Scan:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = NcuCsv()
        self._seen: set[tuple[object, ...]] = set()
        self._open: tuple[int, str] | None = None  # line and text of a row that goes on
        self._table: _Table | None = None

    def run(self) -> NcuCsv:
        """Read all lines."""
        for number, text, is_ended in _lines(self._path):
            line = self._open[0] if self._open else number
            try:
                in_table = self._table is not None and not self._open
                is_row = in_table and text[:1] == '"' and text[1:2].isdigit()
                if not is_row and (layout := header_in(text)):
                    self._refuse_open_row()
                    self._table = _Table(layout, self._seen)
                    self._found.tables.append(self._table.totals)
                    continue
                is_row = self._look(text, line)
                if not is_row and not is_ended and text.startswith('"'):
                    raise DamagedRowError("the file is cut off")
            except DamagedRowError as error:
                raise RefusedError(line, str(error)) from None
        self._refuse_open_row()
        return self._found

    def _refuse_open_row(self) -> None:
        if self._open:
            raise RefusedError(self._open[0], "the file is cut off")

    def _look(self, text: str, line: int) -> bool:
        """Read a line that may be a row, or a part of one; return whether it is."""
        table = self._table
        row = ""
        if table is not None:
            row = f"{self._open[1]}\n{text}" if self._open else row_in(text, table.layout)
        if table is None or not row:
            if text.startswith("==ERROR==") and len(self._found.errors) < _MOST_ERRORS:
                self._found.errors.append(text.strip()[:_LONGEST_ERROR])
            return False
        layout = table.layout
        if is_open(row, layout):
            if layout.awaits_units:
                raise DamagedRowError(f"a damaged row: {row[:60]!r}")
            self._open = (line, row)
            return True
        cells, self._open = cells_of(row, layout), None
        if layout.awaits_units:
            has_units = not cells[layout.first].strip()
            table.layout = layout.with_units(cells if has_units else [])
            return has_units or self._look(text, line)
        table.add(cells, line)
        return True


class _Table:
    """One table, while its rows are read."""

    def __init__(self, layout: Layout, seen: set[tuple[object, ...]]) -> None:
        self.layout = layout
        self.totals = TableTotals(layout.form)
        self._seen = seen
        self._launch: tuple[object, ...] = ()
        self._kernel = ""
        self._figures: dict[str, tuple[str, str]] = {}  # of this launch: text and unit
        self._wanted: dict[str, str | None] = {}
        if layout.form == "raw":
            self.totals.names |= explaining_names(layout.columns)

    def add(self, cells: list[str], line: int) -> None:
        """Add a row. Raises `DamagedRowError` where it cannot be what ncu wrote."""
        where, form = self.layout.where, self.layout.form
        cells += [""] * (len(self.layout.columns) - len(cells))
        number = _whole(cells[self.layout.first], "Invocations" if form == "summary" else "ID")
        self._note_launch(cells, number)
        if form == "raw":
            for index, metric in self.layout.metrics:
                self._figure(metric, self.layout.units[index], cells[index], line)
            self._note_marks(cells, self.layout.units)
            return
        unit = cells[where["Metric Unit"]]
        self._note_marks(cells, dict.fromkeys(self.layout.values, unit))
        named = self._metric(cells[where["Metric Name"]])
        if named is None:
            return
        section = cells[where["Section Name"]] if "Section Name" in where else _SECTION
        if named == DURATION_LABEL and _SECTION not in section:
            return
        value, *bounds = (cells[index] for index in self.layout.values)
        self._figure(named, unit, value, line, number if form == "summary" else 1, bounds)

    def _note_launch(self, cells: list[str], number: int) -> None:
        where, form = self.layout.where, self.layout.form
        kernel = cells[where["Kernel Name"]]
        if form == "summary":
            launch: tuple[object, ...] = tuple(cells[index] for index in self.layout.launch)
            again = f"a second group of rows for kernel {kernel[:60]}"
        else:
            process = _process(cells[where["Process ID"]]) if "Process ID" in where else ""
            launch = (process, number)
            again = f"launch {number} of process {process} appears twice; two runs are two files"
        if launch == self._launch:
            if form == "raw" or kernel != self._kernel:
                raise DamagedRowError(f"a second row for launch {number}")
            return
        if launch in self._seen:
            raise DamagedRowError(again)
        self._seen.add(launch)
        self._launch, self._kernel, self._figures = launch, kernel, {}
        self.totals.launches[kernel] += number if form == "summary" else 1
        if "CC" in where:
            self.totals.capabilities.add(cells[where["CC"]])

    def _note_marks(self, cells: list[str], units: Sequence[str] | Mapping[int, str]) -> None:
        for index in self.layout.values:
            if not cells[index].isdigit():
                self.totals.other_marks |= marks_shown(cells[index], units[index])

    def _metric(self, name: str) -> str | None:
        if name not in self._wanted:
            self.totals.names |= explaining_names([name])
            self._wanted[name] = metric_in(name)
        return self._wanted[name]

    def _figure(
        self,
        metric: str,
        unit: str,
        text: str,
        line: int,
        weight: int = 1,
        bounds: Sequence[str] = (),
    ) -> None:
        before = self._figures.get(metric)
        if before is not None:
            if before != (text, unit):
                was = f"{metric} is {before[0]!r} and then {text!r}"
                raise DamagedRowError(f"{was} for the same launch")
            return
        self._figures[metric] = (text, unit)
        if text.isdigit() and text.isascii() and len(text) < 40 and is_unit(metric, unit):
            self.totals.add((self._kernel, metric, unit, ""), int(text), weight, line, text)
            return
        try:
            number = read_number(text)
        except ValueError:
            raise DamagedRowError(
                f"{metric}: {text[:40]!r} is not a number that ncu prints"
            ) from None
        if number is None:
            return
        if not is_unit(metric, unit) and number.value:
            raise DamagedRowError(f"{metric}: unknown unit {unit[:20]!r}")
        if number.doubtful and bounds and is_unit(metric, unit):
            number = decided_mean(number, bounds, whole=is_base(metric, unit))
        if number.mark and not number.doubtful:
            self.totals.marks.add(number.mark)
        key = (self._kernel, metric, unit, number.mark if number.doubtful else "")
        self.totals.add(key, number.value, weight, line, text)


def _whole(text: str, name: str) -> int:
    try:
        number = read_number(text)
    except ValueError:
        number = None
    if number is None or number.value % 1 or number.value >= 10**12:
        raise DamagedRowError(f"{name}: {text[:40]!r} is not a whole number")
    return int(number.value)


def _process(text: str) -> int | str:
    """A process by its number, however that is padded."""
    text = text.strip(" ")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text
