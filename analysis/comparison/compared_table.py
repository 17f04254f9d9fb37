"""Two sides as one table for a notebook: what `mlproject compare` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.comparison.judgement import (
    Comparison,
    check_metric,
    compare_pairs,
    compared_metric,
)
from analysis.comparison.pairs import pair_runs
from analysis.comparison.sides import read_side, read_sides
from analysis.runs.groups import Group
from analysis.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

_TYPES = {
    **dict.fromkeys(("configuration", "env_a", "env_b", "arch_a", "arch_b"), "string"),
    **dict.fromkeys(("precision_a", "precision_b"), "string"),
    **dict.fromkeys(("batch_size", "repeats_a", "repeats_b"), "Int64"),
    **dict.fromkeys(("a", "b", "ratio", "ratio_low", "ratio_high", "p_corrected"), "float64"),
    **dict.fromkeys(("verdict", "because"), "string"),
    **dict.fromkeys(("runs_a", "runs_b"), "object"),
}


def compare(
    a: str | Sequence[Run],
    b: str | Sequence[Run],
    *,
    metric: str | None = None,
    threshold: float = 0.02,
    correction: str = "holm",
) -> pd.DataFrame:
    """Compare the runs of B with those of A as `mlproject compare` does: a row per configuration.

    `a` and `b` are what the command takes (`campaign=before`, `env=lab`, run ids, a filter of
    MLflow's), or runs such as `pull_records(campaign="before").runs()`. `metric` is a metric's name
    in MLflow, by default that of the runs' own rate; `threshold` the share by which B must differ
    to count as faster or slower; `correction` (holm, bh or none) is of the p-values for the number
    of configurations.

    Columns: `configuration`, and its `env`, `arch`, `precision` and `repeats` on either side
    (`env_a`, `env_b`, ...), `batch_size`; `a` and `b`, the geometric means over the repeats in the
    metric's unit; `ratio`, B over A, with its 95 % interval `ratio_low` and `ratio_high`, missing
    where neither side has repeats; `p_corrected`; `verdict` (faster, slower, tie or undecided, for
    memory and energy better and worse; `crashed`, `only in A`, `only in B`) and `because`, the
    reason; the run ids `runs_a` and `runs_b`. What the intervals cover is in docs/statistics.md.

    Raises `UserError` where nothing matches or no two configurations agree, and `TrackingError`.
    """
    import pandas as pd

    check_metric(metric)
    sides = _both(a, b)
    chosen = compared_metric(metric, (run for side in sides for run in side))
    pairing = pair_runs(*sides, chosen.name)
    found = compare_pairs(pairing.pairs, chosen, threshold=threshold, correction=correction)
    rows = [_compared(one) for one in found]
    for verdict, side, groups in (
        ("crashed", "a", pairing.crashed),
        ("only in A", "a", pairing.only_a),
        ("only in B", "b", pairing.only_b),
    ):
        for group in groups:
            alone = {"configuration": group.label, "verdict": verdict}
            alone["because"] = pairing.why_alone[group.names]
            rows.append({**alone, **_side(group, side, chosen.name)})
    table: pd.DataFrame = pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)
    return table


def _both(a: str | Sequence[Run], b: str | Sequence[Run]) -> tuple[Sequence[Run], Sequence[Run]]:
    if isinstance(a, str) and isinstance(b, str):
        return read_sides(a, b)
    return (
        read_side(a) if isinstance(a, str) else a,
        read_side(b) if isinstance(b, str) else b,
    )


def _compared(one: Comparison) -> dict[str, object]:
    return {
        "configuration": one.label,
        **_side(one.a, "a", one.metric.name),
        **_side(one.b, "b", one.metric.name),
        **one.facts,
    }


def _side(group: Group, side: str, metric: str) -> dict[str, object]:
    repeats = group.repeats(metric)
    return {
        f"env_{side}": group.env,
        f"arch_{side}": group.arch,
        f"precision_{side}": group.precision,
        "batch_size": group.batch_size,
        f"repeats_{side}": repeats.count,
        side: repeats.centre,
        f"runs_{side}": group.names,
    }
