"""A comparison for people: the table of its pairs, and the lines below it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.comparison.judgement import METRICS, Comparison
from analysis.comparison.odd_machines import odd_in
from analysis.comparison.pairs import Pairing
from analysis.runs.groups import Group
from analysis.runs.quantities import counted, interval, ratio_digits, three_digits
from analysis.runs.what_ran import OF_PRECISION
from analysis.statistics import Covers
from analysis.table import Column, Table, make_table, number, text

#: Of the suspect runs of a side.
_NAMED = 3
#: Settings that a configuration's label shows already.
_IN_LABEL = frozenset({"env", "arch", "batch_size", *OF_PRECISION})


@dataclass(frozen=True)
class _Row:
    """A pair, or a configuration of A that crashed in B."""

    label: str
    a: Group
    b: Group | None
    found: Comparison | None
    verdict: str
    because: str

    @classmethod
    def of(cls, one: Comparison) -> _Row:
        return cls(one.label, one.a, one.b, one, one.word, one.because)

    def also_differs(self, besides: Collection[str]) -> str | None:
        return self.found.also_differs(besides) or None if self.found else None


def comparison_table(
    comparisons: Sequence[Comparison], pairing: Pairing, crashed: Sequence[Group] | None = None
) -> Table:
    """Return one row per pair, the ratio being B over A, and one per configuration that crashed.

    `crashed` are those of the pairing by default. CSV cells name the runs of both sides.
    """
    metric = METRICS[pairing.metric]
    rows = [_Row.of(one) for one in comparisons] + [
        _Row(group.label, group, None, None, "crashed", pairing.why_alone[group.names])
        for group in (pairing.crashed if crashed is None else crashed)
    ]

    def setting(name: str) -> Column[_Row]:
        def values(one: _Row) -> tuple[str | None, ...]:
            return tuple(_setting(side, name) for side in (one.a, one.b))

        return text(f"a_{name} b_{name}", name, values, lambda a, b: f"{a} -> {b}" if b else a)

    def side(letter: str, group: Callable[[_Row], Group | None]) -> Column[_Row]:
        def values(one: _Row) -> tuple[float | None, int | None]:
            chosen = group(one)
            repeats = chosen and chosen.repeats(metric.name)
            return (repeats.centre, repeats.count) if repeats else (None, None)

        keys = f"{letter.lower()}_{metric.name} {letter.lower()}_repeats"
        return number(keys, letter, values, _centre_and_count)

    def estimated(
        keys: str, heading: str, value: Callable[[Comparison], Any], **how: Any
    ) -> Column[_Row]:
        nothing = (None,) * len(keys.split()) if " " in keys else None
        return number(keys, heading, lambda one: value(one.found) if one.found else nothing, **how)

    shown = {*_IN_LABEL, *pairing.differing}
    also: Column[_Row] = text(
        "also_differs", "ran with", lambda one: one.also_differs(shown), wraps_em=12
    )
    return make_table(
        "comparison",
        f"B against A by {metric.name} ({metric.unit})",
        rows,
        text("configuration", "configuration", lambda one: one.label, wraps_em=14),
        *(setting(name) for name in pairing.differing if name not in _IN_LABEL),
        *([also] if any(one.also_differs(shown) for one in rows) else []),
        side("A", lambda one: one.a),
        side("B", lambda one: one.b),
        estimated("ratio", "B / A", lambda found: found.estimate.ratio, show=ratio_digits),
        estimated("ratio_low ratio_high", "95 % interval",
                  lambda found: (found.estimate.low, found.estimate.high), show=interval),
        estimated("p_corrected", "p", lambda found: found.p_different),
        text("verdict", "verdict", lambda one: one.verdict),
        text("because", "because", lambda one: one.because, wraps_em=20),
        text("a_runs", "runs of A", lambda one: " ".join(one.a.names)),
        text("b_runs", "runs of B", lambda one: " ".join(one.b.names) if one.b else None),
    )  # fmt: skip


def _setting(side: Group | None, name: str) -> str | None:
    """A setting as it ran; a record lacks only what had no effect in its run."""
    if side is None:
        return None
    return side.first.settings.get(name, "unknown" if side.first.imported_from else "none")


def without_runs(table: Table) -> Table:
    """Return a comparison's table without the columns of run ids, which are for programs."""
    kept = [n for n, column in enumerate(table.columns) if "runs" not in column.heading]
    return replace(
        table,
        columns=tuple(table.columns[n] for n in kept),
        rows=tuple(tuple(row[n] for n in kept) for row in table.rows),
    )


