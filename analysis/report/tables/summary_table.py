"""The table that a report opens with: a row per configuration, with its repeats and its place."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from analysis.report.tables.run_columns import MODELLED, bound_words, of_the_roof
from analysis.runs.groups import Group, group_runs, sample_of, settings_key
from analysis.runs.placed import recorded
from analysis.runs.points import RooflinePoint
from analysis.runs.quantities import interval, percent_interval, plus_minus
from analysis.runs.run import Run
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
from bench.config import rate_column, rate_unit


class Answer(NamedTuple):
    """A configuration with its repeats; `group` is None where none of them ended well."""

    runs: tuple[Run, ...]
    group: Group | None

    @property
    def points(self) -> list[RooflinePoint]:
        """The places of its runs under their roof."""
        return [run.point for run in self.runs if run.point]

    @property
    def attained_gflops(self) -> float | None:
        """The geometric mean over the repeats, as of the samples/s."""
        if self.group is None or any(run.usable("attained_gflops") is None for run in self.runs):
            return None
        return self.group.repeats("attained_gflops").centre

    @property
    def of_the_roof(self) -> tuple[float, float] | None:
        """The mean over the repeats of both ends of the share; None without a place."""
        if not self.points:
            return None
        lows, highs = zip(*map(of_the_roof, self.points), strict=True)
        return statistics.fmean(lows), statistics.fmean(highs)

    @property
    def verdict(self) -> str | None:
        """The worst of its runs' verdicts, or how they ended; of imported ones that they are."""
        if self.group is None:
            return ", ".join(sorted({run.outcome for run in self.runs}))
        verdicts = {run.verdict for run in self.runs}
        worst = next((level for level in _WORST_FIRST if level in verdicts), None)
        if recorded(self.runs):
            return worst
        words = MODELLED if self.points else "imported"
        return words if worst == "not judged" else f"{worst}; {words}"


_WORST_FIRST = ("invalid", "suspect", "not judged", "clean")


def answers(runs: Sequence[Run]) -> list[Answer]:
    """Return every configuration that was asked for a throughput, those without one last."""
    found = [Answer(group.runs, group) for group in group_runs(runs)]
    failed: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in runs:
        if run.outcome != "ok" and not any(_same(run, one) for one in found):
            failed.setdefault(settings_key(run), []).append(run)
    return [*found, *(Answer(tuple(members), None) for members in failed.values())]


def _same(failed: Run, measured: Answer) -> bool:
    """Whether a run is a repeat of a measured one: it may have ended before `auto` had a value."""
    first = measured.runs[0]
    return all(
        failed.settings.get(name) == first.settings.get(name)
        or failed.asked_for(name) in {run.asked_for(name) for run in measured.runs}
        for name in failed.settings.keys() | first.settings.keys()
    )


def summary_table(runs: Sequence[Run], numbers: RunNumbers) -> Table:
    """Samples/s of each configuration over its repeats, and its place under the roof."""
    sample = sample_of(runs)
    rate, found = rate_column(sample), answers(runs)
    tokens: Column[Answer] = number("tokens_per_s", "tokens/s", _tokens_per_s)
    of_first: list[Column[Answer]] = of_run(lambda one: one.group or one.runs[0])
    return make_table(
        "summary",
        "Throughput of each configuration over its repeats, and its place under the roof",
        found,
        *of_first,
        whole("batch_size", "batch", lambda one: one.runs[0].batch_size),
        whole("repeats", "repeats", lambda one: one.group.repeats().count if one.group else 0),
        number(f"mean_{rate} sd_{rate}", f"{rate_unit(sample)}, mean ± SD",
               _mean_and_sd, plus_minus),
        number(f"low_{rate} high_{rate}", "95 % interval",
               _interval,
               interval),
        *([tokens] if any(_tokens_per_s(one) is not None for one in found) else []),
        number("attained_gflops", "GFLOP/s", lambda one: one.attained_gflops),
        number("intensity_min intensity_max", "FLOP/byte", _intensity, interval),
        number("fraction_of_roof_min fraction_of_roof_max", "of the roof",
               lambda one: one.of_the_roof or (None, None), percent_interval),
        text("bound", "bound", lambda one: _each_once(bound_words(p) for p in one.points)),
        text("verdict", "verdict", lambda one: one.verdict),
        text("runs", "runs", lambda one: numbers.listed(run.name for run in one.runs)),
    )  # fmt: skip


def _mean_and_sd(one: Answer) -> tuple[float | None, float | None]:
    if one.group is None:
        return None, None
    mean, deviation = one.group.samples_per_s, one.group.repeats().relative_deviation
    return mean, None if deviation is None else deviation * mean


def _interval(one: Answer) -> tuple[float | None, float | None]:
    if one.group is None:
        return None, None
    estimate = one.group.repeats().interval()
    return estimate.low, estimate.high


def _tokens_per_s(one: Answer) -> float | None:
    return one.group.tokens_per_s if one.group else None


def _intensity(one: Answer) -> tuple[float | None, float | None]:
    """Counted where a profile counted one of the runs, else the modelled interval."""
    counted = [p.intensity_counted for p in one.points if p.intensity_counted is not None]
    if counted:
        return min(counted), max(counted)
    metrics = one.runs[0].metrics
    return metrics.get("intensity_min"), metrics.get("intensity_max")


def _each_once(words: Iterable[str]) -> str | None:
    return ", ".join(dict.fromkeys(words)) or None
