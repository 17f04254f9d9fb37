"""Results in tables: with a row per result, or a row per iteration of a run."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from bench.records.metrics import iteration_statistics_ms
from tracking.importing.ledger import (
    BESIDE,
    CLAIMED,
    COUNTS,
    ITERATION_TIMES,
    TEXTS,
    TIMM,
    Meaning,
    Result,
    check_headings,
    facts_in_name,
    known_columns,
    names_a_rate,
    plain,
)
from tracking.importing.table import (
    NotTaken,
    OtherFileError,
    Row,
    Sheet,
    SourceFile,
    count,
    instant,
    parse_table,
)

_EMPTY = frozenset(("", "-", "n/a", "na", "none", "null"))


def read_table(
    file: SourceFile, text: str, given: Mapping[str, str], named: Mapping[str, str]
) -> Iterator[Result | NotTaken]:
    """Yield the results in a table, and its bad rows; `named` says what columns mean.

    Raises `OtherFileError` for what is no table of results, `ValueError` where none can be taken,
    `UserError` where a column must be named first.
    """
    if text.startswith(("{", "[")):
        raise OtherFileError("no table, and of no known format: add --reader PLUG-IN for another")
    table = parse_table(text)
    is_timm = "train_samples_per_sec" in map(plain, table.columns)
    known = known_columns(table.columns, named, TIMM if is_timm else None)
    facts = {fact for fact, _ in known.values()}
    has_result = any(fact.startswith(("throughput", "iteration_time")) for fact in facts)
    times = known_columns(table.columns, named, ITERATION_TIMES)
    counter = _counter_of_iterations(table, times)
    if counter or has_result or ("arch" in facts and any(map(names_a_rate, table.columns))):
        has_rate = counter is not None or "throughput_images_per_s" in facts
        check_headings(table, known, named, has_rate=has_rate)
    if counter:
        yield from _read_iterations(table, times, counter, file, given)
    elif has_result:
        yield from _read_rows(table, known, file, "timm" if is_timm else "table")
    else:
        columns = ", ".join(table.columns)[:200]
        raise OtherFileError(
            f"no column of it is known as a throughput or a time ({columns}): name it, as "
            "--column throughput=HEADING"
        )


def _take(result: Result, table: Sheet, column: str, cell: str, meaning: Meaning) -> bool:
    """Take a cell's fact; False where the cell is also kept as it is. Raises `ValueError`."""
    fact, factor = meaning
    if fact in ("iteration", "other"):
        return False
    if fact in CLAIMED:
        with contextlib.suppress(ValueError):  # what cannot be read costs no row
            number = table.number(cell) * factor
            if fact != "parameters" or number >= _LEAST_PARAMETERS:
                result.facts[fact] = number
        return False
    if fact == "measured_at":
        with contextlib.suppress(ValueError):  # in a form, or a time zone, that is not known
            result.measured_at = instant(cell)
        return result.measured_at is not None
    if fact == "repeat":
        with contextlib.suppress(ValueError):
            result.facts["repeat"] = count(cell)
            return True
        result.facts.setdefault("label", cell)  # a run's name, not its number
    elif fact in TEXTS:
        result.facts[fact] = cell
    elif fact in COUNTS | BESIDE:
        result.facts[fact] = count(cell)
        if fact not in ("warmup_iters", "grad_accum_steps") and not result.facts[fact]:
            raise ValueError("'0' is not above zero")
    else:
        may_be_zero = fact.endswith(_MAY_BE_ZERO)
        result.facts[fact] = table.number(cell, may_be_zero=may_be_zero) * factor
    return fact not in BESIDE


#: No image model has fewer: such a number counts millions, or something else.
_LEAST_PARAMETERS = 10_000
#: Deviations, and shares of a processor's time, may be zero.
_MAY_BE_ZERO = ("_std", "user_s", "system_s")


# A row per result: ledgers, published tables, files of timm's `benchmark.py`

_TIMM_NAME = re.compile(
    r"benchmark-train-(?P<precision>[a-z0-9_]+)-n(?:chw|hwc)-pt\d+-(?:cu\d+-|cpu-)?(?P<env>[\w-]+)"
)


def _read_rows(
    table: Sheet, known: Mapping[str, Meaning], file: SourceFile, kind: str
) -> Iterator[Result | NotTaken]:
    name = _TIMM_NAME.fullmatch(file.stem) if kind == "timm" else None
    yield from table.problems
    for row in table.rows:
        result = Result(kind, name.groupdict() if name else {}, row.line)
        column = ""
        try:
            for column, cell in row.cells.items():
                if cell.lower() in _EMPTY:
                    continue
                if column not in known or not _take(result, table, column, cell, known[column]):
                    result.extra[column] = cell
        except ValueError as error:
            yield NotTaken(f"{column}: {error}", row.line)
            continue
        if kind == "timm" and "throughput_images_per_s" not in result.facts:
            why = result.extra.get("error", "inference alone")
            yield NotTaken(f"no training result ({why})"[:300], row.line)
        else:
            yield result


