"""`mlproject compare`: two sets of runs against each other, and a gate for regressions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from bench.errors import UserError
from commands.views import machines_view
from commands.views.noise_view import show_noise_floor, write_table
from commands.views.options import metric_option, price_options, server_needed, writing
from commands.views.terminal import output, say_unreadable, text_table

if TYPE_CHECKING:
    from analysis.comparison import Comparison, Pairing
    from analysis.comparison.judgement import Gate
    from analysis.comparison.machines.prices import Prices
    from analysis.comparison.machines.speedups import MachinePair
    from analysis.runs.run import Run


def _reasons(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> frozenset[str]:
    from analysis.comparison.judgement import DEFAULT_REASONS, REASONS

    words = [word.strip() for text in given for word in text.split(",")]
    if not words:
        return frozenset(DEFAULT_REASONS)
    if "none" in words and len(words) > 1:
        raise UserError(f"fail-on={','.join(words)!r}: none stands alone")
    found = {"slower" if word == "worse" else word for word in words} - {"none"}
    if wrong := sorted(found - set(REASONS)):
        raise UserError(f"fail-on={wrong[0]!r}: give some of {', '.join(REASONS)}, or none")
    return frozenset(found)


@click.command()
@click.argument("a")
@click.argument("b", required=False)
@click.option(
    "--aa",
    is_flag=True,
    help="the noise floor of A alone: the smallest change that its repeats can show",
)
@metric_option
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
    multiple=True,
    callback=_reasons,
    metavar="WORDS",
    help="end with 1 where a configuration of B is slower (or worse), crashed, missing or "
    "undecided; words with commas between them, or none  [default: slower,crashed,missing]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the table (CSV, Markdown, LaTeX) and the picture (PNG, SVG)",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="markdown: ready for a comment on a pull request",
)
@price_options
def command(
    a: str,
    b: str | None,
    aa: bool,
    metric: str | None,
    threshold: float,
    correction: str,
    fail_on: frozenset[str],
    out: Path | None,
    form: str,
    prices: Prices,
) -> int:
    """Compare the runs of B with those of A, configuration by configuration.

    A and B are each short forms with commas between them, such as env=gcp-l4,arch=resnet18 (env,
    device, campaign, arch, precision, batch_size, verdict, run, records, baseline, any setting),
    run ids or an MLflow filter. Invalid runs are left out, suspect ones are named. Configurations
    are paired where they agree in all settings that A and B share; a batch size is compared with
    the same one alone. Of two machines, or with a price, shares of
    the roof and of the peak, energy and cost stand beside the speed. With --aa there is no B:
    halves of A's repeats are compared with each other, and nothing fails.

    Exit codes: 0 the gate passes; 1 it fails: B is slower (or worse) somewhere, or a configuration
    of A crashed or is missing in B, or what --fail-on names; 2 nothing to compare, or a wrong
    value. A comparison of single runs decides nothing, so only --fail-on undecided makes it fail.
    """
    from analysis.comparison import compare_pairs, compared_metric, pair_runs, read_sides
    from analysis.comparison.judgement import check_metric, judge_gate

    check_metric(metric)
    if aa:
        if b is not None:
            raise UserError(f"aa: takes one side, not also {b!r}")
        if prices:
            raise UserError("aa: the noise floor has no cost; leave out --price and --prices")
        return show_noise_floor(a, metric, threshold, correction, form, out)
    if b is None:
        raise UserError(f"B is missing: compare {a!r} with what? (--aa takes one side)")
    with server_needed():
        sides = read_sides(a, b, say_unreadable)
    chosen = compared_metric(metric, (*sides[0], *sides[1]))
    pairing = pair_runs(*sides, chosen.name)
    found = compare_pairs(pairing.pairs, chosen, threshold=threshold, correction=correction)
    gate = judge_gate(found, pairing, fail_on)
    machines = _machines(sides, found, pairing, prices)
    if out is not None:
        _write(found, pairing, threshold, out)
        if machines is not None:
            machines_view.write_machines(machines, out)
    if form == "json":
        facts = _facts(found, pairing, gate)
        click.echo(
            json.dumps(facts | {"machines": machines and machines_view.machine_facts(machines)})
        )
    elif form == "markdown":
        from analysis.comparison.comment import comment

        click.echo(comment(found, pairing, gate, sides=(a, b), threshold=threshold), nl=False)
        if machines is not None:
            click.echo(machines_view.machines_markdown(machines, prices), nl=False)
    else:
        _print(found, pairing, gate, machines, prices)
    return int(not gate.passed)


def _machines(
    sides: tuple[Sequence[Run], Sequence[Run]],
    found: Sequence[Comparison],
    pairing: Pairing,
    prices: Prices,
) -> MachinePair | None:
    """The two machines, where the sides differ in machine or a price is given."""
    from analysis.comparison.judgement import RATES
    from analysis.comparison.machines.across import between
    from analysis.runs.groups import sample_of
    from bench.config import rate_unit

    if pairing.metric not in RATES:
        if prices:
            unit = rate_unit(sample_of(sides[0]))
            raise UserError(
                f"--price: a cost follows from {unit}; leave out --metric {pairing.metric}"
            )
        return None
    if not found or not (prices or {"env", "device"} & set(pairing.differing)):
        return None
    return between(*sides, found, pairing.differing, prices)


def _write(found: Sequence[Comparison], pairing: Pairing, threshold: float, out: Path) -> None:
    from analysis.comparison.shown import comparison_table
    from analysis.figures import save_figure, single_axes
    from analysis.figures.charts.forest_plot import draw_forest, forest_height_in

    table = comparison_table(found, pairing)
    figure, axes = single_axes(height_in=forest_height_in(len(found)))
    draw_forest(axes, found, threshold=threshold)
    with writing(out):
        write_table(table, out)
        save_figure(figure, out, "comparison")


def _facts(found: Sequence[Comparison], pairing: Pairing, gate: Gate) -> dict[str, object]:
    from analysis.comparison.shown import in_doubt, machine_counts

    return {
        "gate": {"passed": gate.passed, "failed": list(gate.failed), "counts": dict(gate.counts)},
        "told_apart_by": list(pairing.differing),
        "also_differs": list(pairing.software),
        "comparisons": [
            {
                "configuration": one.label,
                "ran_with": one.also_differs({*pairing.differing, "env", "device"}),
                "a_runs": list(one.a.names),
                "b_runs": list(one.b.names),
                **one.facts,
                "interval_covers": one.estimate.covers,
                **dict(zip(("a_machines", "b_machines"), machine_counts(one), strict=True)),
            }
            for one in found
        ],
        "crashed": [group.label for group in pairing.crashed],
        "why_crashed": [pairing.why_alone[group.names] for group in pairing.crashed],
        "only_a": [group.label for group in pairing.only_a],
        "only_b": [group.label for group in pairing.only_b],
        "why_only_a": [pairing.why_alone[group.names] for group in pairing.only_a],
        "why_only_b": [pairing.why_alone[group.names] for group in pairing.only_b],
        "left_out": list(pairing.left_out),
        "in_doubt": in_doubt(found),
    }


def _print(
    found: Sequence[Comparison],
    pairing: Pairing,
    gate: Gate,
    machines: MachinePair | None,
    prices: Prices,
) -> None:
    from analysis.comparison.shown import comparison_table, notes, without_runs

    console = output(140)
    table = without_runs(comparison_table(found, pairing))
    view = text_table(
        [column.heading for column in table.columns],
        table.cells,
        left=[index for index, column in enumerate(table.columns) if not column.numeric],
    )
    difference = (
        ", ".join(pairing.differing) or "no setting: the same configurations in two sets of runs"
    )
    console.print(Text(f"{table.title}; A and B differ in {difference}"))
    console.print(view)
    if machines is not None:
        machines_view.print_machines(console, machines, prices)
    for line in (*notes(found, pairing), gate.sentence):
        console.print(Text(line))
