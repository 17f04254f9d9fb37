"""A file of results, and a table in it: cells and numbers; nothing is executed or guessed."""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import printable

#: A ledger of ten thousand runs is 2 MB; a longer file is no result.
_MOST_BYTES = 64 * 2**20
_MOST_COLUMNS = 500
_CELL_CHARACTERS = 10_000
_DELIMITERS = ",;\t|"
_PLAIN = re.compile(r"\+?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_DECIMAL_COMMA = re.compile(r"[0-9]{1,30},[0-9]{1,30}")
_THOUSANDS = re.compile(r"[0-9]{1,3}([,.' ][0-9]{3})+")


class OtherFileError(ValueError):
    """A file that holds no results of training on images, whatever else it holds."""


@dataclass(frozen=True)
class NotTaken:
    """What could not be taken, and why; `line` None for a whole file, `path` for the file read."""

    reason: str
    line: int | None = None
    path: Path | None = None

    def __str__(self) -> str:
        where = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return printable(f"{where}: {self.reason}")


@dataclass(frozen=True)
class SourceFile:
    """A file's bytes, and where it lies. `alone`: the user named the file, not a folder."""

    path: Path
    content: bytes = b""
    alone: bool = False

    @property
    def name(self) -> str:
        """Its name without folders, on one line."""
        return printable(self.path.name)

    @property
    def stem(self) -> str:
        """Its name without folders and ending."""
        return Path(self.name).stem

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders it lies in, the innermost first."""
        return self.path.resolve().parts[-2::-1]

    @property
    def sha256(self) -> str:
        """The hash of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    def text(self) -> str:
        """Return its text, of UTF-8 or marked UTF-16. Raises `OtherFileError` where it has none."""
        return _text_of(self.content)

    def near(self, *steps: str) -> str | None:
        """Return the text of a file by its way from this file's folder; None where none is there.

        A step `..` is the folder above. Raises `ValueError` for a file that holds no text.
        """
        path = self.path.resolve().parent.joinpath(*steps).resolve()
        if not path.is_file():
            return None
        try:
            return _text_of(_bytes_of(path))
        except OtherFileError as error:
            raise ValueError(f"{steps[-1]}: {error}") from None


def source_files(path: Path) -> Iterator[SourceFile | NotTaken]:
    """Yield the file, or those of a folder by name; what cannot be read as a problem.

    Hidden files and folders are left out, links to folders not followed.
    """
    if not path.is_dir():
        yield _source_file(path, alone=True)
        return
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield _source_file(file, alone=False)


def _source_file(path: Path, *, alone: bool) -> SourceFile | NotTaken:
    try:
        return SourceFile(path, _bytes_of(path), alone)
    except ValueError as error:
        return NotTaken(str(error), path=path)


def _bytes_of(path: Path) -> bytes:
    """Return a file's bytes. Raises `ValueError` for what is no file, too large or unreadable."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("not a file")
        if about.st_size > _MOST_BYTES:
            raise ValueError(f"{about.st_size >> 20} MiB; results are below 64 MiB")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror) from None


def _text_of(content: bytes) -> str:
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise OtherFileError("not UTF-8 text: save it as CSV UTF-8") from None
    if "\0" in text:
        raise OtherFileError("not text")
    return text


class Row(NamedTuple):
    """The line that a row begins on, and its cells by column."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class Sheet:
    """Columns as the header names them, in order; the rows; and the lines that are no row."""

    columns: tuple[str, ...]
    delimiter: str
    rows: tuple[Row, ...]
    problems: tuple[NotTaken, ...]

    @cached_property
    def _has_decimal_commas(self) -> bool:
        """Whether a cell can only be a number with a decimal comma."""
        cells = (cell for row in self.rows for cell in row.cells.values())
        return any(_DECIMAL_COMMA.fullmatch(c) and not _THOUSANDS.fullmatch(c) for c in cells)

    def number(self, text: str, *, may_be_zero: bool = False) -> float:
        """Return a cell's number as `number` does; `12,5` is one where it can be.

        Raises `ValueError` for `1.234` beside decimal commas too, which may be 1234.
        """
        if self._has_decimal_commas and "." in text and _THOUSANDS.fullmatch(text.strip()):
            raise ValueError(
                f"{text[:40]!r} can be read two ways beside decimal commas: write it without the "
                "point"
            )
        return number(text, may_be_zero=may_be_zero, decimal_comma=self.delimiter != ",")


def parse_table(text: str) -> Sheet:
    """Return the table in `text`. Raises `OtherFileError` for a header that is none."""
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    delimiter = max(_DELIMITERS, key=first.count)
    rows = _cells(lines, delimiter)
    _, header = next(rows, (0, ""))
    if isinstance(header, str):
        raise OtherFileError("no header: name the columns in the first line")
    columns = [name.strip() for name in header]
    if len(columns) > _MOST_COLUMNS:
        raise OtherFileError(f"{len(columns)} columns; a ledger has at most {_MOST_COLUMNS}")
    if twice := {name for name in columns if name and columns.count(name) > 1}:
        raise OtherFileError(f"column {min(twice)!r} is there twice: rename one")
    good, problems = [], []
    for line, cells in rows:
        if isinstance(cells, str):
            problems.append(NotTaken(cells, line))
        elif len(cells) != len(columns):
            problems.append(NotTaken(f"{len(cells)} cells under {len(columns)} columns", line))
        else:
            named = zip(columns, cells, strict=True)
            good.append(Row(line, {name: cell.strip() for name, cell in named if name}))
    return Sheet(tuple(columns), delimiter, tuple(good), tuple(problems))


def _cells(lines: list[str], delimiter: str) -> Iterator[tuple[int, list[str] | str]]:
    """The rows that are not empty, with the line that each begins on; a reason for a bad one."""
    before = csv.field_size_limit(_CELL_CHARACTERS)
    try:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, f"not a row of a table ({error})"
                continue
            if any(cell.strip() for cell in cells):
                yield line, cells
    finally:
        csv.field_size_limit(before)


def number(text: str, *, may_be_zero: bool = False, decimal_comma: bool = False) -> float:
    """Return a finite number above zero, or from zero.

    `decimal_comma`: the file's cells are parted by something else, so that `12,5` can be one
    number. Raises `ValueError` with the reason: a formula, a word, a negative or ambiguous number.
    """
    text = text.strip()
    shown = text[:40]
    if text.startswith(("=", "@")):
        raise ValueError(f"{shown!r} is a formula: save the file with its values")
    if text.startswith("-") and _PLAIN.fullmatch(text[1:]):
        raise ValueError(f"{shown!r} is negative")
    if "," in text:
        if _THOUSANDS.fullmatch(text):
            raise ValueError(f"{shown!r} can be read two ways: write it without the comma")
        if not decimal_comma or not _DECIMAL_COMMA.fullmatch(text):
            raise ValueError(f"{shown!r} is not a number: write a decimal point")
        text = text.replace(",", ".")
    if not _PLAIN.fullmatch(text):
        raise ValueError(f"{shown!r} is not a number")
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{shown!r} is too large")
    if not found and not may_be_zero:
        raise ValueError(f"{shown!r} is not above zero")
    return found


def count(text: str) -> int:
    """Return a whole number from zero; a spreadsheet's `64.0` is one. Raises `ValueError`."""
    found = number(text, may_be_zero=True)
    if found != int(found) or found > 2**53:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(found)


def instant(text: str) -> datetime:
    """Return an ISO 8601 instant that names its time zone, in UTC. Raises `ValueError`."""
    found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError("no time zone")
    if not 2000 <= found.year <= 2200:
        raise ValueError("no year of a benchmark")
    return found.astimezone(timezone.utc)


def part(whole: Any, *names: str) -> dict[str, Any]:
    """Return the object that a way of names leads to in JSON; an empty one where none is there."""
    for name in names:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole if isinstance(whole, dict) else {}
