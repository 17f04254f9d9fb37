"""Results in tables: with a row per result, or one run with a row per iteration."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from bench.records import SourceFormat
from bench.records.verdict.record_metrics import iteration_statistics_ms
from tracking.importing.column_names import (
    COUNT_FACTS,
    TEXT_FACTS,
    TIMM,
    Meaning,
    meanings,
    plain,
    time_factor_ms,
)
from tracking.importing.facts import Facts, facts_in_name
from tracking.importing.text_table import Row, Table, count, instant, not_negative, positive

_TIMM_NAME = re.compile(
    r"benchmark-train-(?P<precision>[a-z0-9_]+)-n(?:chw|hwc)-pt\d+-(?:cu\d+-|cpu-)?(?P<env>[\w-]+)"
)
_EMPTY = frozenset(("", "-", "n/a", "na", "none", "null"))
#: Deviations, and shares of a processor's time, may be zero.
_MAY_BE_ZERO = ("_std", "user_s", "system_s")


_COUNTERS = frozenset(
    ("iteration", "iter", "step", "i", "iter_idx", "iteration_index", "batch_idx")
)
_WARM_UP = frozenset(("phase", "stage", "warmup", "is_warmup"))
_WARM_UP_WORDS = frozenset(("warmup", "warm-up", "warm_up", "true", "1", "yes"))


def is_timm(table: Table) -> bool:
    """Whether timm's benchmark.py wrote the table."""
    names = {plain(column) for column in table.columns}
    return bool(names & {"train_samples_per_sec", "infer_samples_per_sec"})


def facts_of_row(table: Table, row: Row, known: dict[str, Meaning], kind: SourceFormat) -> Facts:
    """Return what a row says. Raises `ValueError` with the column for a cell that cannot be."""
    facts = Facts(kind, row.line)
    for column, cell in row.cells.items():
        if cell.lower() in _EMPTY:
            continue
        meaning = known.get(column)
        try:
            if meaning is None or not _take(facts, meaning, cell, table):
                facts.extra[column] = cell
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None
    if kind == "timm" and "throughput_images_per_s" not in facts.numbers:
        why = facts.extra.get("error")
        raise ValueError(f"no training result ({why or 'inference alone'})"[:300])
    return facts


def facts_of_timm_name(name: str) -> dict[str, str]:
    """Return what timm's own name for a result file says: benchmark-train-amp-nhwc-...-rtx3090."""
    found = _TIMM_NAME.fullmatch(name)
    return {"precision": found["precision"], "env": found["env"]} if found else {}


def known_columns(table: Table, kind: SourceFormat) -> dict[str, Meaning]:
    """Return what the table's columns mean."""
    return meanings(table.columns, TIMM if kind == "timm" else None)


def _take(facts: Facts, meaning: Meaning, cell: str, table: Table) -> bool:
    """Take a cell's fact; False where it is none after all, and the cell is kept as it is."""
    if meaning.fact == "measured_at":
        try:
            facts.measured_at = instant(cell)
        except ValueError:  # in a form, or a time zone, that is not known
            return False
    elif meaning.fact in TEXT_FACTS:
        facts.texts[meaning.fact] = cell
    elif meaning.fact == "repeat":
        try:
            facts.counts["repeat"] = count(cell)
        except ValueError:  # a run's name, not its number
            facts.texts.setdefault("label", cell)
    elif meaning.fact in COUNT_FACTS:
        facts.counts[meaning.fact] = count(cell)
        if meaning.fact != "warmup_iters" and facts.counts[meaning.fact] == 0:
            raise ValueError("'0' is not above zero")
    else:
        read = not_negative if meaning.fact.endswith(_MAY_BE_ZERO) else positive
        number = read(cell, decimal_comma=table.delimiter != ",")
        facts.numbers[meaning.fact] = number * meaning.factor
    return True


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


def facts_of_iterations(table: Table, name: str) -> Facts:
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
    for fact, text in facts_in_name(name).items():
        if fact in ("batch_size", "repeat"):
            facts.counts.setdefault(fact, int(text))
        else:
            facts.texts.setdefault(fact, text)
    return facts


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
