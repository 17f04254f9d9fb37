"""What readers are made of: a file, a table in it, numbers, results; nothing is guessed."""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import printable

TEXTS = frozenset(("env", "arch", "device", "backend", "precision", "label", "measured_at"))
COUNTS = frozenset(("batch_size", "repeat", "repeats", "iterations", "warmup_iters", "image_size"))
#: What a file says beside its result; the text stays among the file's own columns too.
BESIDE = frozenset(
    ("parameters", "claimed_gflops", "devices", "nodes", "grad_accum_steps", "global_batch_size")
)
_LABEL = re.compile(
    r"(?P<rest>[A-Za-z0-9._-]+)_(?P<precision>fp32|tf32|fp16|bf16|amp(?:-[a-z0-9]+)?)"
    r"_bs(?P<batch_size>[0-9]{1,6})(?:_run(?P<repeat>[0-9]{1,6}))?"
)
#: Families whose members' names have underscores: in a label they begin where these words do.
_FAMILIES = re.compile(
    r"(?:^|_)((?:alexnet|convnext|densenet|efficientnet|googlenet|inception|maxvit|mnasnet|"
    r"mobilenet|regnet|resnet|resnext|shufflenet|squeezenet|swin|vgg|vit|wide_resnet)\w*)$"
)
#: A ledger of ten thousand runs is 2 MB; a longer file is no result.
_MOST_BYTES = 64 * 2**20
_DELIMITERS = ",;\t|"
_PLAIN = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
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
    """A file's bytes, and where it lies."""

    path: Path
    content: bytes = b""

    @classmethod
    def at(cls, path: Path) -> SourceFile:
        """Read a file. Raises `ValueError` for what is no file, too large or unreadable."""
        try:
            about = path.stat()
            if not stat.S_ISREG(about.st_mode):
                raise ValueError("not a file")
            if about.st_size > _MOST_BYTES:
                raise ValueError(f"{about.st_size >> 20} MiB; results are below 64 MiB")
            return cls(path, path.read_bytes())
        except OSError as error:
            raise ValueError(error.strerror) from None

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
        wide = self.content.startswith((b"\xff\xfe", b"\xfe\xff"))
        try:
            text = self.content.decode("utf-16" if wide else "utf-8-sig")
        except UnicodeDecodeError:
            raise OtherFileError("not UTF-8 text: save it as CSV UTF-8") from None
        if "\0" in text:
            raise OtherFileError("not text")
        return text

    def near(self, *steps: str) -> str | None:
        """Return the text of a file by its way from this file's folder; None where none is there.

        A step `..` is the folder above. Raises `ValueError` for a file that holds no text.
        """
        path = self.path.resolve().parent.joinpath(*steps).resolve()
        try:
            return SourceFile.at(path).text() if path.is_file() else None
        except OtherFileError as error:
            raise ValueError(f"{steps[-1]}: {error}") from None


def files_in(path: Path) -> Iterator[Path]:
    """Yield the file, or those of a folder by name.

    Hidden files and folders are left out, links to folders not followed.
    """
    if not path.is_dir():
        yield path
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith(".") and file.is_file():
                yield file


@dataclass
class Result:
    """What a file says of one result.

    `facts` have the names of the record's fields and metrics: texts (`arch`, `env`, `device`,
    `backend`, `precision`, and `label`, which may name several), counts (`batch_size` of one device
    and one backward pass, `image_size` in pixels a side, `repeat`, `iterations`, `warmup_iters`,
    `devices` of each machine, `nodes` that trained together, `grad_accum_steps`), and metrics
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


def facts_in_name(name: str) -> dict[str, Any]:
    """Return what a label such as `rtx4090_resnet50_amp_bs64_run1` says of its run."""
    label = _LABEL.fullmatch(name)
    if label is None:
        return {}
    facts = {"precision": label["precision"], "batch_size": int(label["batch_size"])}
    facts |= {"repeat": int(label["repeat"])} if label["repeat"] else {}
    if (family := _FAMILIES.search(label["rest"])) is not None:
        facts["arch"] = family[1]
        if env := label["rest"][: family.start(1)].rstrip("_"):
            facts["env"] = env
    return facts


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
        if self._has_decimal_commas:
            if _THOUSANDS.fullmatch(text):
                raise ValueError(f"{text[:40]!r} can be read two ways: write its digits alone")
            if self.delimiter != "," and _DECIMAL_COMMA.fullmatch(text):
                text = text.replace(",", ".")
        return number(text, may_be_zero=may_be_zero)


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
    if twice := [name for name, times in Counter(columns).items() if name and times > 1]:
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


def number(text: str, *, may_be_zero: bool = False) -> float:
    """Return a finite number above zero, or from zero.

    Raises `ValueError` with the reason: a formula, a word, a negative or ambiguous number.
    """
    text = text.strip()
    shown = text[:40]
    if "," in text and _THOUSANDS.fullmatch(text):
        raise ValueError(f"{shown!r} can be read two ways: write its digits alone")
    if _DECIMAL_COMMA.fullmatch(text):
        raise ValueError(f"{shown!r} is not a number: write a decimal point")
    if not _PLAIN.fullmatch(text):
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
