"""The comparison as a table: what was compared, by how much, how surely."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.comparison.judge import Comparison
from analysis.comparison.pairs import Pairing
from analysis.report.table import Column, Table, make_table, quantity
from analysis.runs.groups import Group
from analysis.runs.quantities import interval, three_digits

#: Settings that a configuration's label shows already.
_IN_LABEL = frozenset({"env", "arch", "precision", "batch_size"})


def comparison_table(comparisons: Sequence[Comparison], pairing: Pairing) -> Table:
    """Return one row per pair, the ratio being B over A; CSV cells name the runs of both sides."""
    metric = comparisons[0].metric
    columns = (
        Column("configuration", ("configuration",), lambda c: c.label, wraps_em=14),
        *(_side_setting(name) for name in pairing.apart if name not in _IN_LABEL),
        Column("A", (f"a_{metric.name}", "a_repeats"), lambda c: _value(c.a, metric.name),
               _shown_value, numeric=True),
        Column("B", (f"b_{metric.name}", "b_repeats"), lambda c: _value(c.b, metric.name),
               _shown_value, numeric=True),
        quantity("B / A", "ratio", lambda c: c.estimate.ratio),
        Column("95 % interval", ("ratio_low", "ratio_high"), _ends,
               lambda ends: interval(*ends), numeric=True),
        quantity("p", "p_corrected", lambda c: c.p_different),
        Column("verdict", ("verdict",), lambda c: c.word),
        Column("because", ("because",), lambda c: c.because, wraps_em=20),
        Column("runs of A", ("a_runs",), lambda c: " ".join(c.a.names)),
        Column("runs of B", ("b_runs",), lambda c: " ".join(c.b.names)),
    )  # fmt: skip
    title = f"B against A by {metric.name} ({metric.unit})"
    return make_table(1, "comparison", title, columns, comparisons)


def _side_setting(name: str) -> Column:
    return Column(
        name,
        (f"a_{name}", f"b_{name}"),
        lambda c: tuple(side.first.settings.get(name, "unknown") for side in (c.a, c.b)),
        " -> ".join,
    )


def _value(group: Group, metric: str) -> tuple[float, int]:
    repeats = group.repeats(metric)
    return repeats.centre, repeats.count


def _shown_value(pair: tuple[float, int]) -> str:
    value, count = pair
    return three_digits(value) if count == 1 else f"{three_digits(value)} ({count})"


def _ends(comparison: Comparison) -> tuple[float, float] | None:
    low, high = comparison.estimate.low, comparison.estimate.high
    return None if low is None or high is None else (low, high)
