"""Rows of a table, one at a time and with every irregularity that a row may have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bench.profilers.files.cells import DamagedRowError, cells_of, is_open, row_in
from bench.profilers.files.layout import Layout, metric_in, telling_name
from bench.profilers.files.metrics import DURATION_LABEL
from bench.profilers.files.numerals import Unsure, between
from bench.profilers.files.units import is_base

if TYPE_CHECKING:
    from bench.profilers.files.launches import Launches
    from bench.profilers.files.table import Table

_INTEGER = re.compile("[0-9]+ *|[0-9]{1,3}(?:[ .,\u00a0\u202f][0-9]{3})+")
_LONGEST_INTEGER = 18
_SECTION = "Speed Of Light"
#: A quoted cell may hold line ends; one that never closes is a damaged row.
_LONGEST_ROW = 1 << 16


class Rows:
    """Adds the rows of one table to it. A row may go over several lines, so it keeps a state."""

    def __init__(self, table: Table, layout: Layout, launches: Launches) -> None:
        self.table = table
        self.layout = layout
        self._launches = launches
        self._open: tuple[object, str] | None = None  # the launch or group being read, its kernel
        self._figures: dict[str, tuple[str, str]] = {}  # of the open one: metric -> unit, text
        self._begun = ""
        self._begun_at = 0
        self.read_up_to = 0  # the last line that was a row

    @property
    def within_row(self) -> bool:
        """Whether a row has begun and not ended."""
        return bool(self._begun)

    def feed(self, line: str, number: int) -> None:
        """Take the next line of the file, whose number it is; what is no row is passed over.

        Raises `UserError` naming the line if it is a damaged row.
        """
        begin = self._begun_at if self._begun else number
        try:
            row = self._row_in(line)
            if not row:
                return
            self.read_up_to = number
            self._begun, self._begun_at = "", begin
            if not is_open(row, self.layout):
                self._take(cells_of(row, self.layout), begin)
            elif len(row) > _LONGEST_ROW:
                raise DamagedRowError("a quoted cell does not end")
            else:
                self._begun = row
        except DamagedRowError as error:
            raise self.table.refusal(begin, str(error)) from None

    def end(self) -> None:
        """Say that the table ends; raises `UserError` if it does so within a row."""
        if self._begun:
            raise self.table.refusal(self._begun_at, "the row is cut off")

    def leave(self) -> None:
        """Forget the open launch: the rows that followed it were read by columns."""
        self._open = None

    def is_noise(self, line: str) -> bool:
        """Whether `line`, unless it goes on with a row before it, is none of the table's."""
        try:
            return not row_in(line, self.layout, awaits_units=self.awaits_units)
        except DamagedRowError:
            return False

    def _row_in(self, line: str) -> str:
        if self._begun:
            return f"{self._begun}\n{line}"
        return row_in(line, self.layout, awaits_units=self.awaits_units)

    @property
    def awaits_units(self) -> bool:
        """Whether the next row names the units."""
        return self.layout.form == "raw" and not self.layout.units

    def _take(self, cells: list[str], number: int) -> None:
        if self.awaits_units:
            self.layout = self.layout.with_units(cells)
            if not cells[self.layout.first].strip():
                return
            self.layout = self.layout.with_units([])
        getattr(self, f"_take_{self.layout.form}")(cells, number)

    def _take_long(self, cells: list[str], number: int) -> None:
        layout = self.layout
        kernel = cells[layout.kernel]
        self._enter(cells, kernel, number)
        metric = self._noted(cells)
        if metric and self._is_new(metric, cells[layout.unit], cells[layout.value], number):
            self.table.add_text(kernel, metric, cells[layout.unit], cells[layout.value], number)

    def _take_raw(self, cells: list[str], number: int) -> None:
        layout, kernel = self.layout, cells[self.layout.kernel]
        self._enter(cells, kernel, number)
        for index, metric in layout.metrics:
            if self._is_new(metric, layout.units[index], cells[index], number):
                self.table.add_text(kernel, metric, layout.units[index], cells[index], number)

    def _take_summary(self, cells: list[str], number: int) -> None:
        layout, kernel = self.layout, cells[self.layout.kernel]
        launches = self._integer(cells[layout.first], "Invocations", number)
        group = tuple(cells[: layout.first])
        if self._open != (group, kernel):
            self._open, self._figures = (group, kernel), {}
            if not self._launches.add_group(group):
                raise self.table.refusal(number, f"a second group of rows for kernel {kernel[:60]}")
            self._count(cells, kernel, launches)
        unit, text = cells[layout.unit], cells[layout.value]
        metric = self._noted(cells)
        if metric is None or not self._is_new(metric, unit, text, number):
            return
        mean = self.table.number(metric, unit, text, number)
        if isinstance(mean, Unsure) and layout.bounds:
            low, high = (cells[index] for index in layout.bounds)
            mean = between(mean, low, high, whole=is_base(metric, unit))
        if mean is not None:
            self.table.add_number(kernel, metric, unit, mean, text, number, launches)

    def _enter(self, cells: list[str], kernel: str, number: int) -> None:
        """Note which launch a row belongs to: (Process ID, ID) tells it from all others."""
        layout = self.layout
        process = _process(cells[layout.process]) if layout.process is not None else ""
        launch = (process, self._integer(cells[layout.first], "ID", number))
        if layout.form == "long" and self._open == (launch, kernel):
            return
        if self._open and self._open[0] == launch:
            raise self.table.refusal(number, f"a second row for launch {launch[1]}")
        self._open, self._figures = (launch, kernel), {}
        if not self._launches.add(process, launch[1], launch[1]):
            raise self.table.refusal(
                number,
                f"launch {launch[1]} of process {process} appears twice; two runs are two files",
            )
        self._count(cells, kernel, 1)

    def _count(self, cells: list[str], kernel: str, launches: int) -> None:
        self.table.launches[kernel] += launches
        if self.layout.capability is not None:
            self.table.capabilities.add(cells[self.layout.capability])

    def _is_new(self, metric: str, unit: str, text: str, number: int) -> bool:
        """Whether the open launch had no figure for `metric` yet; two unlike ones are refused."""
        if metric not in self._figures:
            self._figures[metric] = (unit, text)
            return True
        before = self._figures[metric]
        if before != (unit, text):
            raise self.table.refusal(
                number, f"{metric} is {before[1]!r} and then {text!r} for the same launch"
            )
        return False

    def _noted(self, cells: list[str]) -> str | None:
        """The wanted metric that the row names; a name that explains an absence is kept too."""
        text, section = cells[self.layout.name], self.layout.section
        if name := telling_name(text):
            self.table.names.add(name)
        metric = metric_in(text)
        if metric == DURATION_LABEL and (section is None or _SECTION not in cells[section]):
            return None
        return metric

    def _integer(self, text: str, column: str, number: int) -> int:
        if len(text) > _LONGEST_INTEGER or not _INTEGER.fullmatch(text):
            raise self.table.refusal(number, f"{column}: {text[:40]!r} is not a whole number")
        return int(re.sub("[^0-9]", "", text))


def _process(text: str) -> int | str:
    """A process as the columns' reader names it too, which takes `" 12"` for 12."""
    text = text.strip(" ")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else text
