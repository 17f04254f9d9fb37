"""The comparison as a table: what was compared, by how much, how surely."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.comparison.judgement import Comparison
from analysis.comparison.pairs import Pairing
from analysis.report.tables.numbered_table import Column, Table
from analysis.runs.quantities import interval, three_digits

#: Settings that a configuration's label shows already.
_IN_LABEL = frozenset({"env", "arch", "precision", "batch_size"})


def comparison_table(comparisons: Sequence[Comparison], pairing: Pairing) -> Table:
    """Return one row per pair, the ratio being B over A; CSV cells name the runs of both sides."""
    metric = comparisons[0].metric
    settings = [name for name in pairing.differing if name not in _IN_LABEL]
    columns = (
        Column("configuration", ("configuration",), wraps_em=14),
        *(Column(name, (f"a_{name}", f"b_{name}"), _sides) for name in settings),
        Column("A", (f"a_{metric.name}", "a_repeats"), _value, numeric=True),
        Column("B", (f"b_{metric.name}", "b_repeats"), _value, numeric=True),
        Column("B / A", ("ratio",), three_digits, numeric=True),
        Column("95 % interval", ("ratio_low", "ratio_high"), interval, numeric=True),
        Column("p", ("p_corrected",), three_digits, numeric=True),
        Column("verdict", ("verdict",)),
        Column("because", ("because",), wraps_em=20),
        Column("runs of A", ("a_runs",)),
        Column("runs of B", ("b_runs",)),
    )
    rows = tuple(_row(one, metric.name, settings) for one in comparisons)
    return Table("comparison", f"B against A by {metric.name} ({metric.unit})", columns, rows)


def _row(one: Comparison, metric: str, settings: Sequence[str]) -> tuple[tuple[object, ...], ...]:
    a, b = one.a.repeats(metric), one.b.repeats(metric)
    sides = (one.a.first.settings, one.b.first.settings)
    return (
        (one.label,),
        *(tuple(side.get(name, "unknown") for side in sides) for name in settings),
        (a.centre, a.count),
        (b.centre, b.count),
        (one.estimate.ratio,),
        (one.estimate.low, one.estimate.high),
        (one.p_different,),
        (one.word,),
        (one.because,),
        (" ".join(one.a.names),),
        (" ".join(one.b.names),),
    )


def _sides(a: str, b: str) -> str:
    return f"{a} -> {b}"


def _value(value: float, count: int) -> str:
    return three_digits(value) if count == 1 else f"{three_digits(value)} ({count})"
