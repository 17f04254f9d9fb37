"""`mlproject compare`: two sets of runs against each other, and a gate for regressions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from commands.views.options import format_option, server_needed, writing
from commands.views.terminal import output, text_table

if TYPE_CHECKING:
    from analysis.comparison import Comparison, Pairing


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--metric", default="throughput_images_per_s", show_default=True)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 10, min_open=True),
    default=0.02,
    show_default=True,
    help="share by which B must differ to count as faster or slower",
)
@click.option(
    "--correction",
    type=click.Choice(["holm", "bh", "none"]),
    default="holm",
    show_default=True,
    help="of p-values for the number of configurations; bh is Benjamini and Hochberg's",
)
@click.option(
    "--fail-on",
    type=click.Choice(["worse", "missing", "undecided"]),
    multiple=True,
    default=["worse"],
    show_default=True,
    help="end with 1 where a configuration of B is so; missing: A has a result, B has none "
    "(may be given again)",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the table (CSV, Markdown, LaTeX) and the picture (PNG, SVG)",
)
@format_option
def command(
    a: str,
    b: str,
    metric: str,
    threshold: float,
    correction: str,
    fail_on: tuple[str, ...],
    out: Path | None,
    form: str,
) -> int:
    """Compare the runs of B with those of A, configuration by configuration.

    A and B are each campaign=NAME, run ids with commas between them, records=FOLDER or an MLflow
    filter. Configurations are paired where they agree in all settings that A and B share; a batch
    size is compared with the same one alone.

    Exit codes: 0 no regression; 1 B is slower (or worse) somewhere, or what --fail-on names; 2
    nothing to compare, or a wrong value. A comparison of single runs decides nothing, so only
    --fail-on undecided makes it fail.
    """
    from analysis.comparison import compare_pairs, compared_metric, pair_runs, read_sides

    chosen = compared_metric(metric)
    with server_needed():
        pairing = pair_runs(*read_sides(a, b), chosen.name)
    found = compare_pairs(pairing.pairs, chosen, threshold=threshold, correction=correction)
    if out is not None:
        _write(found, pairing, threshold, out)
    if form == "json":
        click.echo(json.dumps(_facts(found, pairing)))
    else:
        _print(found, pairing)
    failed = {one.judgement for one in found} | ({"missing"} if pairing.only_a else set())
    return int(not failed.isdisjoint(fail_on))


def _write(found: Sequence[Comparison], pairing: Pairing, threshold: float, out: Path) -> None:
    from analysis.comparison.shown import comparison_table, draw_forest, forest_height_in
    from analysis.figures import save_figure, single_axes

    table = comparison_table(found, pairing)
    figure, axes = single_axes(height_in=forest_height_in(len(found)))
    draw_forest(axes, found, threshold=threshold)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for suffix, text in (
            ("csv", table.csv()),
            ("md", table.markdown()),
            ("tex", table.latex()),
        ):
            path = out / f"comparison.{suffix}"
            path.write_text(text, encoding="utf-8", newline="\n")
        save_figure(figure, out, "comparison")


def _facts(found: Sequence[Comparison], pairing: Pairing) -> dict[str, object]:
    return {
        "told_apart_by": list(pairing.differing),
        "also_differs": list(pairing.software),
        "comparisons": [
            {
                "configuration": one.label,
                "ran_with": one.also_differs({*pairing.differing, "env", "device"}),
                "a_runs": list(one.a.names),
                "b_runs": list(one.b.names),
                "ratio": one.estimate.ratio,
                "ratio_low": one.estimate.low,
                "ratio_high": one.estimate.high,
                "p_corrected": one.p_different,
                "verdict": one.word,
                "because": one.because,
            }
            for one in found
        ],
        "only_a": [group.label for group in pairing.only_a],
        "only_b": [group.label for group in pairing.only_b],
        "why_only_a": [pairing.why_alone[group.names] for group in pairing.only_a],
        "why_only_b": [pairing.why_alone[group.names] for group in pairing.only_b],
        "left_out": list(pairing.left_out),
    }


def _print(found: Sequence[Comparison], pairing: Pairing) -> None:
    from analysis.comparison.shown import comparison_table

    console = output(140)
    table = comparison_table(found, pairing)
    shown = [place for place, column in enumerate(table.columns) if "runs" not in column.heading]
    columns = [table.columns[place] for place in shown]
    view = text_table(
        [column.heading for column in columns],
        [[row[place] for place in shown] for row in table.cells],
        left=[index for index, column in enumerate(columns) if not column.numeric],
    )
    difference = (
        ", ".join(pairing.differing) or "no setting: the same configurations in two sets of runs"
    )
    console.print(Text(f"{table.title}; A and B differ in {difference}"))
    console.print(view)
    for line in _notes(found, pairing):
        console.print(Text(line))


def _notes(found: Sequence[Comparison], pairing: Pairing) -> list[str]:
    lines = [f"also differs: {line}" for line in pairing.software]
    for side, groups in (("A", pairing.only_a), ("B", pairing.only_b)):
        lines += [f"only in {side}: {one.label} ({pairing.why_alone[one.names]})" for one in groups]
    lines += [f"left out: {line}" for line in pairing.left_out]
    if pairing.only_a:
        missing = f"{len(pairing.only_a)} of {len(pairing.only_a) + len({id(c.a) for c in found})}"
        lines.append(f"missing: {missing} configurations of A have no counterpart in B")
    undecided = sum(one.judgement == "undecided" for one in found)
    if undecided:
        lines.append(f"{undecided} of {len(found)} undecided: more repeats would decide")
    return lines
