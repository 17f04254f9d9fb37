"""What a sweep shows: its plan, its progress, and a table of what became of each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from bench.config import (
    FILING_FIELDS,
    WINDOW_FIELDS,
    RunConfig,
    Sample,
    common_sample,
    rate_metric,
    rate_unit,
    spelled,
)
from bench.records.journal import Event
from campaigns.sweep.executor import SweepWatch, Turn
from commands.views.terminal import Bar, duration_text, output, text_table

if TYPE_CHECKING:
    from bench.records import Environment, ProfileRecord, RunRecord
    from campaigns.sweep.executor import Executor
    from campaigns.sweep.plan import Plan, PlannedBlock

_AFTER_RATE = ("ms per iteration", "GFLOP/s", "")

#: What a block asks for, by the name of its backend.
_NEEDS = {
    "auto": "any device",
    "cpu": "a CPU (cpu)",
    "cuda": "an NVIDIA GPU (cuda)",
    "mps": "an Apple GPU (mps)",
}
_IN_LABEL = {"arch", "precision", "batch_size", "backend"}


def run_label(config: RunConfig) -> str:
    """Return `resnet18 amp bs16 cuda compile=default run2`: what is not the default, by name."""
    backend = [] if config.backend == "auto" else [config.backend]
    words = [config.arch, config.precision, f"bs{config.batch_size}", *backend]
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if name not in _IN_LABEL | WINDOW_FIELDS | FILING_FIELDS and value != field.default:
            words.append(f"{name}={spelled(value)}")
    return " ".join([*words, f"run{config.repeat}"])


class SweepProgress(Bar, SweepWatch):
    """A bar over the plan, with the time left from the pace so far; silent without a terminal."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            redirect_stdout=False,
            # One run may take minutes: the pace is that of the whole sweep.
            speed_estimate_period=7 * 24 * 3600,
        )
        self._task = self._progress.add_task("starting", total=len(plan.runs))

    def starting(self, number: int, config: RunConfig) -> None:
        """Name the run."""
        self._show(run_label(config))

    def on_event(self, event: Event) -> None:
        """Redraw, so that the time left goes on."""
        if event.name == "tick":
            self._progress.refresh()

    def waiting(self, holder: str) -> None:
        """Say who has the device, also where no terminal shows the bar."""
        self._progress.console.print(f"waiting for {holder}", highlight=False, markup=False)

    def ended(self, turn: Turn) -> None:
        """Count the run, and leave a line for it."""
        self._progress.advance(self._task)
        self._progress.console.print(_line(turn), highlight=False, soft_wrap=True)
        self._progress.refresh()

    def profiling(self, config: RunConfig) -> None:
        """Name the configuration whose step is profiled."""
        self._show(f"profile of {run_label(config)}")

    def profiled(self, record: ProfileRecord) -> None:
        """Leave a line for the profile."""
        label, why = run_label(record.config), record.reason or ""
        line = "  ".join(filter(None, [f"profile of {label}", record.outcome, why]))
        self._progress.console.print(line, highlight=False, soft_wrap=True)

    def _show(self, text: str) -> None:
        self._progress.update(self._task, description=text)
        self._progress.refresh()


def print_plan(plan: Plan, where: Executor, records: Path) -> None:
    """Print what each block needs, its runs here with their time, and those of other devices."""
    output(110).print(
        text_table(
            ("block", "needs", "runs", ""),
            (_block_cells(block, where) for block in plan.blocks),
            left=(0, 1, 3),
        )
    )
    _print_runs(plan.runs, f"on {where.place}")
    if plan.runs and where.environments:
        _print_estimate(plan, where.environments, records)
    for backend, runs in plan.elsewhere.items():
        click.echo()
        _print_runs(runs, f"not here, on a machine with {_NEEDS[backend]}")


def _block_cells(block: PlannedBlock, where: Executor) -> Iterator[str]:
    yield block.name
    yield " or ".join(_NEEDS[backend] for backend in block.needs)
    yield str(block.runs)
    notes = []
    if block.runs_here:
        notes.append("here" if block.runs_here == block.runs else f"{block.runs_here} of them here")
    elif block.runs_elsewhere:
        notes.append(f"not here: {where.place} has {' and '.join(sorted(where.backends))}")
    if block.packages:
        notes.append(f"{block.runs_without_package} without {' and '.join(block.packages)}")
    yield "; ".join(notes)


def _print_runs(runs: Sequence[RunConfig], where: str) -> None:
    for number, config in enumerate(runs, start=1):
        click.echo(f"{number:5d}  {run_label(config)}")
    click.echo(f"{len(runs)} runs {where}")


def _print_estimate(plan: Plan, environments: tuple[Environment, ...], records: Path) -> None:
    from bench.cost import config_complexity
    from bench.records import RunRecord
    from bench.records.folders import readable_records
    from campaigns.sweep.durations import Durations

    durations = Durations(
        (each for _, each in readable_records(records) if isinstance(each, RunRecord)),
        lambda config: config_complexity(config, batch_size=1).step_flops_per_sample,
    )
    known_s, unknown = durations.of_all(plan.runs, environments)
    if known := len(plan.runs) - unknown:
        click.echo(
            f"about {duration_text(known_s)} for {known} of them, "
            "from what this machine measured before"
        )
    if unknown:
        click.echo(f"unknown for {unknown}: nothing like them was measured here yet")


def print_turns(turns: Sequence[Turn]) -> None:
    """Print a table of what became of each run."""
    table = text_table(_headings(turns), map(_cells, turns), left=(0, 1, 5))
    output(110).print(table)


def turns_markdown(turns: Sequence[Turn]) -> str:
    """Return the same table for the description of the sweep's own run."""
    headings = _headings(turns)
    rows = [list(headings), ["---"] * len(headings)]
    rows += [list(_cells(turn)) for turn in turns]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def _sample(turn: Turn) -> Sample | None:
    """What the run trained on; None where it did not come so far."""
    resolved = turn.record.resolved if turn.record is not None else None
    return None if resolved is None else resolved.sample


def _headings(turns: Sequence[Turn]) -> tuple[str, ...]:
    samples = (sample for turn in turns if (sample := _sample(turn)) is not None)
    return ("run", "outcome", rate_unit(common_sample(samples)), *_AFTER_RATE)


def _cells(turn: Turn) -> Iterator[str]:
    from bench.records.verdict.record_metrics import summary

    yield run_label(turn.config)
    yield turn.outcome if turn.state == "measured" and turn.outcome else turn.state
    found = summary(turn.record) if turn.record is not None else {}
    rate = rate_metric(_sample(turn) or "image")
    for name in (rate, "iteration_time_ms_p50", "attained_gflops"):
        yield f"{found[name]:.4g}" if name in found else ""
    yield turn.reason or _doubts(turn.record)


def _doubts(record: RunRecord | None) -> str:
    if record is None or record.verdict is None or record.verdict.level == "clean":
        return ""
    return f"{record.verdict.level}: {'; '.join(f.message for f in record.verdict.findings)}"


def _line(turn: Turn) -> str:
    label, outcome, rate, *_, reason = _cells(turn)
    unit = rate_unit(_sample(turn) or "image")
    return "  ".join([label, outcome, *([f"{rate} {unit}"] if rate else []), reason]).rstrip()
