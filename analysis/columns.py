"""Every column once: its keys, what people read above it, how they read a value, what is better.

A key is the name of a value in rows of tables, in CSV and JSON, and in tables of a notebook, with
its unit at the end; metrics have the names that they have in MLflow. `columns("env model")` are the
columns of a table by their names. A column of several keys has a name of its own. `{sample}` is an
image, a sequence or a sample in a heading, and image or sample in a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.table import Column, Larger, Show, Table, first_value
from analysis.words import (
    interval,
    percent,
    percent_change,
    percent_interval,
    plus_minus,
    ratio_digits,
    signed,
    three_digits,
)
from bench.config import Sample, a_sample, column_noun
from bench.records.metrics import PHASES

if TYPE_CHECKING:
    from analysis.account import StepAccount

Row = dict[str, Any]


def columns(names: str, sample: Sample = "sample") -> tuple[Column, ...]:
    """Return the columns of these names, with spaces between them, for runs of a kind of sample."""
    return tuple(
        replace(
            column,
            keys=tuple(key.format(sample=column_noun(sample)) for key in column.keys),
            heading=_with_sample(column.heading, sample),
        )
        for column in map(COLUMNS.__getitem__, names.split())
    )


def table(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    names: str,
    sample: Sample = "sample",
    *,
    shown: int | None = None,
) -> Table:
    """Return a table of the columns of these names; `title` may name the sample as they do."""
    return Table(name, _with_sample(title, sample), rows, columns(names, sample), shown)


def tables(
    declared: Mapping[str, tuple[str, str]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    sample: Sample = "sample",
) -> dict[str, Table]:
    """Return the table of each name with its `rows`; `declared` are titles and columns by name."""
    return {
        name: table(name, declared[name][0], rows[name], declared[name][1], sample) for name in rows
    }


def _with_sample(words: str, sample: Sample) -> str:
    return words.replace("{sample}", sample).replace("{a_sample}", a_sample(sample))


def both_sides(
    names: str, sample: Sample, prefixes: tuple[str, str], sides: tuple[str, str]
) -> tuple[Column, ...]:
    """Return each column twice, for two sides: with its prefix before the keys and its word."""
    return tuple(
        replace(
            column,
            heading=f"{column.heading} {side}".strip(),
            keys=tuple(f"{prefix}{key}" for key in column.keys),
        )
        for column in columns(names, sample)
        for prefix, side in zip(prefixes, sides, strict=True)
    )


def metric_columns() -> dict[str, Column]:
    """Return the columns of metrics that can be compared, by the metrics' names."""
    return {name: column for name, column in COLUMNS.items() if column.larger}


Declared = tuple[str, Column]
#: The name of a column, which is its only key; or its name, and then its keys.
_Names = str | tuple[str, ...]
#: How the end of a key is written in a heading that follows from it.
_UNITS = {"gb_per_s": "GB/s", "gflops": "GFLOP/s", "gflop": "GFLOP", "gb": "GB"}


def _text(names: _Names, heading: str = "", show: Show = first_value, **more: Any) -> Declared:
    """Return a column by its name; its heading is the name in words unless it has another."""
    name, *keys = (names,) if isinstance(names, str) else names
    unit = next((unit for unit in _UNITS if f"_{name}".endswith(f"_{unit}")), "")
    words = f"{name.removesuffix(unit)}{_UNITS.get(unit, '')}".replace("_", " ")
    return name, Column(heading or words, tuple(keys) or (name,), show, **more)


def _few_shapes(shapes: str) -> str:
    """The first shapes of an op on a list: it may have one for each parameter of a model."""
    first, *others = shapes.split(", ")
    return shapes if len(others) < 6 else f"{first} and {len(others)} more"


def _whole(names: _Names, heading: str = "", show: Show = first_value) -> Declared:
    return _text(names, heading, show, numeric=True)


def _number(names: _Names, heading: str = "", show: Show = three_digits, **more: Any) -> Declared:
    return _text(names, heading, show, numeric=True, **more)


def _metric(
    name: str, heading: str, unit: str, larger: Larger, show: Show = three_digits
) -> Declared:
    return _number(name, heading, show, unit=unit, larger=larger)


def _done_of(asked: int | str, done: int | None) -> str:
    if done is None or isinstance(asked, str):
        return f"{asked if done is None else done}"
    return f"{asked}" if done >= asked else f"{done} of {asked}"


def _mean_sd_count(mean: float, deviation: float | None, count: int) -> str:
    return plus_minus(mean, deviation) + (f" ({count})" if count > 1 else "")


