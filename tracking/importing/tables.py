"""Results in tables: a row per result, or a row per iteration of a run; what columns mean.

The same names in every table; nothing is added and nothing guessed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from typing import TypeAlias

from bench.errors import UserError
from bench.records.metrics import iteration_statistics_ms
from tracking.importing.sources import (
    BESIDE,
    COUNTS,
    TEXTS,
    NotTaken,
    OtherFileError,
    Result,
    Row,
    Sheet,
    SourceFile,
    count,
    facts_in_name,
    parse_table,
)

#: A fact, and what a cell is multiplied by to be in its unit.
Meaning: TypeAlias = tuple[str, float]

_RATE, _TIME = "throughput_images_per_s", "iteration_time_ms_mean"
#: The headings of each fact, as `plain` writes them; the first one is the fact's name.
_HEADINGS = (
    ("env", "environment", "machine", "platform"),
    ("arch", "architecture", "model", "model_name", "network"),
    ("device", "device_name", "gpu", "gpu_name", "name_gpu", "hardware"),
    ("backend", "accelerator", "device_type"),
    ("precision", "dtype", "prec", "math"),
    ("label", "run_name"),
    ("measured_at", "timestamp", "date"),
    ("batch_size", "batch", "batchsize"),
    ("repeat", "run", "trial"),
    ("image_size", "img_size", "resolution"),
    ("devices", "gpus", "num_gpus", "num_gpu"),
    ("nodes", "num_nodes"),
    ("grad_accum_steps", "grad_accum", "gradient_accumulation_steps"),
    ("parameters", "num_params"),
    ("claimed_gflops", "attained_gflops", "gflops", "gflop_per_s"),
    (_RATE, "images_per_s", "images_per_sec", "images_per_second", "images_s", "img_s"),
    (_RATE, "throughput_images_s", "throughput_img_s"),
    (f"{_RATE}_std", "images_per_s_sd", "images_per_s_std"),
    ("system_s", "sys_s"),
    ("iteration", "iter", "step", "batch_idx", "global_step"),
    ("iterations", "iters"),
    *((name,) for name in ("repeats", "warmup_iters", "window_s", "real_s", "user_s")),
    *((name,) for name in ("max_rss_mb", "peak_memory_mb", "energy_j")),
)
_TFLOPS = ("claimed_tflops", "attained_tflops", "tflops", "tflop_per_s")
_MS_FACTORS = {"s": 1e3, "sec": 1e3, "ms": 1.0, "us": 1e-3}
#: What a column is by its heading.
_MEANINGS: Mapping[str, Meaning] = {
    **{heading: (names[0], 1.0) for names in _HEADINGS for heading in names},
    **dict.fromkeys(_TFLOPS, ("claimed_gflops", 1000.0)),
    "params_m": ("parameters", 1e6),
    "max_rss_kb": ("max_rss_mb", 1024 / 1e6),  # KiB, as time -v
    **{
        f"{time}_{unit}{statistic}": (f"iteration_time_ms{statistic or '_mean'}", factor)
        for time in ("iteration_time", "iter_time", "step_time")
        for unit, factor in _MS_FACTORS.items()
        for statistic in ("", "_mean", "_p50", "_p95", "_p99", "_std")
    },
}
#: What the user may name a column; the last two are what no heading means by itself.
MEANINGS: Mapping[str, Meaning] = {
    **_MEANINGS,
    "throughput": (_RATE, 1.0),
    "global_batch_size": ("global_batch_size", 1.0),
    "other": ("other", 1.0),
}
#: Times of one iteration where each has a row; `batch_time` as PyTorch's ImageNet example has it.
_OF_ITERATIONS: Mapping[str, Meaning] = {
    "batch_time": (_TIME, 1e3),
    **{
        f"{time}_{unit}": (_TIME, factor)
        for time in ("time", "duration", "latency", "batch_time")
        for unit, factor in _MS_FACTORS.items()
    },
}
#: What timm's benchmark.py means by its columns: its times are in ms, its parameters in millions.
_TIMM: Mapping[str, Meaning] = {
    "train_samples_per_sec": (_RATE, 1.0),
    "train_step_time": (_TIME, 1.0),
    "train_batch_size": ("batch_size", 1.0),
    "train_img_size": ("image_size", 1.0),
    "param_count": ("parameters", 1e6),
}
_TIMM_NAME = re.compile(
    r"benchmark-train-(?P<precision>[a-z0-9_]+)-n(?:chw|hwc)-pt\d+-(?:cu\d+-|cpu-)?(?P<env>[\w-]+)"
)
#: Headings that are made of these words alone, and of a batch's or a device's among them, may
#: change what a result means: they are never passed over.
_UNCLEAR = re.compile(
    r"(?:(?:"
    r"(?P<batch>batch|[gm]?bsz?|accum(?:ulat(?:e|ed|ion))?|grad_acc|"
    r"(?:image|img|sample|example)s?_per)"
    r"|(?P<device>(?:v?gpu|[tnhxi]pu|gcd|device|accelerator|card|chip|node|host|machine|instance|"
    r"rank|replica|proc|process|task)(?:_?s|es)?|world|parallel|[dtp]p|np)"
    r"|n|num|number|no|nr|nb|count|cnt|of|per|the|in|to|all|each|total|size|degree|used|global|"
    r"local|effective|actual|train|training|mini|micro|grad|gradient|steps?|iters?|batches|update|"
    r"data|tensor|model|pipeline|cuda|visible|available|slurm|cores?|graphics|workers?"
    r")_?)+"
)
#: The same of rates, where no column is known as one.
_LIKE_A_RATE = re.compile(
    r"(?!infer|eval|test|val)(?:.*_)?"
    r"(?:throughput|ips|fps|(?:image|img|sample|example)s?_(?:per_)?s(?:ec(?:ond)?)?)(?:_.*)?"
)
#: What such a heading may be, the fact to name it by, and what that counts.
_TO_NAME = {
    "batch": (
        "a batch",
        "batch_size",
        "of one device; global_batch_size is of all, grad_accum_steps counts batches",
    ),
    "device": ("a number of devices", "devices", "of each machine; nodes counts machines"),
    "rate": ("a throughput", "throughput", "images/s of all devices"),
}
_EMPTY = frozenset(("", "-", "n/a", "na", "none", "null"))
#: What cannot be read of these costs no row.
_NO_LOSS = frozenset(("measured_at", "parameters", "claimed_gflops"))
#: No image model has fewer: such a number counts millions, or something else.
_LEAST_PARAMETERS = 10_000
#: Deviations, and shares of a processor's time, may be zero.
_MAY_BE_ZERO = ("_std", "user_s", "system_s")


def plain(column: str) -> str:
    """Return a column's name in lower-case words: `Throughput (img/s)` is `throughput_img_s`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


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
    counters = {name: ("iteration", 1.0) for name in ("batch", "iters") if _counts(table, name)}
    known = _known_columns(table.columns, named, _TIMM if is_timm else counters)
    facts = {fact for fact, _ in known.values()}
    has_result = any(fact.startswith(("throughput", "iteration_time")) for fact in facts)
    times = _known_columns(table.columns, named, {**_OF_ITERATIONS, **counters})
    columns = {fact: column for column, (fact, _) in times.items()}
    is_run = "iteration" in columns and (
        _TIME in columns or _counts(table, plain(columns["iteration"]))
    )
    like_rates = [column for column in table.columns if _LIKE_A_RATE.fullmatch(plain(column))]
    if is_run or has_result or ("arch" in facts and like_rates):
        has_rate = is_run or _RATE in facts
        _check_headings(table, known, named, [] if has_rate else like_rates)
    if is_run:
        yield from _read_iterations(table, times, file, given)
    elif has_result:
        yield from _read_rows(table, known, file, "timm" if is_timm else "table")
    else:
        headings = ", ".join(table.columns)[:200]
        raise OtherFileError(
            f"no column of it is known as a throughput or a time ({headings}): name it, as "
            "--column throughput=HEADING"
        )


