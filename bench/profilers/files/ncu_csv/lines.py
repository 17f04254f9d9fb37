"""A file in blocks of whole lines, and which of the lines look like rows of quoted cells."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.errors import UserError
from bench.profilers.files.ncu_csv.arrays import flags
from bench.profilers.files.ncu_csv.cells import Rows
from bench.profilers.files.ncu_csv.rows import NUMBER, decoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LONGEST_LINE = 64 << 20


class Lines:
    """The lines of a block; the first is line `first` of the file."""

    def __init__(self, text: bytes | memoryview, first: int) -> None:
        self.first = first
        self._text = text
        self._characters = np.frombuffer(text, np.uint8)
        self._ends = _ends(self._characters)
        self._starts = np.concatenate([[0], self._ends[:-1] + 1])

    def __len__(self) -> int:
        return len(self._ends)

    def line(self, line: int) -> str:
        """A line without its end; bytes that are not UTF-8 are spelled out."""
        return decoded(bytes(self._text[self._starts[line] : self._ends[line]]))

    def part(self, begin: int, end: int) -> Rows:
        """The lines from `begin` to `end`."""
        start = self._starts[begin]
        text = memoryview(self._text)[start : self._ends[end - 1] + 1]
        lines = np.arange(self.first + begin, self.first + end)
        return Rows(text, self._ends[begin:end] + 1 - start, lines)

    def likely(self) -> NDArray[np.bool_]:
        """Which lines begin and end like a row of quoted cells."""
        text = self._characters
        before = text[self._ends - 1]
        before = np.where(before == ord("\r"), text[np.maximum(self._ends - 2, 0)], before)
        after = text[np.minimum(self._starts + 1, len(text) - 1)]
        is_row: NDArray[np.bool_] = (
            (text[self._starts] == ord('"'))
            & (after - ord("0") < 10)  # unsigned: what is less wraps around
            & (before == ord('"'))
        )
        return is_row

    def matching(self, columns: int, begin: int) -> NDArray[np.bool_]:
        """Which lines from `begin` on are rows of so many quoted cells."""
        offsets = np.append(self._starts[begin:], len(self._text)).astype(np.int32)
        buffers = (pa.py_buffer(offsets), pa.py_buffer(self._text))
        lines = pa.StringArray.from_buffers(len(offsets) - 1, *buffers)
        row = rf'\A"{NUMBER}"(?:,"(?:[^"\r\n]|"")*"){{{columns - 1}}}\r?\n\z'
        return flags(pc.match_substring_regex(lines, row))


def _ends(characters: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where lines end; eight characters at a time, as few of them are ends."""
    is_end = characters == ord("\n")
    eights = np.packbits(is_end)
    some = np.flatnonzero(eights != 0)
    bits = eights[some]
    if (bits & (bits - 1)).any():  # two within eight characters
        return np.flatnonzero(is_end)
    return np.asarray(8 * some + 7 - np.log2(bits).astype(np.int64))


def blocks(path: Path, size: int) -> Iterator[bytes | memoryview]:
    """Yield the file in blocks of at most `size` bytes of whole lines, and longer lines alone.

    The last line may lack its end.
    """
    carried = b""
    with path.open("rb") as file:
        for piece in _utf8(file, size):
            begin, end = piece.find(b"\n") + 1 if carried else 0, piece.rfind(b"\n") + 1
            if begin:
                yield carried + piece[:begin]
                carried = b""
            if begin < end:
                yield memoryview(piece)[begin:end]
            carried += piece[end:]
            if len(carried) > _LONGEST_LINE:
                raise UserError(f"{path}: a line of 64 MiB: no table of Nsight Compute")
    if carried:
        yield carried


def _utf8(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Read as UTF-8 without its mark; PowerShell's redirection writes UTF-16."""
    start = file.read(size)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        while start:
            yield decoder.decode(start).encode("utf-8", "replace")
            start = file.read(size)
        yield decoder.decode(b"", final=True).encode("utf-8", "replace")
        return
    start = start.removeprefix(codecs.BOM_UTF8)
    while start:
        yield start
        start = file.read(size)
