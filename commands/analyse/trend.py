"""`mlproject trend`: configurations over their history, and when they changed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commands.views.options import metric_option, server_needed, writing
from commands.views.terminal import say_unreadable

if TYPE_CHECKING:
    from analysis.comparison.trend import History, Point, Turn


@click.command()
@click.argument("side")
@metric_option
@click.option(
    "--threshold",
    type=click.FloatRange(0, 10, min_open=True),
    default=0.02,
    show_default=True,
    help="share by which the newest level must be worse than the one before to end with 1",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for the figure (PNG, SVG) and the points (CSV)",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
    help="csv: a row per point",
)
def command(side: str, metric: str | None, threshold: float, out: Path | None, form: str) -> int:
    """Show each configuration of SIDE over time, with the changes of its level.

    SIDE is as in mlproject compare: short forms with commas between them, such as
    env=gcp-l4,arch=resnet18, run ids or an MLflow filter. Runs in a row of one campaign, with the
    same software, are one point; five points are needed.

    Exit codes: 0 the newest level of no configuration is worse; 1 one is, by more than --threshold;
    2 no configuration with five points, or a wrong value.
    """
    from analysis.comparison import compared_metric
    from analysis.comparison.judgement import check_metric
    from analysis.comparison.sides import read_side
    from analysis.comparison.trend import histories

    check_metric(metric)
    with server_needed():
        runs = read_side(side, say_unreadable)
    found = histories(runs, compared_metric(metric, runs))
    if out is not None:
        _write(found, out)
    if form == "json":
        click.echo(json.dumps([_facts(history, threshold) for history in found]))
    elif form == "csv":
        click.echo(_csv(found), nl=False)
    else:
        _print(found, threshold)
    return int(any(history.worse(threshold) for history in found))


def _write(found: Sequence[History], out: Path) -> None:
    from analysis.figures import save_figure
    from analysis.figures.charts.trend_chart import trend_figure

    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / "trend.csv").write_text(_csv(found), encoding="utf-8", newline="\n")
        save_figure(trend_figure([one for one in found if one.judged]), out, "trend")


def _csv(found: Sequence[History]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["configuration", "started", found[0].metric.name, "level", "campaign", "runs"]
    known = sorted({name for one in found for point in one.points for name in point.facts})
    writer.writerow([*names, *known])
    for history in found:
        for number, (start, end, _) in enumerate(history.levels, start=1):
            for point in history.points[start:end]:
                writer.writerow(
                    [
                        *(history.label, point.started.isoformat(), point.value, number),
                        *(point.campaign, " ".join(run.name for run in point.runs)),
                        *(point.facts.get(name) for name in known),
                    ]
                )
    return text.getvalue()


def _facts(history: History, threshold: float) -> dict[str, object]:
    return {
        "configuration": history.label,
        "metric": history.metric.name,
        "judged": history.judged,
        "worse": history.worse(threshold),
        "points": [
            {
                "started": point.started.isoformat(),
                "value": point.value,
                "campaign": point.campaign,
                "runs": [run.name for run in point.runs],
                **{"facts": point.facts},
            }
            for point in history.points
        ],
        "changes": [
            {
                "at": turn.after.started.isoformat(),
                "earliest": turn.earliest.started.isoformat(),
                "latest": turn.latest.started.isoformat(),
                "ratio": turn.change.estimate.ratio,
                "ratio_low": turn.change.estimate.low,
                "ratio_high": turn.change.estimate.high,
                "p": turn.change.chance,
                "differs": list(turn.differs),
            }
            for turn in history.turns
        ],
    }


def _print(found: Sequence[History], threshold: float) -> None:
    from analysis.runs.quantities import counted, three_digits

    for history in found:
        points, unit = counted(len(history.points), "point"), history.metric.unit
        first, last = _day(history.points[0]), _day(history.points[-1])
        if not history.judged:
            click.echo(f"{history.label}: {points}, too few for a history")
            continue
        levels = " -> ".join(three_digits(mean) for _, _, mean in history.levels)
        changes = counted(len(history.turns), "change")
        click.echo(f"{history.label}: {points} from {first} to {last}, {changes}: {levels} {unit}")
        for turn in history.turns:
            click.echo(f"    {_line(turn)}")
        if history.worse(threshold):
            click.echo(f"    worse: by more than {100 * threshold:g} %")


def _line(turn: Turn) -> str:
    """`2026-11-03: -3.1 % (95 %: -3.6 to -2.6 %); torch 2.11.0 -> 2.15.0`."""
    estimate = turn.change.estimate
    low, high = (None if end is None else 100 * (end - 1) for end in (estimate.low, estimate.high))
    span = "" if low is None or high is None else f" (95 %: {low:+.1f} to {high:+.1f} %)"
    ends = [_day(turn.earliest), _day(turn.latest)]
    place = "" if ends[0] == ends[1] else f", at the earliest {ends[0]}, at the latest {ends[1]}"
    besides = "; ".join(turn.differs) or "the records name nothing else that changed"
    return f"{_day(turn.after)}: {100 * (estimate.ratio - 1):+.1f} %{span}{place}; {besides}"


def _day(point: Point) -> str:
    return point.started.strftime("%Y-%m-%d %H:%M")
