"""Results in tables: a row per result, or a row per iteration of a run; what columns mean.

The same names in every table; nothing is added and nothing guessed.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
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
    Sheet,
    count,
    number,
    parse_table,
)

#: A fact, and what a cell is multiplied by to be in its unit.
Meaning: TypeAlias = tuple[str, float]

_RATE, _TIME = "throughput_images_per_s", "iteration_time_ms_mean"
#: The headings of each fact, as `plain` writes them; the first one is the fact's name.
_HEADINGS = (
    "env machine",
    "arch model model_name",
    "device device_name gpu gpu_name name_gpu",
    "precision dtype",
    "measured_at timestamp",
    "batch_size batch",
    "repeat run",
    "image_size img_size",
    "devices gpus num_gpus num_gpu",
    "nodes num_nodes",
    "grad_accum_steps grad_accum gradient_accumulation_steps",
    "parameters num_params",
    "claimed_gflops attained_gflops gflops gflop_per_s",
    f"{_RATE} images_per_s images_per_sec images_s img_s throughput_images_s throughput_img_s",
    f"{_RATE}_std images_per_s_sd images_per_s_std",
    "system_s sys_s",
    "iteration iter step",
    *("backend", "label", "iterations", "repeats", "warmup_iters", "window_s", "real_s", "user_s"),
    *("max_rss_mb", "peak_memory_mb", "energy_j"),
)
#: What a column is by its heading.
_MEANINGS: Mapping[str, Meaning] = {
    **{heading: (names.split()[0], 1.0) for names in _HEADINGS for heading in names.split()},
    **dict.fromkeys(("claimed_tflops", "attained_tflops", "tflops"), ("claimed_gflops", 1000.0)),
    "params_m": ("parameters", 1e6),
    "max_rss_kb": ("max_rss_mb", 1024 / 1e6),  # KiB, as time -v
    **{
        f"{time}_{unit}{statistic}": (f"iteration_time_ms{statistic or '_mean'}", factor)
        for time in ("iteration_time", "iter_time", "step_time")
        for unit, factor in {"s": 1e3, "ms": 1.0, "us": 1e-3}.items()
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
#: Headings that are made of these words alone, and of a batch's, a device's or a rate's among
#: them, may change what a result means: they are never passed over.
_UNCLEAR = re.compile(
    r"(?:(?:"
    r"(?P<throughput>throughput|ips|fps|(?:image|img|sample|example)s?_(?:per_)?s(?:ec(?:ond)?)?)"
    r"|(?P<batch_size>batch|[gm]?bsz?|accum(?:ulat(?:e|ed|ion))?|grad_acc|acc_steps?|"
    r"gas?|micro_?batches|(?:im|image|img|sample|example|seq|sequence)s?_per)"
    r"|(?P<devices>(?:[tnhxi]pu|v?gpu|gcd|device|accelerator|card|chip|tile|node|host|machine|"
    r"instance|rank|replica|trainer|proc|process|task)(?:_?s|es)?|world|parallel|d?[dtp]p|np)"
    r"|n|num|number|no|nr|nb|count|cnt|of|per|the|in|to|all|each|total|size|degree|used|global|"
    r"local|mpi|eff|effective|actual|train|training|mini|micro|grad|gradient|steps?|iters?|batches|"
    r"update|data|tensor|model|pipeline|cuda|visible|available|slurm|cores?|graphics|workers?|mean|avg"
    r")_?)+"
)
#: The fact to name such a heading by: what it may be, and what the fact counts.
_TO_NAME = {
    "throughput": ("a throughput", "images/s of all devices"),
    "batch_size": (
        "a batch",
        "of one device; global_batch_size is of all, grad_accum_steps counts batches",
    ),
    "devices": ("a number of devices", "of each machine; nodes counts machines"),
}
_EMPTY = frozenset(("", "-", "n/a", "na", "none", "null"))
_METRICS_BESIDE = frozenset(("parameters", "claimed_gflops"))
#: Deviations, and shares of a processor's time, may be zero.
_MAY_BE_ZERO = ("_std", "user_s", "system_s")


def plain(column: str) -> str:
    """Return a column's name in lower-case words: `Throughput (img/s)` is `throughput_img_s`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def read_table(
    file: Path, text: str, given: Mapping[str, str], named: Mapping[str, str]
) -> Iterator[Result | NotTaken]:
    """Yield the results in a table, and its bad rows; `named` says what columns mean.

    Raises `OtherFileError` for what is no table of results, `ValueError` where none can be taken,
    `UserError` where a column must be named first.
    """
    if text.startswith(("{", "[")):
        raise OtherFileError("no table, and of no known format: add --reader PLUG-IN for another")
    table = parse_table(text)
    is_timm = "train_samples_per_sec" in map(plain, table.columns)
    meanings = _known_columns(table.columns, named, _TIMM if is_timm else {})
    columns = {fact: column for column, (fact, _) in meanings.items()}
    has_result = any(fact.startswith(("throughput", "iteration_time")) for fact in columns)
    if not has_result and not ("arch" in columns and "throughput" in map(_unclear, table.columns)):
        headings = ", ".join(table.columns)[:200]
        raise OtherFileError(
            f"no column of it is known as a throughput or a time ({headings}): name it, as "
            "--column throughput=HEADING"
        )
    is_run = {"iteration", _TIME} <= columns.keys()
    _check_headings(table, meanings, named, is_run or _RATE in columns)
    _check_commas(table, meanings)
    if is_run:
        yield from _read_iterations(table, meanings, given)
    elif counter := columns.get("iteration"):
        raise ValueError(
            f"column {counter!r} counts iterations, and no column is known as the time of one: add "
            "--column iteration_time_ms=HEADING; where rows are runs, add --column "
            f"other={shlex.quote(counter)}"
        )
    else:
        yield from _read_rows(table, meanings, file, "timm" if is_timm else "table")


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


