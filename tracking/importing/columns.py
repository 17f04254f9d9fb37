"""What the columns of results are called, and what each means; the same names in every table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: A fact, and what a cell is multiplied by to be in its unit.
Meaning: TypeAlias = tuple[str, float]

TEXTS = {
    "env": "env environment machine machine_label platform",
    "arch": "arch architecture model model_name network",
    "device": "device device_name gpu gpu_name hardware accelerator_name",
    "backend": "backend accelerator device_type",
    "precision": "precision dtype prec math numeric_format",
    "label": "label run_label run_name name",
    "measured_at": "measured_at timestamp datetime date started start_time created created_at",
}
COUNTS = {
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
BESIDE = {
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
MS_FACTORS = {"ms": 1.0, "msec": 1.0, "s": 1e3, "sec": 1e3, "secs": 1e3, "seconds": 1e3, "us": 1e-3}
#: Names of the time of one iteration, without their unit.
TIME_NAMES = frozenset(
    (
        *("time", "duration", "latency", "batch_time", "iteration_time", "iter_time", "step_time"),
        *("train_time", "time_per_iter", "time_per_step", "time_per_batch", "iteration_duration"),
    )
)


#: Names of a time per iteration that begin with their unit, and that unit in milliseconds.
_PER_ITERATION = {
    f"{unit}_per_{what}": factor
    for unit, factor in MS_FACTORS.items()
    for what in ("iter", "step", "iteration")
}


def _meanings() -> dict[str, Meaning]:
    found = {
        name: (fact, 1.0)
        for names in (TEXTS, COUNTS, _NUMBERS, BESIDE)
        for fact, aliases in names.items()
        for name in aliases.split()
    }
    for fact, aliases in _ITERATION.items():
        stem, _, statistic = fact.partition("_ms_")
        found[fact] = (fact, 1.0)
        for unit, factor in MS_FACTORS.items():
            for name in (f"{stem}_{unit}_{statistic}", *(f"{a}_{unit}" for a in aliases.split())):
                found[name] = (fact, factor)
    for name, factor in _PER_ITERATION.items():
        found[name] = ("iteration_time_ms_mean", factor)
    for name in BESIDE["claimed_gflops"].split():
        found[name.replace("gflop", "tflop")] = ("claimed_gflops", 1e3)
    for name in ("parameters_m", "params_m", "parameters_million", "params_million"):
        found[name] = ("parameters", 1e6)
    found["max_rss_kb"] = found["maxrss_kb"] = ("max_rss_mb", 1024 / 1e6)  # KiB, as time -v
    return found


_MEANINGS = _meanings()
#: What timm's benchmark.py means by its columns: its times are in ms, its parameters in millions.
TIMM: Mapping[str, Meaning] = {
    "train_step_time": ("iteration_time_ms_mean", 1.0),
    "param_count": ("parameters", 1e6),
}


def plain(column: str) -> str:
    """Return a column's name in lower-case words: `Throughput (img/s)` is `throughput_img_s`."""
    return re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_")


def known_columns(
    columns: Sequence[str], also: Mapping[str, Meaning] | None = None
) -> dict[str, Meaning]:
    """Return what each column that is known means; of two that mean the same, the first.

    `also` has what columns mean in this table alone.
    """
    known = _MEANINGS | dict(also or {})
    first: dict[str, tuple[str, Meaning]] = {}
    for column in columns:
        if meaning := known.get(plain(column)):
            first.setdefault(meaning[0], (column, meaning))
    return dict(first.values())


def time_factor_ms(column: str, stated_unit: str | None = None) -> float | None:
    """Milliseconds in a unit of a column that holds one iteration's time; None for another.

    A name that has no unit has the one that the user states: s, ms or us. Without, `batch_time` is
    in seconds, as PyTorch's ImageNet example, whose word it is, measures it.
    """
    name = plain(column)
    stem, _, unit = name.rpartition("_")
    if name in TIME_NAMES:
        return MS_FACTORS.get(stated_unit or ("s" if name == "batch_time" else ""))
    return MS_FACTORS.get(unit) if stem in TIME_NAMES else _PER_ITERATION.get(name)
