"""Tables and progress bars: on a terminal as wide as it is, in a file or a pipe as they need."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    track,
)
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

Item = TypeVar("Item")


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


def watched(
    items: Iterable[Item], what: str = "reading records", total: int | None = None
) -> Iterable[Item]:
    """Yield the items, with a bar where the output is a terminal."""
    console = Console(stderr=True)
    return track(
        items,
        what,
        total,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def say_unreadable(line: str) -> None:
    """Say on standard error why a record was left out."""
    click.echo(f"mlproject: record not read: {line}", err=True)


def duration_text(seconds: float) -> str:
    """Return `45 s`, `7 min` or `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


class Bar:
    """A bar of these columns, drawn between `with`'s two ends and only when asked for."""

    def __init__(self, *columns: ProgressColumn, **options: Any) -> None:
        # No refreshing thread: it would take its share of a CPU that is being measured.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=Console(stderr=True),
            auto_refresh=False,
            disable=not sys.stderr.isatty(),
            **options,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
