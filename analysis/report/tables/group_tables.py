"""The report's tables of configurations: work, the matrix, repeats, uplift, devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from analysis.comparison.scaling import on_one_device, scaling_efficiency
from analysis.findings.differences import Scatter, Uplift, scatters, uplifts
from analysis.findings.report_finding import names_of
from analysis.runs.groups import sample_of
from analysis.runs.imported import ImportedRun
from analysis.runs.placed import PlacedRun, recorded
from analysis.runs.quantities import interval, percent, ratio_digits
from analysis.runs.run import Run
from analysis.statistics import RatioEstimate, RepeatEstimate
from analysis.table import (
    Column,
    RunNumbers,
    Table,
    make_table,
    number,
    of_run,
    text,
    whole,
)
from bench.config import a_sample, column_noun, common_sample, rate_column, rate_unit
from bench.records import Complexity


def matrix_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """What was asked for: machines x models x precisions, their batch sizes and iterations.

    Without a row where each would repeat one of the table of runs.
    """
    planned: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        asked = run.asked_for("precision") or run.precision
        planned.setdefault((run.env, run.arch, asked), []).append(run)
    return make_table(
        "matrix",
        "Run matrix",
        planned.values() if len(planned) < len(runs) else (),
        text("machine", "machine", lambda members: members[0].env),
        text("arch", "model", lambda members: members[0].arch),
        text("precision", "precision", lambda members: members[0].asked_for("precision")),
        text("batch_sizes", "batch sizes", _batch_sizes),
        text("data", "data", lambda members: _asked(members, "data"), wraps_em=7),
        text("warmup_iterations", "warm-up", lambda members: _asked(members, "warmup_iters")),
        text("iterations", "iterations", lambda members: _asked(members, "iters")),
        whole("measured", "measured", lambda members: sum(r.outcome == "ok" for r in members)),
        whole("failed", "failed", lambda members: sum(r.outcome != "ok" for r in members)),
        text("runs", "runs", lambda members: numbers.listed(run.name for run in members)),
    )


def _batch_sizes(runs: list[Run]) -> str:
    return ", ".join(map(str, sorted({run.batch_size for run in runs if run.batch_size})))


def _asked(runs: Sequence[Run], name: str) -> str | None:
    configs = [run.record.config for run in runs if run.record]
    return ", ".join(sorted({f"{getattr(config, name)}" for config in configs})) or None


def complexity_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Work, traffic and memory of one training step, once per model, batch size and precision.

    Of imported runs it is the step that their files name, with its precision.
    """

    def key(one: Complexity) -> tuple[str, int, int, int, str]:
        pixels, tokens = one.image_size or 0, one.tokens_per_sample or 0
        return one.arch, pixels, tokens, one.batch_size, one.precision

    found: dict[tuple[str, int, int, int, str], Complexity] = {}
    names: dict[tuple[str, int, int, int, str], list[str]] = {}
    for run in runs:
        if (counted := _complexity(run)) is not None:
            found.setdefault(key(counted), counted)
            names.setdefault(key(counted), []).append(run.name)
    sample = common_sample(one.sample for one in found.values())
    each, per = a_sample(sample), column_noun(sample)
    pixels: Column[Complexity] = whole("image_size", "pixels", lambda one: one.image_size)
    tokens: Column[Complexity] = whole(
        "tokens_per_sample", f"tokens {each}", lambda one: one.tokens_per_sample
    )
    return make_table(
        "complexity",
        "Work, traffic and memory of one training step by the cost model; attention counts whole "
        "under a causal mask",
        [found[place] for place in sorted(found)],
        text("arch", "model", lambda one: one.arch),
        *(size for size in (pixels, tokens) if any(map(size.value, found.values()))),
        whole("batch_size", "batch", lambda one: one.batch_size),
        text("precision", "precision", lambda one: one.precision),
        number("parameters_million", "M parameters", lambda one: one.parameters / 1e6),
        number(f"activations_million_per_{per}", f"M activations {each}",
               lambda one: one.activations / 1e6),
        number(f"forward_gmac_per_{per}", f"forward GMAC {each}",
               lambda one: one.forward_macs / one.batch_size / 1e9),
        number(f"step_gflop_per_{per}", f"step GFLOP {each}",
               lambda one: one.step_flops_per_sample / 1e9),
        number("compulsory_gb", "GB a step, compulsory", lambda one: one.compulsory_bytes / 1e9),
        number("fused_gb", "fused", lambda one: one.fused_bytes / 1e9),
        number("eager_gb", "eager", lambda one: one.eager_bytes / 1e9),
        number("weights_gb", "weights GB", lambda one: one.memory.weights_bytes / 1e9),
        number("gradients_gb", "gradients", lambda one: one.memory.gradients_bytes / 1e9),
        number("optimizer_gb", "optimizer", lambda one: one.memory.optimizer_bytes / 1e9),
        number("activations_gb", "activations", lambda one: one.memory.activations_bytes / 1e9),
        text("runs", "runs", lambda one: numbers.listed(names[key(one)])),
    )  # fmt: skip


