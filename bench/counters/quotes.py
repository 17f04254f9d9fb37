"""Whether many rows are quoted as ncu quotes them."""

from __future__ import annotations

import numpy as np


def well_quoted(data: bytes, rows: int, columns: int) -> bool:
    """Whether every cell begins and ends with a quote, and those within are in pairs.

    pyarrow takes `"12"3` for 123.
    """
    text = np.frombuffer(data, np.uint8)
    is_quote = text == ord('"')
    between = np.count_nonzero(is_quote[:-2] & (text[1:-1] == ord(",")) & is_quote[2:])
    total = np.count_nonzero(is_quote)
    if total == 2 * rows * columns and between == rows * (columns - 1):
        return True  # two at the ends of each line, two around each comma between cells
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