def _amount(value: float, currency: str, *_: object) -> str:
    return f"{three_digits(value)} {currency}"


_DECLARED = (
    # what ran where
    _text("run", wraps_em=9),
    *map(_text, ("runs", "precision", "outcome", "verdict", "note", "source", "kind")),
    *map(_whole, ("repeat", "repeats", "devices", "configurations")),
    _whole(("common_batch_sizes", "configurations")),
    _whole("number", "no."),
    _whole(("numbered", "number", "run"), "no."),
    _text("env", "machine"),
    _text("slower_env", "against"),
    _text("device", wraps_em=8),
    _text("arch", "model"),
    _text(("model", "arch", "differs_in"), "model",
          lambda text, note: f"{text} ({note})" if note else text),
    _text(("ran_precision", "precision", "precision_label"), "precision", lambda _, label: label),
    _text("precision_asked", "asked for"),
    _whole("batch_size", "batch"),
    _whole("image_size", "pixels"),
    _whole("seq_len", "tokens a sequence"),
    _whole("tokens_per_sample", "tokens {a_sample}"),
    _text("configuration", wraps_em=12),
    _text(("configuration_of", "env", "configuration"), "configuration",
          lambda env, label: label if label.startswith(env) else f"{env} {label}", wraps_em=14),
    _text("also_differs", "ran with", wraps_em=12),
    _text("ran_with", wraps_em=10),
    _text("math_mode", "arithmetic"),
    _text(("user_code", "code", "code_commit"), "model's code",
          lambda code, commit: code if commit is None else f"{code} of {commit}", wraps_em=7),
    _text("data", wraps_em=7),
    _whole(("warmup", "warmup_iters", "warmup_iterations_done"), "warm-up", _done_of),
    _whole(("window", "iters", "iterations"), "iterations", _done_of),
    _text("warmup_ended_early", "warm-up ended early", wraps_em=8),
    _text("ended_early", "window ended early", wraps_em=8),
    _text("window_class", "class"),
    _whole("first_steady_iteration", "steady from iteration"),
    _number("pace_half_width", "known to", percent),
    _text("started", "measured"),
    _text("because", wraps_em=20),
    _text("source_file", "source"),
    # metrics that can be compared; what of them is better
    _metric("throughput_images_per_s", "images/s", "images/s", "faster"),
    _metric("throughput_samples_per_s", "{sample}s/s", "samples/s", "faster"),
    _metric("throughput_tokens_per_s", "tokens/s", "tokens/s", "faster"),
    _metric("pace_samples_per_s", "pace", "samples/s", "faster"),
    _metric("attained_gflops", "attained GFLOP/s", "GFLOP/s", "faster"),
    _metric("iteration_time_ms_mean", "ms mean", "ms", "slower"),
    _metric("iteration_time_ms_p50", "ms p50", "ms", "slower"),
    _metric("iteration_time_ms_p95", "ms p95", "ms", "slower"),
    _metric("iteration_time_ms_p99", "ms p99", "ms", "slower"),
    _metric("iteration_time_ms_std", "ms SD", "ms", "worse"),
    _metric("compile_time_s", "compilation (s)", "s", "slower"),
    _metric("data_wait_share", "data wait", "of 1", "worse", lambda share: f"{100 * share:.1f} %"),
    _metric("peak_memory_mb", "peak on the device (MB)", "MB", "worse"),
    _metric("max_rss_mb", "max RSS (MB)", "MB", "worse"),
    _metric("energy_j", "energy (J)", "J", "worse"),
    _metric("energy_j_per_image", "J/image", "J", "worse"),
    _metric("energy_j_per_sample", "J/{sample}", "J", "worse"),
    _metric("real_s", "real (s)", "s", "slower"),
    _metric("user_s", "user (s)", "s", "worse"),
    _metric("system_s", "system (s)", "s", "worse"),
    # of a run
    _number("loader_images_per_s", "images/s, loader alone"),
    _number("cores_busy", "cores busy, mean"),
    _number("iteration_ms", "iteration (ms)"),
    *(_number((f"phase_{phase}", f"{phase}_ms", f"{phase}_share"), phase,
              lambda ms, share: f"{three_digits(ms)} ({percent(share)})")
      for phase in (*PHASES, "other")),
    _number("power_w", "power (W)"),
    _number("clock_mhz", "clock (MHz)"),
    _number("temperature_c", "temperature (°C)"),
    _number("utilisation_percent", "utilisation (%)"),
    _number("other_processes_cores", "cores of other programs"),
    _number("stolen_cores", "cores given to other guests"),
    _number("power_limited_share", "at its power limit", percent),
    _number("throttled_share", "throttled", percent),
    _number("throughput_images_per_s_std", "SD"),
    _number("claimed_gflops", "GFLOP/s, stated"),
    _text("assumed", "assumed of its step", wraps_em=8),
    _text("not_placed", "not placed because", wraps_em=16),
    # under a roof
    _text("work", wraps_em=6),
    _number(("attainable_gflops", "attainable_gflops_min", "attainable_gflops_max"),
            "attainable GFLOP/s", interval),
    _number("ridge_flop_per_byte", "ridge FLOP/byte"),
    _number(("fraction_of_roof", "fraction_of_roof_min", "fraction_of_roof_max"), "of the roof",
            percent_interval),
    _number("fraction_of_peak", "MFU", percent),
    _text(("bound", "bound", "bound_sure"), "bound",
          lambda bound, sure: bound if sure else f"{bound}?"),
    _text(("bounds", "bound"), "bound"),
    _text("bound_because", "because", wraps_em=20),
    # open where a fused op moves no byte of its own
    _number(("intensity", "intensity_min", "intensity_max"), "FLOP/byte", lambda eager, fused: (
        f"{three_digits(eager)} and up" if fused is None else interval(eager, fused))),
    _number("intensity_counted", "FLOP/byte, counted"),
    _number(("step_gb", "step_fused_gb", "step_eager_gb"), "GB, fused to eager", interval),
    _number("traffic_amplification", "counted / fused"),
    _number("executed_per_algorithmic_flop", "executed / algorithmic FLOP"),
    _text("not_counted_because", wraps_em=16),
    _number("step_ms", "step (ms)"),
    _number("arithmetic_ms", "arithmetic at the roof (ms)"),
    _number(("traffic_ms", "traffic_min_ms", "traffic_max_ms"), "traffic at the roof (ms)",
            interval),
    _text(("roof", "ceiling_kind", "ceiling_date", "ceiling_source"), "roof",
          lambda kind, date, _: f"{kind} {date[:10]}"),
    _text("ceiling_kind", "kind"),
    _text("ceiling_source", "source", wraps_em=24),
    _text("ceiling_date", "date", lambda date: date[:10]),
    *map(_number, ("peak_gflops", "peak_gb_per_s")),
    # of a configuration
    _number(("rate", "{sample}s_per_s"), "{sample}s/s"),
    _number(("rate_mean", "{sample}s_per_s", "{sample}s_per_s_sd"), "{sample}s/s, mean ± SD",
            plus_minus),
    _number(("rate_interval", "{sample}s_per_s_low", "{sample}s_per_s_high"), "95 % interval",
            interval),
    _number(("rate_repeats", "{sample}s_per_s", "{sample}s_per_s_sd", "repeats"), "{sample}s/s",
            _mean_sd_count),
    _number(("fp32_rate", "fp32_{sample}s_per_s"), "fp32"),
    _number(("rate_on_one", "{sample}s_per_s_on_one"), "on one"),
    _number("ratio_to_smallest", "of the smallest batch's"),
    _number("gain_per_doubling", "a doubling gave", percent_change),
    _number("fixed_ms", "ms a step"),
    _number(("per_sample_ms", "per_{sample}_ms"), "ms {a_sample}"),
    _number(("rate_limit", "limit_{sample}s_per_s"), "{sample}s/s at most"),
    _text("measured_batches"),
    _number("held_out_error", "held-out error", percent),
    _number("worst_held_out", "worst", percent),
    _whole("degrees", "degrees of freedom"),
    _number("scatter", "SD between repeats", percent),
    _number(("scatter_interval", "scatter_low", "scatter_high"), "95 % interval",
            lambda low, high: f"{percent(low)} to {percent(high)}"),
    *(_number((f"change_{count}", f"smallest_change_{count}_repeats"), f"{count} repeats", percent)
      for count in (3, 5, 10, 20)),
    _whole(("called_different", "called_different", "halvings"), "called different",
           lambda called, of: f"{called} of {of}"),
    _number("scaling_efficiency", "efficiency", percent),
    _number("communication_share", "communication", percent),
    # of two configurations
    _number("ratio", "times as fast", ratio_digits),
    _number(("b_over_a", "ratio"), "B / A", ratio_digits),
    _number(("mean_ratio", "ratio"), "times as fast, mean", ratio_digits),
    _number(("ratio_interval", "ratio_low", "ratio_high"), "95 % interval", interval),
    _number(("ratio_range", "least_ratio", "largest_ratio"), "least to most", interval),
    _number("p_corrected", "p"),
    _number(("cost", "cost_per_million_{sample}s", "currency", "price_per_h", "price_date",
             "price_source"), "cost of 1e6", _amount),
    _number(("spot_cost", "spot_cost_per_million_{sample}s", "spot_currency", "spot_price_per_h",
             "spot_price_date", "spot_price_source"), "at spot", _amount),
    _number("cost_ratio", "times the cost"),
    _number(("energy", "energy_j_per_{sample}"), "J/{sample}"),
    _number(("price", "price_per_h", "currency"), "price an hour", _amount),
    _text("price_date", "date"),
    _text("price_source", "source", wraps_em=12),
    # the work of a step
    _number("parameters_million", "M parameters"),
    _number(("activations_million", "activations_million_per_{sample}"),
            "M activations {a_sample}"),
    _number(("forward_gmac", "forward_gmac_per_{sample}"), "forward GMAC {a_sample}"),
    _number(("step_gflop", "step_gflop_per_{sample}"), "step GFLOP {a_sample}"),
    *map(_number, ("compulsory_gb", "fused_gb", "eager_gb")),
    *map(_number, ("weights_gb", "gradients_gb", "optimizer_gb", "activations_gb", "modelled_gb")),
    # profiles
    *map(_whole, ("profile", "calls", "iterations", "launches")),
    *map(_text, ("direction", "scope")),
    *map(_number, ("profiled_step_ms", "launch_gap_ms", "executed_gflop")),
    _whole(("profile_no", "profile", "record"), "no."),
    _text("explains_runs", "of run"),
    _number("counted_dram_gb", "counted GB"),
    _number(("communication", "exposed_communication_ms"), "exposed communication ms"),
    _number("ops_time_share", "ops of it", percent),
    _number("device_busy_share", "device busy", percent),
    _number("ops_matched_share", "ops matched", percent),
    _number("megabytes", "MB"),
    _number("time_ms", "ms"),
    _number("gb_per_s"),
    _number("ipc", "IPC"),
    _number("cpi", "CPI"),
    _number("cache_miss_share", "cache misses", percent),
    _number("branch_miss_share", "branch misses", percent),
    _number("executed_gflop_per_step", "GFLOP a step"),
    _number("least_running_share", "counted in", percent),
    # ops and kernels
    _text(("op_label", "label", "op"), "op"),
    *map(_text, ("phase", "kernel")),
    _text("shapes", show=_few_shapes, wraps_em=14),
    *map(_number, ("exclusive_ms", "gflop", "elementwise_gflop", "executed_gflops",
                   "eager_gb_per_s")),
    _number("time_share", "of the time", percent),
    _text("remark", wraps_em=14),
    _number("duration_ms", "ms"),
    _number("tensor_gflop", "on tensor cores"),
    _number("intensity_l1", "FLOP/L1 byte"),
    _number("intensity_l2", "FLOP/L2 byte"),
    _number("intensity_dram", "FLOP/DRAM byte"),
    _number("dram_gb_per_s", "DRAM GB/s"),
    _text("name", "full name", wraps_em=20),
    # traces
    _whole("trace"),
    _whole(("trace_of", "trace", "source_file"), "trace"),
    *map(_text, ("step", "cause", "call", "change")),
    _number("wall_ms", "wall"),
    _number("device_busy_ms", "device busy"),
    _number("computation_ms", "computation"),
    _number("exposed_communication_ms", "exposed communication"),
    _number("exposed_copies_ms", "exposed copies"),
    _number("communication_ms", "communication, hidden too"),
    _number("idle_ms", "idle"),
    _text("idles_for", "idle most for"),
    _number("share_of_step", "of a step", percent),
    _text("op", "in", wraps_em=14),
    _number("difference_ms", "ms added to the step", signed),
    # of the account of a step
    _text(("part", "name"), "part", wraps_em=20),
    _number("low_ms", "at least"),
    _number("high_ms", "at most"),
    _number("of_its_roof", "of its roof", percent),
)  # fmt: skip
#: By name.
COLUMNS = dict(_DECLARED)


def account_rows(account: StepAccount) -> list[Row]:
    """Return a row per part of an account, by the keys of columns."""
    return [
        {"name": row["name"], "time_ms": 1e3 * row["seconds"], "share_of_step": row["share"],
         "of_its_roof": row["of_its_roof"], "low_ms": row["low_s"] and 1e3 * row["low_s"],
         "high_ms": row["high_s"] and 1e3 * row["high_s"]}
        for row in account.rows()
    ]  # fmt: skip
