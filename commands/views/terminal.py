"""Tables on a terminal, and as wide as they need to be in a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


def output(columns: int) -> Console:
    """Return a console on standard output; what is no terminal gets this many columns."""
    return Console(width=None if sys.stdout.isatty() else columns)


def text_table(
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    title: str | None = None,
    left: Sequence[int] = (0,),
    name_characters: int | None = None,
) -> Table:
    """Return a table of texts as they are: the columns `left` aligned left, all others right.

    Where there is no room, the columns `left` are wrapped; with `name_characters`, a longer text
    of the first column ends in an ellipsis instead.
    """
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, heading in enumerate(headings):
        table.add_column(
            heading,
            justify="left" if index in left else "right",
            no_wrap=index not in left or name_characters is not None,
            overflow="fold" if name_characters is None else "ellipsis",
            max_width=name_characters if index == 0 else None,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table
