"""Nsight Compute's tables of text: their forms, known by the header, and single rows.

A row may be surrounded by output of the program, go over several lines within a quoted cell, stop
early after its figure, or lack quotes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from bench.profilers.ncu.metrics import WANTED

Form = Literal["long", "summary", "raw"]

_IDENTITY = ("Process ID", "Kernel Name", "CC")
_FIGURE = ("Section Name", "Metric Name", "Metric Unit")
#: The columns that each form is known and read by, besides those of the raw form's metrics.
_COLUMNS: Mapping[Form, tuple[str, ...]] = {
    "long": ("ID", *_IDENTITY, *_FIGURE, "Metric Value"),
    "summary": ("Invocations", *_IDENTITY, *_FIGURE, "Average", "Minimum", "Maximum"),
    "raw": ("ID", *_IDENTITY),
}
_OPTIONAL = {"Process ID", "CC", "Section Name", "Minimum", "Maximum"}
#: What wanted metrics are sums of: of dram__bytes.avg the report says that it is no sum.
_FAMILIES = frozenset(name.partition(".")[0] for name in WANTED)
_LONGEST_NAME = 200
#: The least columns besides the values that distinguish a row from other text.
_FEWEST = 4
#: What the first cell of a row holds.
NUMBER = "[0-9][0-9., \u00a0\u202f]*"
_LIKE_A_ROW = re.compile('"[0-9].*"')
_QUOTED_ROW = re.compile(f'"{NUMBER}","')
_ROW = re.compile(f'"?{NUMBER}"?,')
_ROW_WITHIN = re.compile(r'(?<!,)"[0-9]+","[0-9]+","')
#: A quoted cell may hold line ends; one that never closes is a damaged row.
_LONGEST_ROW = 1 << 16


@dataclass(frozen=True)
class Layout:
    """A table's columns; `where` are those that it is read by.

    `units`, the raw form's second row, is empty until it is read.
    """

    form: Form
    columns: tuple[str, ...]
    where: Mapping[str, int]
    units: tuple[str, ...] = ()
    quoted: bool = True

    @property
    def first(self) -> int:
        """The column of the ID, or of a summary's Invocations."""
        return self.where[_COLUMNS[self.form][0]]

    @cached_property
    def metrics(self) -> tuple[tuple[int, str], ...]:
        """The wanted columns of the raw form, and their metrics."""
        named = ((index, metric_in(name)) for index, name in enumerate(self.columns))
        return tuple((index, name) for index, name in named if name and self.form == "raw")

    @cached_property
    def values(self) -> tuple[int, ...]:
        """The columns of figures, wanted or not; of a summary the mean, and both bounds or none."""
        if self.form == "raw":
            return tuple(index for index, unit in enumerate(self.units) if unit)
        if self.form == "long":
            return (self.where["Metric Value"],)
        names = ("Average", "Minimum", "Maximum")
        values = tuple(self.where[name] for name in names if name in self.where)
        return values if len(values) == len(names) else values[:1]

    @cached_property
    def figures(self) -> tuple[int, ...]:
        """Those of `values` that sums are made of."""
        return tuple(index for index, _ in self.metrics) if self.form == "raw" else self.values

    @cached_property
    def least_cells(self) -> int:
        """Cells that a row with a figure has at least: after the figure it may stop early."""
        return len(self.columns) if self.form == "raw" else 1 + max(self.where.values())

    @cached_property
    def likely_row_cells(self) -> int:
        """Cells from which on a line is taken for a row, whole or damaged, and not for output."""
        return max(_FEWEST, self.least_cells // 2)

    @property
    def awaits_units(self) -> bool:
        """Whether the next row names the units."""
        return self.form == "raw" and not self.units

    @cached_property
    def launch(self) -> tuple[int, ...]:
        """The columns by which a launch, or a summary's group of launches, differs from the next.

        A launch is a (Process ID, ID); a group, all that comes before Invocations.
        """
        if self.form == "summary":
            return (*range(self.first), self.where["Kernel Name"])
        process = self.where.get("Process ID")
        return (self.first,) if process is None else (process, self.first)

    def with_units(self, cells: list[str]) -> Layout:
        """The layout with the raw form's row of units."""
        padded = [*cells, *[""] * len(self.columns)]
        return replace(self, units=tuple(cell.strip() for cell in padded[: len(self.columns)]))


def header_in(line: str) -> Layout | None:
    """Return the layout that `line` begins, or None if it holds no header.

    A header may follow output of the program that did not end its line, but no row.
    """
    if _LIKE_A_ROW.fullmatch(line):
        return None
    begin = line.find('"ID","')
    if begin < 0 and '"Invocations"' in line:
        begin = line.find('"Process ID","')
    if begin < 0 and line.startswith(("ID,", "Process ID,")):
        begin = 0
    if begin < 0:
        return None
    try:
        [cells] = csv.reader([line[begin:]], strict=True)
    except (csv.Error, ValueError):
        return None
    columns = tuple(cell.strip() for cell in cells)
    forms: Iterable[Form] = ("summary", "long", "raw")
    for form in forms:
        where = {name: columns.index(name) for name in _COLUMNS[form] if name in columns}
        if set(_COLUMNS[form]) - where.keys() <= _OPTIONAL:
            return Layout(form, columns, where, quoted=line[begin] == '"')
    return None


def metric_in(text: str) -> str | None:
    """Return the wanted metric that `text` names, by itself or as `Label (name)`, else None."""
    if text.endswith(")"):
        text = text[text.rfind("(") + 1 : -1]
    return text if text in WANTED else None


def explaining_names(texts: Iterable[str]) -> set[str]:
    """Return what `texts` name of that which helps to explain why a figure is missing."""
    return {name for text in texts if len(text) <= _LONGEST_NAME and (name := _explaining(text))}


@lru_cache(maxsize=4096)
def _explaining(text: str) -> str | None:
    name = metric_in(text) or text
    return name if name.partition(".")[0] in _FAMILIES or name.startswith("flop_count") else None


class DamagedRowError(ValueError):
    """A row that cannot be what ncu wrote; the text says why."""


def row_in(line: str, layout: Layout) -> str:
    """Return the row that `line` is or ends with, or nothing if it is output of the program.

    Raises `DamagedRowError` for a line that has a row's cells and not its beginning.
    """
    if layout.quoted and _QUOTED_ROW.match(line):
        return line
    between = '","' if layout.quoted else ","
    if line.count(between) + 1 < layout.likely_row_cells:
        return ""
    if _ROW.match(line) or layout.awaits_units:
        return line
    if not layout.quoted:
        return ""
    if within := _ROW_WITHIN.search(line):
        return line[within.start() :]
    raise DamagedRowError(f"a damaged row: {line[:60]!r}")


def is_open(row: str, layout: Layout) -> bool:
    """Whether a quoted cell of `row` goes on in the next line.

    Raises `DamagedRowError` for a row that is too long for that.
    """
    is_open = layout.quoted and row.count('"') % 2 == 1
    if is_open and len(row) > _LONGEST_ROW:
        raise DamagedRowError("a quoted cell does not end")
    return is_open


def cells_of(row: str, layout: Layout) -> list[str]:
    """Return the cells of a row, which may hold line ends within quotes.

    Raises `DamagedRowError` if a quote is out of place, or if the row is too short for its figure
    or longer than the header.
    """
    lines = [f"{line}\n" for line in row.split("\n")]
    lines[-1] = lines[-1][:-1]
    try:
        rows = list(csv.reader(lines, strict=True))
    except csv.Error as error:
        raise DamagedRowError(f"a damaged row ({error})") from None
    if len(rows) != 1:
        raise DamagedRowError("a damaged row (it ends outside of a cell)")
    # A comma at the end begins no cell: even an empty one has quotes.
    cells = rows[0][:-1] if layout.quoted and row.endswith(",") else rows[0]
    columns = len(layout.columns)
    if not layout.least_cells <= len(cells) <= columns:
        raise DamagedRowError(f"the row has {len(cells)} cells, the header {columns}")
    return cells
