"""A block of a file as lines, and which of them look like regular rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.profilers.files.rows import Rows


class Lines:
    """The lines of a block, and which of them look like a row of quoted cells."""

    def __init__(self, block: bytes, first: int) -> None:
        self.ended = block.endswith(b"\n")
        self._block = block if self.ended else block + b"\n"
        self._first = first
        text = np.frombuffer(self._block, np.uint8)
        self._ends = np.flatnonzero(text == ord("\n"))
        self._starts = np.concatenate([[0], self._ends[:-1] + 1])
        before = text[self._ends - 1]
        before = np.where(before == ord("\r"), text[np.maximum(self._ends - 2, 0)], before)
        after = text[np.minimum(self._starts + 1, len(text) - 1)]
        self.regular = (
            (text[self._starts] == ord('"'))
            & (after >= ord("0"))
            & (after <= ord("9"))
            & (before == ord('"'))
        )
        self.regular[-1] &= self.ended
        self.irregular = np.flatnonzero(~self.regular).tolist()

    def __len__(self) -> int:
        return len(self._ends)

    def text(self, line: int) -> str:
        """The line without its end."""
        return _decoded(self._block[self._starts[line] : self._ends[line]])

    def run(self, begin: int, end: int, noise: list[int]) -> Run:
        """The lines from `begin` to `end` without those of `noise`."""
        kept = np.ones(end - begin, bool)
        kept[[line - begin for line in noise]] = False
        cuts = [begin, *(cut for line in noise for cut in (line, line + 1)), end]
        pieces = [
            self._bytes(first, last)
            for first, last in zip(cuts[::2], cuts[1::2], strict=True)
            if first < last
        ]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        whole = self._bytes(begin, end) if noise else data
        return Run(data, self._first + begin + np.flatnonzero(kept), whole, self._first + begin)

    def _bytes(self, begin: int, end: int) -> bytes:
        return self._block[self._starts[begin] : self._ends[end - 1] + 1]


@dataclass
class Run:
    """Lines that lie together but for noise between them, and their numbers in the file."""

    data: bytes
    lines: NDArray[np.int64]
    whole: bytes  # with the noise
    first: int

    def feed(self, rows: Rows) -> None:
        """Have all of them read one by one."""
        for number, line in enumerate(self.whole.split(b"\n")[:-1], self.first):
            rows.feed(_decoded(line), number)


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "backslashreplace")
