"""A file's bytes as UTF-8, in blocks that end with a line and never within a launch."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bench.errors import UserError

_LAUNCH = re.compile(rb'"0*([0-9]+) *","0*([^"]*)",')
#: Behind output that did not end its line; a comma before would make it other cells of a row.
_LAUNCH_WITHIN = re.compile(rb'(?<!,)"0*([0-9]+) *","0*([0-9]+)",')
#: Of a line, and of a launch's rows.
_LONGEST = 64 << 20
#: Other output that may lie between the rows of one launch.
_MOST_OUTPUT = 1 << 20


def blocks(path: Path, size: int) -> Iterator[bytes]:
    """Yield the file in blocks of about `size` bytes; the last one may not end its line.

    Rows of a launch stay together as long as they follow one another.
    """
    carried = b""
    with path.open("rb") as file:
        for piece in _utf8(file, size):
            carried += piece
            end = _cut(carried)
            if end:
                yield carried[:end]
                carried = carried[end:]
            elif len(carried) > _LONGEST:
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


def _cut(text: bytes) -> int:
    """Where the last launch that `text` holds begins, else the last line's end; 0 to read on."""
    end = at = text.rfind(b"\n") + 1
    launch: tuple[bytes, ...] = ()
    while at > 0:
        begin = text.rfind(b"\n", 0, at - 1) + 1
        found = _LAUNCH.match(text, begin, at) or _LAUNCH_WITHIN.search(text, begin, at)
        if found and launch and found.groups() != launch:
            return at
        if found:
            launch = found.groups()
        elif not launch and at < end - _MOST_OUTPUT:
            return end
        at = begin
    return 0 if launch and len(text) < _LONGEST else end