def _unclear(column: str) -> str | None:
    """The fact that a heading may be, of those that change what a result means."""
    words = _UNCLEAR.fullmatch(plain(column)[:100])
    return next((fact for fact in _TO_NAME if words and words[fact]), None)


def _check_headings(
    table: Sheet, meanings: Mapping[str, Meaning], named: Mapping[str, str], has_rate: bool
) -> None:
    """Raise `UserError` for a column that may be a batch, devices or the rate, and is not known."""
    for column in table.columns:
        fact, unclear = meanings.get(column, ("", 1.0))[0], _unclear(column)
        if plain(column) in named or (fact and fact not in TEXTS):
            continue
        if unclear is None or (has_rate and unclear == "throughput"):
            continue
        figure = r"\W*\d{1,3}" if fact else r"\W*\d.*"
        if any(re.fullmatch(figure, row.cells.get(column, "")) for row in table.rows):
            what, how = _TO_NAME[unclear]
            option = f"--column {unclear}={shlex.quote(column)}"
            raise UserError(
                f"{column!r} looks like {what}: add {option} ({how}; other is none of these)"
            )


def _check_commas(table: Sheet, meanings: Mapping[str, Meaning]) -> None:
    """Raise `ValueError` for a comma in a number: beside `12,5` a `1.234` would be 1234."""
    for line, cells in table.rows:
        for column, (fact, _) in meanings.items():
            cell = cells[column]
            if fact not in {*TEXTS, "other"} and re.fullmatch(r"[\d.' ]+,[\d., ]+", cell):
                raise ValueError(
                    f"line {line}: {cell[:40]!r} has a comma: write every number as 1234.5"
                )


def _take(result: Result, cell: str, meaning: Meaning) -> bool:
    """Take a cell's fact; False where the cell is also kept as it is. Raises `ValueError`."""
    fact, factor = meaning
    if fact in ("iteration", "other"):
        return False
    if fact == "measured_at":
        result.measured_at = _instant(cell)
        return result.measured_at is not None
    if fact in TEXTS:
        result.facts[fact] = cell
    elif fact in COUNTS | BESIDE - _METRICS_BESIDE:
        result.facts[fact] = count(cell)
        if not result.facts[fact] and fact not in ("repeat", "warmup_iters", "grad_accum_steps"):
            raise ValueError("'0' is negative or zero")
    else:
        result.facts[fact] = number(cell, may_be_zero=fact.endswith(_MAY_BE_ZERO)) * factor
    return fact not in BESIDE


def _instant(cell: str) -> datetime | None:
    """The time of a benchmark that names its time zone; None for any other text."""
    try:
        at = datetime.fromisoformat(cell.replace("Z", "+00:00"))
    except ValueError:
        return None
    return at.astimezone(timezone.utc) if at.tzinfo and 2000 <= at.year <= 2200 else None


def _read_rows(
    table: Sheet, meanings: Mapping[str, Meaning], file: Path, kind: str
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
                if column not in meanings or not _take(result, cell, meanings[column]):
                    result.extra[column] = cell
        except ValueError as error:
            yield NotTaken(f"{column}: {error}", row.line)
            continue
        yield result


#: What may stand in each row of a run, besides texts.
_OF_A_RUN = (BESIDE | TEXTS | {"batch_size", "repeat", "image_size"}) - {"measured_at"}


def _read_iterations(
    table: Sheet, meanings: Mapping[str, Meaning], given: Mapping[str, str]
) -> Iterator[Result | NotTaken]:
    """The run of a table, or its bad rows: a run with a hole in it is no run.

    A column that is the same in every row is a fact of the run.
    """
    columns = {fact: column for column, (fact, _) in meanings.items()}
    counter, column = columns["iteration"], columns[_TIME]
    marks = [name for name in table.columns if re.search("warm|phase", plain(name))]
    marked = next(
        (name for name in marks if len({row.cells[name] for row in table.rows}) > 1), None
    )
    if marked and "warmup_iters" not in given:
        raise ValueError(
            f"{marked!r} tells rows apart: leave the first out by --set warmup_iters=N"
        )
    bad, times_s, before = [*table.problems], [], None
    for row in table.rows:
        try:
            times_s.append(number(row.cells[column]) * meanings[column][1] / 1e3)
            iteration = count(row.cells[counter])
            if before is not None and iteration != before + 1:
                raise ValueError(
                    f"iteration {iteration} follows {before}: a file holds one run; where rows are "
                    f"runs, add --column other={shlex.quote(counter)}"
                )
            before = iteration
        except ValueError as error:
            bad.append(NotTaken(f"{column}: {error}", row.line))
    if bad:
        yield from bad
        return
    kept_s = tuple(times_s[int(given.get("warmup_iters", 0)) :])
    if not kept_s:
        raise ValueError("no iteration but those of the warm-up")
    facts = iteration_statistics_ms(kept_s) | {"window_s": math.fsum(kept_s)}
    facts["iterations"] = len(kept_s)
    result = Result("iterations", facts, iteration_times_s=kept_s)
    for name, meaning in meanings.items():
        cells = {row.cells[name] for row in table.rows}
        if meaning[0] in _OF_A_RUN and len(cells) == 1 and (cell := cells.pop()):
            _take(result, cell, meaning)
    yield result
