"""Whether many rows are quoted as ncu quotes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]


def well_quoted(data: bytes, rows: int, columns: int) -> bool:
    """Whether every cell begins and ends with a quote, and those within are in pairs.

    pyarrow takes `"12"3` for 123.
    """
    text = np.frombuffer(data, np.uint8)
    is_quote = text == ord('"')
    if _plainly_quoted(text, is_quote, rows * columns):
        return True
    quotes = np.flatnonzero(is_quote)
    around = np.concatenate([[ord("\n"), ord("\n")], text, [0, 0]])
    before, after = around[quotes + 1], around[quotes + 3]
    opens = (before == ord("\n")) | ((before == ord(",")) & (around[quotes] == ord('"')))
    closes = (after == ord("\n")) | (after == ord("\r"))
    closes |= (after == ord(",")) & (around[quotes + 4] == ord('"'))
    within = quotes[~(opens | closes)]
    if len(within) % 2 or (within[1::2] != within[::2] + 1).any():
        return False
    return bool(opens.sum() == closes.sum() == rows * columns)


def _plainly_quoted(text: Bytes, is_quote: Flags, cells: int) -> bool:
    """Whether every quote begins or ends a cell, and none could do both."""
    between = is_quote[:-2] & (text[1:-1] == ord(",")) & is_quote[2:]
    closes, opens = np.zeros_like(is_quote), np.zeros_like(is_quote)
    closes[:-2] = between
    opens[2:] = between
    line_end = (text == ord("\n")) | (text == ord("\r"))
    closes[:-1] |= is_quote[:-1] & line_end[1:]
    opens[1:] |= is_quote[1:] & line_end[:-1]
    opens[:1] |= is_quote[:1]
    closes[-1:] |= is_quote[-1:]
    return bool(
        np.count_nonzero(opens) == np.count_nonzero(closes) == cells
        and np.count_nonzero(is_quote) == 2 * cells
        and not (opens & closes).any()
    )
