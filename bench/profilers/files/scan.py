"""From a file's bytes to its tables: headers found, noise passed over, rows handed on."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from bench.profilers.files.launches import Launches
from bench.profilers.files.layout import Layout, header_in, telling_name
from bench.profilers.files.lines import Lines, Run
from bench.profilers.files.rows import Rows
from bench.profilers.files.table import Doubt, Table
from bench.profilers.files.text import blocks

if TYPE_CHECKING:
    from bench.profilers.files.sums import Part

_BLOCK_BYTES = 4 << 20
#: From this size on, rows are read by columns: below, importing pyarrow takes longer.
_COLUMNS_FROM = 256 << 10
_MOST_WORKERS = 8
_MOST_ERRORS = 3
_LONGEST_ERROR = 300


@dataclass
class Found:
    """The tables of a file and, for one without any, what ncu's `==ERROR==` lines say."""

    tables: list[Table] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Scan:
    """One pass over a file. Rows are read by columns in threads where they are regular."""

    def __init__(
        self,
        path: Path,
        *,
        reader: type[Rows] = Rows,
        block_bytes: int = _BLOCK_BYTES,
        columns_from: float = _COLUMNS_FROM,
    ) -> None:
        self._path = path
        self._reader = reader
        self._block_bytes = block_bytes
        self._columns_from = columns_from
        self._found = Found()
        self._launches = Launches()
        self._rows: Rows | None = None
        self._line = 1
        self._workers = min(_MOST_WORKERS, os.cpu_count() or 1)
        self._pending: deque[tuple[Future[Part | None], Run, Rows]] = deque()

    def run(self) -> Found:
        """Read the file; raises `UserError` naming the line that cannot be read."""
        with ThreadPoolExecutor(self._workers) as self._pool:
            for block in blocks(self._path, self._block_bytes):
                self._read(block)
            self._settle(0)
        if self._rows:
            self._rows.end()
        return self._found

    def _read(self, block: bytes) -> None:
        """Cut a block at its headers, and leave out lines that are not the table's."""
        lines = Lines(block, self._line)
        begin = 0
        plain = True
        noise: list[int] = []
        for line in lines.irregular:
            text = lines.text(line)
            layout = header_in(text)
            if layout:
                self._take(lines, begin, line, noise, plain=plain)
                begin, plain, noise = line + 1, True, []
                self._open(layout)
            elif self._rows is None:
                self._note_error(text)
            elif self._rows.awaits_units and not lines.regular[begin:line].any():
                self._rows.feed(text, self._line + line)
                begin = line + 1
            elif plain and self._rows.is_noise(text):
                self._note_error(text)
                noise.append(line)
            else:
                plain = False
        self._take(lines, begin, len(lines), noise, plain=plain)
        self._line += len(lines)
        if not lines.ended:
            self._end_within(lines.text(len(lines) - 1))

    def _end_within(self, text: str) -> None:
        """The file's last line does not end: refuse it if it is the beginning of a row."""
        self._settle(0)
        if self._rows and text.startswith('"') and self._rows.read_up_to < self._line - 1:
            raise self._rows.table.refusal(self._line - 1, "the file is cut off")

    def _open(self, layout: Layout) -> None:
        """Begin the table of a header."""
        self._settle(0)
        if self._rows:
            self._rows.end()
        table = Table(str(self._path), of_means=layout.form == "summary")
        if layout.form == "raw":
            table.names.update(filter(None, map(telling_name, layout.columns)))
        self._rows = self._reader(table, layout, self._launches)
        self._found.tables.append(table)
        self._found.layouts.append(layout)

    def _note_error(self, text: str) -> None:
        if text.startswith("==ERROR==") and len(self._found.errors) < _MOST_ERRORS:
            self._found.errors.append(text.strip()[:_LONGEST_ERROR])

    def _take(self, lines: Lines, begin: int, end: int, noise: list[int], *, plain: bool) -> None:
        """Hand the lines from `begin` to `end` to the columns' reader, or row by row."""
        rows = self._rows
        if rows is None or begin >= end:
            return
        run = lines.run(begin, end, noise)
        ready = rows.layout.quoted and rows.layout.form != "summary" and not rows.awaits_units
        if plain and ready and not rows.within_row and len(run.data) >= self._columns_from:
            from bench.profilers.files.columns import read_columns

            future = self._pool.submit(read_columns, run.data, len(run.lines), rows.layout)
            self._pending.append((future, run, rows))
            self._settle(self._workers + 1)
        else:
            self._settle(0)
            run.feed(rows)

    def _settle(self, allowed: int) -> None:
        """Add up what was read by columns, in the file's order, until `allowed` are left."""
        while len(self._pending) > allowed:
            future, run, rows = self._pending.popleft()
            part = future.result()
            if part is None:
                run.feed(rows)
            else:
                self._add(part, run, rows)

    def _add(self, part: Part, run: Run, rows: Rows) -> None:
        table = rows.table
        rows.leave()
        if not self._launches.add_runs(part.runs):
            run.feed(rows)  # which names the line
            return
        table.launches.update(part.launches)
        table.names |= part.names
        table.capabilities |= part.capabilities
        table.marks |= part.marks
        for label, mark, counted, total, decimals, row, text in part.sums:
            if mark:
                doubt = Doubt(int(run.lines[row]), text, total)
                table.add_doubts(*label, mark, counted, doubt)
            else:
                table.add_total(*label, counted, Decimal(total).scaleb(-decimals))
        for label, text, row in part.texts:
            table.add_text(*label, text, int(run.lines[row]))
