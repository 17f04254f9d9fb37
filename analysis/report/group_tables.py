"""The report's tables of configurations: the matrix, repeats, uplift, scatter, devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.findings.precision_uplift import Uplift, uplifts
from analysis.findings.variability import Scatter, scatters
from analysis.report.run_numbers import RunNumbers
from analysis.report.table import Column, Table, make_table, quantity, share_of
from analysis.runs.groups import Group, group_runs
from analysis.runs.placed import Run
from analysis.runs.quantities import interval, three_digits
from analysis.runs.scaling import on_one_device, scaling_efficiency


def runs_column(numbers: RunNumbers, names: Callable[[Any], Iterable[str]]) -> Column:
    """Return the column of the runs behind a row: numbers for people, ids in the CSV."""
    return Column(
        "runs",
        ("runs",),
        lambda item: " ".join(names(item)),
        lambda ids: numbers.words(ids.split()),
    )


OF_GROUP = (
    Column("machine", ("machine",), lambda g: g.first.env),
    Column("model", ("arch",), lambda g: g.first.arch),
    Column("precision", ("precision",), lambda g: g.first.precision),
    Column("batch", ("batch_size",), lambda g: g.batch_size, numeric=True),
)


@dataclass(frozen=True)
class _Planned:
    """A machine, model and precision of the run matrix with all runs, failed ones too."""

    env: str
    arch: str
    precision: str
    runs: tuple[Run, ...]

    def sizes(self) -> str:
        found = sorted({run.batch_size for run in self.runs if run.batch_size is not None})
        return ", ".join(map(str, found))

    def asked(self, name: str) -> str | None:
        configs = [run.record.config for run in self.runs if run.record]
        return ", ".join(sorted({f"{getattr(config, name)}" for config in configs})) or None


def matrix_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """What was asked for: machines x models x precisions, their batch sizes and iterations."""
    planned: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        planned.setdefault((run.env, run.arch, run.precision), []).append(run)
    rows = [_Planned(*key, tuple(members)) for key, members in planned.items()]
    columns = (
        Column("machine", ("machine",), lambda p: p.env),
        Column("model", ("arch",), lambda p: p.arch),
        Column("precision", ("precision",), lambda p: p.precision),
        Column("batch sizes", ("batch_sizes",), lambda p: p.sizes()),
        Column("data", ("data",), lambda p: p.asked("data"), wraps_em=7),
        Column("warm-up", ("warmup_iterations",), lambda p: p.asked("warmup_iters")),
        Column("iterations", ("iterations",), lambda p: p.asked("iters")),
        Column("measured", ("measured",), lambda p: sum(run.outcome == "ok" for run in p.runs),
               numeric=True),
        Column("failed", ("failed",), lambda p: sum(run.outcome != "ok" for run in p.runs),
               numeric=True),
        runs_column(numbers, lambda p: [run.name for run in p.runs]),
    )  # fmt: skip
    return make_table(number, "matrix", "Run matrix", columns, rows)


def repeats_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Images/s of each configuration: mean and deviation of its repeats, and an interval."""
    columns = (
        *OF_GROUP,
        Column("repeats", ("repeats",), lambda g: g.repeats().count, numeric=True),
        Column("images/s, mean +- SD", ("mean_images_per_s", "sd_images_per_s"), _mean_and_sd,
               _plus_minus, numeric=True),
        Column("95 % interval", ("low_images_per_s", "high_images_per_s"), _interval,
               lambda ends: interval(*ends), numeric=True),
        share_of("SD", "relative_sd", lambda g: g.repeats().relative_deviation),
        runs_column(numbers, lambda g: g.names),
    )  # fmt: skip
    title = "Throughput by configuration, over its repeats"
    return make_table(number, "repeats", title, columns, group_runs(runs))


def _mean_and_sd(group: Group) -> tuple[float, float | None]:
    repeats = group.repeats()
    deviation = repeats.relative_deviation
    return repeats.centre, None if deviation is None else deviation * repeats.centre


def _plus_minus(pair: tuple[float, float | None]) -> str:
    mean, deviation = pair
    return three_digits(mean) if deviation is None else (
        f"{three_digits(mean)} +- {three_digits(deviation)}"
    )  # fmt: skip


def _interval(group: Group) -> tuple[float, float] | None:
    found = group.repeats().interval()
    return None if found.low is None or found.high is None else (found.low, found.high)


