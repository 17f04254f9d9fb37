"""A comparison for people and notebooks: its table, the lines below it, and a comment of both."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.comparison.judgement import (
    BY_PACE,
    METRICS,
    PACE,
    Across,
    Comparison,
    Gate,
    comparable,
    compare_pairs,
    compared_metric,
    covered,
)
from analysis.comparison.machines import odd_machines
from analysis.comparison.pairs import Pairing, pair_runs
from analysis.comparison.sides import read_side, read_sides
from analysis.presentation.columns import C, Row, both_sides, columns
from analysis.presentation.table import Column, RunList, Table, markdown_text
from analysis.presentation.words import counted, percent, three_digits
from analysis.runs.groups import Group, difference_between
from analysis.runs.run import Run
from analysis.runs.settings import OF_PRECISION
from bench.errors import Unknown

if TYPE_CHECKING:
    import pandas as pd

#: Settings that a configuration's label shows already.
_IN_LABEL = ("env", "arch", *OF_PRECISION, "batch_size")
#: Columns of a table that are for programs.
RUN_IDS = ("runs", "a_runs", "b_runs")
#: Suspect runs of a side that are named.
_MAX_NAMED = 3
#: Of a comment: a longer table or list is folded, and one that is longer still is cut, since a
#: comment on GitHub holds 65,536 characters.
_MAX_UNFOLDED, _MAX_LINES = 20, 150


def compare(
    a: str | Sequence[Run],
    b: str | Sequence[Run],
    *,
    metric: str | None = None,
    threshold: float = 0.02,
    across: Collection[Across] = (),
) -> pd.DataFrame:
    """Compare the runs of B with those of A as `mlproject compare` does: a row per configuration.

    `a` and `b` are what the command takes (`campaign=before`, `env=lab`, run ids, a filter of
    MLflow's), or runs such as `pull_records(campaign="before").runs()`. `metric` is a metric's name
    in MLflow, by default that of the runs' own rate; `threshold` the share by which B must differ
    to count as faster or slower; `across` are differences of the sides that are meant (machine,
    versions).

    Columns are those of the command's CSV: `configuration`; the settings that distinguish A from B
    (`a_threads`, `b_threads`); `also_differs`, other settings; the geometric means over the
    repeats in the metric's unit and their numbers (`a_throughput_images_per_s`, `a_repeats`, ...);
    `ratio`, B over A, with its 95 % interval `ratio_low` and `ratio_high`, missing where neither
    side has repeats; `p_corrected`; `verdict` (faster, slower, tie, undecided or not comparable,
    for memory and energy better and worse; `crashed`, `only in A`, `only in B`) and `because`, the
    reason; the run ids `a_runs` and `b_runs`. Besides `batch_size`, and `env`, `arch` and
    `precision` of either side. What the intervals cover is in docs/statistics.md.

    Raises `UserError` where nothing matches or no two configurations agree, and `TrackingError`.
    """
    import pandas as pd

    compared_metric(metric)  # before anything is read
    if isinstance(a, str) and isinstance(b, str):
        sides: tuple[Sequence[Run], Sequence[Run]] = read_sides(a, b)
    else:
        one, other = (read_side(side) if isinstance(side, str) else side for side in (a, b))
        sides = one, other
    chosen = compared_metric(metric, (*sides[0], *sides[1]))
    pairing = pair_runs(*sides, chosen.name)
    found = comparable(compare_pairs(pairing.pairs, chosen, threshold=threshold), across)
    table = comparison_table(found, pairing, whole=True)
    settings = both_sides((C.env, C.arch, C.precision), "sample", ("a_", "b_"), ("A", "B"))
    table = replace(table, columns=(*table.columns, *settings, *columns((C.batch_size,))))
    frame = pd.DataFrame(table.facts(), columns=table.keys)
    numbers = [key for column in table.columns if column.numeric for key in column.keys]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)  # also where all are unknown
    typed: pd.DataFrame = frame.convert_dtypes()
    return typed


def comparison_table(
    comparisons: Sequence[Comparison], pairing: Pairing, *, whole: bool = False
) -> Table:
    """Return one row per pair, the ratio being B over A, and one per configuration that crashed.

    A `whole` table has what else is without a counterpart too. `RUN_IDS` are for programs.
    """
    metric = METRICS[pairing.metric]
    shown = {*_IN_LABEL, *pairing.differing}
    rows = [
        {
            "configuration": one.label,
            **_side(one.a, "a", pairing),
            **_side(one.b, "b", pairing),
            "also_differs": one.also_differs(shown) or None,
            **one.facts,
        }
        for one in comparisons
    ]
    rows += [
        {
            "configuration": one.group.label,
            **_side(one.group, "b" if one.verdict == "only in B" else "a", pairing),
            "verdict": one.verdict,
            "because": one.because,
        }
        for one in pairing.alone
        if whole or one.verdict == "crashed"
    ]
    differing = [name for name in pairing.differing if name not in _IN_LABEL]
    return Table(
        "comparison",
        f"B against A by {metric.name} ({metric.unit})",
        rows,
        (
            *columns((C.configuration,)),
            *(Column(name, (f"a_{name}", f"b_{name}"), _arrow) for name in differing),
            *columns((C.also_differs,)),
            *(
                Column(side.upper(), (f"{side}_{metric.name}", f"{side}_repeats"), _mean, True)
                for side in "ab"
            ),
            *columns((C.b_over_a, C.ratio_interval, C.p_corrected, C.verdict, C.because)),
            *(Column(f"runs of {side.upper()}", (f"{side}_runs",)) for side in "ab"),
        ),
    )


def _side(group: Group, side: str, pairing: Pairing) -> Row:
    """A configuration's settings as they ran, its repeats and its runs, by the side's letter.

    A record lacks only settings that had no effect in its run.
    """
    first, repeats = group.first, group.repeats(pairing.metric)
    lacking = "unknown" if first.imported else "none"
    row: Row = {
        **{name: first.settings.get(name, lacking) for name in pairing.differing},
        **{"env": group.env, "arch": group.arch, "precision": group.precision},
        pairing.metric: repeats.centre,
        "repeats": repeats.count,
        "runs": RunList(group.names, ""),
    }
    return {"batch_size": group.batch_size} | {f"{side}_{key}": row[key] for key in row}


def _arrow(ours: str, theirs: str | None) -> str:
    return f"{ours} -> {theirs}" if theirs else ours


def _mean(value: float, count: int) -> str:
    return three_digits(value) if count == 1 else f"{three_digits(value)} ({count})"


def notes(comparisons: Sequence[Comparison], pairing: Pairing) -> list[str]:
    """Return what a reader of the table must know beside it, a line each."""
    lines = [f"also differs: {line}" for line in pairing.software]
    if pairing.metric == PACE:
        lines.append(BY_PACE)
    for verdict in ("only in A", "only in B"):
        found = (one for one in pairing.alone if one.verdict == verdict)
        lines += [f"{verdict}: {one.group.label} ({one.because})" for one in found]
    lines += [f"left out: {line}" for line in pairing.left_out]
    lines += (doubts := in_doubt(comparisons))
    lines += covered(comparisons)
    for one in comparisons:
        said = difference_between(one.a.runs, one.b.runs)
        if said is not None:
            lines.append(f"{one.label}: {said.reason if isinstance(said, Unknown) else said.words}")
        for letter, group in (("A", one.a), ("B", one.b)):
            gains = (gain for run in group.runs for gain in run.gains)
            lines += [f"{one.label}: {letter} {gain['sentence']}" for gain in gains]
    words = f"less {pairing.metric}", f"more {pairing.metric}"
    for side, runs in _runs_of(comparisons).items():
        for label, odd in odd_machines(runs, pairing.metric).items():
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            lines.append(f"odd in {side}: {label} has {odd[0].compared(*words)}{more}")
    if undecided := [one for one in comparisons if one.judgement == "undecided"]:
        lines.append(f"{len(undecided)} of {len(comparisons)} undecided")
        if doubts:
            lines[-1] += ": measure the suspect runs again, or leave them out (verdict=clean)"
        named = [side.runs[-1].name for side in (undecided[0].a, undecided[0].b)]
        lines += [f"again: mlproject run --like {name} --repeats 3" for name in named]
    return lines


def _runs_of(comparisons: Sequence[Comparison]) -> dict[str, list[Run]]:
    sides = {"A": [one.a for one in comparisons], "B": [one.b for one in comparisons]}
    return {
        side: list({run.name: run for group in groups for run in group.runs}.values())
        for side, groups in sides.items()
    }


def in_doubt(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a line for each side that has suspect runs: how many, which and why."""
    lines = []
    for side, runs in _runs_of(comparisons).items():
        whys = [
            f"{run.name} ({'; '.join(f.sentence for f in run.findings if f.level == 'suspect')})"
            for run in runs
            if run.verdict == "suspect"
        ]
        if whys:
            number = f"{len(whys)} of {counted(len(runs), 'run')} of {side}"
            more = f", and {len(whys) - _MAX_NAMED} more" if len(whys) > _MAX_NAMED else ""
            lines.append(f"suspect, {number}: {', '.join(whys[:_MAX_NAMED])}{more}")
    return lines


def comment(
    comparisons: Sequence[Comparison],
    pairing: Pairing,
    gate: Gate,
    *,
    sides: tuple[str, str],
    threshold: float,
) -> str:
    """Return the comparison as a comment on a pull request, in Markdown of GitHub and GitLab.

    The verdict comes first, then the rows on which the gate fails; what is long is folded. `sides`
    are A and B as they were named, `threshold` the share from which on a change counts.
    """
    metric = METRICS[pairing.metric]
    a, b = map(markdown_text, sides)
    parts = [
        f"**{markdown_text(gate.sentence)}**",
        f"B is {b}, A is {a}, by {markdown_text(metric.name)} ({metric.unit}, {metric.better} is "
        f"better); a change counts from {percent(threshold)} on.",
    ]
    table = replace(comparison_table(comparisons, pairing).without(*RUN_IDS), title="")
    for noun, fails in (("failing configuration", True), ("other configuration", False)):
        rows = [row for row in table.rows if (row["verdict"] in gate.failed) is fails]
        head, rule, *lines = replace(table, rows=rows).markdown().splitlines()
        parts += _folded(lines, noun, f"{head}\n{rule}\n")
    parts += _folded([f"- {markdown_text(line)}" for line in notes(comparisons, pairing)], "note")
    return "\n\n".join(parts) + "\n"


def _folded(lines: Sequence[str], noun: str, head: str = "") -> list[str]:
    """The lines below `head`, folded where they are many; nothing where there are none."""
    if not lines:
        return []
    hidden = len(lines) - _MAX_LINES
    more = f"\n\nand {hidden} more" if hidden > 0 else ""
    text = head + "\n".join(lines[:_MAX_LINES]) + more
    if len(lines) <= _MAX_UNFOLDED:
        return [text]
    summary = counted(len(lines), noun)
    return [f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"]
