"""Nsight Compute's tables of text, added up row by row.

A table is known by its header. A row may be surrounded by output of the program, go on in the next
line or stop after its figure, or lack quotes. It is checked when it is read, so the first row of
the file that is wrong is the one refused.

Numbers are read as the locales C and en_US spell them: a dot is the decimal mark, and commas group
thousands. Any other spelling is refused. `1.234` and `1,234` are numbers in other locales too, a
thousand times as large or small. ncu prints whole numbers in base units, and scaled ones with
decimals: so the dot is refused in a base unit, and the comma in a scaled one.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact
from functools import lru_cache
from pathlib import Path
from typing import Literal

from bench.profilers.ncu.metrics import DURATION_LABEL, WANTED

#: Counters are added up in arithmetic that refuses to round.
EXACT = Context(prec=1000, traps=[Inexact])

_IN_C = "write the file again: LC_ALL=C ncu --import FILE.ncu-rep --csv"


class NcuTableError(ValueError):
    """A file that is refused at `line`, and what to do about it."""

    def __init__(
        self, message: str, line: int = 0, remedy: str = "copy or write the file again"
    ) -> None:
        super().__init__(message)
        self.line = line
        self.remedy = remedy


@dataclass
class MetricTotal:
    """The sum of a metric over those launches that have a number."""

    launches: int = 0
    total: Decimal = Decimal()

    def add(self, launches: int, total: Decimal) -> None:
        """Add the sum over more launches."""
        self.launches += launches
        self.total = EXACT.add(self.total, total)


@dataclass
class ProfileTotals:
    """What some files add up to: launches by kernel, and totals by kernel and metric.

    `chips` are compute capabilities or the chips' names; `names` are the wanted metrics that the
    files name, with a number or without.
    """

    source: str
    files: tuple[str, ...]
    chips: set[str] = field(default_factory=set)
    launches: Counter[str] = field(default_factory=Counter)
    metrics: dict[tuple[str, str], MetricTotal] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, kernel: str, metric: str, launches: int, total: Decimal) -> None:
        """Add a metric of more launches."""
        self.metrics.setdefault((kernel, metric), MetricTotal()).add(launches, total)


# Numbers and units

_MISSING = ("", "n/a", "nan", "-nan", "-nan(ind)", "inf", "-inf")
_SPELLED = re.compile(
    r"[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}"
    r"|(?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)?(?:\.[0-9]+|(?<=[0-9]))"
)
_TWO_MEANINGS = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
#: Units, old spellings and new, with exact powers of ten: Nsight Compute scales by 1000.
_SECONDS = re.compile("(n|u|\u00b5|\u03bc|m|nano|micro|milli|)s(?:ec(?:ond)?s?)?")
_BYTES = re.compile("([kKMGTP]?)(?:[bB]ytes?|B)")
_COUNTS = re.compile("([kKMGTP]?)(?:inst|instructions?|(?:math_)?ops?|flops?|threads?|)")
_POWERS = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "m": -3, "milli": -3}
_POWERS |= {**dict.fromkeys(("u", "\u00b5", "\u03bc", "micro"), -6), "n": -9, "nano": -9}


def _plain(text: str) -> str:
    """What a cell holds without blanks and ncu's mark of a doubtful figure."""
    return text.strip().removeprefix("(!)").strip()


@lru_cache(maxsize=4096)
def read_number(text: str) -> Decimal | None:
    """Return the number that `text` spells, or None for `n/a`, an empty cell and not-a-number.

    Raises `ValueError` for anything else, also for the spelling of another locale.
    """
    plain = _plain(text)
    if len(text) <= 60 and "\n" not in text:  # a cell over two lines is damaged
        if plain.lower() in _MISSING:
            return None
        if _SPELLED.fullmatch(plain):
            return Decimal(plain.replace(",", ""))
    raise ValueError("not a number as ncu prints it in the locale C")


def _is_duration(metric: str) -> bool:
    return "time_duration" in metric or metric == DURATION_LABEL


@lru_cache(maxsize=4096)
def unit_power(metric: str, unit: str) -> int | None:
    """Return the power of ten that turns `unit` into the seconds, bytes or counts of `metric`.

    None if `metric` is not measured in `unit`.
    """
    kind = _SECONDS if _is_duration(metric) else _BYTES if "_bytes" in metric else _COUNTS
    spelled = kind.fullmatch(unit.strip())
    return _POWERS[spelled[1]] if spelled else None


