"""Results in tables: with a row per result, or one run with a row per iteration."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from bench.records import SourceFormat
from bench.records.verdict.record_metrics import iteration_statistics_ms
from tracking.importing.facts import Facts, facts_in_name
from tracking.importing.text_table import Row, Table, count, instant


@dataclass(frozen=True)
class Meaning:
    """A fact, and what a cell is multiplied by to be in its unit."""

    fact: str
    factor: float = 1.0


_TEXTS = {
    "env": "env environment machine machine_label platform",
    "arch": "arch architecture model model_name network",
    "device": "device device_name gpu gpu_name hardware accelerator_name",
    "backend": "backend accelerator device_type",
    "precision": "precision dtype prec math numeric_format",
    "label": "label run_label run_name name",
    "measured_at": "measured_at timestamp datetime date started start_time created created_at",
}
_COUNTS = {
    "batch_size": "batch_size batch bs batchsize train_batch_size",
    "repeat": "repeat run rep trial run_index repetition",
    "repeats": "repeats n_repeats num_repeats n_runs runs",
    "iterations": "iterations iters num_iters n_iters steps num_steps measured_iters",
    "warmup_iters": "warmup_iters warmup warmup_iterations warmup_steps",
    "image_size": "image_size img_size input_size resolution train_img_size",
}
_NUMBERS = {
    "throughput_images_per_s": (
        "throughput_images_per_s images_per_s images_per_sec images_per_second imgs_per_s "
        "imgs_per_sec img_per_s img_per_sec img_s imgs_s images_s samples_per_s samples_per_sec "
        "samples_per_second train_samples_per_sec throughput throughput_img_s throughput_imgs_s "
        "throughput_images_s throughput_imgs_per_s throughput_imgs_per_sec throughput_samples_per_s"
    ),
    "throughput_images_per_s_std": (
        "throughput_images_per_s_std images_per_s_sd images_per_s_std images_per_sec_std "
        "throughput_std throughput_sd"
    ),
    "window_s": "window_s",
    "real_s": "real_s wall_s wall_time_s elapsed_s total_time_s",
    "user_s": "user_s",
    "system_s": "system_s sys_s",
    "max_rss_mb": "max_rss_mb peak_rss_mb",
    "peak_memory_mb": "peak_memory_mb gpu_mem_mb gpu_memory_mb max_memory_mb peak_gpu_memory_mb",
    "energy_j": "energy_j",
}
#: What a file says beside its result; the text stays among the file's own columns too.
_BESIDE = {
    "devices": "devices n_devices num_devices gpus n_gpus num_gpus gpu_count ngpu ngpus",
    "nodes": "nodes n_nodes num_nodes",
    "grad_accum_steps": "grad_accum_steps gradient_accumulation_steps grad_accum",
    "parameters": "parameters n_parameters num_parameters n_params num_params",
    "claimed_gflops": (
        "claimed_gflops attained_gflops achieved_gflops gflops gflops_s gflop_s gflops_per_s "
        "gflop_per_s gflops_per_sec attained_gflop_s attained_gflops_s attained_gflop_per_s "
        "achieved_gflop_s achieved_gflops_s"
    ),
}
#: Names of a time per iteration, without their unit.
_ITERATION = {
    "iteration_time_ms_mean": (
        "iteration_time iter_time step_time mean_iter avg_iter mean_step avg_step time_per_iter "
        "mean_iter_time avg_iter_time mean_iteration_time avg_iteration_time mean_step_time "
        "avg_step_time iteration_time_mean mean_time_per_iter"
    ),
    "iteration_time_ms_std": "iteration_time_std iter_time_std step_time_std std_iter",
    "iteration_time_ms_p50": "iteration_time_p50 p50 p50_iter median_iter median_iter_time",
    "iteration_time_ms_p95": "iteration_time_p95 p95 p95_iter",
    "iteration_time_ms_p99": "iteration_time_p99 p99 p99_iter",
}
_MS_FACTORS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3}


def _named() -> dict[str, Meaning]:
    found = {
        name: Meaning(fact)
        for names in (_TEXTS, _COUNTS, _NUMBERS, _BESIDE)
        for fact, aliases in names.items()
        for name in aliases.split()
    }
    for fact, aliases in _ITERATION.items():
        stem, _, statistic = fact.partition("_ms_")
        found[fact] = Meaning(fact)
        for unit, factor in _MS_FACTORS.items():
            found[f"{stem}_{unit}_{statistic}"] = Meaning(fact, factor)
            for name in aliases.split():
                found[f"{name}_{unit}"] = Meaning(fact, factor)
    for unit, factor in _MS_FACTORS.items():
        for name in (f"{unit}_per_iter", f"{unit}_per_step", f"{unit}_per_iteration"):
            found[name] = Meaning("iteration_time_ms_mean", factor)
    for name in _BESIDE["claimed_gflops"].split():
        found[name.replace("gflop", "tflop")] = Meaning("claimed_gflops", 1e3)
    for name in ("parameters_m", "params_m", "parameters_million", "params_million"):
        found[name] = Meaning("parameters", 1e6)
    found["max_rss_kb"] = found["maxrss_kb"] = Meaning("max_rss_mb", 1024 / 1e6)  # KiB, as time -v
    return found


_MEANINGS = _named()
#: timm's benchmark.py gives its step times in milliseconds, without saying so in the name.
_TIMM = {
    "train_step_time": Meaning("iteration_time_ms_mean"),
    "param_count": Meaning("parameters", 1e6),  # as it says: in millions
}
_TIMM_NAME = re.compile(
    r"benchmark-train-(?P<precision>[a-z0-9_]+)-n(?:chw|hwc)-pt\d+-(?:cu\d+-|cpu-)?(?P<env>[\w-]+)"
)
#: No image model has fewer: such a number counts millions, or something else.
_LEAST_PARAMETERS = 10_000
_EMPTY = frozenset(("", "-", "n/a", "na", "none", "null"))
#: Deviations, and shares of a processor's time, may be zero.
_MAY_BE_ZERO = ("_std", "user_s", "system_s")
_COUNTERS = frozenset(
    ("iteration", "iter", "step", "i", "iter_idx", "iteration_index", "batch_idx")
)
_WARM_UP = frozenset(("phase", "stage", "warmup", "is_warmup"))
_WARM_UP_WORDS = frozenset(("warmup", "warm-up", "warm_up", "true", "1", "yes"))


def plain(column: str) -> str:
    """Return a column's name in lower-case words: `Throughput (img/s)` is `throughput_img_s`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def known_columns(table: Table, kind: SourceFormat) -> dict[str, Meaning]:
    """Return what each column that is known means; of two that mean the same, the first."""
    known = _MEANINGS | (_TIMM if kind == "timm" else {})
    first: dict[str, tuple[str, Meaning]] = {}
    for column in table.columns:
        if meaning := known.get(plain(column)):
            first.setdefault(meaning.fact, (column, meaning))
    return dict(first.values())


