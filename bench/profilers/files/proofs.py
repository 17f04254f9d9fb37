"""A second look at a table with doubtful numbers: which decimal mark do the others show?"""

from __future__ import annotations

from bench.profilers.files.numerals import Sure, read_number
from bench.profilers.files.rows import Rows


class Proofs(Rows):
    """Reads every figure of a table, whatever its metric, for what its spelling proves."""

    def _take_long(self, cells: list[str], number: int) -> None:
        self._prove(cells[self.layout.unit], cells[self.layout.value])

    def _take_raw(self, cells: list[str], number: int) -> None:
        for unit, text in zip(self.layout.units, cells, strict=False):
            self._prove(unit, text)

    def _take_summary(self, cells: list[str], number: int) -> None:
        for index in (self.layout.value, *(self.layout.bounds or ())):
            self._prove(cells[self.layout.unit], cells[index])

    def _prove(self, unit: str, text: str) -> None:
        """Note a decimal mark; only figures with a unit are the locale's for certain."""
        if not unit.strip():
            return
        try:
            number = read_number(text)
        except ValueError:
            return
        if isinstance(number, Sure):
            self.table.marks |= {number.mark} - {""}