def _known_columns(
    columns: Sequence[str], named: Mapping[str, str], here: Mapping[str, Meaning]
) -> dict[str, Meaning]:
    """What each column that is known means; of two that mean the same, the first.

    `named` has what the user calls columns, and goes first; `here` what they mean in this table.
    """
    first: dict[str, tuple[str, Meaning]] = {}
    for column in sorted(columns, key=lambda column: plain(column) not in named):
        name = plain(column)
        meaning = MEANINGS.get(named.get(name, "")) or here.get(name) or _MEANINGS.get(name)
        if meaning:
            first.setdefault(meaning[0], (column, meaning))
    return dict(first.values())


def _check_headings(
    table: Sheet, known: Mapping[str, Meaning], named: Mapping[str, str], like_rates: Sequence[str]
) -> None:
    """Raise `UserError` for a column that may be a batch, devices or the rate, and is not known."""
    for column in table.columns:
        name, (fact, _) = plain(column)[:100], known.get(column, ("", 1.0))
        if name in named or (fact and fact not in TEXTS):
            continue
        number = r"\W*\d{1,3}" if fact else r"\W*\d.*"
        if not any(re.fullmatch(number, row.cells.get(column, "")) for row in table.rows):
            continue
        unclear = _UNCLEAR.fullmatch(name)
        kind = next((name for name in ("batch", "device") if unclear and unclear[name]), None)
        if kind or column in like_rates:
            what, fact, how = _TO_NAME[kind or "rate"]
            option = f"--column {fact}={shlex.quote(column)}"
            raise UserError(
                f"{column!r} looks like {what}: add {option} ({how}; other is none of these)"
            )


