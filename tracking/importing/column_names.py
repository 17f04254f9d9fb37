"""Which of a table's columns means what: the names that reports have used, and their units."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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
        for names in (_TEXTS, _COUNTS, _NUMBERS)
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
    found["max_rss_kb"] = found["maxrss_kb"] = Meaning("max_rss_mb", 1024 / 1e6)  # KiB, as time -v
    return found


_MEANINGS = _named()
TEXT_FACTS = frozenset(_TEXTS)
COUNT_FACTS = frozenset(_COUNTS)

#: timm's benchmark.py gives its step times in milliseconds, without saying so in the name.
TIMM = {"train_step_time": Meaning("iteration_time_ms_mean")}


def plain(column: str) -> str:
    """Return a column's name in lower-case words: `Throughput (img/s)` is `throughput_img_s`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def meanings(
    columns: Sequence[str], more: Mapping[str, Meaning] | None = None
) -> dict[str, Meaning]:
    """Return what each column that is known means; of two that mean the same, the first."""
    known = {**_MEANINGS, **(more or {})}
    found: dict[str, Meaning] = {}
    taken: set[str] = set()
    for column in columns:
        meaning = known.get(plain(column))
        if meaning is not None and meaning.fact not in taken:
            found[column] = meaning
            taken.add(meaning.fact)
    return found


def time_factor_ms(column: str) -> float | None:
    """Milliseconds in a unit of a column that holds one iteration's time; None for another."""
    name = plain(column)
    if name in ("time_s", "time_ms", "duration_s", "duration_ms", "latency_ms", "latency_s"):
        return _MS_FACTORS[name.rpartition("_")[2]]
    meaning = _MEANINGS.get(name)
    if meaning is None or meaning.fact != "iteration_time_ms_mean" or "mean" in name:
        return None
    return None if "avg" in name else meaning.factor