def _rate_names(runs: Sequence[Run]) -> tuple[str, str]:
    """The column of the rate of `runs`, and its heading."""
    sample = sample_of(runs)
    return rate_column(sample), rate_unit(sample)


def _complexity(run: Run) -> Complexity | None:
    if isinstance(run, ImportedRun):
        return run.source.complexity if run.source.precision else None
    return run.record.complexity if run.record else None


def _ends(estimate: RepeatEstimate | RatioEstimate) -> tuple[float | None, float | None]:
    return estimate.low, estimate.high


def uplift_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each lower precision against fp32 of the same configuration."""
    of_low: list[Column[Uplift]] = of_run(lambda one: one.low)
    machine, model, precision = of_low
    rate, unit = _rate_names(runs)
    return make_table(
        "uplift",
        "Lower precision against fp32",
        uplifts(runs),
        machine,
        model,
        whole("batch_size", "batch", lambda one: one.low.batch_size),
        precision,
        number(rate, unit, lambda one: one.low.samples_per_s),
        number(f"fp32_{rate}", "fp32", lambda one: one.full.samples_per_s),
        number("uplift", "times as fast", lambda one: one.estimate and one.estimate.ratio,
               ratio_digits),
        number("uplift_low uplift_high", "95 % interval",
               lambda one: _ends(one.estimate) if one.estimate else (None, None), interval),
        text("verdict", "verdict", lambda one: one.found and one.found.word),
        text("note", "note", lambda one: "memory spilled" if one.spilled else one.note,
             wraps_em=10),
        text("runs", "runs", lambda one: numbers.listed((*one.low.names, *one.full.names))),
    )  # fmt: skip


def pooled_scatters(runs: Sequence[Run]) -> list[Scatter]:
    """Return each machine's scatter, unless there is one configuration: its SD says the same."""
    found = scatters(runs)
    return found if sum(len(one.groups) for one in found) > 1 else []


def scatter_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The deviation between repeats by machine, pooled over its configurations."""
    return make_table(
        "scatter",
        "Scatter between repeats by machine",
        pooled_scatters(runs),
        text("machine", "machine", lambda one: one.label),
        whole("configurations", "configurations", lambda one: len(one.groups)),
        whole("degrees", "degrees of freedom", lambda one: one.degrees),
        number("relative_sd", "SD between repeats", lambda one: one.deviation, percent),
        text("runs", "runs", lambda one: numbers.listed(names_of(one.groups))),
    )


class _Pair(NamedTuple):
    many: PlacedRun
    one: PlacedRun

    @property
    def efficiency(self) -> float:
        return scaling_efficiency(self.many.record, self.one.record)


def scaling_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs on several devices against the same configuration on one."""
    placed = recorded(runs)
    by_record = {run.record.record_id: run for run in placed}
    records = [run.record for run in placed]
    pairs = [
        _Pair(many, by_record[record.record_id])
        for many in placed
        if many.outcome == "ok" and (record := on_one_device(many.record, records)) is not None
    ]
    rate, unit = _rate_names(runs)
    return make_table(
        "scaling",
        f"Scaling over devices: {unit} over those of as many single devices",
        [pair for pair in pairs if math.isfinite(pair.efficiency)],
        text("configuration", "configuration", lambda pair: pair.many.label, wraps_em=12),
        whole("devices", "devices", lambda pair: pair.many.record.config.world_size),
        number(rate, unit, lambda pair: pair.many.samples_per_s),
        number(f"{rate}_on_one", "on one", lambda pair: pair.one.samples_per_s),
        number("scaling_efficiency", "efficiency", lambda pair: pair.efficiency, percent),
        number("communication_share", "communication",
               lambda pair: pair.many.metrics.get("communication_share"), percent),
        text("runs", "runs", lambda pair: numbers.listed((pair.many.name, pair.one.name))),
    )  # fmt: skip
