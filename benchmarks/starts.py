"""How long a person waits for a command: each beside the least that it can take, by turns.

    python benchmarks/starts.py --rounds 5

A run of five iterations has beside it the bare script that imports torch and torchvision, builds
the model and trains as long; what counts a step's work, the import of torch; what asks a store of a
hundred runs, the import of MLflow. Whole processes, from start to end.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from side_by_side import PROJECT, output_of, ratio_with_interval, take_turns, this_machine

sys.path[1:1] = [str(PROJECT / "tests")]

import samples  # noqa: E402
from stored_runs import filed  # noqa: E402

from bench.config import RunConfig  # noqa: E402
from mlproject import COMMANDS  # noqa: E402

RUNS = 100
TINY = ("--arch", "resnet18", "--batch-size", "2", "--warmup-iters", "1", "--iters", "5")
MLPROJECT = (sys.executable, str(PROJECT / "mlproject.py"))
IMPORT_TORCH = (sys.executable, "-c", "import torch")
IMPORT_MLFLOW = (sys.executable, "-c", "import mlflow")
BARE_SCRIPT = (sys.executable, str(PROJECT / "benchmarks" / "bare_loop.py"), *TINY)


@dataclass(frozen=True)
class Start:
    """A command, what it has beside it, and how many times as long, or how long, it may take.

    Without `beside`, `limit` is in seconds.
    """

    title: str
    command: tuple[str, ...]
    limit: float
    beside: tuple[str, ...] | None = None
    without_cache: bool = False


def starts(folder: Path) -> list[Start]:
    """Return what is measured; `folder` is for what the commands write."""
    run = (*MLPROJECT, "run", *TINY, "--records", str(folder / "records"))
    pull = (*MLPROJECT, "pull", "--out", str(folder / "runs.csv"))
    compare = (*MLPROJECT, "compare", "campaign=a", "campaign=b")
    doctor = (*MLPROJECT, "doctor", "--records", str(folder / "records"))
    count = (*MLPROJECT, "complexity", "--arch", "resnet18")
    return [
        Start("run, untracked", (*run, "--no-track"), 1.1, BARE_SCRIPT),
        Start("run, tracked", run, 1.25, BARE_SCRIPT),
        Start("complexity, model not seen before", count, 1.2, IMPORT_TORCH, without_cache=True),
        Start("complexity, model seen before", count, 1.0),
        Start(f"pull of {RUNS} runs", pull, 1.5, IMPORT_MLFLOW),
        Start(f"compare of {RUNS} runs", compare, 1.5, IMPORT_MLFLOW),
        Start("doctor", doctor, 8.0),
        *(Start(f"{name} --help", (*MLPROJECT, name, "--help"), 0.5) for name in COMMANDS),
    ]


def fill(store: str) -> None:
    """Upload a hundred runs of two campaigns."""
    os.environ["MLFLOW_TRACKING_URI"] = store
    from tracking.upload.upload import upload

    with tempfile.TemporaryDirectory() as folder:
        for number in range(RUNS):
            campaign, repeat = "ab"[number % 2], 1 + number // 20
            config = RunConfig(batch_size=2 ** (number // 2 % 10), campaign=campaign, repeat=repeat)
            times = [0.1 + 0.0001 * ((number + step) % 7) for step in range(20)]
            record = samples.run_record(config=config, measurement=samples.measurement(times))
            upload(*filed(Path(folder), record), fresh=True)


def seconds_of(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return how long a program took from start to end."""
    begin_s = time.perf_counter()
    output_of(command, environment=environment)
    return time.perf_counter() - begin_s


def measured(start: Start, rounds: int, environment: Mapping[str, str], folder: Path) -> list[str]:
    """Return the cells of a row: seconds, those of what is beside it, the ratio, and the limit."""

    def once() -> float:
        if not start.without_cache:
            return seconds_of(start.command, environment)
        with tempfile.TemporaryDirectory(dir=folder) as cache:
            return seconds_of(start.command, {**environment, "XDG_CACHE_HOME": cache})

    sides: dict[str, Callable[[], float]] = {"ours": once}
    if start.beside is not None:
        sides["beside"] = partial(seconds_of, start.beside, environment)
    for side in sides.values():  # files are read from the disk once
        side()
    took = take_turns(sides, rounds)
    ours = f"{statistics.median(took['ours']):.2f}"
    if start.beside is None:
        return [ours, "", "", f"{start.limit:g} s"]
    ratio = ratio_with_interval(took["ours"], took["beside"], digits=2)
    return [ours, f"{statistics.median(took['beside']):.2f}", ratio, f"{start.limit:g}"]


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--only", "chosen", multiple=True, help="rows whose title has this in it")
def main(rounds: int, chosen: tuple[str, ...]) -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = f"sqlite:///{folder}/mlflow.db"
        fill(store)
        environment = {"MLFLOW_TRACKING_URI": store, "XDG_CACHE_HOME": str(folder / "cache")}
        click.echo(f"{this_machine()}; medians of {rounds} rounds\n")
        click.echo("| start | s | s of what is beside it | ratio (95 % interval) | at most |")
        click.echo("|---|---|---|---|---|")
        for start in starts(folder):
            if not chosen or any(word in start.title for word in chosen):
                cells = measured(start, rounds, environment, folder)
                click.echo(f"| {' | '.join([start.title, *cells])} |")


if __name__ == "__main__":
    main()