def _take(result: Result, table: Sheet, cell: str, meaning: Meaning) -> bool:
    """Take a cell's fact; False where the cell is also kept as it is. Raises `ValueError`."""
    fact, factor = meaning
    if fact in ("iteration", "other"):
        return False
    try:
        value = _value(table, cell, fact, factor)
    except ValueError:
        if fact == "repeat":  # a run's name, not its number
            result.facts.setdefault("label", cell)
        elif fact not in _NO_LOSS:
            raise
        return fact == "repeat"
    if isinstance(value, datetime):
        result.measured_at = value
    else:
        result.facts[fact] = value
    return fact not in BESIDE


def _value(table: Sheet, cell: str, fact: str, factor: float) -> str | float | datetime:
    if fact == "measured_at":
        at = datetime.fromisoformat(cell.replace("Z", "+00:00"))
        if at.tzinfo is None or not 2000 <= at.year <= 2200:
            raise ValueError("no time zone, or no year of a benchmark")
        return at.astimezone(timezone.utc)
    if fact in TEXTS:
        return cell
    if fact in COUNTS | BESIDE - _NO_LOSS:
        whole = count(cell)
        if not whole and fact not in ("repeat", "warmup_iters", "grad_accum_steps"):
            raise ValueError("'0' is negative or zero")
        return whole
    value = table.number(cell, may_be_zero=fact.endswith(_MAY_BE_ZERO)) * factor
    if fact == "parameters" and value < _LEAST_PARAMETERS:
        raise ValueError("no image model has so few")
    return value


def _read_rows(
    table: Sheet, known: Mapping[str, Meaning], file: SourceFile, kind: str
) -> Iterator[Result | NotTaken]:
    """A row per result: ledgers, published tables, files of timm's `benchmark.py`."""
    name = _TIMM_NAME.fullmatch(file.stem) if kind == "timm" else None
    yield from table.problems
    for row in table.rows:
        result = Result(kind, name.groupdict() if name else {}, row.line)
        column = ""
        try:
            for column, cell in row.cells.items():
                if cell.lower() in _EMPTY:
                    continue
                if column not in known or not _take(result, table, cell, known[column]):
                    result.extra[column] = cell
        except ValueError as error:
            yield NotTaken(f"{column}: {error}", row.line)
            continue
        if kind == "timm" and _RATE not in result.facts:
            why = result.extra.get("error", "inference alone")
            yield NotTaken(f"no training result ({why})"[:300], row.line)
        else:
            yield result


