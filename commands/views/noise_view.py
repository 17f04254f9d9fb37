"""The noise floor of a machine on the terminal, in files and for programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from commands.views.options import server_needed, writing
from commands.views.terminal import output, say_unreadable, text_table

if TYPE_CHECKING:
    from analysis.comparison.noise_floor import NoiseFloor
    from analysis.table import Table


def show_noise_floor(
    side: str,
    metric: str | None,
    threshold: float,
    correction: str,
    form: str,
    out: Path | None,
) -> int:
    """Show how much the repeats of a side scatter by a metric, by default their rate; return 0."""
    from analysis.comparison import compared_metric, read_side
    from analysis.comparison.noise_floor import noise_floor, noise_sentences, noise_table

    with server_needed():
        runs = read_side(side, say_unreadable)
    chosen = compared_metric(metric, runs)
    floor = noise_floor(runs, chosen, threshold=threshold, correction=correction)
    table, sentences = noise_table(floor), noise_sentences(floor)
    if out is not None:
        with writing(out):
            write_table(table, out)
    if form == "json":
        click.echo(json.dumps(_facts(floor)))
    elif form == "markdown":
        click.echo("\n".join([table.markdown(), *(f"- {line}" for line in sentences)]))
    else:
        left = [index for index, column in enumerate(table.columns) if not column.numeric]
        console = output(140)
        console.print(Text(table.title))
        headings = [column.heading for column in table.columns]
        console.print(text_table(headings, table.cells, left=left))
        for line in sentences:
            console.print(Text(line))
    return 0


def write_table(table: Table, out: Path) -> None:
    """Write a table to the folder `out`, made if new, as CSV, Markdown and LaTeX."""
    out.mkdir(parents=True, exist_ok=True)
    for suffix, text in (("csv", table.csv()), ("md", table.markdown()), ("tex", table.latex())):
        (out / f"{table.name}.{suffix}").write_text(text, encoding="utf-8", newline="\n")


def _facts(floor: NoiseFloor) -> dict[str, object]:
    from analysis.comparison.noise_floor import REPEATS
    from analysis.statistics.ratios import POWER

    return {
        "metric": floor.metric.name,
        "threshold": floor.threshold,
        "power": POWER,
        "change_at_repeats": list(REPEATS),
        "configurations": [asdict(one) for one in floor.configurations],
        "machines": [asdict(one) for one in floor.machines],
        "halvings": floor.halvings,
        "failed": floor.failed,
        "drifted": [one.label for one in floor.drifted],
        "single": [group.label for group in floor.single],
    }