def notes(comparisons: Sequence[Comparison], pairing: Pairing) -> list[str]:
    """Return what a reader of the table must know beside it, a line each."""
    lines = [f"also differs: {line}" for line in pairing.software]
    for side, groups in (("A", pairing.only_a), ("B", pairing.only_b)):
        lines += [f"only in {side}: {one.label} ({pairing.why_alone[one.names]})" for one in groups]
    lines += [f"left out: {line}" for line in pairing.left_out]
    lines += (doubts := in_doubt(comparisons))
    lines += covered(comparisons)
    for side in ("A", "B"):
        compared = (one.a if side == "A" else one.b for one in comparisons)
        runs = {run.name: run for group in compared for run in group.runs}
        lines += odd_in(side, list(runs.values()), pairing.metric)
    undecided = sum(one.judgement == "undecided" for one in comparisons)
    if undecided:
        remedy = ": measure the suspect runs again, or leave them out (verdict=clean)"
        lines.append(f"{undecided} of {len(comparisons)} undecided{remedy * bool(doubts)}")
    return lines


def in_doubt(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a line for each side that has suspect runs: how many, which and why."""
    lines = []
    for side in ("A", "B"):
        groups = [one.a if side == "A" else one.b for one in comparisons]
        runs = {run.name: run for group in groups for run in group.runs}
        doubtful = [run for run in runs.values() if run.verdict == "suspect"]
        whys = [
            f"{run.name} ({'; '.join(f.message for f in run.findings if f.level == 'suspect')})"
            for run in doubtful[:_NAMED]
        ]
        if more := len(doubtful) - len(whys):
            whys.append(f"and {more} more")
        if doubtful:
            suspect = f"{len(doubtful)} of {counted(len(runs), 'run')} of {side}"
            lines.append(f"suspect, {suspect}: {', '.join(whys)}")
    return lines


def _centre_and_count(value: float, count: int) -> str:
    return three_digits(value) if count == 1 else f"{three_digits(value)} ({count})"


#: What the intervals of a comparison speak of.
_COVERED: dict[Covers, str] = {
    "these runs": "are of these runs alone: not all of their records say which machine ran",
    "this machine": "are of repeats on one machine, and say nothing of others of its kind",
    "one machine against a kind": "are of one machine against machines of a kind",
    "this kind of machine": "are of machines of this kind",
}


def machine_counts(one: Comparison) -> tuple[int | None, int | None]:
    """Return how many machines ran A and B, None where some record does not say."""
    a, b = (len(side.repeats(one.metric.name).machines) or None for side in (one.a, one.b))
    return a, b


def covered(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Yield a line for each scope that intervals of `comparisons` have, the widest last."""
    rated = [one for one in comparisons if one.estimate.low is not None]
    for scope, words in _COVERED.items():
        found = [one for one in rated if one.estimate.covers == scope]
        if not found:
            continue
        some = "the intervals" if len(found) == len(rated) else f"{len(found)} of the intervals"
        machines = [machine_counts(one) for one in found]
        a, b = (_span(count for count in side if count) for side in zip(*machines, strict=True))
        counts = f" (A ran on {a}, B on {b})" if a and b and {a, b} != {"1"} else ""
        yield f"{some} {words}{counts}"


def _span(counts: Iterable[int]) -> str:
    known = sorted(set(counts))
    return "" if not known else f"{known[0]}" + (f" to {known[-1]}" if len(known) > 1 else "")
