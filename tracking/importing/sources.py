"""What readers are made of: a text, a table in it, numbers, results; nothing is guessed."""

from __future__ import annotations

import csv
import hashlib
import math
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import printable

TEXTS = frozenset(("env", "arch", "device", "backend", "precision", "label", "measured_at"))
COUNTS = frozenset(("batch_size", "repeat", "repeats", "iterations", "warmup_iters", "image_size"))
#: What a file says beside its result; the text stays among the file's own columns too.
BESIDE = frozenset(
    ("parameters", "claimed_gflops", "devices", "nodes", "grad_accum_steps", "global_batch_size")
)
#: A ledger of ten thousand runs is 2 MB; a longer file is no result.
_MOST_BYTES = 64 * 2**20
_DELIMITERS = ",;\t|"
_PLAIN = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")


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


def read_text(path: Path) -> tuple[str, str]:
    """Return the text of a file, and the SHA-256 of its bytes.

    Raises `ValueError` for what is no file, too large or unreadable, `OtherFileError` for no text.
    """
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("not a file")
        if about.st_size > _MOST_BYTES:
            raise ValueError(f"{about.st_size >> 20} MiB; results are below 64 MiB")
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(error.strerror) from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise OtherFileError("not UTF-8 text: export a spreadsheet as CSV UTF-8")
    return text, hashlib.sha256(content).hexdigest()


def files_in(path: Path) -> Iterator[Path]:
    """Yield the file, or those of a folder by name, without hidden ones; links are not followed."""
    if not path.is_dir():
        yield path
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.is_file() and not hidden:
            yield file


@dataclass
class Result:
    """What a file says of one result.

    `facts` have the names of the record's fields and metrics: texts (`arch`, `env`, `device`,
    `backend`, `precision`, `label`), counts (`batch_size` of one device and one backward pass,
    `image_size` in pixels a side, `repeat`, `iterations`, `warmup_iters`, `devices` of each
    machine, `nodes` that trained together, `grad_accum_steps`), and metrics
    (`throughput_images_per_s` of all devices, `throughput_images_per_s_max` of a part such as an
    epoch, `window_s`, ...). A None is no fact. `line` is of a table, None for a whole file.
    """

    format: str
    facts: dict[str, Any] = field(default_factory=dict)
    line: int | None = None
    #: Whatever else the file says, under its own names.
    extra: dict[str, str] = field(default_factory=dict)
    #: Why a fact is absent, where the source says more than nothing of it.
    missing: dict[str, str] = field(default_factory=dict)
    #: Other settings of the run, under the names of `RunConfig`; `step` for one without optimizer.
    params: dict[str, str] = field(default_factory=dict)
    measured_at: datetime | None = None
    iteration_times_s: tuple[float, ...] | None = None


class Row(NamedTuple):
    """The line that a row begins on, and its cells by column."""

    line: int
    cells: dict[str, str]


class Sheet(NamedTuple):
    """Columns as the header names them, in order; the rows; and the lines that are no row."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    problems: tuple[NotTaken, ...]


def parse_table(text: str) -> Sheet:
    """Return the table in `text`. Raises `OtherFileError` for a header that is none."""
    lines = text.splitlines(keepends=True)
    first = next((line for line in lines if line.strip()), "")
    reader = csv.reader(lines, delimiter=max(_DELIMITERS, key=first.count))
    columns: list[str] = []
    rows, problems, line = [], [], 1
    for cells in reader:
        begins, line = line, reader.line_num + 1
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            continue
        if not columns:
            columns = cells
        elif len(cells) != len(columns):
            problems.append(NotTaken(f"{len(cells)} cells under {len(columns)} columns", begins))
        else:
            named = zip(columns, cells, strict=True)
            rows.append(Row(begins, {name: cell for name, cell in named if name}))
    if not columns:
        raise OtherFileError("no header: name the columns in the first line")
    if twice := [name for name, times in Counter(columns).items() if name and times > 1]:
        raise OtherFileError(f"column {min(twice)!r} is there twice: rename one")
    return Sheet(tuple(columns), tuple(rows), tuple(problems))


def number(text: str, *, may_be_zero: bool = False) -> float:
    """Return a finite number above zero, or from zero.

    Raises `ValueError` with the reason: a formula, a word, a comma, a negative number.
    """
    shown = text.strip()[:40]
    if not _PLAIN.fullmatch(text.strip()):
        raise ValueError(f"{shown!r} is not a number")
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown!r} is too large")
    if value < 0 or not (value or may_be_zero):
        raise ValueError(f"{shown!r} is negative or zero")
    return value


def count(text: str) -> int:
    """Return a whole number from zero; a spreadsheet's `64.0` is one. Raises `ValueError`."""
    value = number(text, may_be_zero=True)
    if value != int(value) or value > 2**53:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(value)
