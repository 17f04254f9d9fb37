"""The report's tables of runs, one row each: what was measured, its times, and imported ones."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.report.tables.run_columns import BATCH, NUMBERED, OF_RUN, metric, utc
from analysis.runs.imported import ImportedRun, imported
from analysis.runs.phases import PhaseSplit, phase_split
from analysis.runs.placed import PlacedRun
from analysis.runs.quantities import percent, three_digits
from analysis.runs.run import TOKENS_PER_S, Run
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
from bench.config import THROUGHPUT, common_sample, rate_metric, rate_unit
from bench.records.verdict.record_metrics import PHASES


def runs_table(runs: Sequence[PlacedRun]) -> Table:
    """What was measured: one row per run, failed ones too."""
    return make_table(
        "runs",
        "What was measured",
        runs,
        whole("number", "no.", lambda run: run.number),
        text("run", "run", lambda run: run.name),
        *OF_RUN,
        BATCH,
        text("math_mode", "arithmetic", _math_mode),
        text("code code_commit", "model's code", _code, _code_and_commit, wraps_em=7),
        text("data", "data", lambda run: run.record.config.data, wraps_em=7),
        whole("warmup_iterations warmup_iterations_done", "warm-up",
              lambda run: (run.record.config.warmup_iters, _done(run)), _done_of),
        whole("iterations_asked iterations", "iterations",
              lambda run: (run.record.config.iters, len(run.iteration_times_s) or None), _done_of),
        text("warmup_ended_early", "warm-up ended early", _warmup_ended_early, wraps_em=8),
        text("ended_early", "window ended early", _ended_early, wraps_em=8),
        whole("repeat", "repeat", lambda run: run.record.config.repeat),
        text("measured", "measured", lambda run: run.record.created, utc),
        text("outcome", "outcome", lambda run: run.outcome),
        sparse=True,
    )  # fmt: skip


def _math_mode(run: PlacedRun) -> str | None:
    return run.record.resolved.math_mode if run.record.resolved else None


def _code(run: PlacedRun) -> tuple[str | None, str | None]:
    """The digest of a user's own model's source, and the commit of its repository."""
    environment = run.record.environment
    code = environment.model_code if environment else None
    return (None, None) if code is None else (code.digest, code.commit)


def _code_and_commit(digest: str, commit: str | None) -> str:
    return digest if commit is None else f"{digest} of {commit}"


def _done(run: PlacedRun) -> int | None:
    """Warm-up iterations that were made."""
    return len(run.record.measurement.warmup_times_s) if run.record.measurement else None


def _done_of(asked: int, done: int | None) -> str:
    return f"{asked}" if done is None or done >= asked else f"{done} of {asked}"


def _warmup_ended_early(run: PlacedRun) -> str | None:
    return run.record.measurement.warmup_ended_early if run.record.measurement else None


def _ended_early(run: PlacedRun) -> str | None:
    return run.record.measurement.ended_early if run.record.measurement else None


def measurements_table(runs: Sequence[PlacedRun]) -> Table:
    """Throughput and times of every run that has a measurement."""
    others = common_sample(run.sample for run in runs if THROUGHPUT in run.metrics)
    return make_table(
        "measurements",
        "Throughput and iteration times of each run",
        (run for run in runs if run.outcome == "ok"),
        NUMBERED,
        *OF_RUN,
        BATCH,
        metric(rate_metric("image"), rate_unit("image")),
        metric(THROUGHPUT, rate_unit(others)),
        metric(TOKENS_PER_S, "tokens/s"),
        metric("loader_images_per_s", "images/s, loader alone"),
        metric("iteration_time_ms_mean", "ms mean"),
        metric("iteration_time_ms_std", "ms SD"),
        metric("iteration_time_ms_p50", "ms p50"),
        metric("iteration_time_ms_p95", "ms p95"),
        metric("iteration_time_ms_p99", "ms p99"),
        metric("data_wait_share", "data wait", lambda share: f"{100 * share:.1f} %"),
        metric("compile_time_s", "compilation (s)"),
        text("verdict", "verdict", lambda run: run.verdict),
        sparse=True,
    )


def phases_table(runs: Sequence[PlacedRun]) -> Table:
    """Where an iteration's time goes, of runs that timed its phases."""

    def phase(name: str) -> Column[tuple[PlacedRun, PhaseSplit]]:
        return number(f"{name}_ms {name}_share", name, lambda row: _of_phase(row[1], name), _share)

    return make_table(
        "phases",
        "Mean time of an iteration by phase, ms and share; synchronised after each phase",
        [(run, split) for run in runs if (split := phase_split(run)) is not None],
        whole("number run", "no.", lambda row: (row[0].number, row[0].name)),
        text("label", "configuration", lambda row: row[0].label, wraps_em=12),
        number("iteration_ms", "iteration (ms)", lambda row: 1e3 * row[1].iteration_s),
        *map(phase, (*PHASES, "other")),
        sparse=True,
    )


def _of_phase(split: PhaseSplit, name: str) -> tuple[float | None, float | None]:
    time_s = split.other_s if name == "other" else split.phases_s.get(name)
    return (None, None) if time_s is None else (1e3 * time_s, split.shares[name])


def _share(time_ms: float, share: float) -> str:
    return f"{three_digits(time_ms)} ({percent(share)})"


def imported_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs that were measured elsewhere, as their source says, and what was counted of them."""
    of_each: list[Column[ImportedRun]] = of_run(lambda run: run)
    machine, model, precision = of_each
    return make_table(
        "imported",
        "Imported measurements",
        imported(runs),
        whole("number", "no.", lambda run: numbers.by_name[run.name]),
        text("run", "run", lambda run: run.name),
        text("source", "source", lambda run: run.imported_from),
        machine,
        text("device", "device", lambda run: run.settings.get("device"), wraps_em=8),
        model,
        precision,
        whole("batch_size", "batch", lambda run: run.batch_size),
        whole("repeats", "repeats", lambda run: run.count),
        number("throughput_images_per_s", "images/s", lambda run: run.samples_per_s),
        number("sd_images_per_s", "SD", lambda run: run.deviations.get(rate_metric(run.sample))),
        number("claimed_gflops", "GFLOP/s, stated", lambda run: run.metrics.get("claimed_gflops")),
        number("attained_gflops", "GFLOP/s, counted",
               lambda run: run.metrics.get("attained_gflops")),
        text("assumed", "assumed of its step",
             lambda run: "; ".join(run.source.assumed) or None, wraps_em=8),
        text("not_placed", "not placed because", lambda run: run.refusal, wraps_em=16),
        sparse=True,
    )  # fmt: skip
