"""A table of one run, with a row per iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

from bench.errors import UserError
from bench.records.verdict.record_metrics import iteration_statistics_ms
from tracking.importing.facts import BadLine, Facts, facts_in_name
from tracking.importing.formats.columns import (
    BESIDE,
    TIME_NAMES,
    known_columns,
    plain,
    take_beside,
    time_factor_ms,
)
from tracking.importing.source_files import SourceFile
from tracking.importing.text_table import Row, Table, count, parse_table

_COUNTERS = frozenset(
    (
        *("iteration", "iter", "iters", "it", "step", "i", "iter_idx", "iteration_index"),
        *("batch_idx", "batch_index", "iteration_number", "step_index", "global_step", "batch"),
    )
)
#: Of these the names that may also be a number of the run, such as its batch size.
_ALSO_FACTS = frozenset(("batch", "iters"))
_WARM_UP = frozenset(("phase", "stage", "warmup", "is_warmup"))
_WARM_UP_WORDS = frozenset(("warmup", "warm-up", "warm_up", "true", "1", "yes"))
#: So many rows are enough to see that a column counts them.
_FEWEST = 3
#: So many times in a row do not grow by chance: 1 of 10! orders.
_CLOCK_ROWS = 10


def is_iterations(file: SourceFile, text: str) -> bool:
    """Whether the text is a table in which a column counts iterations."""
    try:
        table = parse_table(text, file.shown)
    except UserError:
        return False
    counter = _counter(table)
    if counter is None:
        return False
    # Beside an epoch a time without a unit is one too: the user states it, or is asked to.
    stated = {} if _epoch(table) is None else {"unit": "s"}
    return _time_column(table, stated) is not None or _counts(table, counter)


def read_iterations(
    file: SourceFile, text: str, given: Mapping[str, str]
) -> Iterator[Facts | BadLine]:
    """Yield the run of a table, or its bad rows: a run with a hole in it is no run.

    Rows that are marked as warm-up are left out; where none is, the first `warmup_iters` of
    `given`. A column that is the same in every row is a fact of the run. Raises `ValueError` where
    no column is a time with its unit, nothing is left, or rows are missing among those there.
    """
    table = parse_table(text, file.shown)
    column = _time_column(table, given)
    if column is None:
        raise ValueError(_no_time(table))
    bad = list(_bad_rows(table, column))
    if bad:
        yield from bad
        return
    rows = [row for row in table.rows if not _is_warm_up(row)]
    marked = len(rows) < len(table.rows)
    warm_up = 0 if marked else int(given.get("warmup_iters", 0))
    if not rows[warm_up:]:
        raise ValueError("no iteration but those of the warm-up")
    _check_numbers(table, rows)
    yield _facts_of(table, rows[warm_up:], column, given, file.stem)


def _facts_of(
    table: Table, rows: list[Row], column: str, given: Mapping[str, str], name: str
) -> Facts:
    """What the rows say of their run; `name` is the file's, without its ending."""
    factor_s = (time_factor_ms(column, given.get("unit")) or 1.0) / 1e3
    times = tuple(table.number(row.cells[column]) * factor_s for row in rows)
    if len(times) >= _CLOCK_ROWS and all(a < b for a, b in pairwise(times)):
        raise ValueError(f"{column!r} grows from row to row: a clock, not an iteration's time")
    facts = Facts("iterations", None, iteration_times_s=times)
    facts.numbers = {**iteration_statistics_ms(times), "window_s": math.fsum(times)}
    facts.counts["iterations"] = len(times)
    for each, meaning in known_columns(table, "iterations").items():
        texts = {row.cells[each] for row in rows}
        if each == column or len(texts) != 1 or not (text := texts.pop()):
            continue
        if meaning.fact in ("batch_size", "repeat", "image_size"):
            facts.counts[meaning.fact] = count(text)
        elif meaning.fact in ("env", "arch", "device", "backend", "precision", "label"):
            facts.texts[meaning.fact] = text
        elif meaning.fact in BESIDE:
            take_beside(facts, meaning, text, table)
    if plain(column) == "batch_time" and "unit" not in given:
        facts.extra["unit"] = "seconds, as PyTorch's ImageNet example measures batch_time"
    for fact, text in facts_in_name(name).items():
        if fact in ("batch_size", "repeat"):
            facts.counts.setdefault(fact, int(text))
        else:
            facts.texts.setdefault(fact, text)
    return facts


def _counter(table: Table) -> str | None:
    """The column that numbers iterations; `batch` and `iters` do only where they count."""
    found = [each for each in table.columns if plain(each) in _COUNTERS]
    return next(
        (each for each in found if plain(each) not in _ALSO_FACTS or _counts(table, each)), None
    )


def _epoch(table: Table) -> str | None:
    return next((each for each in table.columns if plain(each) == "epoch"), None)


def _counts(table: Table, column: str) -> bool:
    """Whether nearly every number of a column is one more than that of the row above."""
    try:
        numbers = [count(row.cells[column]) for row in table.rows if row.problem is None]
    except ValueError:
        return False
    steps = sum(b - a == 1 for a, b in pairwise(numbers))
    return len(numbers) >= _FEWEST and steps >= 0.9 * (len(numbers) - 1)


def _time_column(table: Table, given: Mapping[str, str]) -> str | None:
    unit = given.get("unit")
    return next((each for each in table.columns if time_factor_ms(each, unit) is not None), None)


def _no_time(table: Table) -> str:
    counter = _counter(table)
    what = f"column {counter!r} counts iterations, but "
    if times := [each for each in table.columns if plain(each) in TIME_NAMES]:
        return f"{what}{times[0]!r} names no unit: add --set unit=s, ms or us"
    return (
        f"{what}no column is known as the time of one ({', '.join(table.columns)[:200]}): "
        "call it iteration_time_s or iteration_time_ms; call the counter repeat if rows are runs"
    )


def _bad_rows(table: Table, column: str) -> Iterator[BadLine]:
    for row in table.rows:
        if row.problem is not None:
            yield BadLine(row.line, row.problem)
        else:
            try:
                table.number(row.cells[column])
            except ValueError as error:
                yield BadLine(row.line, f"{column}: {error}")


def _is_warm_up(row: Row) -> bool:
    return any(
        plain(column) in _WARM_UP and cell.lower() in _WARM_UP_WORDS
        for column, cell in row.cells.items()
    )


def _check_numbers(table: Table, rows: list[Row]) -> None:
    """Refuse rows that do not follow each other; a new epoch may begin at any lower number.

    A higher or the same one is a row for each epoch, or follows rows that are missing.
    """
    column, epoch = _counter(table), _epoch(table)
    if column is None:
        return
    for before, row in pairwise(rows):
        last, number = count(before.cells[column]), count(row.cells[column])
        begins = epoch is not None and (
            number < last and count(row.cells[epoch]) == count(before.cells[epoch]) + 1
        )
        if number != last + 1 and not begins:
            raise ValueError(f"line {row.line}: iteration {number} follows {last}")