# Tables

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
#: The least columns besides the values that distinguish a row from other text.
_FEWEST = 4
#: In any locale: a row whose ID is spelled otherwise is refused, and not passed over.
_NUMBER = "[0-9][0-9., \u00a0\u202f]*"
_WHOLE = re.compile("[0-9]{1,12}|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,3}")
_HEADER = re.compile(r'"(?:Process )?ID",".*|^(?:Process )?ID,.*')
_LIKE_A_ROW = re.compile('"[0-9].*"')
_QUOTED_ROW = re.compile(f'"{_NUMBER}","')
_ROW = re.compile(f'"?{_NUMBER}"?,')
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@lru_cache(maxsize=4096)
def metric_in(text: str) -> str | None:
    """Return the wanted metric that `text` names, by itself or as `Label (name)`, else None."""
    if text.endswith(")"):
        text = text[text.rfind("(") + 1 : -1]
    return text if text in WANTED else None


class NcuTable:
    """One table while its rows are read; what they add up to goes into `totals`.

    `seen` are the launches of the whole file.
    """

    def __init__(
        self,
        form: Form,
        columns: Sequence[str],
        quoted: bool,
        totals: ProfileTotals,
        seen: set[tuple[object, ...]],
    ) -> None:
        self.form = form
        self.columns = columns
        self.quoted = quoted
        self._awaits_units = form == "raw"
        self._totals = totals
        self._seen = seen
        wanted = (*_KNOWN_BY[form], *_OPTIONAL)
        self._at = {name: columns.index(name) for name in wanted if name in columns}
        self._first = self._at[_KNOWN_BY[form][0]]
        self._least = len(columns) if form == "raw" else 1 + max(self._at.values())
        #: The raw form's columns of metrics: index, unit and the wanted metric, if it is one.
        self._metrics: list[tuple[int, str, str | None]] = []
        self._launch: tuple[object, ...] = ()
        self._kernel = ""
        self._figures: dict[str, tuple[str, str]] = {}  # of this launch: text and unit

    # Which lines are rows

    def takes(self, line: str) -> bool:
        """Add a line that is a row; False if it is output of the program, or goes on with a row.

        Raises `NcuTableError` where it cannot be what ncu wrote.
        """
        if not (row := self._row_in(line)):
            return False
        self._take(self._cells_of(row))
        return True

    def _row_in(self, line: str) -> str:
        """The row that `line` is, or nothing."""
        if self.quoted and _QUOTED_ROW.match(line):
            return line
        if line.count('","' if self.quoted else ",") + 1 < max(_FEWEST, self._least // 2):
            return ""
        if _ROW.match(line) or self._awaits_units:
            return line
        if not self.quoted:
            return ""
        raise NcuTableError(f"a damaged row: {line[:60]!r}")

    def _cells_of(self, row: str) -> list[str]:
        """Return a row's cells, one per column; those that it stops before are empty.

        A cell that goes on in the next line, such as a rule's description, is left out: it is not
        read. Raises `NcuTableError` if a quote is out of place, or if the row is too short for its
        figure or longer than the header.
        """
        while self.quoted and row.count('"') % 2 and row.count(',"') >= self._least:
            row = row.rpartition(',"')[0]
        try:
            [cells] = csv.reader([row], strict=True)
        except (csv.Error, ValueError):
            cells = []
        if not cells or (self.quoted and row.count('"') % 2):
            raise NcuTableError(f"a damaged row: {row[:60]!r}")
        # A comma at the end begins no cell: even an empty one has quotes.
        cells = cells[:-1] if self.quoted and row.endswith(",") else cells
        lacking = len(self.columns) - len(cells)
        if not 0 <= lacking <= len(self.columns) - self._least:
            raise NcuTableError(f"the row has {len(cells)} cells, the header {len(self.columns)}")
        return cells + [""] * lacking

    # What rows add up to

    def _take(self, cells: list[str]) -> None:
        if not self._awaits_units:
            self._add(cells)
            return
        # The raw form's second row has units; without them it is the first launch.
        self._awaits_units = False
        has_units = not cells[self._first].strip()
        units = [cell.strip() if has_units else "" for cell in cells]
        columns = zip(range(len(units)), units, map(metric_in, self.columns), strict=True)
        self._metrics = [column for column in columns if column[2]]
        if not has_units:
            self._add(cells)

    def _add(self, cells: list[str]) -> None:
        is_summary = self.form == "summary"
        number = _whole(cells[self._first], "Invocations" if is_summary else "ID")
        self._note_launch(cells, number)
        for index, unit, metric in self._metrics:
            self._figure(metric, unit, cells[index])
        if self.form == "raw":
            return
        name, unit = cells[self._at["Metric Name"]], cells[self._at["Metric Unit"]].strip()
        metric = metric_in(name)
        if metric == DURATION_LABEL and "Section Name" in self._at:
            metric = metric if _SECTION in cells[self._at["Section Name"]] else None
        text = cells[self._at[_KNOWN_BY[self.form][-1]]]
        self._figure(metric, unit, text, number if is_summary else 1)

    def _note_launch(self, cells: Sequence[str], number: int) -> None:
        """Count a launch, a (process, ID), or a summary's group: all that is before Invocations."""
        kernel = cells[self._at["Kernel Name"]]
        process = cells[self._at["Process ID"]].strip(" ") if "Process ID" in self._at else ""
        process = process.lstrip("0") or process  # however it is padded
        launch: tuple[object, ...] = process, number
        if self.form == "summary":
            launch = (*cells[: self._first], kernel)
        if launch == self._launch:
            if self.form == "raw" or kernel != self._kernel:
                raise NcuTableError(f"a second row for launch {number}")
            return
        if launch in self._seen:
            what = f"kernel {kernel[:60]}" if self.form == "summary" else f"launch {number}"
            raise NcuTableError(
                f"{what} of process {process} appears twice; two runs are two files"
            )
        self._seen.add(launch)
        self._launch, self._kernel, self._figures = launch, kernel, {}
        self._totals.launches[kernel] += number if self.form == "summary" else 1
        if "CC" in self._at:
            self._totals.chips.add(cells[self._at["CC"]])

    def _figure(self, metric: str | None, unit: str, text: str, weight: int = 1) -> None:
        """Add a figure of a wanted metric."""
        if metric is None:
            return
        if before := self._figures.get(metric):
            if before != (text, unit):
                raise NcuTableError(
                    f"{metric} is {before[0]!r} and then {text!r} for the same launch"
                )
            return
        try:
            number = read_number(text)
        except ValueError as error:
            raise NcuTableError(f"{metric}: {text[:40]!r} is {error}", 0, _IN_C) from None
        self._figures[metric] = (text, unit)
        self._totals.names.add(metric)
        if number is None:
            return
        power = unit_power(metric, unit)
        if power is None and number:
            raise NcuTableError(f"{metric}: unknown unit {unit[:20]!r}")
        is_base = power == (-9 if _is_duration(metric) else 0)
        if _TWO_MEANINGS.fullmatch(plain := _plain(text)) and ("." in plain) == is_base:
            whole, fraction = (re.sub("[.,]", mark, plain) for mark in ("", "."))
            message = f"{metric}: {plain!r} {unit} may mean {whole} or {fraction}"
            raise NcuTableError(message, remedy=_IN_C)
        # A zero is one in any unit.
        value = EXACT.scaleb(EXACT.multiply(number, Decimal(weight)), power or 0)
        self._totals.add(self._kernel, metric, weight, value)


def _whole(text: str, name: str) -> int:
    """An ID or a count, in which a dot would group thousands."""
    if not _WHOLE.fullmatch(text.strip()):
        raise NcuTableError(f"{name}: {text[:40]!r} is not a whole number", remedy=_IN_C)
    return int(text.replace(",", ""))


# Files


def add_tables(path: Path, totals: ProfileTotals) -> tuple[bool, list[str]]:
    """Add up the tables of a file; return whether there is one, and ncu's `==ERROR==` lines.

    Raises `NcuTableError` with the line that cannot be read, and `OSError`.
    """
    table: NcuTable | None = None
    errors: list[str] = []
    seen: set[tuple[object, ...]] = set()
    for number, text, is_ended in _lines(path):
        try:
            if header := _table_in(text, totals, seen):
                table = header
            elif not (table and table.takes(text)):
                if text.startswith("==ERROR=="):
                    errors.append(text.strip())
                if not is_ended and text.startswith('"'):
                    raise NcuTableError("the file is cut off")
        except NcuTableError as error:
            error.line = error.line or number
            raise
    return table is not None, errors


def _lines(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Number, text without its end, and whether it has one; PowerShell writes UTF-16."""
    with path.open("rb") as file:
        is_utf16 = file.read(2) in _UTF16
    encoding, errors = ("utf-16", "replace") if is_utf16 else ("utf-8-sig", "backslashreplace")
    with path.open(newline="\n", encoding=encoding, errors=errors) as file:
        for number, text in enumerate(file, 1):
            yield number, text.removesuffix("\n").removesuffix("\r"), text.endswith("\n")


def _table_in(line: str, totals: ProfileTotals, seen: set[tuple[object, ...]]) -> NcuTable | None:
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
    for form, names in _KNOWN_BY.items():
        if {*names} <= {*columns}:
            return NcuTable(form, columns, header[0].startswith('"'), totals, seen)
    return None
