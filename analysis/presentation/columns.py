"""Every column once: its keys, what people read above it, how they read a value, what is better.

A key is the name of a value in rows of tables, in CSV and JSON, and in tables of a notebook, with
its unit at the end; metrics have the names that they have in MLflow. A column of several keys has a
name of its own. `{sample}` is an image, a sequence or a sample in a heading, and image or sample in
a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from analysis.presentation.table import Column, Larger, Show, Table, first_value
from analysis.presentation.words import (
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

Row = dict[str, Any]


def columns(chosen: Iterable[Column], sample: Sample = "sample") -> tuple[Column, ...]:
    """Return columns of `C` for runs of a kind of sample."""
    return _columns(tuple(chosen), sample)


def csv_only(*chosen: Column) -> tuple[Column, ...]:
    """Return columns that people have elsewhere on the page."""
    return tuple(replace(column, csv_only=True) for column in chosen)


@cache
def _columns(chosen: tuple[Column, ...], sample: Sample) -> tuple[Column, ...]:
    return tuple(
        replace(
            column,
            keys=tuple(key.format(sample=column_noun(sample)) for key in column.keys),
            heading=_with_sample(column.heading, sample),
        )
        for column in chosen
    )


def table(
    name: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    chosen: Iterable[Column],
    sample: Sample = "sample",
    *,
    shown: int | None = None,
) -> Table:
    """Return a table of these columns of `C`; `title` may name the sample as they do."""
    return Table(name, _with_sample(title, sample), rows, columns(chosen, sample), shown)


def tables(
    declared: Mapping[str, tuple[str, Iterable[Column]]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    sample: Sample = "sample",
    *,
    shown: int | None = None,
) -> dict[str, Table]:
    """Return the table of each name with its `rows`; `declared` are titles and columns by name."""
    return {
        name: table(name, title, rows[name], chosen, sample, shown=shown)
        for name, (title, chosen) in declared.items()
        if name in rows
    }


def _with_sample(words: str, sample: Sample) -> str:
    return words.replace("{sample}", sample).replace("{a_sample}", a_sample(sample))


def both_sides(
    chosen: Iterable[Column], sample: Sample, prefixes: tuple[str, str], sides: tuple[str, str]
) -> tuple[Column, ...]:
    """Return each column twice, for two sides: with its prefix before the keys and its word."""
    return tuple(
        replace(
            column,
            heading=f"{column.heading} {side}".strip(),
            keys=tuple(f"{prefix}{key}" for key in column.keys),
        )
        for column in columns(chosen, sample)
        for prefix, side in zip(prefixes, sides, strict=True)
    )


def metric_columns() -> dict[str, Column]:
    """Return the columns of metrics that can be compared, by the metrics' names."""
    return {name: column for name, column in COLUMNS.items() if column.larger}


#: How the end of a key is written in a heading that follows from it.
_UNITS = {"gb_per_s": "GB/s", "gflops": "GFLOP/s", "gflop": "GFLOP", "gb": "GB"}


def _text(heading: str = "", *keys: str, **look: Any) -> Column:
    """A column whose heading and whose only key follow from its name, unless they are given."""
    return Column(heading, keys, **look)


def _number(heading: str = "", *keys: str, show: Show = three_digits, **look: Any) -> Column:
    return Column(heading, keys, show, numeric=True, **look)


_whole = partial(_number, show=first_value)


def _metric(heading: str, unit: str, larger: Larger, show: Show = three_digits) -> Column:
    return _number(heading, show=show, unit=unit, larger=larger)


def _mfu(computed: float, required: float | None, _: float | None) -> str:
    """The required FLOP's; where they are not known, they are at most what the kernels compute."""
    return f"at most {percent(computed)}" if required is None else percent(required)


def _phase(name: str) -> Column:
    return _number(name, f"{name}_ms", f"{name}_share", show=_with_share)


def _with_share(time_ms: float, share: float) -> str:
    return f"{three_digits(time_ms)} ({percent(share)})"


def _few_shapes(shapes: str) -> str:
    """The first shapes of an op on a list: it may have one for each parameter of a model."""
    first, *others = shapes.split(", ")
    return shapes if len(others) < 6 else f"{first} and {len(others)} more"


def _done_of(asked: int | str, done: int | None) -> str:
    if done is None or isinstance(asked, str):
        return f"{asked if done is None else done}"
    return f"{asked}" if done >= asked else f"{done} of {asked}"


def _mean_sd_count(mean: float, deviation: float | None, count: int) -> str:
    return plus_minus(mean, deviation) + (f" ({count})" if count > 1 else "")