def uplift_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Each lower precision against fp32 of the same configuration."""
    columns = (
        Column("machine", ("machine",), lambda u: u.low.first.env),
        Column("model", ("arch",), lambda u: u.low.first.arch),
        Column("batch", ("batch_size",), lambda u: u.low.batch_size, numeric=True),
        Column("precision", ("precision",), lambda u: u.low.first.precision),
        quantity("images/s", "images_per_s", lambda u: u.low.throughput_images_per_s),
        quantity("fp32", "fp32_images_per_s", lambda u: u.full.throughput_images_per_s),
        quantity("times as fast", "uplift", lambda u: u.estimate.ratio),
        Column("95 % interval", ("uplift_low", "uplift_high"), _uplift_ends,
               lambda ends: interval(*ends), numeric=True),
        Column("note", ("note",), lambda u: "memory spilled" if u.spilled else None),
        runs_column(numbers, lambda u: (*u.low.names, *u.full.names)),
    )  # fmt: skip
    return make_table(number, "uplift", "Lower precision against fp32", columns, uplifts(runs))


def _uplift_ends(uplift: Uplift) -> tuple[float, float] | None:
    low, high = uplift.estimate.low, uplift.estimate.high
    return None if low is None or high is None else (low, high)


def scatter_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """The deviation between repeats by machine, pooled over its configurations."""
    columns = (
        Column("machine", ("machine",), lambda s: s.label),
        Column("configurations", ("configurations",), lambda s: len(s.groups), numeric=True),
        Column("degrees of freedom", ("degrees",), lambda s: s.degrees, numeric=True),
        share_of("SD between repeats", "relative_sd", lambda s: s.deviation),
        runs_column(numbers, _scatter_names),
    )
    title = "Scatter between repeats by machine"
    return make_table(number, "scatter", title, columns, scatters(runs))


def _scatter_names(scatter: Scatter) -> list[str]:
    return [name for group in scatter.groups for name in group.names]


@dataclass(frozen=True)
class _Scaled:
    many: Run
    one: Run
    efficiency: float
    devices: int


def scaling_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs on several devices against the same configuration on one."""
    columns = (
        Column("configuration", ("configuration",), lambda s: s.many.label, wraps_em=12),
        Column("devices", ("devices",), lambda s: s.devices, numeric=True),
        quantity("images/s", "images_per_s", lambda s: s.many.throughput_images_per_s),
        quantity("on one", "images_per_s_on_one", lambda s: s.one.throughput_images_per_s),
        share_of("efficiency", "scaling_efficiency", lambda s: s.efficiency),
        share_of("communication", "communication_share",
                 lambda s: s.many.metrics.get("communication_share")),
        runs_column(numbers, lambda s: (s.many.name, s.one.name)),
    )  # fmt: skip
    title = "Scaling over devices: images/s over those of as many single devices"
    return make_table(number, "scaling", title, columns, _scaled(runs))


def _scaled(runs: Iterable[Run]) -> list[_Scaled]:
    recorded = [(run, run.record) for run in runs if run.record]
    names = {record.record_id: run for run, record in recorded}
    found = []
    for run, record in recorded:
        one = on_one_device(record, [other for _, other in recorded])
        if one is not None and record.outcome == "ok":
            efficiency = scaling_efficiency(record, one)
            if math.isfinite(efficiency):
                devices = record.config.world_size
                found.append(_Scaled(run, names[one.record_id], efficiency, devices))
    return found


def imported_table(number: int, runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Runs that were measured elsewhere, with what their source tells and nothing more."""
    columns = (
        Column("no.", ("number",), lambda r: numbers.by_name[r.name], numeric=True),
        Column("run", ("run",), lambda r: r.name),
        Column("source", ("source",), lambda r: r.imported_from),
        Column("machine", ("machine",), lambda r: r.env),
        Column("device", ("device",), lambda r: r.settings.get("device"), wraps_em=8),
        Column("model", ("arch",), lambda r: r.arch),
        Column("precision", ("precision",), lambda r: r.precision),
        Column("batch", ("batch_size",), lambda r: r.batch_size, numeric=True),
        Column("repeats", ("repeats",), lambda r: r.count, numeric=True),
        quantity("images/s", "throughput_images_per_s", lambda r: r.throughput_images_per_s),
        quantity("SD", "sd_images_per_s",
                 lambda r: r.deviations.get("throughput_images_per_s")),
    )  # fmt: skip
    title = "Imported measurements"
    imported = [run for run in runs if run.imported_from is not None]
    return make_table(number, "imported", title, columns, imported)