# A row per iteration of one run

_TIME = "iteration_time_ms_mean"
_WARM_UP = frozenset(("phase", "stage", "warmup", "is_warmup"))
_WARM_UP_WORDS = frozenset(("warmup", "warm-up", "warm_up", "true", "1", "yes"))
#: So many rows are enough to see that a column counts them.
_FEWEST = 3
#: So many times in a row do not grow by chance: 1 of 10! orders.
_CLOCK_ROWS = 10
#: What may stand in each row of a run, besides texts.
_OF_A_RUN = frozenset(("batch_size", "repeat", "image_size", *TEXTS, *BESIDE)) - {"measured_at"}


def _counter_of_iterations(table: Sheet, known: Mapping[str, Meaning]) -> str | None:
    """The column that numbers iterations, where it counts or a time stands beside it."""
    counter = next((each for each, (fact, _) in known.items() if fact == "iteration"), None)
    if counter is None:
        may_count = (each for each in table.columns if plain(each) in ("batch", "iters"))
        return next((each for each in may_count if _counts(table, each)), None)
    return counter if _counts(table, counter) or _time_column(known) else None


def _read_iterations(
    table: Sheet,
    known: Mapping[str, Meaning],
    counter: str,
    file: SourceFile,
    given: Mapping[str, str],
) -> Iterator[Result | NotTaken]:
    """The run of a table, or its bad rows: a run with a hole in it is no run.

    Rows that are marked as warm-up are left out; where none is, the first `warmup_iters` of
    `given`. A column that is the same in every row is a fact of the run.
    """
    column = _time_column(known)
    if column is None:
        raise ValueError(
            f"column {counter!r} counts iterations, but no column is known as the time of one "
            f"({', '.join(table.columns)[:200]}): add --column iteration_time_ms=HEADING, or "
            "--column repeat=HEADING if rows are runs"
        )
    marks = [each for each in table.columns if plain(each) in _WARM_UP]
    measured = [
        row
        for row in table.rows
        if not _WARM_UP_WORDS & {row.cells[each].lower() for each in marks}
    ]
    marked = len(measured) < len(table.rows)
    _, bad = _numbers(table, table.rows, column)
    if bad or table.problems:
        yield from (*table.problems, *bad)
        return
    rows = measured if marked else measured[int(given.get("warmup_iters", 0)) :]
    if not rows:
        raise ValueError("no iteration but those of the warm-up")
    _check_numbers(table, measured, counter)
    times_s = [number * known[column][1] / 1e3 for number in _numbers(table, rows, column)[0]]
    if len(times_s) >= _CLOCK_ROWS and all(a < b for a, b in pairwise(times_s)):
        raise ValueError(f"{column!r} grows from row to row: a clock, not an iteration's time")
    facts = iteration_statistics_ms(times_s) | {"window_s": math.fsum(times_s)}
    facts["iterations"] = len(times_s)
    result = Result("iterations", facts, iteration_times_s=tuple(times_s))
    for each, meaning in known.items():
        cells = {row.cells[each] for row in rows}
        if meaning[0] in _OF_A_RUN and each != column and len(cells) == 1 and (cell := cells.pop()):
            _take(result, table, each, cell, meaning)
    if plain(column) == "batch_time":
        result.extra["unit"] = "seconds, as PyTorch's ImageNet example measures batch_time"
    result.facts = facts_in_name(file.stem) | result.facts
    yield result


def _numbers(table: Sheet, rows: Sequence[Row], column: str) -> tuple[list[float], list[NotTaken]]:
    """The numbers of a column, and the rows that have none."""
    numbers, bad = [], []
    for row in rows:
        try:
            numbers.append(table.number(row.cells[column]))
        except ValueError as error:
            bad.append(NotTaken(f"{column}: {error}", row.line))
    return numbers, bad


def _counts(table: Sheet, column: str) -> bool:
    """Whether nearly every number of a column is one more than that of the row above."""
    try:
        numbers = [count(row.cells[column]) for row in table.rows]
    except ValueError:
        return False
    steps = sum(b - a == 1 for a, b in pairwise(numbers))
    return len(numbers) >= _FEWEST and steps >= 0.9 * (len(numbers) - 1)


def _time_column(known: Mapping[str, Meaning]) -> str | None:
    return next((each for each, (fact, _) in known.items() if fact == _TIME), None)


def _check_numbers(table: Sheet, rows: Sequence[Row], counter: str) -> None:
    """Refuse rows that do not follow each other; a new epoch may begin at any lower number.

    A higher or the same one is a row for each epoch, or follows rows that are missing.
    """
    epoch = next((each for each in table.columns if plain(each) == "epoch"), None)
    for before, row in pairwise(rows):
        last, number = count(before.cells[counter]), count(row.cells[counter])
        begins = epoch is not None and (
            number < last and count(row.cells[epoch]) == count(before.cells[epoch]) + 1
        )
        if number != last + 1 and not begins:
            raise ValueError(f"line {row.line}: iteration {number} follows {last}")
