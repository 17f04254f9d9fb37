"""Tables with a row per iteration: one run each."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bench.records.verdict.summary import iteration_statistics_ms
from tracking.importing.columns import plain, time_factor_ms
from tracking.importing.facts import Told, facts_in_name
from tracking.importing.ledger import known_columns
from tracking.importing.numerals import count, positive
from tracking.importing.tables import Row, Table

_COUNTERS = frozenset(
    ("iteration", "iter", "step", "i", "iter_idx", "iteration_index", "batch_idx")
)
_WARM_UP = frozenset(("phase", "stage", "warmup", "is_warmup"))
_WARM_UP_WORDS = frozenset(("warmup", "warm-up", "warm_up", "true", "1", "yes"))


def is_per_iteration(table: Table) -> bool:
    """Whether the table has a row per iteration, with its number and its time."""
    names = {plain(column) for column in table.columns}
    return bool(names & _COUNTERS) and _time_column(table) is not None


def problems_of(table: Table) -> Iterator[tuple[Row, str]]:
    """Yield each row that is no iteration, with the reason."""
    column = _time_column(table)
    for row in table.rows:
        if row.problem is not None:
            yield row, row.problem
        elif column is not None:
            try:
                positive(row.cells[column], decimal_comma=table.delimiter != ",")
            except ValueError as error:
                yield row, f"{column}: {error}"


def told_by_iterations(table: Table, name: str) -> Told:
    """Return what the whole table says of its run; `name` is the file's, without its ending.

    Rows that are marked as warm-up are left out. A column that is the same in every row is a fact
    of the run. Raises `ValueError` where nothing is left, or rows are missing among those there.
    """
    column = _time_column(table)
    if column is None:
        raise ValueError("no column holds the time of an iteration")
    factor_s = (time_factor_ms(column) or 1.0) / 1e3
    rows = [row for row in table.rows if not _is_warm_up(row)]
    if not rows:
        raise ValueError("no iteration but those of the warm-up")
    _check_numbers(table, rows)
    comma = table.delimiter != ","
    times = tuple(positive(row.cells[column], decimal_comma=comma) * factor_s for row in rows)
    told = Told("iterations", None, iteration_times_s=times)
    told.numbers = {**iteration_statistics_ms(times), "window_s": math.fsum(times)}
    told.counts["iterations"] = len(times)
    for each, meaning in known_columns(table, "iterations").items():
        texts = {row.cells[each] for row in rows}
        if each == column or len(texts) != 1 or not (text := texts.pop()):
            continue
        if meaning.fact in ("batch_size", "repeat", "image_size"):
            told.counts[meaning.fact] = count(text)
        elif meaning.fact in ("env", "arch", "device", "backend", "precision", "label"):
            told.texts[meaning.fact] = text
    for fact, text in facts_in_name(name).items():
        if fact in ("batch_size", "repeat"):
            told.counts.setdefault(fact, int(text))
        else:
            told.texts.setdefault(fact, text)
    return told


def _time_column(table: Table) -> str | None:
    return next((each for each in table.columns if time_factor_ms(each) is not None), None)


def _is_warm_up(row: Row) -> bool:
    return any(
        plain(column) in _WARM_UP and cell.lower() in _WARM_UP_WORDS
        for column, cell in row.cells.items()
    )


def _check_numbers(table: Table, rows: list[Row]) -> None:
    column = next(each for each in table.columns if plain(each) in _COUNTERS)
    numbers = [count(row.cells[column]) for row in rows]
    for row, before, number in zip(rows[1:], numbers, numbers[1:], strict=False):
        if number != before + 1:
            raise ValueError(f"line {row.line}: iteration {number} follows {before}")
