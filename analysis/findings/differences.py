"""How machines, precisions and repeats differ: speed-ups, odd machines, scatter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from analysis.comparison.across import MachinePair, across_machines
from analysis.comparison.judgement import METRICS, Comparison, compare_pairs
from analysis.comparison.machines import odd_machines
from analysis.presentation.columns import Row
from analysis.presentation.table import RunList, grouped
from analysis.presentation.words import as_fast_as, percent, three_digits
from analysis.runs.groups import Group, Runs, difference_between, names_of
from analysis.runs.settings import OF_PRECISION, Key
from bench.config import THROUGHPUT
from bench.statistics.ratios import pooled_scatter

BASELINE = "fp32"


class Uplift(NamedTuple):
    """A lower precision, B, against fp32; `spilled` if either is past a cliff of its curve."""

    found: Comparison
    spilled: bool


def in_fp32(groups: Iterable[Group]) -> dict[Key, Group]:
    """Return the groups that ran in fp32 by the settings that all precisions have."""
    return {
        group.identity.key(OF_PRECISION): group for group in groups if group.precision == BASELINE
    }


def uplifts(runs: Runs) -> list[Uplift]:
    """Return every configuration that was measured in fp32 and in another precision.

    They are judged as `mlproject compare` does, with p-values that are corrected for the number of
    configurations of a machine and precision.
    """
    groups, spilled = [group for curve in runs.curves for group in curve], runs.spilled
    full = in_fp32(groups)
    pairs = [
        (base, group)
        for group in groups
        if group.precision != BASELINE and (base := full.get(group.identity.key(OF_PRECISION)))
    ]
    alike = grouped(pairs, lambda pair: (pair[1].env, pair[1].precision)).values()
    compared = [one for those in alike for one in compare_pairs(those, METRICS[THROUGHPUT])]
    return [Uplift(one, bool(spilled & {one.a.names, one.b.names})) for one in compared]


def _emulated(group: Group) -> bool:
    """Whether the device has no such arithmetic, and a library stands in for it."""
    resolved = group.first.record.resolved if group.first.record else None
    return resolved is not None and not resolved.native_math


def uplift_rows(runs: Runs) -> Iterator[Row]:
    """Yield each machine, model and precision, over all batch sizes that no spill touched."""
    for alike in grouped(uplifts(runs), lambda uplift: uplift.found.b.series).values():
        rated = [uplift.found for uplift in alike if not uplift.spilled]
        if not rated:
            continue
        low, ratios = rated[0].b, [judged.estimate.ratio for judged in rated]
        undecided = sum(judged.judgement == "undecided" for judged in rated)
        some = f" at {undecided} of {len(rated)} batch sizes" if undecided < len(rated) else ""
        past = ", ".join(f"{uplift.found.b.batch_size}" for uplift in alike if uplift.spilled)
        yield {
            "machine": low.env,
            "series": f"{low.env}, {low.model_label}",
            "precision": f"{low.precision_label}{' (emulated)' if _emulated(low) else ''}",
            "verb": "measured" if undecided == len(rated) else "is",
            "speed": as_fast_as(min(ratios), max(ratios)),
            "doubt": f"; undecided{some}" if undecided else "",
            "past": f" Left out, as memory spilled there: batch {past}." if past else "",
            "runs": names_of(side for uplift in alike for side in (uplift.found.b, uplift.found.a)),
        }


def speed_up_rows(runs: Runs, pairs: Sequence[MachinePair] | None = None) -> Iterator[Row]:
    """Yield each two machines with a configuration in common; `pairs` where they are known."""
    for pair in across_machines(runs).pairs if pairs is None else pairs:
        if said := pair.times_as_fast(pair.a, pair.b):
            names = (name for row in pair.rows for name in row["runs"].names)
            compared = [row["comparison"] for row in pair.rows]
            parts = [(one.label, difference_between(one.a.runs, one.b.runs)) for one in compared]
            why = [f" {label}: {found.words}." for label, found in parts if found]
            yield {"runs": tuple(dict.fromkeys(names)), "says": f"{said}.{''.join(why[:1])}"}


def odd_rows(runs: Runs) -> Iterator[Row]:
    """Yield each machine that is unlike the others of its kind, by what it is furthest off in."""
    for label, found in odd_machines(runs).items():
        p_value = found[0].p_value
        yield {
            "machine": label,
            "compared": f"{label} is {found[0].compared('slower', 'faster')}",
            "more": f" and {len(found) - 1} more" if len(found) > 1 else "",
            "p_value": "< 0.001" if p_value < 0.001 else f"= {p_value:.2g}",
            "runs": names_of(one.group for one in found),
        }


_LEVEL = 0.05
#: Degrees of freedom below which a deviation is hardly known.
_MIN_DEGREES = 4


def scatter_rows(runs: Runs) -> list[Row]:
    """Return each machine's relative deviation between repeats, the steadiest first.

    It is pooled over the `groups`, its configurations with repeats; `degrees` are those of freedom.
    Beside the machine stands where it is, if a record says so.
    """
    repeated = [one for one in runs.groups if one.repeats().log_variance is not None]
    rows = []
    for env, groups in grouped(repeated, lambda group: group.first.env).items():
        if pooled := pooled_scatter(group.repeats() for group in groups):
            record = groups[0].first.record
            cloud = record.environment.cloud_provider if record and record.environment else None
            where = "local" if cloud == "none" else f"cloud, {cloud}"
            rows.append({
                "env": env if cloud is None else f"{env} ({where})",
                "configurations": len(groups),
                "degrees": int(pooled.degrees),
                "scatter": pooled.deviation,
                "groups": groups,
                "runs": RunList(names_of(groups)),
            })  # fmt: skip
    return sorted(rows, key=lambda row: row["scatter"])


def variability_rows(runs: Runs) -> Iterator[Row]:
    """Yield the least and the most steady machine where they surely differ.

    By an F-test of the two pooled variances, raised for the number of pairs that could have been
    chosen.
    """
    from scipy import special  # which takes a third of a second

    found = [row for row in scatter_rows(runs) if row["degrees"] >= _MIN_DEGREES]
    if len(found) < 2 or not found[0]["scatter"]:
        return
    steady, wild = found[0], found[-1]
    ratio = (wild["scatter"] / steady["scatter"]) ** 2
    pairs = len(found) * (len(found) - 1)
    if pairs * float(special.fdtrc(wild["degrees"], steady["degrees"], ratio)) < _LEVEL:
        yield {
            "ratio": three_digits(math.sqrt(ratio)),
            "steady": f"{steady['env']} ({percent(steady['scatter'])})",
            "wild": f"{wild['env']} ({percent(wild['scatter'])})",
            "where": wild["env"],
            "runs": (*steady["runs"].names, *wild["runs"].names),
        }
