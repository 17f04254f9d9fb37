"""The report's tables of runs, of configurations, of machines, and of the work of a step.

A table is a name, a title, rows, and the names of its columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from analysis.comparison.across import AcrossMachines, MachinePair, mean_row, used_prices
from analysis.findings.batches import gains_per_doubling, knee_of
from analysis.findings.differences import uplifts
from analysis.prediction.batch_size import FEWEST_SIZES, PredictedCurve, fit_curve
from analysis.presentation.columns import C, Row, both_sides, columns, csv_only, tables
from analysis.presentation.table import Column, RunList, Table
from analysis.presentation.words import interval, three_digits
from analysis.report.step_tables import account_rows
from analysis.runs.groups import (
    BatchCurve,
    Group,
    Runs,
    configuration_row,
    configurations,
    group_row,
    newest_accounts,
    ratio_row,
    sample_of,
)
from analysis.scaling import scalings
from bench.config import THROUGHPUT, column_noun, common_sample, rate_column
from bench.records import Complexity, Environment
from bench.records.measurement import link_words

_WHICH = (C.env, C.model, C.ran_precision, C.batch_size)
_SENSORS = (C.power_w, C.clock_mhz, C.temperature_c, C.utilisation_percent,
            C.other_processes_cores, C.stolen_cores, C.power_limited_share, C.throttled_share,
            C.energy_j, C.energy_j_per_image, C.energy_j_per_sample)  # fmt: skip
#: Rows of runs and of accounts on a page; the CSV holds them all.
_SHOWN_RUNS, _SHOWN_PARTS = 500, 40
#: The title and the columns of each table by its name.
_TABLES: Mapping[str, tuple[str, Sequence[Column]]] = {
    # of runs
    "runs": (
        "What was measured",
        (C.number, C.run, *_WHICH, C.precision_asked, C.math_mode, C.user_code, C.data, C.warmup,
         C.window, C.warmup_ended_early, C.ended_early, C.window_class, C.repeat, C.started,
         C.outcome),
    ),
    "imported": (
        "Imported measurements",
        (C.number, C.run, C.source_file, *csv_only(C.env), C.device,
         *csv_only(C.model, C.ran_precision, C.batch_size, C.repeats, C.throughput_images_per_s,
                   C.throughput_images_per_s_std),
         C.claimed_gflops, *csv_only(C.attained_gflops), C.assumed, *csv_only(C.not_placed)),
    ),
    "measurements": (
        "Throughput and iteration times of each run; its whole process, and peak memory",
        (C.numbered, *_WHICH, C.throughput_images_per_s, C.throughput_samples_per_s,
         C.throughput_tokens_per_s, C.loader_images_per_s, C.pace_samples_per_s, C.pace_half_width,
         C.first_steady_iteration, C.iteration_time_ms_mean, C.iteration_time_ms_std,
         C.iteration_time_ms_p50, C.iteration_time_ms_p95, C.iteration_time_ms_p99,
         C.data_wait_share, C.compile_time_s, C.real_s, C.user_s, C.system_s, C.cores_busy,
         C.max_rss_mb, C.peak_memory_mb, C.verdict),
    ),
    "phases": (
        "Mean time of an iteration by phase, ms and share; synchronised after each phase",
        (C.numbered, C.configuration, C.iteration_ms, C.phase_data, C.phase_forward,
         C.phase_backward, C.phase_optimizer, C.phase_other),
    ),
    "telemetry": (
        "Means over the window of what the device's sensors said, and energy",
        (C.numbered, C.configuration, *_SENSORS),
    ),
    "points": (
        "Places under the roof, and what holds each run back",
        (C.numbered, C.configuration, C.work, C.attained_gflops, C.attainable_gflops,
         C.ridge_flop_per_byte, C.fraction_of_roof, C.fraction_of_peak, C.bound, C.bound_because,
         C.roof, C.intensity, C.intensity_counted, C.step_gb, C.counted_dram_gb, C.counted_by,
         C.traffic_amplification, C.executed_per_algorithmic_flop, C.not_counted_because),
    ),
    "accounts": (
        "Where the time of a step goes: parts that add up to it, of each configuration's last run",
        (C.numbered, C.configuration, C.part, C.time_ms, C.low_ms, C.high_ms, C.share_of_step,
         C.of_its_roof),
    ),
    "gains": (
        "What a step gains without a part of it, measured by turns in the run itself",
        (C.numbered, C.configuration, C.without, C.with_ms, C.without_ms, C.gain, C.gain_interval,
         C.account_gain, C.note),
    ),
    "ceilings": (
        "Ceilings",
        (C.device, C.math_mode, C.peak_gflops, C.peak_gb_per_s, C.ridge_flop_per_byte,
         C.ceiling_kind, C.ceiling_source, C.ceiling_date, C.run),
    ),
    "complexity": (
        "Work, traffic and memory of one training step by the cost model; attention counts whole "
        "under a causal mask",
        (C.arch, C.image_size, C.tokens_per_sample, C.batch_size, C.precision, C.parameters_million,
         C.activations_million, C.forward_gmac, C.step_gflop, C.compulsory_gb, C.fused_gb,
         C.eager_gb, C.weights_gb, C.gradients_gb, C.optimizer_gb, C.activations_gb, C.runs),
    ),
    # of configurations
    "summary": (
        "Throughput of each configuration over its repeats, and its place under the roof",
        (*_WHICH, C.repeats, C.rate_mean, C.rate_interval, C.throughput_tokens_per_s,
         C.attained_gflops, C.intensity, C.fraction_of_roof, C.bounds, C.verdict, C.runs),
    ),
    "uplift": (
        "Lower precision against fp32",
        (*_WHICH, C.rate, C.fp32_rate, C.ratio, C.ratio_interval, C.verdict, C.note, C.runs),
    ),
    "batch-gains": (
        "Gains of larger batches, and the knee",
        (*_WHICH, C.rate, C.ratio_to_smallest, C.gain_per_doubling, C.note, C.runs),
    ),
    "scaling": (
        "Scaling over devices: {sample}s/s over those of one; the efficiency and what a step loses "
        "add up to 100 %",
        (C.configuration, C.scaling, C.devices, C.batch_on_one, C.rate, C.rate_on_one, C.ratio,
         C.ratio_interval, C.scaling_efficiency, C.communication_share, C.imbalance_share,
         C.input_share, C.smaller_batches_share, C.slower_computing_share, C.not_explained_share,
         C.verdict, C.note, C.runs),
    ),
    "predictions": (
        "Time of a step as a fixed cost and a cost {a_sample}",
        (C.env, C.model, C.ran_precision, C.fixed_ms, C.per_sample_ms, C.rate_limit,
         C.measured_batches, C.held_out_error, C.worst_held_out, C.runs),
    ),
    # of machines
    "prices": (
        "Prices of machines, given for this report",
        (C.env, C.price, C.kind, C.price_date, C.price_source),
    ),
}  # fmt: skip


def run_tables(runs: Runs, run_ids: Mapping[str, str] | None = None) -> dict[str, Table]:
    """Return the tables of single runs, of their roofs and of their work, by their names.

    `run_ids` maps the records of roofs to tracked runs.
    """
    rows, sample = [run.row for run in runs], sample_of(runs)
    ours = [row for row in rows if "source_file" not in row]
    found = {
        "runs": ours,
        "imported": _having(rows, ["source_file"]),
        "measurements": _having(ours, ["iterations", "real_s", "peak_memory_mb"]),
        "phases": _having(rows, ["iteration_ms"]),
        "telemetry": _having(ours, [key for column in _SENSORS for key in column.keys]),
        "points": _having(rows, ["bound"]),
        "accounts": [
            {"run": run.name, "number": run.number, "configuration": run.label, **row}
            for run, account in newest_accounts(runs)
            for row in account_rows(account)
        ],
        "gains": [
            {"run": run.name, "number": run.number, "configuration": run.label, **gain}
            for run in runs
            for gain in run.gains
        ],
        "ceilings": _ceilings(runs, run_ids or {}),
    }
    work = {"complexity": _complexities(runs, column_noun(sample))}
    rated = common_sample(run.sample for run in runs if THROUGHPUT in run.metrics)
    named = tables(_TABLES, found, rated, shown=_SHOWN_RUNS) | tables(_TABLES, work, sample)
    return {**named, "accounts": replace(named["accounts"], shown=_SHOWN_PARTS)}


def _having(rows: Iterable[Row], keys: Iterable[str]) -> list[Row]:
    return [row for row in rows if any(row.get(key) is not None for key in keys)]


def _ceilings(runs: Runs, run_ids: Mapping[str, str]) -> list[Row]:
    once = {}
    for run in runs:
        if run.point is not None:
            record_id = run.point.ceiling_record_id
            of_roof = {"run": run_ids.get(record_id or "", record_id), "device": run.device}
            row = run.row | of_roof
            once[row["device"], row["math_mode"], row["run"] or "", row["ceiling_source"]] = row
            if link := run.point.all_reduces:
                what = f"all-reduce, {link[0].devices} devices, {link[0].communication}"
                gb_per_s = max(one.bus_bytes_per_s for one in link) / 1e9
                row = row | {"math_mode": what, "peak_gb_per_s": gb_per_s, "peak_gflops": None}
                row |= {"ridge_flop_per_byte": None, "ceiling_source": link_words(link)}
                once[row["device"], what, row["run"] or "", ""] = row
    return [once[key] for key in sorted(once)]


def _complexities(runs: Runs, per: str) -> list[Row]:
    """The work once per model, batch size and precision; of imported runs what their files name."""
    found: dict[tuple[Any, ...], tuple[Complexity, list[str]]] = {}
    for run in runs:
        work = run.source.complexity if run.source else None
        if work is not None and (run.imported is None or run.imported.precision is not None):
            key = work.arch, work.image_size or 0, work.tokens_per_sample or 0, work.batch_size
            found.setdefault((*key, work.precision), (work, []))[1].append(run.name)
    same = ("arch", "image_size", "tokens_per_sample", "batch_size", "precision")
    traffic = ("compulsory_bytes", "fused_bytes", "eager_bytes")
    rows = []
    for _, (work, names) in sorted(found.items(), key=itemgetter(0)):
        held = work.memory.model_dump(exclude={"peak_bytes"})
        sizes = {name: getattr(work, name) for name in traffic} | held
        row = {
            **{name: getattr(work, name) for name in same},
            "parameters_million": work.parameters / 1e6,
            f"activations_million_per_{per}": work.activations and work.activations / 1e6,
            f"forward_gmac_per_{per}": work.forward_macs / work.batch_size / 1e9,
            f"step_gflop_per_{per}": work.step_flops_per_sample / 1e9,
            **{f"{name.removesuffix('_bytes')}_gb": size / 1e9 for name, size in sizes.items()},
            "runs": RunList(tuple(names)),
        }
        rows.append(row)
    return rows


# Runs


def configuration_tables(runs: Runs) -> dict[str, Table]:
    """Return the tables of configurations, each with its repeats, by their names."""
    sample = sample_of(runs)
    rate, noun = rate_column(sample), column_noun(sample)
    found = {
        "summary": [configuration_row(group, rate) for group in configurations(runs)],
        "uplift": [
            {
                **group_row(judged.b, rate),
                f"fp32_{rate}": judged.a.samples_per_s,
                **ratio_row(judged.estimate),
                "verdict": judged.word,
                "note": "memory spilled" if spilled else None,
                "runs": RunList((*judged.b.names, *judged.a.names)),
            }
            for judged, spilled in uplifts(runs)
        ],
        "batch-gains": [row for curve in runs.curves for row in _gains(curve, rate)],
        "scaling": [scaling.row(rate) for scaling in scalings(runs)],
        "predictions": [
            _predicted(curve[0], fit_curve(curve), noun)
            for curve in runs.curves
            if len(curve.before_cliff) >= FEWEST_SIZES
        ],
    }
    return tables(_TABLES, found, sample)


def _gains(curve: BatchCurve, rate: str) -> Iterator[Row]:
    """Each batch size against the smallest and the next smaller one, and the knee."""
    if len(curve) == 1:
        return
    knee, cliff, gains = knee_of(curve), curve.cliff, gains_per_doubling(curve)
    for index, group in enumerate(curve):
        note = "knee" if knee is not None and knee.knee is group else None
        yield {
            **group_row(group, rate),
            "ratio_to_smallest": group.samples_per_s / curve[0].samples_per_s,
            "gain_per_doubling": gains.get(group.batch_size),
            "note": "memory spilled" if cliff is not None and index >= cliff else note,
        }


def _predicted(group: Group, curve: PredictedCurve, noun: str) -> Row:
    """The model of a curve; the group of its smallest batch stands for its settings."""
    each_s = curve.model.per_sample_s
    return group_row(group, f"{noun}s_per_s") | {
        "fixed_ms": 1e3 * curve.model.fixed_s,
        f"per_{noun}_ms": 1e3 * each_s,
        f"limit_{noun}s_per_s": 1 / each_s if each_s > 0 else None,
        "measured_batches": ", ".join(f"{batch.batch_size}" for batch in curve.measured),
        "held_out_error": curve.held_out_error,
        "worst_held_out": max(abs(error) for _, error in curve.held_out),
        "runs": RunList(tuple(curve.runs)),
    }


# One machine beside another


def machine_tables(across: AcrossMachines) -> dict[str, Table]:
    """Return the tables of machines beside each other and of their prices, by their names."""
    samples, reference = common_sample(pair.sample for pair in across.against), across.reference
    title = f"How many times as fast as {reference} each machine is, cost of 1e6 {samples}s"
    against = shared_table(across.against, (reference or "", ""), "times-as-fast", title)
    return {against.name: against, **tables(_TABLES, {"prices": _prices(across.pairs)})}


def _prices(pairs: Sequence[MachinePair]) -> list[Row]:
    """The prices that costs rest on: of which machine, how much, of when, from where."""
    rows = [
        {"env": label, **price.row, "kind": "spot" if price.spot else "on demand"}
        for label, price in used_prices(pairs)
    ]
    return sorted(rows, key=itemgetter("env", "kind"))


def shared_table(
    pairs: Sequence[MachinePair], sides: tuple[str, str], name: str, title: str
) -> Table:
    """Each configuration of each pair, and the geometric mean where a pair has several.

    `sides` are what headings call the two machines, the one that is held against first.
    """
    sample, rows = common_sample(pair.sample for pair in pairs), list[Row]()
    for pair in pairs:
        rows += pair.rows
        if len(pair.counted) > 1:
            mean = mean_row(pair.counted)
            of = f"geometric mean of {mean['configurations']}"
            ends = interval(mean["least_ratio"], mean["largest_ratio"])
            about = {"env": pair.b, "arch": of, "note": f"from {ends}", "runs": RunList(())}
            rows.append(mean | about)
    words, prefixes = (sides[1], sides[0]), ("", "reference_")
    of_each = (C.fraction_of_roof, C.fraction_of_peak, C.energy, C.cost, C.spot_cost)
    shown = (
        *columns((C.env, C.model, C.precision, C.batch_size), sample),
        *both_sides((C.rate_repeats,), sample, prefixes, words),
        *columns((C.ratio, C.ratio_interval, C.verdict), sample),
        *both_sides(of_each, sample, prefixes, words),
        *columns((C.cost_ratio, C.note, C.runs), sample),
    )
    return Table(name, title, rows, shown)


# Environments


def environments_table(runs: Runs) -> Table:
    """Facts in rows, environments in columns; a fact that no machine has is left out.

    Environments that differ in a fact are columns of their own, numbered if they share a label.
    """
    known = [
        (environment.label, _facts(environment))
        for run in runs
        if run.record and (environment := run.record.environment) is not None
    ]
    found = {(label, tuple(facts.items())): facts for label, facts in known}
    labels = [label for label, _ in found]
    headings = [
        label if labels.count(label) == 1 else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    ]
    machines = list(zip(headings, found.values(), strict=True))
    names = dict.fromkeys(name for facts in found.values() for name in facts)
    rows = [{**{label: facts[name] for label, facts in machines}, "fact": name} for name in names]
    return Table(
        "environments",
        "Environments",
        _having(rows, headings),
        (Column("", ("fact",)), *(Column(label, (label,), wraps_em=12) for label in headings)),
    )


#: What is shown otherwise, or differs between machines that are alike.
_NOT_SHOWN = {"missing", "label", "device", "packages", "variables", "host", "model_code",
              "git_commit", "git_dirty", "device_missing", "device_max_clock_mhz"}  # fmt: skip


def _facts(env: Environment) -> dict[str, str | None]:
    """The facts of an environment by their names in its record, in words."""
    found = {f"device_{name}": value for name, value in env.device} | dict(env)
    found = {name: value for name, value in found.items() if name not in _NOT_SHOWN}
    found |= {"NCCL": env.packages.get("nccl"), "variables": env.variables_set}
    found["commit"] = env.git_commit and env.git_commit[:12] + " (changed)" * bool(env.git_dirty)
    if env.device.backend == "cpu":  # the libraries that came with torch did nothing there
        found |= dict.fromkeys(("cuda", "cudnn", "NCCL"))
    words = {}
    for name, value in found.items():
        shown = None if value is None else f"{value}"
        if value and name.endswith("_bytes"):
            shown = f"{three_digits(value / 1e9)} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"
        elif value and name.endswith("_w"):
            shown = f"{three_digits(value)} W"
        words[name.removesuffix("_bytes").removesuffix("_w").replace("_", " ")] = shown
    return words