_WARM_UP = frozenset(("phase", "stage", "warmup", "is_warmup"))
_WARM_UP_WORDS = frozenset(("warmup", "warm-up", "warm_up", "true", "1", "yes"))
#: So many times in a row do not grow by chance: 1 of 10! orders.
_CLOCK_ROWS = 10
#: What may stand in each row of a run, besides texts.
_OF_A_RUN = (BESIDE | TEXTS | {"batch_size", "repeat", "image_size"}) - {"measured_at"}


def _read_iterations(
    table: Sheet, known: Mapping[str, Meaning], file: SourceFile, given: Mapping[str, str]
) -> Iterator[Result | NotTaken]:
    """The run of a table, or its bad rows: a run with a hole in it is no run.

    A column that is the same in every row is a fact of the run.
    """
    columns = {fact: column for column, (fact, _) in known.items()}
    counter, column = columns["iteration"], columns.get(_TIME)
    if column is None:
        raise ValueError(
            f"column {counter!r} counts iterations, but no column is known as the time of one "
            f"({', '.join(table.columns)[:200]}): add --column iteration_time_ms=HEADING; where "
            f"rows are runs say what it is, as --column batch_size={shlex.quote(counter)}, or other"
        )
    bad, times_s = [*table.problems], {}
    for row in table.rows:
        try:
            times_s[row.line] = table.number(row.cells[column]) * known[column][1] / 1e3
        except ValueError as error:
            bad.append(NotTaken(f"{column}: {error}", row.line))
    if bad:
        yield from bad
        return
    rows = _measured_rows(table, counter, int(given.get("warmup_iters", 0)))
    kept_s = tuple(times_s[row.line] for row in rows)
    if len(kept_s) >= _CLOCK_ROWS and all(a < b for a, b in pairwise(kept_s)):
        raise ValueError(f"{column!r} grows from row to row: a clock, not an iteration's time")
    facts = iteration_statistics_ms(kept_s) | {"window_s": math.fsum(kept_s)}
    facts["iterations"] = len(kept_s)
    result = Result("iterations", facts, iteration_times_s=kept_s)
    for name, meaning in known.items():
        cells = {row.cells[name] for row in rows}
        if meaning[0] in _OF_A_RUN and len(cells) == 1 and (cell := cells.pop()):
            _take(result, table, cell, meaning)
    if plain(column) == "batch_time":
        result.extra["unit"] = "seconds, as PyTorch's ImageNet example measures batch_time"
    result.facts = facts_in_name(file.stem) | result.facts
    yield result


def _counts(table: Sheet, name: str) -> bool:
    """Whether each number of such a column is one more than that of the row above, or a new 0."""
    cells = [row.cells[c] for row in table.rows for c in table.columns if plain(c) == name]
    try:
        numbers = [count(cell) for cell in cells]
    except ValueError:
        return False
    return len(cells) > 2 and all(b == a + 1 or a > b == 0 for a, b in pairwise(numbers))


def _measured_rows(table: Sheet, counter: str, warm_up: int) -> Sequence[Row]:
    """The rows without those marked as warm-up; where none is, without the first `warm_up`.

    Refuses rows that do not follow each other; a new epoch may begin at any lower number. A higher
    or the same one is a row for each epoch, or follows rows that are missing.
    """
    marks = [name for name in table.columns if plain(name) in _WARM_UP]
    rows = [
        row for row in table.rows if not any(row.cells[m].lower() in _WARM_UP_WORDS for m in marks)
    ]
    epoch = next((name for name in table.columns if plain(name) == "epoch"), None)
    for before, row in pairwise(rows):
        last, number = count(before.cells[counter]), count(row.cells[counter])
        begins = epoch is not None and (
            number < last and count(row.cells[epoch]) == count(before.cells[epoch]) + 1
        )
        if number != last + 1 and not begins:
            raise ValueError(f"line {row.line}: iteration {number} follows {last}")
    kept = rows[warm_up:] if len(rows) == len(table.rows) else rows
    if not kept:
        raise ValueError("no iteration but those of the warm-up")
    return kept
