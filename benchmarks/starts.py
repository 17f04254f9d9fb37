"""How long a person waits for a command: each beside the least that it can take, by turns.

    python benchmarks/starts.py --rounds 5
    python benchmarks/starts.py --before ../clone-of-an-older-commit

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
from servers import mlflow_server  # noqa: E402
from stored_runs import filed  # noqa: E402

from bench.config import RunConfig  # noqa: E402
from mlproject import COMMANDS  # noqa: E402

RUNS = 100
TINY = ("--arch", "resnet18", "--batch-size", "2", "--warmup-iters", "1", "--iters", "5")
BARE_SCRIPT = (str(PROJECT / "benchmarks" / "bare_loop.py"), *TINY)
IMPORT_TORCH = ("-c", "import torch")
IMPORT_MLFLOW = ("-c", "import mlflow")


@dataclass(frozen=True)
class Start:
    """A command of mlproject, and how many times as long as `beside` it may take.

    Without `beside`, which are arguments of Python, `limit` is in seconds.
    """

    title: str
    arguments: tuple[str, ...]
    limit: float
    beside: tuple[str, ...] | None = None
    without_cache: bool = False
    store: str | None = None


def starts(folder: Path, embedded: str, server: str) -> list[Start]:
    """Return what is measured; `folder` is for what the commands write."""
    run = ("run", *TINY, "--records", str(folder / "records"))
    count = ("complexity", "--arch", "resnet18")
    pull = ("pull", "--out", str(folder / "runs.csv"))
    compare = ("compare", "campaign=a", "campaign=b")
    asking = [
        Start(f"{question[0]}, {RUNS} runs {where}", question, 1.5, IMPORT_MLFLOW, store=store)
        for where, store in (("on a server", server), ("in an embedded store", embedded))
        for question in (pull, compare)
    ]
    return [
        Start("run, untracked", (*run, "--no-track"), 1.1, BARE_SCRIPT),
        Start("run, tracked", run, 1.25, BARE_SCRIPT),
        Start("complexity, model not seen before", count, 1.2, IMPORT_TORCH, without_cache=True),
        Start("complexity, model seen before", count, 1.0),
        *asking,
        Start("doctor", ("doctor", "--records", str(folder / "records")), 8.0),
        *(Start(f"{name} --help", (name, "--help"), 0.5) for name in COMMANDS),
    ]


def fill(store: str) -> None:
    """Upload a hundred runs of two campaigns."""
    from tracking.upload.upload import upload

    with tempfile.TemporaryDirectory() as folder:
        for number in range(RUNS):
            campaign, repeat = "ab"[number % 2], 1 + number // 20
            config = RunConfig(batch_size=2 ** (number // 2 % 10), campaign=campaign, repeat=repeat)
            times = [0.1 + 0.0001 * ((number + step) % 7) for step in range(20)]
            record = samples.run_record(config=config, measurement=samples.measurement(times))
            upload(*filed(Path(folder), record), tracking_uri=store, fresh=True)


def seconds_of(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path = PROJECT,
    without_cache: bool = False,
) -> float:
    """Return how long a program took from start to end; workers are those of `folder`."""
    with tempfile.TemporaryDirectory() as empty:
        cache = {"XDG_CACHE_HOME": empty} if without_cache else {}
        begin_s = time.perf_counter()
        output_of(command, folder, {**environment, **cache})
        return time.perf_counter() - begin_s


def python_of(clone: Path) -> str:
    """Return the interpreter that a clone was set up with, else this one."""
    own = clone / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return str(own) if own.exists() else sys.executable


def row(start: Start, rounds: int, environment: Mapping[str, str], before: Path | None) -> str:
    """Return the row of a start: medians of each side, and ratios with their intervals."""
    store = {} if start.store is None else {"MLFLOW_TRACKING_URI": start.store}
    timed = partial(seconds_of, environment={**environment, **store})
    ours = partial(timed, without_cache=start.without_cache)
    sides: dict[str, Callable[[], float]] = {
        "now": partial(ours, (sys.executable, str(PROJECT / "mlproject.py"), *start.arguments))
    }
    if before is not None:
        program = (python_of(before), str(before.resolve() / "mlproject.py"))
        sides["before"] = partial(ours, (*program, *start.arguments), folder=before)
    if start.beside is not None:
        sides["beside"] = partial(timed, (sys.executable, *start.beside))
    for side in sides.values():  # files are read from the disk once
        side()
    took = take_turns(sides, rounds)
    cells = [start.title]
    cells += [f"{statistics.median(took[s]):.2f}" if s in took else "" for s in ("before", "now")]
    for other in ("before", "beside"):
        known = other in took
        cells.append(ratio_with_interval(took["now"], took[other], digits=2) if known else "")
    cells.append(f"{start.limit:g}" if start.beside else f"{start.limit:g} s")
    return f"| {' | '.join(cells)} |"


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--only", "chosen", multiple=True, help="rows whose title has this in it")
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="a clone of an older commit, measured by turns with this one",
)
def main(rounds: int, chosen: tuple[str, ...], before: Path | None) -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory() as name, mlflow_server(Path(name)) as server:
        folder = Path(name)
        embedded = f"sqlite:///{folder}/mlflow.db"
        for store in (server, embedded):
            fill(store)
        environment = {
            "MLFLOW_TRACKING_URI": embedded,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": "",
        }
        click.echo(f"{this_machine()}; medians of {rounds} rounds\n")
        click.echo("| start | s before | s now | now / before | now / beside it | at most |")
        click.echo("|---|---|---|---|---|---|")
        for start in starts(folder, embedded, server):
            if not chosen or any(word in start.title for word in chosen):
                click.echo(row(start, rounds, environment, before))


if __name__ == "__main__":
    main()