def _tenth(share: float) -> str:
    """Show a part of a whole to a tenth of a percent; less is noise."""
    return percent(round(share, 3) + 0.0)


def _amount(value: float, currency: str, *_: object) -> str:
    return f"{three_digits(value)} {currency}"


# fmt: off
class C:
    """Every column by its name. A heading that is not given is the name in words."""

    # what ran where
    run = _text(wraps_em=9)
    runs = precision = outcome = verdict = note = source = kind = _text()
    repeat = repeats = devices = configurations = _whole()
    number = _whole("no.")
    numbered = _whole("no.", "number", "run")
    env = _text("machine")
    device = _text(wraps_em=8)
    arch = _text("model")
    model = _text("model", "arch", "differs_in",
                  show=lambda text, note: f"{text} ({note})" if note else text)
    ran_precision = _text("precision", "precision", "precision_label", show=lambda _, label: label)
    precision_asked = _text("asked for")
    batch_size = _whole("batch")
    image_size = _whole("pixels")
    tokens_per_sample = _whole("tokens {a_sample}")
    configuration = _text(wraps_em=12)
    configuration_of = _text("configuration", "env", "configuration", wraps_em=14, show=(
        lambda env, label: label if label.startswith(env) else f"{env} {label}"))
    also_differs = _text("ran with", wraps_em=12)
    math_mode = _text("arithmetic")
    user_code = _text("model's code", "code", "code_commit",
                      show=lambda code, commit: code if commit is None else f"{code} of {commit}",
                      wraps_em=7)
    data = _text(wraps_em=7)
    warmup = _whole("warm-up", "warmup_iters", "warmup_iterations_done", show=_done_of)
    window = _whole("iterations", "iters", "iterations", show=_done_of)
    warmup_ended_early = _text("warm-up ended early", wraps_em=8)
    ended_early = _text("window ended early", wraps_em=8)
    window_class = _text("class")
    first_steady_iteration = _whole("steady from iteration")
    pace_half_width = _number("known to", show=percent)
    started = _text("measured")
    because = _text(wraps_em=20)
    source_file = _text("source")
    # metrics that can be compared; what of them is better
    throughput_images_per_s = _metric("images/s", "images/s", "faster")
    throughput_samples_per_s = _metric("{sample}s/s", "samples/s", "faster")
    throughput_tokens_per_s = _metric("tokens/s", "tokens/s", "faster")
    pace_samples_per_s = _metric("pace", "samples/s", "faster")
    attained_gflops = _metric("attained GFLOP/s", "GFLOP/s", "faster")
    iteration_time_ms_mean = _metric("ms mean", "ms", "slower")
    iteration_time_ms_p50 = _metric("ms p50", "ms", "slower")
    iteration_time_ms_p95 = _metric("ms p95", "ms", "slower")
    iteration_time_ms_p99 = _metric("ms p99", "ms", "slower")
    iteration_time_ms_std = _metric("ms SD", "ms", "worse")
    compile_time_s = _metric("compilation (s)", "s", "slower")
    data_wait_share = _metric("data wait", "of 1", "worse",
                              show=lambda share: f"{100 * share:.1f} %")
    peak_memory_mb = _metric("peak on the device (MB)", "MB", "worse")
    max_rss_mb = _metric("max RSS (MB)", "MB", "worse")
    energy_j = _metric("energy (J)", "J", "worse")
    energy_j_per_image = _metric("J/image", "J", "worse")
    energy_j_per_sample = _metric("J/{sample}", "J", "worse")
    real_s = _metric("real (s)", "s", "slower")
    user_s = _metric("user (s)", "s", "worse")
    system_s = _metric("system (s)", "s", "worse")
    # of a run
    loader_images_per_s = _number("images/s, loader alone")
    cores_busy = _number("cores busy, mean")
    iteration_ms = _number("iteration (ms)")
    phase_data = _phase("data")
    phase_forward = _phase("forward")
    phase_backward = _phase("backward")
    phase_optimizer = _phase("optimizer")
    phase_other = _phase("other")
    power_w = _number("power (W)")
    clock_mhz = _number("clock (MHz)")
    temperature_c = _number("temperature (°C)")
    utilisation_percent = _number("utilisation (%)")
    other_processes_cores = _number("cores of other programs")
    stolen_cores = _number("cores given to other guests")
    power_limited_share = _number("at its power limit", show=percent)
    throttled_share = _number("throttled", show=percent)
    throughput_images_per_s_std = _number("SD")
    claimed_gflops = _number("GFLOP/s, stated")
    assumed = _text("assumed of its step", wraps_em=8)
    not_placed = _text("not placed because", wraps_em=16)
    # under a roof
    work = _text(wraps_em=6)
    attainable_gflops = _number("attainable GFLOP/s", "attainable_gflops_min",
                                "attainable_gflops_max", show=interval)
    ridge_flop_per_byte = _number("ridge FLOP/byte")
    fraction_of_roof = _number("of the roof", "fraction_of_roof_min", "fraction_of_roof_max",
                               show=percent_interval)
    fraction_of_peak = _number("MFU", "fraction_of_peak", "mfu_required", "mfu_counted",
                               show=_mfu)
    bound = _text("bound", "bound", "bound_sure",
                  show=lambda bound, sure: bound if sure else f"{bound}?")
    bounds = _text("bound", "bound")
    bound_because = _text("because", wraps_em=20)
    # open where a fused op moves no byte of its own
    intensity = _number("FLOP/byte", "intensity_min", "intensity_max", show=lambda eager, fused: (
        f"{three_digits(eager)} and up" if fused is None else interval(eager, fused)))
    intensity_counted = _number("FLOP/byte, counted")
    counted_by = _text("counted by")
    step_gb = _number("GB, fused to eager", "step_fused_gb", "step_eager_gb", show=interval)
    traffic_amplification = _number("counted / fused")
    executed_per_algorithmic_flop = _number("executed / algorithmic FLOP")
    not_counted_because = _text(wraps_em=16)
    step_ms = _number("step (ms)")
    arithmetic_ms = _number("arithmetic at the roof (ms)")
    traffic_ms = _number("traffic at the roof (ms)", "traffic_min_ms", "traffic_max_ms",
                         show=interval)
    roof = _text("roof", "ceiling_kind", "ceiling_date", "ceiling_source",
                 show=lambda kind, date, _: f"{kind} {date[:10]}")
    ceiling_kind = _text("kind")
    ceiling_source = _text("source", wraps_em=24)
    ceiling_date = _text("date", show=lambda date: date[:10])
    peak_gflops = peak_gb_per_s = _number()
    # of a configuration
    rate = _number("{sample}s/s", "{sample}s_per_s")
    rate_mean = _number("{sample}s/s, mean ± SD", "{sample}s_per_s", "{sample}s_per_s_sd",
                        show=plus_minus)
    rate_interval = _number("95 % interval", "{sample}s_per_s_low", "{sample}s_per_s_high",
                            show=interval)
    rate_repeats = _number("{sample}s/s", "{sample}s_per_s", "{sample}s_per_s_sd", "repeats",
                           show=_mean_sd_count)
    fp32_rate = _number("fp32", "fp32_{sample}s_per_s")
    rate_on_one = _number("on one", "{sample}s_per_s_on_one")
    ratio_to_smallest = _number("of the smallest batch's")
    gain_per_doubling = _number("a doubling gave", show=percent_change)
    fixed_ms = _number("ms a step")
    per_sample_ms = _number("ms {a_sample}", "per_{sample}_ms")
    rate_limit = _number("{sample}s/s at most", "limit_{sample}s_per_s")
    measured_batches = _text()
    held_out_error = _number("held-out error", show=percent)
    worst_held_out = _number("worst", show=percent)
    degrees = _whole("degrees of freedom")
    scatter = _number("SD between repeats", show=percent)
    scatter_interval = _number("95 % interval", "scatter_low", "scatter_high",
                               show=lambda low, high: f"{percent(low)} to {percent(high)}")
    change_3 = _number("3 repeats", "smallest_change_3_repeats", show=percent)
    change_5 = _number("5 repeats", "smallest_change_5_repeats", show=percent)
    change_10 = _number("10 repeats", "smallest_change_10_repeats", show=percent)
    change_20 = _number("20 repeats", "smallest_change_20_repeats", show=percent)
    called_different = _whole("called different", "called_different", "halvings",
                              show=lambda called, of: f"{called} of {of}")
    scaling_efficiency = _number("efficiency", show=percent)
    communication_share = _number("communication", show=_tenth)
    scaling = _text()
    batch_on_one = _whole()
    imbalance_share = _number("imbalance of ranks", show=_tenth)
    input_share = _number("input", show=_tenth)
    smaller_batches_share = _number("smaller batches", show=_tenth)
    slower_computing_share = _number("slower computing", show=_tenth)
    not_explained_share = _number("not explained", show=_tenth)
    # without a part of the step
    gain_without_input = gain_without_sync = gain_without_host = _metric(
        "", "times", "worse", ratio_digits
    )
    without = _text()
    with_ms = _number("ms with it")
    without_ms = _number("ms without it")
    gain = _number("gain, times", show=ratio_digits)
    gain_interval = _number("95 % interval", "gain_low", "gain_high", show=interval)
    account_gain = _number("by the account", show=ratio_digits)
    # of two configurations
    ratio = _number("times as fast", show=ratio_digits)
    b_over_a = _number("B / A", "ratio", show=ratio_digits)
    ratio_interval = _number("95 % interval", "ratio_low", "ratio_high", show=interval)
    p_corrected = _number("p")
    cost = _number("cost of 1e6", "cost_per_million_{sample}s", "currency", "price_per_h",
                   "price_date", "price_source", show=_amount)
    spot_cost = _number("at spot", "spot_cost_per_million_{sample}s", "spot_currency",
                        "spot_price_per_h", "spot_price_date", "spot_price_source", show=_amount)
    cost_ratio = _number("times the cost")
    energy = _number("J/{sample}", "energy_j_per_{sample}")
    price = _number("price an hour", "price_per_h", "currency", show=_amount)
    price_date = _text("date")
    price_source = _text("source", wraps_em=12)
    # the work of a step
    parameters_million = _number("M parameters")
    activations_million = _number("M activations {a_sample}", "activations_million_per_{sample}")
    forward_gmac = _number("forward GMAC {a_sample}", "forward_gmac_per_{sample}")
    step_gflop = _number("step GFLOP {a_sample}", "step_gflop_per_{sample}")
    compulsory_gb = fused_gb = eager_gb = _number()
    weights_gb = gradients_gb = optimizer_gb = activations_gb = modelled_gb = _number()
    # profiles
    profile = calls = iterations = launches = _whole()
    direction = scope = _text()
    profiled_step_ms = launch_gap_ms = executed_gflop = _number()
    profile_no = _whole("no.", "profile", "record")
    explains_runs = _text("of run")
    counted_dram_gb = _number("counted GB")
    communication = _number("exposed communication ms", "exposed_communication_ms")
    ops_time_share = _number("ops of it", show=percent)
    device_busy_share = _number("device busy", show=percent)
    ops_matched_share = _number("ops matched", show=percent)
    megabytes = _number("MB")
    time_ms = _number("ms")
    gb_per_s = _number()
    ipc = _number("IPC")
    cpi = _number("CPI")
    cache_miss_share = _number("cache misses", show=percent)
    branch_miss_share = _number("branch misses", show=percent)
    executed_gflop_per_step = _number("GFLOP a step")
    least_running_share = _number("counted in", show=percent)
    # ops and kernels
    op_label = _text("op", "label", "op")
    phase = kernel = _text()
    shapes = _text(show=_few_shapes, wraps_em=14)
    exclusive_ms = gflop = elementwise_gflop = executed_gflops = eager_gb_per_s = _number()
    time_share = _number("of the time", show=percent)
    remark = _text(wraps_em=14)
    duration_ms = _number("ms")
    tensor_gflop = _number("on tensor cores")
    intensity_l1 = _number("FLOP/L1 byte")
    intensity_l2 = _number("FLOP/L2 byte")
    intensity_dram = _number("FLOP/DRAM byte")
    dram_gb_per_s = _number("DRAM GB/s")
    name = _text("full name", wraps_em=20)
    # traces
    trace = _whole()
    trace_of = _whole("trace", "trace", "source_file")
    step = cause = call = change = _text()
    wall_ms = _number("wall")
    device_busy_ms = _number("device busy")
    computation_ms = _number("computation")
    exposed_communication_ms = _number("exposed communication")
    exposed_copies_ms = _number("exposed copies")
    communication_ms = _number("communication, hidden too")
    idle_ms = _number("idle")
    idles_for = _text("idle most for")
    rank = _whole()
    loader_ms = compute_ms = host_ms = _number()
    exchange_wait_ms = _number("waits for others ms")
    arrives_last_share = _number("arrives last", show=percent)
    share_of_step = _number("of a step", show=percent)
    op = _text("in", wraps_em=14)
    difference_ms = _number("ms added to the step", show=signed)
    # of the account of a step
    part = _text("part", "name", wraps_em=20)
    low_ms = _number("at least")
    high_ms = _number("at most")
    of_its_roof = _number("of its roof", show=percent)
# fmt: on


def _named(name: str, column: Column) -> Column:
    unit = next((unit for unit in _UNITS if f"_{name}".endswith(f"_{unit}")), "")
    words = f"{name.removesuffix(unit)}{_UNITS.get(unit, '')}".replace("_", " ")
    return replace(column, heading=column.heading or words, keys=column.keys or (name,))


for _name, _column in list(vars(C).items()):
    if isinstance(_column, Column):
        setattr(C, _name, _named(_name, _column))
#: By name.
COLUMNS = {name: column for name, column in vars(C).items() if isinstance(column, Column)}
