"""Columns of pyarrow as numpy's arrays and back, without a copy where there need be none.

pyarrow's own conversions import pandas, which takes longer than a small file takes to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Flags = NDArray[np.bool_]
    Characters = NDArray[np.uint8]


def integers(column: Any) -> NDArray[Any]:
    """The numbers of a column of integers that lacks none."""
    kind = np.dtype(f"i{column.type.bit_width // 8}")
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset :][: len(column)]


def positions(numbers: Integers) -> Any:
    """A column of 64-bit integers, as `take` needs it."""
    data = np.ascontiguousarray(numbers, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(data), [None, pa.py_buffer(data)])


def flags(column: Any) -> Flags:
    """The truth values of a column that lacks none."""
    bits = np.frombuffer(column.buffers()[1] or b"", np.uint8)
    each = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")
    return each[column.offset :].view(np.bool_)


def mask(which: Flags) -> Any:
    """A column of truth values, as `filter` needs it."""
    data = pa.py_buffer(np.packbits(which, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(which), [None, data])


def characters_of(texts: Any) -> tuple[Integers, Characters]:
    """The bytes of a column of texts, and where in them each text begins, with the end."""
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset :][: len(texts) + 1].astype(np.int64)
    return ends - ends[0], np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]


def texts_of(offsets: Integers, characters: Characters) -> Any:
    """A column of texts, from what `characters_of` returns."""
    data = np.ascontiguousarray(characters)
    buffers = (pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))
    return pa.StringArray.from_buffers(len(offsets) - 1, *buffers)
