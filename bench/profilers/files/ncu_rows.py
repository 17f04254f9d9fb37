"""Nsight Compute's tables of text: their forms, known by the header, and their rows as columns.

A row may be surrounded by output of the program, go over several lines within a quoted cell, stop
early after its figure, or lack quotes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as csv_of_arrow

from bench.profilers.files.ncu_metrics import WANTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

Form = Literal["long", "summary", "raw"]

#: What wanted metrics are sums of: of dram__bytes.avg the report says that it is no sum.
_FAMILIES = frozenset(name.partition(".")[0] for name in WANTED)
_LONGEST_NAME = 200
#: The least columns besides the values that distinguish a row from other text.
_FEWEST = 4
_NUMBER = "[0-9][0-9., \u00a0\u202f]*"
_QUOTED_ROW = re.compile(f'"{_NUMBER}","')
_ROW = re.compile(f'"?{_NUMBER}"?,')
_ROW_WITHIN = re.compile(r'(?<!,)"[0-9]+","[0-9]+","')
#: A quoted cell may hold line ends; one that never closes is a damaged row.
_LONGEST_ROW = 1 << 16


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

    @property
    def awaits_units(self) -> bool:
        """Whether the next row names the units."""
        return self.form == "raw" and not self.units

    @property
    def launch(self) -> tuple[int, ...]:
        """The columns by which a launch, or a summary's group of launches, differs from the next.

        A launch is a (Process ID, ID); a group, all that comes before Invocations.
        """
        if self.form == "summary":
            return (*range(self.first), self.kernel)
        return (self.first,) if self.process is None else (self.process, self.first)

    @property
    def needed(self) -> tuple[int, ...]:
        """The columns that sums are made from."""
        others = (self.capability, self.section, *(self.bounds or ()))
        figures = [index for index, _ in self.metrics]
        if self.form != "raw":
            figures = [self.name, self.unit, self.value]
        known = (index for index in others if index is not None)
        return tuple(dict.fromkeys((self.first, self.kernel, *self.launch, *figures, *known)))

    @property
    def printed(self) -> tuple[tuple[int, int], ...]:
        """The columns of all figures, wanted or not, each with that of its units (raw: its own)."""
        if self.form == "raw":
            return tuple((index, index) for index, unit in enumerate(self.units) if unit)
        return tuple((index, self.unit) for index in (self.value, *(self.bounds or ())))

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


def explaining_name(text: str) -> str | None:
    """Return what `text` names if that helps to explain why a figure is missing, else None."""
    return _explaining(text) if len(text) <= _LONGEST_NAME else None


@lru_cache(maxsize=4096)
def _explaining(text: str) -> str | None:
    name = metric_in(text) or text
    return name if name.partition(".")[0] in _FAMILIES or name.startswith("flop_count") else None


# Rows


class DamagedRowError(ValueError):
    """A row that cannot be what ncu wrote; the text says why."""


class Fault(NamedTuple):
    """Why a file is refused, and the line."""

    line: int
    message: str


class OpenRow(NamedTuple):
    """A row that goes on in the next line, within a quoted cell."""

    line: int
    text: str


@dataclass(frozen=True)
class Lines:
    """Lines of one table that lie together, from line `first` on.

    `regular` are those that look like rows, and `numbers` theirs; it is None where some line needs
    a closer look. `cut_off` says that the last line of all lacks its end, and is the file's last.
    `fault` stands for lines that cannot be read.
    """

    table: int
    layout: Layout
    text: bytes
    first: int
    regular: bytes | None = None
    numbers: Integers | None = None
    cut_off: bool = False
    fault: Fault | None = None

    @property
    def last(self) -> int:
        """The number of the last line."""
        return self.first + self.text.count(b"\n") - 1


@dataclass
class Rows:
    """Rows as columns of text, by the column's index; `lines` are where they begin.

    Up to `open`, a row whose end is still to come, or up to `fault`.
    """

    source: Lines
    cells: dict[int, Any]
    lines: Integers
    open: OpenRow | None = None
    fault: Fault | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def part(self, begin: int, end: int) -> Rows:
        """The rows from `begin` to `end`, with the rest of the fields."""
        cells = {index: column[begin:end] for index, column in self.cells.items()}
        return replace(self, cells=cells, lines=self.lines[begin:end])

    def after(self, before: Rows) -> Rows:
        """These rows and those of `before` in front of them."""
        cells = {
            index: pa.concat_arrays([before.cells[index], column])
            for index, column in self.cells.items()
        }
        return replace(self, cells=cells, lines=np.concatenate([before.lines, self.lines]))


def read_rows(source: Lines, columns: Sequence[int], before: OpenRow | None = None) -> Rows:
    """Cut lines into the cells of `columns`; `before` is a row that goes on in them.

    Regular rows go to pyarrow, all others to Python's reader of CSV, which knows what is wrong.
    """
    if source.fault or before or source.regular is None or source.numbers is None:
        return _one_by_one(source, columns, before)
    rows, names = len(source.numbers), source.layout.columns
    try:
        if _is_well_quoted(source.regular, rows, len(names)):
            cells = _at_once(source.regular, rows, len(names), sorted({0, *columns}))
            if pc.all(pc.match_substring_regex(cells[0], rf"\A{_NUMBER}\z")).as_py():
                return Rows(source, {index: cells[index] for index in columns}, source.numbers)
    except (pa.ArrowException, ValueError):
        pass  # to be found by the other reader
    return _one_by_one(source, columns, None)


def _is_well_quoted(text: bytes, rows: int, columns: int) -> bool:
    """Whether each line is a row of as many quoted cells as the header.

    pyarrow takes `"12"3` for 123. The lines are known to begin and to end with a quote.
    """
    characters = np.frombuffer(text, np.uint8)
    quote = characters == ord('"')
    between = quote[:-2] & (characters[1:-1] == ord(",")) & quote[2:]
    if (
        np.count_nonzero(quote) == 2 * rows * columns
        and np.count_nonzero(between) == rows * (columns - 1)
        and not (between[:-2] & between[2:]).any()
    ):
        return True  # no quote but around a cell; pyarrow finds rows that lack one
    ends = np.flatnonzero(characters == ord("\n")) + 1
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    lines = pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))
    row = rf'\A"(?:[^"]|"")*"(?:,"(?:[^"]|"")*"){{{columns - 1}}}\r?\n\z'
    return bool(pc.all(pc.match_substring_regex(lines, row)).as_py())


def _at_once(text: bytes, rows: int, width: int, columns: Sequence[int]) -> dict[int, Any]:
    table = csv_of_arrow.read_csv(
        pa.BufferReader(text),
        read_options=csv_of_arrow.ReadOptions(
            column_names=[str(index) for index in range(width)],
            use_threads=False,
            block_size=len(text) + 1,
        ),
        parse_options=csv_of_arrow.ParseOptions(newlines_in_values=False, ignore_empty_lines=False),
        convert_options=csv_of_arrow.ConvertOptions(
            include_columns=[str(index) for index in columns],
            column_types={str(index): pa.string() for index in columns},
            strings_can_be_null=False,
        ),
    )
    if table.num_rows != rows:
        raise ValueError("a row over several lines")
    return {index: table.column(str(index)).combine_chunks() for index in columns}


def _one_by_one(source: Lines, columns: Sequence[int], before: OpenRow | None) -> Rows:
    rows: list[list[str]] = []
    numbers: list[int] = []
    fault = source.fault
    lines = source.text.split(b"\n")[:-1]
    for number, line in enumerate(lines, source.first):
        begin = before.line if before else number
        try:
            text = decoded(line)
            row = f"{before.text}\n{text}" if before else row_in(text, source.layout)
            if row and is_open(row, source.layout):
                before = OpenRow(begin, row)
            elif row:
                before = None
                rows.append(cells_of(row, source.layout))
                numbers.append(begin)
            elif source.cut_off and number == source.last and line.startswith(b'"'):
                raise DamagedRowError("the file is cut off")
        except DamagedRowError as error:
            fault, before = Fault(begin, str(error)), None
            break
    cells = {
        index: pa.array([row[index] if index < len(row) else "" for row in rows], pa.string())
        for index in columns
    }
    return Rows(source, cells, np.array(numbers, np.int64), before, fault)


def decoded(line: bytes) -> str:
    """A line as text, without its end; bytes that are not UTF-8 are spelled out."""
    return line.removesuffix(b"\r").decode("utf-8", "backslashreplace")


def row_in(line: str, layout: Layout, *, awaits_units: bool = False) -> str:
    """Return the row that `line` is or ends with, or nothing if it is output of the program.

    Raises `DamagedRowError` for a line that has a row's cells and not its beginning.
    """
    if layout.quoted and _QUOTED_ROW.match(line):
        return line
    between = '","' if layout.quoted else ","
    if line.count(between) + 1 < layout.likely_row_cells:
        return ""
    if _ROW.match(line) or awaits_units:
        return line
    if not layout.quoted:
        return ""
    if within := _ROW_WITHIN.search(line):
        return line[within.start() :]
    raise DamagedRowError(f"a damaged row: {line[:60]!r}")


def is_noise(line: str, layout: Layout) -> bool:
    """Whether `line`, unless it goes on with a row before it, is none of the table's."""
    try:
        return not row_in(line, layout)
    except DamagedRowError:
        return False


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
    ends_early = layout.quoted and row.endswith(",")  # no cell: even an empty one has quotes
    end = -2 if ends_early else -1
    cells = row[1:end].split('","')
    plain = row[0] == row[end] == '"' and row.count('"') == 2 * len(cells)
    if not plain:
        cells = _parsed(row)[: -1 if ends_early else None]
    columns = len(layout.columns)
    if not layout.least_cells <= len(cells) <= columns:
        raise DamagedRowError(f"the row has {len(cells)} cells, the header {columns}")
    return cells


def _parsed(row: str) -> list[str]:
    lines = [f"{line}\n" for line in row.split("\n")]
    lines[-1] = lines[-1][:-1]
    try:
        rows = list(csv.reader(lines, strict=True))
    except csv.Error as error:
        raise DamagedRowError(f"a damaged row ({error})") from None
    if len(rows) != 1:
        raise DamagedRowError("a damaged row (it ends outside of a cell)")
    return rows[0]
