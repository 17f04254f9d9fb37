"""The forms of Nsight Compute's tables, told by their header."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from bench.profilers.files.metrics import WANTED

Form = Literal["long", "summary", "raw"]

#: What wanted metrics are sums of: of dram__bytes.avg it is said that it is none.
_KIN = frozenset(name.partition(".")[0] for name in WANTED)
_LONGEST_NAME = 200
#: The least columns besides the values that tell a row from other text.
_FEWEST = 4


@dataclass(frozen=True)
class Layout:
    """Where a table's columns lie; `units`, the raw form's second row, is empty until read."""

    form: Form
    columns: tuple[str, ...]
    kernel: int
    first: int  # ID, or Invocations of a summary
    process: int | None
    capability: int | None
    section: int | None = None
    name: int = -1
    unit: int = -1
    value: int = -1  # Average of a summary
    bounds: tuple[int, int] | None = None  # Minimum and Maximum of a summary
    metrics: tuple[tuple[int, str], ...] = ()  # raw: the wanted columns
    units: tuple[str, ...] = ()
    quoted: bool = True

    @cached_property
    def least_cells(self) -> int:
        """Cells that a row with a figure has at least: after the figure it may stop early."""
        if self.form == "raw":
            return len(self.columns)
        indices = (self.kernel, self.first, self.name, self.unit, self.value, *(self.bounds or ()))
        others = (self.process, self.capability, self.section)
        last: int = max(*indices, *(index for index in others if index is not None))
        return 1 + last

    @cached_property
    def likely_row_cells(self) -> int:
        """Cells from which on a line is taken for a row, whole or damaged, and not for output."""
        return max(_FEWEST, min(len(self.columns), self.least_cells) // 2)

    def with_units(self, cells: list[str]) -> Layout:
        """The layout with the raw form's row of units."""
        padded = [*cells, *[""] * len(self.columns)]
        return replace(self, units=tuple(cell.strip() for cell in padded[: len(self.columns)]))


def header_in(line: str) -> Layout | None:
    """Return the layout that `line` begins, or None if it holds no header.

    A header may follow output of the program that did not end its line.
    """
    begin = _begin_of_header(line)
    if begin < 0:
        return None
    try:
        [columns] = csv.reader([line[begin:]], strict=True)
    except (csv.Error, ValueError):
        return None
    return _layout([column.strip() for column in columns], quoted=line[begin] == '"')


def _begin_of_header(line: str) -> int:
    begin = line.find('"ID","')
    if begin < 0 and '"Invocations"' in line:
        begin = line.find('"Process ID","')
    if begin < 0 and line.startswith(("ID,", "Process ID,")):
        begin = 0
    return begin


def _layout(columns: list[str], *, quoted: bool) -> Layout | None:
    where = {name: index for index, name in reversed(list(enumerate(columns)))}
    long = {"Metric Name", "Metric Unit", "Metric Value"} <= where.keys()
    summary = {"Invocations", "Metric Name", "Metric Unit", "Average"} <= where.keys()
    form: Form = "summary" if summary else "long" if long else "raw"
    first = where.get("Invocations" if summary else "ID")
    if first is None or "Kernel Name" not in where:
        return None
    layout = Layout(
        form=form,
        columns=tuple(columns),
        kernel=where["Kernel Name"],
        first=first,
        process=where.get("Process ID"),
        capability=where.get("CC"),
        quoted=quoted,
    )
    if form == "raw":
        named = ((index, metric_in(name)) for index, name in enumerate(columns))
        return replace(layout, metrics=tuple((index, name) for index, name in named if name))
    return replace(
        layout,
        section=where.get("Section Name"),
        name=where["Metric Name"],
        unit=where["Metric Unit"],
        value=where["Average" if summary else "Metric Value"],
        bounds=(where["Minimum"], where["Maximum"])
        if summary and {"Minimum", "Maximum"} <= where.keys()
        else None,
    )


def metric_in(text: str) -> str | None:
    """Return the wanted metric that `text` names, by itself or as `Label (name)`, else None."""
    if text.endswith(")"):
        text = text[text.rfind("(") + 1 : -1]
    return text if text in WANTED else None


def telling_name(text: str) -> str | None:
    """Return what `text` names if that helps to say why a figure is missing, else None."""
    return _telling(text) if len(text) <= _LONGEST_NAME else None


@lru_cache(maxsize=4096)
def _telling(text: str) -> str | None:
    name = metric_in(text) or text
    return name if name.partition(".")[0] in _KIN or name.startswith("flop_count") else None