def time_factor_ms(column: str) -> float | None:
    """Milliseconds in a unit of a column that holds one iteration's time; None for another."""
    name = plain(column)
    if name in ("time_s", "time_ms", "duration_s", "duration_ms", "latency_ms", "latency_s"):
        return _MS_FACTORS[name.rpartition("_")[2]]
    meaning = _MEANINGS.get(name)
    if meaning is None or meaning.fact != "iteration_time_ms_mean" or "mean" in name:
        return None
    return None if "avg" in name else meaning.factor


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


def _take(facts: Facts, meaning: Meaning, cell: str, table: Table) -> bool:
    """Take a cell's fact; False where the cell is also kept as it is."""
    if meaning.fact in _BESIDE:
        _take_beside(facts, meaning, cell, table)
        return False
    if meaning.fact == "measured_at":
        try:
            facts.measured_at = instant(cell)
        except ValueError:  # in a form, or a time zone, that is not known
            return False
    elif meaning.fact in _TEXTS:
        facts.texts[meaning.fact] = cell
    elif meaning.fact == "repeat":
        try:
            facts.counts["repeat"] = count(cell)
        except ValueError:  # a run's name, not its number
            facts.texts.setdefault("label", cell)
    elif meaning.fact in _COUNTS:
        facts.counts[meaning.fact] = count(cell)
        if meaning.fact != "warmup_iters" and facts.counts[meaning.fact] == 0:
            raise ValueError("'0' is not above zero")
    else:
        number = table.number(cell, may_be_zero=meaning.fact.endswith(_MAY_BE_ZERO))
        facts.numbers[meaning.fact] = number * meaning.factor
    return True


def _take_beside(facts: Facts, meaning: Meaning, cell: str, table: Table) -> None:
    """Take what stands beside a result; what cannot be read costs no row."""
    with contextlib.suppress(ValueError):
        number = table.number(cell) * meaning.factor
        if meaning.fact == "claimed_gflops":
            facts.claimed_gflops = number
        elif meaning.fact == "parameters":
            facts.parameters = number if number >= _LEAST_PARAMETERS else None
        else:
            setattr(facts, meaning.fact, count(cell))


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
                table.number(row.cells[column])
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
    times = tuple(table.number(row.cells[column]) * factor_s for row in rows)
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
        elif meaning.fact in _BESIDE:
            _take_beside(facts, meaning, text, table)
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
