"""What a tuning shows and leaves: a line per comparison, what was found, tables and a figure."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import TextColumn

from bench.config import RunConfig, rate_unit
from bench.records.journal import Event
from campaigns.tune.knobs import changes
from campaigns.tune.result import Trial, TuneWatch
from commands.views.options import writing
from commands.views.terminal import Bar

if TYPE_CHECKING:
    from analysis.tuning.account import Place
    from campaigns.tune.result import PairedComparison, TuneResult


class TuneProgress(Bar, TuneWatch):
    """A bar over the budget, and a line per comparison; the bar only on a terminal."""

    def __init__(self, start: RunConfig, budget_s: float, began_s: float) -> None:
        self._start = start
        self._began_s = began_s
        self._trial = 0
        self._unit = rate_unit("sample")  # until a trial says what its samples are
        super().__init__(
            TextColumn("{task.completed:.0f} of {task.total:.0f} s"), redirect_stdout=False
        )
        self._task = self._progress.add_task("starting", total=budget_s)

    def starting(self, config: RunConfig) -> None:
        """Name the trial."""
        self._show(f"trial {self._trial + 1}: {config.arch} {changes(self._start, config)}")

    def on_event(self, event: Event) -> None:
        """Take one event of the trial's worker, or the launcher's tick."""
        if event.name == "waiting":
            self._say(f"waiting for {event.facts['holder']}")
        elif event.name == "tick":
            self._show(None)

    def ended(self, trial: Trial) -> None:
        """Count the trial; one of the start gets a line of its own."""
        self._trial = trial.number
        if trial.record.resolved is not None:
            self._unit = rate_unit(trial.record.resolved.sample)
        if trial.stage == "start":
            self._say(f"start: {trial.rate_words}")

    def ruled(self, comparison: PairedComparison) -> None:
        """Say what became of a value."""
        line = f"{comparison.name}: {comparison.decision}"
        if comparison.interval is not None:
            pairs = f"{len(comparison.ratios)} pair{'s' * (len(comparison.ratios) > 1)}"
            line += f", {comparison.interval.ratio:.3f} times the {self._unit} in {pairs}"
        self._say(line + (f" ({comparison.reason})" if comparison.reason else ""))

    def _say(self, line: str) -> None:
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _show(self, text: str | None) -> None:
        completed = time.monotonic() - self._began_s
        self._progress.update(self._task, completed=completed)
        if text is not None:
            self._progress.update(self._task, description=text)
        self._progress.refresh()


def print_result(result: TuneResult, place: Place) -> None:
    """Print the best command line, what each knob gave, and what to know besides."""
    from analysis.tuning.account import (
        best_command,
        caveats,
        effects,
        roof_line,
        time_line,
        times,
        verdict_line,
    )

    click.echo(best_command(result))
    for line in (verdict_line(result), roof_line(place), time_line(result)):
        click.echo(f"  {line}")
    if result.ablation:
        click.echo()
        shown = effects(result)
        names = [f"{each.name}: {each.best_value} over {each.other_value}" for each in shown]
        width = max(map(len, names))
        for name, each in zip(names, shown, strict=True):
            click.echo(f"  {name:<{width}}  {times(each.interval)}")
    for line in caveats(result):
        click.echo(f"  {line}")


def write_files(result: TuneResult, place: Place, out: Path) -> None:
    """Write tuning.md, tuning.json, and the figure as PNG and SVG.

    Raises `UserError` where `out` cannot be written.
    """
    from analysis.figures import save_figure
    from analysis.tuning.account import tuning_facts, tuning_markdown
    from analysis.tuning.tuning_figure import tuning_figure

    facts = json.dumps(tuning_facts(result, place), indent=1, allow_nan=False)
    with writing(
        out,
        "choose another folder: no trial is lost, the same command goes on from here",
    ):
        out.mkdir(parents=True, exist_ok=True)
        (out / "tuning.md").write_text(tuning_markdown(result, place), encoding="utf-8")
        (out / "tuning.json").write_text(f"{facts}\n", encoding="utf-8")
        save_figure(tuning_figure(result), out, "tuning")


def log_files(result: TuneResult, place: Place, out: Path, run_id: str | None) -> str | None:
    """Log the files as a run of their own, or as `run_id`; return why not, or None."""
    from analysis.tuning.account import best_command, roof_line, verdict_line
    from tracking import schema
    from tracking.store import TrackingError
    from tracking.upload.upload import log_report

    campaign = result.start.campaign
    lines = (f"`{best_command(result)}`", verdict_line(result), roof_line(place))
    tags = {schema.KIND: "tune", schema.CAMPAIGN: campaign, schema.NOTE: "\n\n".join(lines)}
    try:
        log_report(out, name=f"{campaign}_tune", tags=tags, run_id=run_id)
    except TrackingError as error:
        return str(error)
    return None
