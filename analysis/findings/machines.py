"""How machines differ: in speed, from others of their kind, and in the scatter of repeats."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy import special

from analysis.comparison.kinds import odd_machines
from analysis.comparison.machines import MachinePair, across_machines
from analysis.runs.frame import Row
from analysis.runs.groups import Configurations, Group, group_runs, names_of
from analysis.runs.run import Run
from analysis.statistics.repeats import pooled_scatter
from analysis.table import RunList
from analysis.words import percent, three_digits


def speed_up_rows(
    runs: Configurations, pairs: Sequence[MachinePair] | None = None
) -> Iterator[Row]:
    """Yield each two machines with a configuration in common; `pairs` where they are known."""
    for pair in across_machines(runs).pairs if pairs is None else pairs:
        if said := pair.times_as_fast(pair.a, pair.b):
            names = (name for row in pair.rows for name in row["runs"].names)
            yield {"runs": tuple(dict.fromkeys(names)), "says": f"{said}."}


def odd_rows(runs: Configurations) -> Iterator[Row]:
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


def scatter_rows(runs: Sequence[Run]) -> list[Row]:
    """Return each machine's relative deviation between repeats, the steadiest first.

    It is pooled over the `groups`, its configurations with repeats; `degrees` are those of freedom.
    Beside the machine stands where it is, if a record says so.
    """
    machines: dict[str, list[Group]] = {}
    for group in group_runs(runs):
        if group.repeats().log_variance is not None:
            machines.setdefault(group.first.env, []).append(group)
    rows = []
    for env, groups in machines.items():
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


def variability_rows(runs: Configurations) -> Iterator[Row]:
    """Yield the least and the most steady machine where they surely differ.

    By an F-test of the two pooled variances, raised for the number of pairs that could have been
    chosen.
    """
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
